"""Merging of convolutions, canonical names, and fingerprints."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from convolution_values import CONFIGURATION
from planning_graphs import make_graph

from tf_interop.convolution import (
    ConvolutionKind,
    ConvolutionNode,
    can_merge,
    canonical_names,
    fingerprint_convolutions,
    merged_configuration,
)

NARROW = dataclasses.replace(CONFIGURATION, filter_shape=(3, 3, 16, 8), output_shape=(8, 28, 28, 8))
FIRST = dataclasses.replace(
    CONFIGURATION, layout="NCHW", image_shape=(8, 16, 28, 28), output_shape=(8, 32, 28, 28)
)


def test_adds_up_the_output_channels() -> None:
    assert merged_configuration([CONFIGURATION, NARROW, NARROW]) == dataclasses.replace(
        CONFIGURATION, filter_shape=(3, 3, 16, 48), output_shape=(8, 28, 28, 48)
    )
    assert merged_configuration([FIRST, FIRST]).output_shape == (8, 64, 28, 28)


@pytest.mark.parametrize(
    "change",
    [
        {"filter_shape": (1, 3, 16, 8)},
        {"filter_shape": None},
        {"image_shape": (4, 28, 28, 16)},
        {"strides": (2, 2)},
        {"dilations": (2, 2)},
        {"padding": "VALID"},
        {"layout": "NCHW"},
        {"dtype": "float16"},
        {"op": "_FusedConv2D", "fused_ops": ("BiasAdd",)},
    ],
)
def test_does_not_merge_if_more_than_channels_differ(change: dict[str, Any]) -> None:
    other = dataclasses.replace(NARROW, **change)
    assert can_merge([CONFIGURATION, NARROW])
    assert not can_merge([CONFIGURATION, other])


@pytest.mark.parametrize(
    "change",
    [{"group_count": 2}, {"depthwise": True}, {"kind": ConvolutionKind.BACKWARD_FILTER}],
)
def test_merges_only_plain_forward_convolutions(change: dict[str, object]) -> None:
    each = dataclasses.replace(CONFIGURATION, **change)
    assert not can_merge([each, each])
    assert not can_merge([CONFIGURATION])


NODES = {"a": "Conv2D", "b": "Conv2D a"}


def _convolutions(**changes: Any) -> tuple[ConvolutionNode, ...]:
    changed = dataclasses.replace(CONFIGURATION, **changes)
    return make_graph(NODES, configurations={"b": changed})[1]


def test_fingerprint_is_the_same_in_every_process_and_release() -> None:
    assert fingerprint_convolutions(_convolutions()) == "181911e9117bebd7"
    assert re.fullmatch("[0-9a-f]{16}", fingerprint_convolutions(()))


def test_fingerprint_depends_on_names_and_not_on_order() -> None:
    first, second = _convolutions(padding="VALID")
    expected = fingerprint_convolutions((first, second))
    assert fingerprint_convolutions((second, first)) == expected
    renamed = dataclasses.replace(second, name="c")
    exchanged = [dataclasses.replace(first, name="b"), dataclasses.replace(second, name="a")]
    others = ([first], [first, renamed], exchanged)
    assert expected not in {fingerprint_convolutions(each) for each in others}


@pytest.mark.parametrize(
    ("changes", "is_covered"),
    [
        ({"image_shape": (16, 28, 28, 16), "output_shape": (16, 28, 28, 32)}, False),
        ({"image_shape": (None, 56, 56, 16), "output_shape": (None, 56, 56, 32)}, False),
        ({"op": "_FusedConv2D"}, True),
        ({"dtype": "float16"}, True),
        ({"layout": "NCHW"}, True),
        ({"filter_shape": (5, 5, 16, 32)}, True),
        ({"strides": (2, 1)}, True),
        ({"dilations": (2, 2)}, True),
        ({"padding": "VALID"}, True),
        ({"padding": "EXPLICIT", "explicit_paddings": (1, 1, 1, 1)}, True),
        ({"fused_ops": ("BiasAdd",)}, True),
        ({"fused_ops": ("BiasAdd", "LeakyRelu"), "leaky_relu_alpha": 0.1}, True),
    ],
    ids=str,
)
def test_fingerprint_covers_a_layer_without_its_sizes(
    changes: dict[str, Any], is_covered: bool
) -> None:
    changed = fingerprint_convolutions(_convolutions(**changes))
    assert (changed != fingerprint_convolutions(_convolutions())) == is_covered


@pytest.mark.parametrize(
    "name",
    [
        "googlenet/conv1/Relu",
        "googlenet_1/conv1/Relu",
        "googlenet_12/conv1/Relu",
        "StatefulPartitionedCall/googlenet_1/conv1/Relu",
        "StatefulPartitionedCall_3/PartitionedCall/googlenet/conv1/Relu",
    ],
)
def test_traces_of_one_model_have_the_same_canonical_names(name: str) -> None:
    assert canonical_names([name])[name] == "googlenet/conv1/Relu"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            ["model_1/conv2d/convolution", "gradient_tape/model_1/conv2d_1/convolution/Conv2D"],
            ["model/conv2d/convolution", "gradient_tape/model/conv2d_1/convolution/Conv2D"],
        ),
        (["conv_2"], ["conv_2"]),
        (["model_1/conv", "model_2/conv"], ["model_1/conv", "model_2/conv"]),  # of two models
    ],
)
def test_canonical_names_keep_apart(names: list[str], expected: list[str]) -> None:
    assert list(canonical_names(names).values()) == expected
