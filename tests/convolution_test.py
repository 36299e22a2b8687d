"""What can be one wider convolution, and what that computes."""

from __future__ import annotations

import dataclasses

import pytest
from convolution_values import CONFIGURATION

from tf_interop.convolution import (
    ConvolutionConfiguration,
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
    "other",
    [
        dataclasses.replace(NARROW, filter_shape=(1, 3, 16, 8)),
        dataclasses.replace(NARROW, filter_shape=None),
        dataclasses.replace(NARROW, image_shape=(4, 28, 28, 16)),
        dataclasses.replace(NARROW, strides=(2, 2)),
        dataclasses.replace(NARROW, dilations=(2, 2)),
        dataclasses.replace(NARROW, padding="VALID"),
        dataclasses.replace(NARROW, layout="NCHW"),
        dataclasses.replace(NARROW, dtype="float16"),
        dataclasses.replace(NARROW, op="_FusedConv2D", fused_ops=("BiasAdd",)),
    ],
)
def test_keeps_apart_what_differs_in_more_than_channels(other: ConvolutionConfiguration) -> None:
    assert can_merge([CONFIGURATION, NARROW])
    assert not can_merge([CONFIGURATION, other])
    with pytest.raises(ValueError, match="that differ in filters and output channels alone"):
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
