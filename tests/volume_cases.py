"""Convolutions of volumes as cases of the ConvStage op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from stage_cases import Case, digits, output_size


def _in_layout(layout: str, batch: int, spatial: tuple[int, ...], channels: int) -> list[int]:
    if layout == "NDHWC":
        return [batch, *spatial, channels]
    return [batch, channels, *spatial]


def volume_cases_of(
    layout: str,
    dtype: tf.DType,
    padding: str,
    *,
    batch: int = 2,
    image_size: tuple[int, int, int] = (6, 9, 7),
    filter_size: tuple[int, int, int] = (2, 3, 2),
    strides: tuple[int, int, int] = (1, 1, 1),
    dilations: tuple[int, int, int] = (1, 1, 1),
) -> Iterator[Case]:
    """The three ops for one choice of parameters."""
    attributes: dict[str, Any] = {
        "strides": _in_layout(layout, 1, strides, 1),
        "dilations": _in_layout(layout, 1, dilations, 1),
        "padding": padding,
        "data_format": layout,
    }
    out_size = tuple(
        output_size(size, taps, stride, dilation, padding, (0, 0))
        for size, taps, stride, dilation in zip(
            image_size, filter_size, strides, dilations, strict=True
        )
    )
    image_shape = _in_layout(layout, batch, image_size, 3)
    filter_shape = [*filter_size, 3, 4]
    image, filter_ = digits(image_shape, dtype), digits(filter_shape, dtype, seed=1)
    gradient = digits(_in_layout(layout, batch, out_size, 4), dtype, seed=2)
    yield Case("Conv3D", (image, filter_), attributes)
    yield Case("Conv3DBackpropInputV2", (image_shape, filter_, gradient), attributes)
    yield Case("Conv3DBackpropFilterV2", (image, filter_shape, gradient), attributes)
