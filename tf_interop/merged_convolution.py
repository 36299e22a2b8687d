"""Convolutions that run as one wider convolution: they differ in filters and output channels alone.

image -+-> filter a [3, 3, 64, 96]                    image ---> filter a, b [3, 3, 64, 128]
       +-> filter b [3, 3, 64, 32]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionKind, Shape


def can_merge(configurations: Sequence[ConvolutionConfiguration]) -> bool:
    """Whether they can run as one wider convolution, if they read the same image.

    Args:
        configurations: of two or more convolutions.
    """
    shared = {
        dataclasses.replace(each, filter_shape=filter_size(each), output_shape=None)
        for each in configurations
    }
    return len(configurations) > 1 and len(shared) == 1 and all(map(may_merge, configurations))


def may_merge(configuration: ConvolutionConfiguration) -> bool:
    """Whether a convolution can be part of a wider one, by itself."""
    return (
        configuration.kind is ConvolutionKind.FORWARD
        and not configuration.depthwise
        and configuration.group_count == 1
        and configuration.filter_shape is not None
    )


def filter_size(configuration: ConvolutionConfiguration) -> Shape | None:
    """The filter's shape without its output channels."""
    shape = configuration.filter_shape
    return None if shape is None else shape[:-1]


def merged_configuration(
    configurations: Sequence[ConvolutionConfiguration],
) -> ConvolutionConfiguration:
    """The wider convolution.

    Args:
        configurations: of known shapes, in the order of their output channels.

    Raises:
        ValueError: they cannot be merged.
    """
    if not can_merge(configurations):
        raise ValueError(
            "Expected two or more convolutions that differ in filters and output channels alone, "
            f"got {', '.join(map(str, configurations))}. Run them one by one."
        )
    first = configurations[0]
    channel_axis = 1 if first.layout.startswith("NC") else -1
    return dataclasses.replace(
        first,
        filter_shape=_widened([each.filter_shape for each in configurations], -1),
        output_shape=_widened([each.output_shape for each in configurations], channel_axis),
    )


def _widened(shapes: Sequence[Shape | None], axis: int) -> Shape | None:
    sizes: list[int | None] | None = None if shapes[0] is None else list(shapes[0])
    channels = [None if shape is None else shape[axis] for shape in shapes]
    if sizes is None:
        return None
    known = [each for each in channels if each is not None]
    sizes[axis] = sum(known) if len(known) == len(channels) else None
    return tuple(sizes)
