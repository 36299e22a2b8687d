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
    [{"filter_shape": (1, 3, 16, 8)}, {"filter_shape": None}, {"fused_ops": ("BiasAdd",)}],
)
def test_does_not_merge_if_more_than_channels_differ(change: dict[str, Any]) -> None:
    assert can_merge([CONFIGURATION, NARROW])
    assert not can_merge([CONFIGURATION, dataclasses.replace(NARROW, **change)])


@pytest.mark.parametrize(
    "change",
    [{"group_count": 2}, {"depthwise": True}, {"kind": ConvolutionKind.BACKWARD_FILTER}],
)
def test_merges_only_plain_forward_convolutions(change: dict[str, object]) -> None:
    each = dataclasses.replace(CONFIGURATION, **change)
    assert not can_merge([each, each])
    assert not can_merge([CONFIGURATION])


CALLS = ("", "StatefulPartitionedCall/", "StatefulPartitionedCall_3/PartitionedCall/")
NODES = {"a": "Conv2D", "b": "Conv2D a"}


def _convolutions(**changes: Any) -> tuple[ConvolutionNode, ...]:
    changed = dataclasses.replace(CONFIGURATION, **changes)
    return make_graph(NODES, configurations={"b": changed})[1]


def test_fingerprint_is_the_same_in_every_process_and_release() -> None:
    assert fingerprint_convolutions(_convolutions()) == "181911e9117bebd7"
    assert re.fullmatch("[0-9a-f]{16}", fingerprint_convolutions(()))


def test_fingerprint_depends_on_layers_and_names_and_not_on_order() -> None:
    first, second = _convolutions(padding="VALID")
    expected = fingerprint_convolutions((first, second))
    assert fingerprint_convolutions((second, first)) == expected
    renamed = dataclasses.replace(second, name="c")
    exchanged = [dataclasses.replace(first, name="b"), dataclasses.replace(second, name="a")]
    others = ([first], [first, renamed], exchanged, _convolutions())
    assert expected not in {fingerprint_convolutions(each) for each in others}


def test_fingerprint_does_not_depend_on_sizes() -> None:
    sizes = {"image_shape": (None, 56, 56, 16), "output_shape": (None, 56, 56, 32)}
    expected = fingerprint_convolutions(_convolutions())
    assert fingerprint_convolutions(_convolutions(**sizes)) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        *(([f"{call}googlenet_12/conv1"], ["googlenet/conv1"]) for call in CALLS),
        (
            ["model_1/conv2d/convolution", "gradient_tape/model_1/conv2d_1/convolution/Conv2D"],
            ["model/conv2d/convolution", "gradient_tape/model/conv2d_1/convolution/Conv2D"],
        ),
        (["conv_2"], ["conv_2"]),
        (["model_1/conv", "model_2/conv"], ["model_1/conv", "model_2/conv"]),  # of two models
        # A function is called twice.
        *(
            (
                [f"{call}PartitionedCall{number}/conv" for number in ("", "_1")],
                ["PartitionedCall/conv", "PartitionedCall_1/conv"],
            )
            for call in CALLS
        ),
    ],
)
def test_canonical_names_are_those_of_all_traces(names: list[str], expected: list[str]) -> None:
    assert list(canonical_names(names).values()) == expected
