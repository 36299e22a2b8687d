"""A unit's steps run the kernels that TensorFlow runs, as profiles show them."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from profiled_events import profile, ways_of_steps
from stage_program import operation
from tensorflow.core.framework import node_def_pb2
from unit_program import Run, in_graph, stock

pytestmark = pytest.mark.usefixtures("plugin_off")

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
    ("FusedBatchNorm", [IMAGE, *CHANNELS], {"is_training": False}),
    ("FusedBatchNormV2", [IMAGE, *CHANNELS], {"is_training": False}),
    ("FusedBatchNormV3", [IMAGE, *CHANNELS], {"is_training": True}),
    ("FusedBatchNormV3", [VOLUME, *CHANNELS], {"is_training": False, "data_format": "NDHWC"}),
    ("FusedBatchNormGradV3", [IMAGE, IMAGE, *CHANNELS], {"is_training": True}),
    ("_FusedBatchNormEx", [IMAGE, *CHANNELS], {"is_training": False, "activation_mode": "Relu"}),
    ("Relu", [IMAGE], {}),
    ("LeakyRelu", [IMAGE], {}),
    ("ConcatV2", [IMAGE, IMAGE, np.int32(3)], {"N": 2}),
    ("LRN", [IMAGE], {"depth_radius": 2, "beta": 0.6}),
    ("BiasAdd", [IMAGE, [4]], {}),
    ("Pad", [IMAGE, np.int32([[0, 0]] * 4)], {}),
]


def step_of(name: str, case: Case, dtype: tf.DType) -> node_def_pb2.NodeDef:
    op, inputs, attributes = case
    count = len(inputs) - 2
    if op.startswith("_FusedConv2D"):
        attributes = attributes | {"num_args": count, "TArgs": [dtype] * count}
    elif op.startswith("_Fused") and "BatchNorm" not in op:
        attributes = attributes | {"num_args": count}
    node = operation(name, op, [f"inputs:{i}" for i in range(len(inputs))], dtype, **attributes)
    if "BatchNorm" in op and op[-1] in "x23":
        node.attr["U"].type = tf.float32.as_datatype_enum
    return node


def tensors_of(case: Case, dtype: tf.DType) -> list[tf.Tensor]:
    op, inputs, _ = case
    return [
        tf.constant(each)
        if isinstance(each, np.ndarray | np.generic)
        else tf.ones(each, tf.float32 if "BatchNorm" in op and each == [4] else dtype)
        for each in inputs
    ]


def ops_run(
    folder: pathlib.Path, make: Callable[[Any], Run], steps: list[Any]
) -> dict[str, set[str]]:
    """Runs each step by itself; returns the ops of the kernels by name, without those that fail."""
    ran = []

    def run() -> None:
        for step, tensors in steps:
            try:
                make(step)(*tensors)
            except (ValueError, tf.errors.OpError):
                continue
            ran.append(step.name)

    ways = ways_of_steps(profile(folder, run))
    return {name: ways[name] for name in ran}


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_steps_run_the_kernels_that_tensorflow_runs(
    unit: Any, dtype: tf.DType, tmp_path: pathlib.Path
) -> None:
    steps = [
        (step_of(f"case_{place}", case, dtype), tensors_of(case, dtype))
        for place, case in enumerate(CASES)
    ]
    results = ["steps:0:0"]
    own = ops_run(tmp_path / "stock", lambda step: stock([step], results), steps)
    assert len(own) == len(CASES) or dtype is not tf.float32
    ours = ops_run(tmp_path / "unit", lambda step: in_graph(unit, [step], results, dtype), steps)
    assert {name: ours.get(name) for name in own} == own
