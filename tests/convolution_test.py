"""What can be one wider convolution, and what that computes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from convolution_values import CONFIGURATION

from tf_interop.convolution import (
    ConvolutionKind,
    can_merge,
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


def test_output_channels_are_where_the_layout_has_them() -> None:
    assert merged_configuration([FIRST, FIRST]).output_shape == (8, 64, 28, 28)


def test_what_is_not_known_stays_unknown() -> None:
    unknown = dataclasses.replace(NARROW, output_shape=(8, 28, 28, None))
    assert merged_configuration([CONFIGURATION, unknown]).output_shape == (8, 28, 28, None)
    unknown = dataclasses.replace(NARROW, output_shape=None)
    assert merged_configuration([unknown, unknown]).output_shape is None


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
def test_keeps_apart_what_differs_in_more_than_channels(change: dict[str, Any]) -> None:
    other = dataclasses.replace(NARROW, **change)
    assert can_merge([CONFIGURATION, NARROW])
    assert not can_merge([CONFIGURATION, other])
    with pytest.raises(ValueError, match="Expected two or more"):
        merged_configuration([CONFIGURATION, other])


@pytest.mark.parametrize(
    "change",
    [{"group_count": 2}, {"depthwise": True}, {"kind": ConvolutionKind.BACKWARD_FILTER}],
)
def test_keeps_apart_what_is_no_plain_forward_convolution(change: dict[str, object]) -> None:
    each = dataclasses.replace(CONFIGURATION, **change)
    assert not can_merge([each, each])


def test_one_convolution_is_not_merged() -> None:
    assert not can_merge([CONFIGURATION])
