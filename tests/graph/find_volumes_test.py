"""Convolutions of volumes and of double, as the finder reads them."""

from __future__ import annotations

from typing import Any

import pytest
from graph_builder import CPU, GPU, GraphBuilder
from tensorflow.core.framework import types_pb2

from tf_interop.convolution import (
    ConvolutionConfiguration,
    ConvolutionKind,
    Refusal,
    RefusalReason,
)
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView


def _operands(
    image: tuple[int | None, ...] | None = (2, 7, 28, 30, 16),
    filter_: tuple[int | None, ...] | None = (2, 3, 5, 16, 32),
    device: str = GPU,
) -> GraphBuilder:
    graph = GraphBuilder(device)
    graph.source("x", image)
    graph.source("f", filter_)
    graph.source("bias")
    return graph


def _only(graph: GraphBuilder) -> ConvolutionConfiguration:
    view = GraphView(graph.graph_def)
    found, refusals = find_convolutions(view, GraphProperties(view))
    assert not refusals
    assert len(found) == 1
    return found[0].configuration


def _only_refusal(graph: GraphBuilder) -> Refusal:
    view = GraphView(graph.graph_def)
    found, refusals = find_convolutions(view, GraphProperties(view))
    assert not found
    assert len(refusals) == 1
    return refusals[0]


def test_finds_forward() -> None:
    graph = _operands()
    graph.conv("c", "x", "f", op="Conv3D", strides=[1, 2, 1, 3, 1], dilations=[1, 1, 2, 1, 1])
    assert _only(graph) == ConvolutionConfiguration(
        op="Conv3D",
        kind=ConvolutionKind.FORWARD,
        depthwise=False,
        dtype="float32",
        layout="NDHWC",
        image_shape=(2, 7, 28, 30, 16),
        filter_shape=(2, 3, 5, 16, 32),
        output_shape=(2, 4, 28, 10, 32),
        strides=(2, 1, 3),
        dilations=(1, 2, 1),
        padding="SAME",
        group_count=1,
    )


def test_finds_channels_first() -> None:
    graph = _operands(image=(2, 16, 7, 28, 30))
    graph.conv(
        "c",
        "x",
        "f",
        op="Conv3D",
        data_format="NCDHW",
        strides=[1, 1, 1, 2, 3],
        dilations=[1, 1, 2, 1, 1],
        padding="VALID",
    )
    configuration = _only(graph)
    assert configuration.layout == "NCDHW"
    assert configuration.strides == (1, 2, 3)
    assert configuration.dilations == (2, 1, 1)
    # 7 - 2, (28 - 3) // 2 + 1 and (30 - 5) // 3 + 1.
    assert configuration.output_shape == (2, 32, 5, 13, 9)


def test_finds_gradients() -> None:
    graph = _operands(filter_=(2, 3, 5, 8, 32))
    graph.source("gradient")
    graph.sizes("image_sizes", [2, 7, 28, 30, 16])
    graph.conv("c", "image_sizes", "f", "gradient", op="Conv3DBackpropInputV2")
    configuration = _only(graph)
    assert configuration.kind is ConvolutionKind.BACKWARD_INPUT
    assert configuration.image_shape == (2, 7, 28, 30, 16)
    assert configuration.output_shape == (2, 7, 28, 30, 32)
    assert configuration.group_count == 2

    graph = _operands()
    graph.source("gradient")
    graph.sizes("filter_sizes", [2, 3, 5, 16, 32])
    graph.conv("c", "x", "filter_sizes", "gradient", op="Conv3DBackpropFilterV2")
    configuration = _only(graph)
    assert configuration.kind is ConvolutionKind.BACKWARD_FILTER
    assert configuration.filter_shape == (2, 3, 5, 16, 32)
    assert configuration.group_count == 1


def test_finds_fused() -> None:
    graph = _operands()
    graph.fused_conv("c", "x", "f", "bias", op="_FusedConv3D", fused_ops=["BiasAdd", "Elu"])
    configuration = _only(graph)
    assert (configuration.op, configuration.fused_ops) == ("_FusedConv3D", ("BiasAdd", "Elu"))


def test_finds_attributes_left_at_their_defaults() -> None:
    graph = _operands()
    graph.conv("c", "x", "f", op="Conv3D", dilations=None, data_format=None)
    configuration = _only(graph)
    assert (configuration.layout, configuration.dilations) == ("NDHWC", (1, 1, 1))


@pytest.mark.parametrize(
    ("changes", "reason", "detail"),
    [
        ({"data_format": "NHWC"}, RefusalReason.LAYOUT, "Expected NDHWC or NCDHW, got NHWC."),
        (
            {"padding": "EXPLICIT"},
            RefusalReason.ATTRIBUTE,
            "Expected padding SAME or VALID of volumes, got EXPLICIT.",
        ),
        (
            {"strides": [1, 2, 2, 1]},
            RefusalReason.ATTRIBUTE,
            "Expected 5 strides, got (1, 2, 2, 1).",
        ),
        (
            {"dilations": [1, 2, 0, 2, 1]},
            RefusalReason.ATTRIBUTE,
            "Expected positive dilations, got (1, 2, 0, 2, 1).",
        ),
        (
            {"strides": [1, 1, 1, 1, 2]},
            RefusalReason.ATTRIBUTE,
            "Expected strides of 1 in batch and channels, got (1, 1, 1, 1, 2).",
        ),
        (
            {"T": types_pb2.DT_INT8},
            RefusalReason.DTYPE,
            "Expected float32, float16, bfloat16 or float64, got DT_INT8.",
        ),
    ],
)
def test_refuses(changes: dict[str, Any], reason: RefusalReason, detail: str) -> None:
    graph = _operands()
    graph.conv("c", "x", "f", op="Conv3D", **changes)
    assert _only_refusal(graph) == Refusal("c", "Conv3D", reason, detail)


def test_refuses_image_of_rank_4() -> None:
    graph = _operands(image=(2, 28, 30, 16))
    graph.conv("c", "x", "f", op="Conv3D")
    assert "the image to have rank 5" in _only_refusal(graph).detail


def test_refuses_sizes_of_int64() -> None:
    graph = _operands()
    graph.source("gradient")
    graph.conv(
        "c",
        graph.source("sizes"),
        "f",
        "gradient",
        op="Conv3DBackpropInputV2",
        Tshape=types_pb2.DT_INT64,
    )
    refusal = _only_refusal(graph)
    assert refusal.reason is RefusalReason.ATTRIBUTE
    assert refusal.detail == "Expected input_sizes of DT_INT32, as a stage's are, got DT_INT64."


def test_refuses_padding_list() -> None:
    graph = _operands()
    graph.fused_conv("c", "x", "f", "bias", op="_FusedConv3D", padding_list=[0, 1])
    assert _only_refusal(graph).detail == "Expected no padding_list, got [0, 1]."


def test_takes_channels_first_on_the_cpu() -> None:
    graph = _operands(image=(2, 16, 7, 28, 30), device=CPU)
    graph.conv("c", "x", "f", op="Conv3D", data_format="NCDHW")
    assert _only(graph).layout == "NCDHW"
