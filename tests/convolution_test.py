"""Merging of convolutions, their forms and sizes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from convolution_values import CONFIGURATION

from tf_interop.convolution import (
    ConvolutionKind,
    can_merge,
    describe_form,
    merged_configuration,
    output_bytes,
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


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 8 * 28 * 28 * 32 * 4),
        ({"kind": ConvolutionKind.BACKWARD_INPUT}, 8 * 28 * 28 * 16 * 4),
        ({"kind": ConvolutionKind.BACKWARD_FILTER}, 3 * 3 * 16 * 32 * 4),
        ({"dtype": "bfloat16"}, 8 * 28 * 28 * 32 * 2),
    ],
)
def test_the_size_of_a_result_depends_on_kind_and_dtype(
    change: dict[str, Any], expected: int
) -> None:
    assert output_bytes(dataclasses.replace(CONFIGURATION, **change)) == expected


@pytest.mark.parametrize(
    ("change", "form"),
    [
        ({}, "Conv2D 3x3x16x32 SAME float32 NHWC"),
        (
            {"image_shape": (None, 56, 56, 16), "output_shape": None},
            "Conv2D 3x3x16x32 SAME float32 NHWC",
        ),
        (
            {"strides": (2, 1), "dilations": (1, 2)},
            "Conv2D 3x3x16x32 strides 2x1 dilations 1x2 SAME float32 NHWC",
        ),
        ({"filter_shape": (3, None, 16, 32)}, "Conv2D 3x?x16x32 SAME float32 NHWC"),
        ({"filter_shape": None}, "Conv2D filter of unknown shape SAME float32 NHWC"),
        (
            {"padding": "EXPLICIT", "explicit_paddings": (0, 1, 2, 0)},
            "Conv2D 3x3x16x32 EXPLICIT 0,1,2,0 float32 NHWC",
        ),
        ({"dtype": "bfloat16", "layout": "NCHW"}, "Conv2D 3x3x16x32 SAME bfloat16 NCHW"),
        (
            {"op": "_FusedConv2D", "fused_ops": ("BiasAdd", "LeakyRelu"), "leaky_relu_alpha": 0.2},
            "_FusedConv2D 3x3x16x32 SAME float32 NHWC +BiasAdd +LeakyRelu alpha 0.2",
        ),
    ],
)
def test_a_form_is_everything_but_sizes(change: dict[str, Any], form: str) -> None:
    assert describe_form(dataclasses.replace(CONFIGURATION, **change)) == form
