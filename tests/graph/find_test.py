"""Which convolutions can be part of a stage, as what, and why others stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
from graph_builder import BFLOAT16, CPU, DOUBLE, FLOAT, GPU, HALF, GraphBuilder, add_shapes
from tensorflow.core.framework import types_pb2

from tf_interop.convolution import (
    ConvolutionConfiguration,
    ConvolutionKind,
    ConvolutionNode,
    Refusal,
    RefusalReason,
)
from tf_interop.errors import GraphError
from tf_interop.graph.convolution_ops import CONVOLUTION_KINDS, SIZES_POSITIONS
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.properties import GraphProperties, ShapeInference
from tf_interop.graph.view import GraphView


def _find(
    graph: GraphBuilder, infer: ShapeInference | None = None
) -> tuple[tuple[ConvolutionNode, ...], tuple[Refusal, ...]]:
    view = GraphView(graph.graph_def)
    return find_convolutions(view, GraphProperties(view, infer))


def _only(graph: GraphBuilder, infer: ShapeInference | None = None) -> ConvolutionConfiguration:
    convolutions, refusals = _find(graph, infer)
    assert not refusals
    assert len(convolutions) == 1
    return convolutions[0].configuration


def _only_refusal(graph: GraphBuilder) -> Refusal:
    convolutions, refusals = _find(graph)
    assert not convolutions
    assert len(refusals) == 1
    return refusals[0]


def _operands(
    image: tuple[int | None, ...] | None = (8, 28, 30, 16),
    filter_: tuple[int | None, ...] | None = (3, 5, 16, 32),
    device: str | None = None,
) -> GraphBuilder:
    graph = GraphBuilder() if device is None else GraphBuilder(device)
    graph.source("x", image)
    graph.source("f", filter_)
    graph.source("bias")
    return graph


def test_finds_forward() -> None:
    graph = _operands()
    graph.conv("c", "x", "f")
    convolutions, refusals = _find(graph)
    assert not refusals
    assert convolutions == (
        ConvolutionNode(
            name="c",
            index=3,
            device=graph.node("c").device,
            region="",
            configuration=ConvolutionConfiguration(
                op="Conv2D",
                kind=ConvolutionKind.FORWARD,
                depthwise=False,
                dtype="float32",
                layout="NHWC",
                image_shape=(8, 28, 30, 16),
                filter_shape=(3, 5, 16, 32),
                output_shape=(8, 28, 30, 32),
                strides=(1, 1),
                dilations=(1, 1),
                padding="SAME",
                group_count=1,
            ),
        ),
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"padding": "SAME", "strides": [1, 3, 4, 1]}, (8, 10, 8, 32)),
        ({"padding": "VALID"}, (8, 26, 26, 32)),
        ({"padding": "VALID", "strides": [1, 2, 3, 1]}, (8, 13, 9, 32)),
        ({"padding": "VALID", "dilations": [1, 2, 3, 1]}, (8, 24, 18, 32)),
        (
            {"padding": "EXPLICIT", "explicit_paddings": [0, 0, 1, 2, 3, 0, 0, 0]},
            (8, 29, 29, 32),
        ),
    ],
)
def test_computes_output_shape(changes: dict[str, Any], expected: tuple[int, ...]) -> None:
    graph = _operands()
    graph.conv("c", "x", "f", **changes)
    assert _only(graph).output_shape == expected


def test_finds_nchw() -> None:
    graph = _operands(image=(8, 16, 28, 30))
    graph.conv(
        "c",
        "x",
        "f",
        data_format="NCHW",
        strides=[1, 1, 2, 3],
        dilations=[1, 1, 1, 2],
        padding="EXPLICIT",
        explicit_paddings=[0, 0, 0, 0, 1, 2, 3, 4],
    )
    configuration = _only(graph)
    assert configuration.layout == "NCHW"
    assert configuration.strides == (2, 3)
    assert configuration.dilations == (1, 2)
    assert configuration.explicit_paddings == (1, 2, 3, 4)
    assert configuration.group_count == 1
    # (28 + 3 - 3) // 2 + 1 and (30 + 7 - 9) // 3 + 1.
    assert configuration.output_shape == (8, 32, 15, 10)


@pytest.mark.parametrize("op", sorted(CONVOLUTION_KINDS))
@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize(
    ("dtype", "name"), [(BFLOAT16, "bfloat16"), (DOUBLE, "float64")], ids=["bfloat16", "double"]
)
def test_finds_dtype(op: str, device: str, dtype: int, name: str) -> None:
    graph = GraphBuilder(device)
    for source in ("x", "f", "bias"):
        graph.source(source)
    if op == "_FusedConv2D":
        graph.fused_conv("c", "x", "f", "bias", T=dtype, TArgs=[dtype])
    elif op == "_FusedConv3D":
        graph.fused_conv("c", "x", "f", "bias", op=op, T=dtype)
    elif op in SIZES_POSITIONS:
        graph.conv("c", "x", "f", "bias", op=op, T=dtype)
    else:
        graph.conv("c", "x", "f", op=op, T=dtype)
    configuration = _only(graph)
    assert (configuration.op, configuration.dtype) == (op, name)


def test_finds_half_and_groups() -> None:
    graph = _operands(filter_=(3, 3, 4, 32))
    graph.conv("c", "x", "f", T=HALF)
    configuration = _only(graph)
    assert configuration.dtype == "float16"
    assert configuration.group_count == 4


def test_finds_attributes_left_at_their_defaults() -> None:
    graph = _operands()
    graph.conv("c", "x", "f", dilations=None, data_format=None, explicit_paddings=None)
    configuration = _only(graph)
    assert (configuration.layout, configuration.dilations) == ("NHWC", (1, 1))


def test_finds_depthwise() -> None:
    graph = _operands(filter_=(3, 3, 16, 2))
    graph.conv("c", "x", "f", op="DepthwiseConv2dNative", strides=[1, 2, 2, 1])
    configuration = _only(graph)
    assert configuration.depthwise
    assert configuration.group_count == 16
    assert configuration.output_shape == (8, 14, 15, 32)


def test_finds_backward_input() -> None:
    graph = _operands(filter_=(3, 3, 16, 32))
    graph.sizes("sizes", [8, 28, 30, 16])
    graph.source("gradient")
    graph.conv("c", "sizes", "f", "gradient", op="Conv2DBackpropInput", strides=[1, 2, 2, 1])
    configuration = _only(graph)
    assert configuration.kind is ConvolutionKind.BACKWARD_INPUT
    assert configuration.image_shape == (8, 28, 30, 16)
    assert configuration.filter_shape == (3, 3, 16, 32)
    assert configuration.output_shape == (8, 14, 15, 32)
    assert configuration.group_count == 1


def test_finds_backward_filter() -> None:
    graph = _operands(image=(None, 28, 30, 16))
    graph.sizes("sizes", [3, 3, 1, 16])
    graph.source("gradient", (8, None, None, None))
    graph.conv("c", "x", "sizes", "gradient", op="Conv2DBackpropFilter")
    configuration = _only(graph)
    assert configuration.kind is ConvolutionKind.BACKWARD_FILTER
    assert configuration.image_shape == (None, 28, 30, 16)
    assert configuration.filter_shape == (3, 3, 1, 16)
    assert configuration.output_shape == (8, 28, 30, 16)
    assert configuration.group_count == 16


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("DepthwiseConv2dNativeBackpropInput", ConvolutionKind.BACKWARD_INPUT),
        ("DepthwiseConv2dNativeBackpropFilter", ConvolutionKind.BACKWARD_FILTER),
    ],
)
def test_finds_depthwise_gradients(op: str, kind: ConvolutionKind) -> None:
    graph = _operands(filter_=(3, 3, 16, 2))
    graph.source("gradient")
    if kind is ConvolutionKind.BACKWARD_INPUT:
        graph.conv("c", graph.sizes("sizes", [8, 28, 30, 16]), "f", "gradient", op=op)
    else:
        graph.conv("c", "x", graph.sizes("sizes", [3, 3, 16, 2]), "gradient", op=op)
    configuration = _only(graph)
    assert configuration.depthwise
    assert configuration.kind is kind
    assert configuration.image_shape == (8, 28, 30, 16)
    assert configuration.filter_shape == (3, 3, 16, 2)
    assert configuration.output_shape == (8, 28, 30, 32)
    assert configuration.group_count == 16


def test_takes_shape_of_gradient_from_output_where_sizes_are_not_constant() -> None:
    graph = _operands()
    graph.source("sizes")
    graph.source("gradient")
    graph.conv("c", "sizes", "f", "gradient", op="Conv2DBackpropInput")
    add_shapes(graph.node("c"), "_output_shapes", [(None, 28, 30, 16)])
    assert _only(graph).image_shape == (None, 28, 30, 16)


def test_finds_without_shapes() -> None:
    graph = _operands(image=None, filter_=None)
    graph.conv("c", "x", "f")
    configuration = _only(graph)
    assert configuration.image_shape is None
    assert configuration.filter_shape is None
    assert configuration.output_shape is None
    assert configuration.group_count is None


def test_infers_what_is_missing() -> None:
    shapes = {"x": [(4, 8, 8, 16)], "f": [(1, 1, 16, 64)]}
    graph = _operands(image=None, filter_=None)
    graph.conv("c", "x", "f")
    assert _only(graph, shapes.get).output_shape == (4, 8, 8, 64)


@pytest.mark.parametrize(
    "fused_ops",
    [
        ["BiasAdd"],
        ["BiasAdd", "Relu"],
        ["BiasAdd", "Relu6"],
        ["BiasAdd", "LeakyRelu"],
        ["BiasAdd", "Elu"],
    ],
)
def test_finds_fused(fused_ops: list[str]) -> None:
    graph = _operands()
    graph.fused_conv("c", "x", "f", "bias", fused_ops=fused_ops, leakyrelu_alpha=0.25)
    configuration = _only(graph)
    assert configuration.fused_ops == tuple(fused_ops)
    assert configuration.leaky_relu_alpha == (0.25 if "LeakyRelu" in fused_ops else 0)


def test_leaky_relu_has_a_default() -> None:
    graph = _operands()
    graph.fused_conv("c", "x", "f", "bias", fused_ops=["BiasAdd", "LeakyRelu"])
    assert _only(graph).leaky_relu_alpha == pytest.approx(0.2)


@pytest.mark.parametrize(
    "device", ["", CPU, "/device:GPU:3", "/gpu:0", "GPU:1", "/job:worker/task:1", "/job:w/cpu:*"]
)
def test_finds_on_device(device: str) -> None:
    graph = _operands()
    graph.conv("c", "x", "f", device=device)
    convolutions, _ = _find(graph)
    assert [node.device for node in convolutions] == [device]


def test_takes_nchw_on_the_cpu() -> None:
    graph = _operands(image=(8, 16, 28, 30), device=CPU)
    graph.conv("c", "x", "f", data_format="NCHW")
    assert _only(graph).layout == "NCHW"


_ATTRIBUTE = RefusalReason.ATTRIBUTE


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        (RefusalReason.DEVICE, {"device": "/job:localhost/replica:0/task:0/device:TPU:0"}),
        (RefusalReason.DEVICE, {"device": "/device:XLA_GPU:0"}),
        (RefusalReason.DEVICE, {"device": "/tpu:0"}),
        (RefusalReason.DTYPE, {"T": types_pb2.DT_INT32}),
        (RefusalReason.DTYPE, {"T": types_pb2.DT_QINT8}),
        (RefusalReason.LAYOUT, {"data_format": "NCHW_VECT_C"}),
        (RefusalReason.LAYOUT, {"filter_format": "OIHW"}),
        (RefusalReason.XLA, {"_XlaMustCompile": True}),
        (RefusalReason.XLA, {"_XlaCompile": True}),
        (RefusalReason.XLA, {"_XlaCluster": "cluster_0"}),
        (RefusalReason.XLA, {"_xla_compile_id": "1"}),
        (RefusalReason.XLA, {"_xla_cluster_id": "1"}),
        (_ATTRIBUTE, {"_kernel": "from_another_library"}),
        (_ATTRIBUTE, {"strides": [2, 1, 1, 1]}),
        (_ATTRIBUTE, {"strides": [1, 1, 1, 2]}),
        (_ATTRIBUTE, {"strides": [1, 1, 1]}),
        (_ATTRIBUTE, {"strides": [1, 0, 1, 1]}),
        (_ATTRIBUTE, {"strides": None}),
        (_ATTRIBUTE, {"strides": [1, 2, 2, 1], "data_format": "NCHW"}),
        (_ATTRIBUTE, {"dilations": [1, 1, 1, 2]}),
        (_ATTRIBUTE, {"dilations": [2, 1, 1, 1]}),
        (_ATTRIBUTE, {"padding": "EXPLICIT"}),
        (_ATTRIBUTE, {"padding": "EXPLICIT", "explicit_paddings": [1, *[0] * 7]}),
        (_ATTRIBUTE, {"padding": "EXPLICIT", "explicit_paddings": [*[0] * 7, 1]}),
        (_ATTRIBUTE, {"padding": "EXPLICIT", "explicit_paddings": [0, 0, -1, *[0] * 5]}),
        (_ATTRIBUTE, {"padding": "SAME", "explicit_paddings": [0, 0, 1, 1, 1, 1, 0, 0]}),
        (_ATTRIBUTE, {"padding": "FULL"}),
        (_ATTRIBUTE, {"padding": None}),
        (_ATTRIBUTE, {"T": None}),
        (_ATTRIBUTE, {"use_cudnn_on_gpu": False}),
        (_ATTRIBUTE, {"op": "DepthwiseConv2dNative", "dilations": [1, 2, 2, 1]}),
        (_ATTRIBUTE, {"op": "DepthwiseConv2dNative", "strides": [1, 1, 2, 1]}),
    ],
)
def test_refuses(reason: RefusalReason, changes: dict[str, Any]) -> None:
    graph = _operands(filter_=(3, 3, 16, 2))
    graph.conv("c", "x", "f", **changes)
    refusal = _only_refusal(graph)
    assert (refusal.node, refusal.reason) == ("c", reason)


@pytest.mark.parametrize(
    ("image", "filter_", "op"),
    [
        ((8, 28, 30, 16), (3, 3, 5, 32), "Conv2D"),
        ((8, 28, 16), (3, 3, 16, 32), "Conv2D"),
        ((8, 28, 30, 16), (3, 3, 16), "Conv2D"),
        ((8, 28, 30, 16), (3, 3, 8, 2), "DepthwiseConv2dNative"),
    ],
)
def test_refuses_shapes_that_do_not_fit(
    image: tuple[int, ...], filter_: tuple[int, ...], op: str
) -> None:
    graph = _operands(image, filter_)
    graph.conv("c", "x", "f", op=op)
    assert _only_refusal(graph).reason is _ATTRIBUTE


def test_refuses_sizes_of_height_and_width_alone() -> None:
    graph = _operands()
    graph.conv(
        "c", graph.sizes("sizes", [28, 30]), "f", graph.source("g"), op="Conv2DBackpropInput"
    )
    assert _only_refusal(graph).reason is _ATTRIBUTE


@pytest.mark.parametrize(
    "changes",
    [
        {"fused_ops": ["FusedBatchNorm"]},
        {"fused_ops": ["BiasAdd", "Tanh"]},
        {"fused_ops": ["BiasAdd", "Add", "Relu"]},
        {"fused_ops": []},
        {"num_args": 2, "TArgs": [FLOAT, FLOAT]},
        {"num_host_args": 1},
        {"TArgs": [HALF]},
        {"T": BFLOAT16},
    ],
)
def test_refuses_fused_ops(changes: dict[str, Any]) -> None:
    graph = _operands()
    graph.fused_conv("c", "x", "f", "bias", **changes)
    assert _only_refusal(graph).reason is RefusalReason.FUSED_OPS


def test_finds_what_xla_must_not_compile() -> None:
    graph = _operands()
    graph.conv("c", "x", "f", _XlaMustCompile=False, _xla_inferred_shapes="")
    assert _only(graph).op == "Conv2D"


def test_refuses_unclear_control_flow() -> None:
    graph = _operands()
    graph.add("enter", "Enter", "x", frame_name="loop")
    graph.conv("c", "enter", "f")
    assert _only_refusal(graph).reason is RefusalReason.CONTROL_FLOW


def test_regions_of_branches_differ() -> None:
    graph = _operands()
    graph.source("p")
    graph.add("switch", "Switch", "x", "p")
    graph.conv("outside", "x", "f")
    graph.conv("else", "switch", "f")
    graph.conv("then", "switch:1", "f")
    convolutions, _ = _find(graph)
    assert len({node.region for node in convolutions}) == 3


@pytest.mark.parametrize("inputs", [("x",), ("x", "f", "bias")])
def test_raises_on_wrong_number_of_inputs(inputs: tuple[str, ...]) -> None:
    graph = _operands()
    graph.conv("c", *inputs)
    with pytest.raises(GraphError, match="node 'c'"):
        _find(graph)


def test_order_is_topological_and_not_that_of_the_graph() -> None:
    graph = _operands()
    graph.conv("a", "z", "f")
    graph.conv("z", "x", "f")
    graph.conv("m", "x", "f")
    convolutions, _ = _find(graph)
    assert [node.name for node in convolutions] == ["m", "z", "a"]
    reversed_graph = GraphBuilder()
    reversed_graph.graph_def.node.extend(reversed(graph.graph_def.node))
    convolutions, _ = _find(reversed_graph)
    assert [node.name for node in convolutions] == ["m", "z", "a"]


def test_leaves_the_graph_alone() -> None:
    graph = _operands()
    graph.conv("bare", "x", "f", dilations=None, data_format=None, explicit_paddings=None)
    graph.fused_conv("fused", "x", "f", "bias", num_host_args=None)
    graph.conv("refused", "x", "f", padding=None)
    before = graph.graph_def.SerializeToString(deterministic=True)
    _find(graph)
    assert graph.graph_def.SerializeToString(deterministic=True) == before


VOLUME, VOLUME_FILTER = (2, 7, 28, 30, 16), (2, 3, 5, 16, 32)


def test_finds_forward_of_volumes() -> None:
    graph = _operands(VOLUME, VOLUME_FILTER)
    graph.conv("c", "x", "f", op="Conv3D", strides=[1, 2, 1, 3, 1], dilations=[1, 1, 2, 1, 1])
    assert _only(graph) == ConvolutionConfiguration(
        op="Conv3D",
        kind=ConvolutionKind.FORWARD,
        depthwise=False,
        dtype="float32",
        layout="NDHWC",
        image_shape=VOLUME,
        filter_shape=VOLUME_FILTER,
        output_shape=(2, 4, 28, 10, 32),
        strides=(2, 1, 3),
        dilations=(1, 2, 1),
        padding="SAME",
        group_count=1,
    )


@pytest.mark.parametrize("device", [CPU, GPU])
def test_finds_volumes_with_channels_first(device: str) -> None:
    graph = _operands((2, 16, 7, 28, 30), VOLUME_FILTER, device)
    strides, dilations = [1, 1, 1, 2, 3], [1, 1, 2, 1, 1]
    changes: Any = {"data_format": "NCDHW", "strides": strides, "dilations": dilations}
    graph.conv("c", "x", "f", op="Conv3D", padding="VALID", **changes)
    configuration = _only(graph)
    assert configuration.layout == "NCDHW"
    assert configuration.strides == (1, 2, 3)
    assert configuration.dilations == (2, 1, 1)
    # 7 - 2, (28 - 3) // 2 + 1 and (30 - 5) // 3 + 1.
    assert configuration.output_shape == (2, 32, 5, 13, 9)


def test_finds_gradients_of_volumes() -> None:
    graph = _operands(VOLUME, (2, 3, 5, 8, 32))
    graph.sizes("image_sizes", VOLUME)
    graph.sizes("filter_sizes", VOLUME_FILTER)
    graph.conv("by_image", "image_sizes", "f", "bias", op="Conv3DBackpropInputV2")
    graph.conv("by_filter", "x", "filter_sizes", "bias", op="Conv3DBackpropFilterV2")
    found, _ = _find(graph)
    by_filter, by_image = (node.configuration for node in found)
    assert by_image.kind is ConvolutionKind.BACKWARD_INPUT
    assert by_image.image_shape == VOLUME
    assert by_image.output_shape == (2, 7, 28, 30, 32)
    assert by_image.group_count == 2
    assert by_filter.kind is ConvolutionKind.BACKWARD_FILTER
    assert by_filter.filter_shape == VOLUME_FILTER
    assert by_filter.group_count == 1


def test_finds_fused_of_volumes() -> None:
    graph = _operands(VOLUME, VOLUME_FILTER)
    graph.fused_conv("c", "x", "f", "bias", op="_FusedConv3D", fused_ops=["BiasAdd", "Elu"])
    assert _only(graph).fused_ops == ("BiasAdd", "Elu")


def test_finds_attributes_of_volumes_left_at_their_defaults() -> None:
    graph = _operands(VOLUME, VOLUME_FILTER)
    graph.conv("c", "x", "f", op="Conv3D", dilations=None, data_format=None)
    configuration = _only(graph)
    assert (configuration.layout, configuration.dilations) == ("NDHWC", (1, 1, 1))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data_format": "NHWC"}, RefusalReason.LAYOUT),
        ({"padding": "EXPLICIT"}, _ATTRIBUTE),
        ({"strides": [1, 2, 2, 1]}, _ATTRIBUTE),
        ({"dilations": [1, 2, 0, 2, 1]}, _ATTRIBUTE),
        ({"strides": [1, 1, 1, 1, 2]}, _ATTRIBUTE),
        ({"T": types_pb2.DT_INT8}, RefusalReason.DTYPE),
    ],
)
def test_refuses_volumes(changes: dict[str, Any], reason: RefusalReason) -> None:
    graph = _operands(VOLUME, VOLUME_FILTER)
    graph.conv("c", "x", "f", op="Conv3D", **changes)
    assert _only_refusal(graph).reason is reason


def test_refuses_volumes_of_other_ranks_sizes_and_paddings() -> None:
    graph = _operands((2, 28, 30, 16), VOLUME_FILTER)
    graph.conv("of_rank_4", "x", "f", op="Conv3D")
    changes: Any = {"op": "Conv3DBackpropInputV2", "Tshape": types_pb2.DT_INT64}
    graph.conv("of_int64", "bias", "f", "bias", **changes)
    graph.fused_conv("padded", "bias", "f", "bias", op="_FusedConv3D", padding_list=[0, 1])
    found, refusals = _find(graph)
    assert not found
    assert {each.node: each.reason for each in refusals} == dict.fromkeys(
        ("of_rank_4", "of_int64", "padded"), _ATTRIBUTE
    )
