"""The convolutions that can be in stages, their configurations, and the reasons for refusals."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import tensorflow as tf
from convolution_cases import (
    LAYOUTS,
    PADDINGS,
    case_of,
    parameters_of,
    to_layout,
    whole_numbers,
)
from graph_builder import (
    BFLOAT16,
    CPU,
    DOUBLE,
    GPU,
    GraphBuilder,
    add_shapes,
    graph_of,
    same_graph,
)
from tensorflow.core.framework import graph_pb2, types_pb2

from tf_interop.convolution import (
    FUSED_OPS,
    ConvolutionConfiguration,
    ConvolutionKind,
    ConvolutionNode,
    Refusal,
    RefusalReason,
)
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.ops import CONVOLUTION_KINDS
from tf_interop.graph.properties import GraphProperties, ShapeInference
from tf_interop.graph.view import GraphView

IMAGE, FILTER = (8, 28, 30, 16), (3, 5, 16, 32)
VOLUME, VOLUME_FILTER = (2, 7, 28, 30, 16), (2, 3, 5, 16, 32)
ATTRIBUTE = RefusalReason.ATTRIBUTE


def find(
    graph: GraphBuilder, infer: ShapeInference | None = None
) -> tuple[tuple[ConvolutionNode, ...], tuple[Refusal, ...]]:
    """Finds convolutions and refusals; asserts that the graph did not change."""
    before = graph_pb2.GraphDef.FromString(graph.graph_def.SerializeToString())
    view = GraphView(graph.graph_def)
    found = find_convolutions(view, GraphProperties(view, infer))
    assert same_graph(graph.graph_def, before)
    return found


def convolution(
    op: str = "Conv2D",
    image: tuple[int | None, ...] | None = IMAGE,
    filter_: tuple[int | None, ...] | None = FILTER,
    device: str = GPU,
    **changes: Any,
) -> GraphBuilder:
    """A graph of one convolution `c`; sizes give the shape of a gradient."""
    graph = GraphBuilder(device)
    kind = CONVOLUTION_KINDS[op]
    add = graph.conv
    if kind is ConvolutionKind.FORWARD:
        inputs = [graph.source("x", image), graph.source("f", filter_)]
        if op.startswith("_Fused"):
            add = graph.fused_conv
            inputs.append(graph.source("bias"))
    elif kind is ConvolutionKind.BACKWARD_INPUT:
        inputs = [graph.sizes("sizes", image), graph.source("f", filter_), graph.source("gradient")]
    else:
        inputs = [graph.source("x", image), graph.sizes("sizes", filter_), graph.source("gradient")]
    add("c", *inputs, op=op, **changes)
    return graph


def only(graph: GraphBuilder, infer: ShapeInference | None = None) -> ConvolutionConfiguration:
    [node], refusals = find(graph, infer)
    assert not refusals
    return node.configuration


@pytest.mark.parametrize(
    ("layout", "padding"),
    [
        (layout, padding)
        for rank in LAYOUTS
        for layout in LAYOUTS[rank]
        for padding in PADDINGS[rank]
    ],
)
def test_finds_every_kind(layout: str, padding: str) -> None:
    for each in parameters_of(len(layout) - 2, padding):
        if each.geometry.name != "ordinary":
            continue
        operands = whole_numbers(each)
        image, output = (
            to_layout(tensor, layout).shape for tensor in (operands.image, operands.gradient)
        )
        attributes = case_of(each, operands, tf.float32, layout).attributes
        assert only(convolution(each.op, image, each.filter_shape, **attributes)) == (
            ConvolutionConfiguration(
                op=each.op,
                kind=each.kind,
                depthwise=each.multiplier is not None,
                dtype="float32",
                layout=layout,
                image_shape=image,
                filter_shape=each.filter_shape,
                output_shape=output,
                strides=each.strides,
                dilations=each.dilations,
                padding=padding,
                explicit_paddings=(
                    tuple(itertools.chain(*each.pads)) if padding == "EXPLICIT" else ()
                ),
                group_count=each.groups,
            )
        )


def test_finds_a_convolution_without_attributes_that_have_defaults() -> None:
    graph = convolution(**dict.fromkeys(("dilations", "data_format", "explicit_paddings")))
    [found], _ = find(graph)
    assert found == ConvolutionNode("c", 2, GPU, "", only(convolution()))


FUSED = {"op": "_FusedConv2D"}
FORWARD_3D = {"op": "Conv3D", "image": VOLUME, "filter_": VOLUME_FILTER}


# Changes of the default convolution, and the resulting fields of its configuration.
@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ({"_XlaMustCompile": False, "_xla_inferred_shapes": ""}, {"op": "Conv2D"}),
        (
            {"image": None, "filter_": None},
            dict.fromkeys(("image_shape", "filter_shape", "output_shape", "group_count")),
        ),
        *(
            (FUSED | {"fused_ops": [*fused]}, {"fused_ops": fused, "leaky_relu_alpha": alpha})
            for fused in FUSED_OPS
            for alpha in [pytest.approx(0.2) if "LeakyRelu" in fused else 0]
        ),
    ],
)
def test_finds(of: dict[str, Any], expected: dict[str, Any]) -> None:
    configuration = only(convolution(**of))
    assert {name: getattr(configuration, name) for name in expected} == expected


@pytest.mark.parametrize("op", sorted(CONVOLUTION_KINDS))
def test_finds_every_op_in_every_dtype_on_every_device(op: str) -> None:
    image, filter_ = (VOLUME, VOLUME_FILTER) if "3D" in op else (IMAGE, FILTER)
    for device, (dtype, name) in itertools.product(
        (CPU, GPU), ((BFLOAT16, "bfloat16"), (DOUBLE, "float64"))
    ):
        of_bias = {"TArgs": [dtype]} if op == "_FusedConv2D" else {}
        found = only(convolution(op, image, filter_, device, T=dtype, **of_bias))
        assert (found.op, found.dtype) == (op, name)


@pytest.mark.parametrize(
    "device", ["", "/device:GPU:3", "/gpu:0", "GPU:1", "/job:worker/task:1", "/job:w/cpu:*"]
)
def test_finds_on_device(device: str) -> None:
    [node], _ = find(convolution(device=device))
    assert node.device == device


def test_takes_shapes_from_all_sources() -> None:
    shapes = {"x": [(4, 8, 8, 16)], "f": [(1, 1, 16, 64)]}
    inferred = only(convolution(image=None, filter_=None), shapes.get)
    assert inferred.output_shape == (4, 8, 8, 64)

    graph = graph_of({"c": "Conv2DBackpropInput sizes f gradient"})
    add_shapes(graph.node("c"), "_output_shapes", [(None, 28, 30, 16)])
    assert only(graph).image_shape == (None, 28, 30, 16)

    graph = convolution("Conv2DBackpropFilter", (None, 28, 30, 16), (3, 3, 1, 16))
    add_shapes(graph.node("gradient"), "_output_shapes", [(8, None, None, None)])
    configuration = only(graph)
    assert configuration.image_shape == (None, 28, 30, 16)
    assert configuration.output_shape == (8, 28, 30, 16)


REFUSED: list[tuple[RefusalReason, dict[str, Any]]] = [
    (RefusalReason.DEVICE, {"device": "/device:XLA_GPU:0"}),
    (RefusalReason.DTYPE, {"T": types_pb2.DT_INT32}),
    (RefusalReason.LAYOUT, {"data_format": "NCHW_VECT_C"}),
    (RefusalReason.LAYOUT, {"filter_format": "OIHW"}),
    (RefusalReason.XLA, {"_XlaMustCompile": True}),
    (RefusalReason.XLA, {"_XlaCluster": "1"}),
    (ATTRIBUTE, {"_kernel": "from_another_library"}),
    *((ATTRIBUTE, {"strides": strides}) for strides in ([2, 1, 1, 1], [1, 0, 1, 1], None)),
    *(
        (ATTRIBUTE, {"padding": "EXPLICIT", "explicit_paddings": pads})
        for pads in ([], [1, *[0] * 7], [0, 0, -1, *[0] * 5])
    ),
    (ATTRIBUTE, {"padding": "SAME", "explicit_paddings": [0, 0, 1, 1, 1, 1, 0, 0]}),
    (ATTRIBUTE, {"padding": "FULL"}),
    (ATTRIBUTE, {"use_cudnn_on_gpu": False}),
    (ATTRIBUTE, {"op": "DepthwiseConv2dNative", "dilations": [1, 2, 2, 1]}),
    (ATTRIBUTE, {"op": "DepthwiseConv2dNative", "strides": [1, 1, 2, 1]}),
    # Shapes that do not fit; a gradient's sizes may be just height and width.
    (ATTRIBUTE, {"filter_": (3, 3, 5, 32)}),
    (ATTRIBUTE, {"image": (8, 28, 16)}),
    (ATTRIBUTE, {"op": "DepthwiseConv2dNative", "filter_": (3, 3, 8, 2)}),
    (ATTRIBUTE, {"op": "Conv2DBackpropInput", "image": (28, 30)}),
    *(
        (RefusalReason.FUSED_OPS, FUSED | change)
        for change in (
            {"fused_ops": ["BiasAdd", "Tanh"]},
            {"num_host_args": 1},
            {"T": BFLOAT16},
        )
    ),
    (RefusalReason.LAYOUT, FORWARD_3D | {"data_format": "NHWC"}),
    (ATTRIBUTE, FORWARD_3D | {"padding": "EXPLICIT"}),
    (ATTRIBUTE, FORWARD_3D | {"op": "Conv3DBackpropInputV2", "Tshape": types_pb2.DT_INT64}),
    (ATTRIBUTE, FORWARD_3D | {"op": "_FusedConv3D", "padding_list": [0, 1]}),
]


@pytest.mark.parametrize(("reason", "of"), REFUSED, ids=str)
def test_refuses(reason: RefusalReason, of: dict[str, Any]) -> None:
    depthwise = of.get("op", "").startswith("Depthwise")
    found, [refusal] = find(convolution(**({"filter_": (3, 3, 16, 2)} if depthwise else {}) | of))
    assert not found
    assert (refusal.node, refusal.reason) == ("c", reason)


def test_refuses_unclear_control_flow() -> None:
    _, [refusal] = find(graph_of({"enter": "Enter x", "c": "Conv2D enter f"}))
    assert refusal.reason is RefusalReason.CONTROL_FLOW


def test_order_is_topological_and_independent_of_the_graphs() -> None:
    nodes = {"a": "Conv2D z f", "z": "Conv2D x f", "m": "Conv2D x f"}
    for each in (nodes, dict(reversed(nodes.items()))):
        assert [node.name for node in find(graph_of(each))[0]] == ["m", "z", "a"]
