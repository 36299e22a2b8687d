"""The kernels that a unit takes for its steps are those that TensorFlow runs.

TensorFlow's choice is read from graphs that it ran: a function's graph before and after the pass
that renames nodes for oneDNN.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_program import operation
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import test_util

from tf_interop.runtime import kernel_library

pytestmark = pytest.mark.usefixtures("plugin_off")

NodeDef = node_def_pb2.NodeDef


IMAGE, FILTER, DEPTHWISE = [1, 8, 8, 4], [3, 3, 4, 4], [3, 3, 4, 1]
VOLUME, CUBE = [1, 4, 4, 4, 4], [3, 3, 3, 4, 4]
SIZES_2D, SIZES_3D = np.int32(IMAGE), np.int32(VOLUME)
PLAIN = {"strides": [1] * 4, "padding": "SAME"}
PADDED = PLAIN | {"padding": "EXPLICIT", "explicit_paddings": [0, 0, 1, 1, 1, 1, 0, 0]}
IN_3D = {"strides": [1] * 5, "padding": "SAME"}
POOL = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
POOL_3D = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "SAME"}
OF_CHANNELS = {"ksize": [1, 1, 1, 2], "strides": [1, 1, 1, 2], "padding": "VALID"}
POOLED, POOLED_3D, MATRIX = [1, 4, 4, 4], [1, 2, 2, 2, 4], [8, 8]
DTYPES = (tf.float32, tf.bfloat16, tf.float16, tf.float64)
CHANNELS = [[4]] * 4  # of a batch normalization


def renamed(node: NodeDef, has_constant_filter: bool) -> NodeDef:
    """The node whose kernel a step of a unit runs."""
    collected: list[bytes] = []
    sink = kernel_library._SINK_TYPE(
        lambda data, size: collected.append(ctypes.string_at(data, size))
    )
    serialized = node.SerializeToString()
    rename = kernel_library.load_kernel_library().functions.TfiRenameForOneDnn
    assert rename(serialized, len(serialized), has_constant_filter, sink)
    return NodeDef.FromString(collected[0])


def fused(*ops: str, **attributes: Any) -> dict[str, Any]:
    return {"fused_ops": list(ops), **attributes}


# Op, shapes or values of the inputs (an array is a value), attributes.
Case = tuple[str, Sequence[Any], dict[str, Any]]
CASES: list[Case] = [
    *(
        case
        for padding in (PLAIN, PADDED)
        for case in (
            ("Conv2D", [IMAGE, FILTER], padding),
            ("Conv2DBackpropInput", [SIZES_2D, FILTER, IMAGE], padding),
            ("Conv2DBackpropFilter", [IMAGE, np.int32(FILTER), IMAGE], padding),
            ("DepthwiseConv2dNative", [IMAGE, DEPTHWISE], padding),
        )
    ),
    ("DepthwiseConv2dNativeBackpropInput", [SIZES_2D, DEPTHWISE, IMAGE], PADDED),
    ("Conv3D", [VOLUME, CUBE], IN_3D),
    ("Conv3DBackpropInputV2", [SIZES_3D, CUBE, VOLUME], IN_3D),
    ("Conv3DBackpropFilterV2", [VOLUME, np.int32(CUBE), VOLUME], IN_3D),
    ("_FusedConv2D", [IMAGE, FILTER, [4]], fused("BiasAdd", **PLAIN)),
    ("_FusedConv2D", [IMAGE, FILTER, [4]], fused("BiasAdd", "Elu", **PLAIN)),
    ("_FusedConv2D", [IMAGE, FILTER, [4], IMAGE], fused("BiasAdd", "Add", "Relu", **PLAIN)),
    ("_FusedConv2D", [IMAGE, FILTER, *CHANNELS], fused("FusedBatchNorm", "Relu6", **PLAIN)),
    ("_FusedConv3D", [VOLUME, CUBE, [4]], fused("BiasAdd", "Relu", **IN_3D)),
    ("_FusedDepthwiseConv2dNative", [IMAGE, DEPTHWISE, [4]], fused("BiasAdd", "Relu6", **PLAIN)),
    ("_FusedMatMul", [MATRIX, MATRIX, [8]], fused("BiasAdd", "Relu")),
    ("MatMul", [MATRIX, MATRIX], {}),
    ("BatchMatMul", [[2, 8, 8], [2, 8, 8]], {}),
    ("BatchMatMulV2", [[2, 8, 8], [2, 8, 8]], {}),
    ("Einsum", [[4, 3], [3, 2]], {"equation": "ab,bc->ac", "N": 2}),
    ("Softmax", [MATRIX], {}),
    ("Transpose", [[4, 3, 2], np.int32([2, 1, 0])], {}),
    ("ConjugateTranspose", [[4, 3, 2], np.int32([2, 1, 0])], {}),
    ("AvgPool", [IMAGE], POOL),
    ("AvgPoolGrad", [SIZES_2D, POOLED], POOL),
    ("AvgPool3D", [VOLUME], POOL_3D),
    ("AvgPool3DGrad", [SIZES_3D, POOLED_3D], POOL_3D),
    ("MaxPool", [IMAGE], POOL),
    ("MaxPool", [IMAGE], PADDED | {"ksize": [1, 2, 2, 1]}),
    ("MaxPool", [IMAGE], OF_CHANNELS),
    ("MaxPool3D", [VOLUME], POOL_3D),
    ("MaxPoolGrad", [IMAGE, POOLED, POOLED], POOL),
    ("FusedBatchNorm", [IMAGE, *CHANNELS], {"is_training": False}),
    ("FusedBatchNormV2", [IMAGE, *CHANNELS], {"is_training": False}),
    ("FusedBatchNormV3", [IMAGE, *CHANNELS], {"is_training": True}),
    ("FusedBatchNormV3", [VOLUME, *CHANNELS], {"is_training": False, "data_format": "NDHWC"}),
    ("FusedBatchNormGradV3", [IMAGE, IMAGE, *CHANNELS], {"is_training": True}),
    ("_FusedBatchNormEx", [IMAGE, *CHANNELS], {"is_training": False, "activation_mode": "Relu"}),
    ("Relu", [IMAGE], {}),
    ("LeakyRelu", [IMAGE], {}),
    ("AddV2", [IMAGE, IMAGE], {}),
    ("ConcatV2", [IMAGE, IMAGE, np.int32(3)], {"N": 2}),
    ("LRN", [IMAGE], {"depth_radius": 2}),
    ("BiasAdd", [IMAGE, [4]], {}),
    ("Pad", [IMAGE, np.int32([[0, 0]] * 4)], {}),
]


def node_of(op: str, inputs: Sequence[Any], dtype: tf.DType, attributes: dict[str, Any]) -> NodeDef:
    count = len(inputs) - 2
    if op.startswith("_FusedConv2D"):
        attributes = attributes | {"num_args": count, "TArgs": [dtype] * count}
    elif op.startswith("_Fused") and "BatchNorm" not in op:
        attributes = attributes | {"num_args": count}
    node = operation("case", op, [f"i{i}" for i in range(len(inputs))], dtype, **attributes)
    if "BatchNorm" in op and op[-1] in "x23":
        node.attr["U"].type = tf.float32.as_datatype_enum
    return node


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_unit_takes_the_kernel_that_tensorflow_runs(case: Case, dtype: tf.DType) -> None:
    op, inputs, attributes = case
    own = graph_pb2.GraphDef(node=[node_of(op, inputs, dtype, attributes)])
    tensors = []
    for place, each in enumerate(inputs):
        is_statistic = "BatchNorm" in op and each == [4]
        tensor = (
            tf.constant(each)
            if isinstance(each, np.ndarray | np.generic)
            else tf.ones(each, tf.float32 if is_statistic else dtype)
        )
        tensors.append(tensor)
        placeholder = own.node.add(name=f"i{place}", op="Placeholder")
        placeholder.attr["dtype"].type = tensor.dtype.as_datatype_enum

    @tf.function(autograph=False)
    def run(*tensors: tf.Tensor) -> Any:
        fed = {f"i{i}:0": tensor for i, tensor in enumerate(tensors)}
        return tf.graph_util.import_graph_def(own, fed, ["case:0"], name="")

    assert_same_kernel(run, tensors, dtype, has_constant_filter=False)


def test_a_constant_filter_is_marked_as_tensorflow_marks_it() -> None:
    @tf.function(autograph=False)
    def run(image: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(image, np.ones(FILTER, np.float32), 1, "SAME", name="case")

    run_op = assert_same_kernel(run, [tf.ones(IMAGE)], tf.float32, has_constant_filter=True)
    assert run_op.attr["is_filter_const"].b or not test_util.IsMklEnabled()


def assert_same_kernel(
    run: Callable[..., Any], tensors: Sequence[Any], dtype: tf.DType, *, has_constant_filter: bool
) -> NodeDef:
    """Asserts that a unit runs the node `case` by TensorFlow's kernel; what TensorFlow ran."""
    context.context().enable_graph_collection()
    try:
        run(*tensors)
    except (ValueError, tf.errors.OpError):
        if dtype is tf.float32:
            raise
        pytest.skip("TensorFlow does not run it in this dtype")
    finally:
        metadata = context.context().export_run_metadata()
        context.context().disable_graph_collection()
    [*_, graphs] = metadata.function_graphs
    node = node_named("case", [graphs.post_optimization_graph])
    run_op = node_named("case", graphs.partition_graphs)
    if "MaxPoolGrad" in run_op.op:
        return run_op  # with a tensor that the forward node hands over, which a unit does not have
    ours = renamed(node, has_constant_filter)
    assert ours.op == run_op.op
    for key in ("_kernel", "is_filter_const"):
        assert ours.attr[key] == run_op.attr[key]
    return run_op


def node_named(name: str, graphs: Sequence[graph_pb2.GraphDef]) -> NodeDef:
    # The last one: a run that failed may have left its own.
    [*_, node] = [node for graph in graphs for node in graph.node if node.name == name]
    return node
