"""Sizes of convolutions: how much one has to compute, and what its output's shape is."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable

from tf_interop.convolution import SPATIAL_AXES, ConvolutionConfiguration, Shape


def has_known_shapes(configuration: ConvolutionConfiguration) -> bool:
    """Whether every dimension is known, as it has to be for measuring."""
    shapes = (configuration.image_shape, configuration.filter_shape, configuration.output_shape)
    return configuration.group_count is not None and all(
        shape is not None and None not in shape for shape in shapes
    )


def multiply_adds(configuration: ConvolutionConfiguration) -> int:
    """How many multiplications, each with an addition, a convolution of known shapes takes."""
    assert configuration.filter_shape is not None
    assert configuration.output_shape is not None
    *taps, channels_per_group, _ = configuration.filter_shape
    per_output = 1 if configuration.depthwise else channels_per_group
    values = (*configuration.output_shape, *taps, per_output)
    return math.prod(value for value in values if value is not None)


def computed_output_shape(
    image: Shape | None,
    filter_: Shape | None,
    layout: str,
    depthwise: bool,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: str,
    explicit_paddings: tuple[int, ...],
) -> Shape | None:
    """The shape of the output as far as it follows from image and filter.

    Args:
        image: the image's shape in `layout`, or None.
        filter_: the filter's, HWIO or DHWIO, or None.
        layout: of image and output.
        depthwise: whether the filter is a depthwise one.
        strides: of each spatial dimension.
        dilations: likewise.
        padding: `SAME`, `VALID` or `EXPLICIT`.
        explicit_paddings: before and after each spatial dimension, where padding is `EXPLICIT`.

    Returns:
        The shape in `layout`, or None where nothing of it follows.
    """
    rank = len(layout)
    unknown: Shape = (None,) * rank
    if image is None or len(image) != rank:
        image = unknown
    if filter_ is None or len(filter_) != rank:
        filter_ = unknown
    channels = filter_[-1]
    if depthwise and channels is not None:
        channels = None if filter_[-2] is None else filter_[-2] * channels
    shape = [image[0], *unknown[1:]]
    shape[layout.index("C")] = channels
    for spatial, axis in enumerate(SPATIAL_AXES[layout]):
        shape[axis] = _output_size(
            image[axis],
            filter_[spatial],
            strides[spatial],
            dilations[spatial],
            padding,
            sum(explicit_paddings[2 * spatial : 2 * spatial + 2]),
        )
    return None if tuple(shape) == unknown else tuple(shape)


def _output_size(
    size: int | None,
    filter_size: int | None,
    stride: int,
    dilation: int,
    padding: str,
    total_padding: int,
) -> int | None:
    if size is None:
        return None
    if padding == "SAME":
        return -(-size // stride)
    if filter_size is None:
        return None
    reach = (filter_size - 1) * dilation + 1
    return max(0, (size + total_padding - reach) // stride + 1)


def batch_size_of(configurations: Iterable[ConvolutionConfiguration]) -> int | None:
    """The batch size that most convolutions of a graph have.

    Some may have another, such as those on regions that a detector has cut out of its images.

    Returns:
        None where no batch size is known; of equally frequent ones the first.
    """
    sizes = collections.Counter(
        each.image_shape[0] for each in configurations if each.image_shape and each.image_shape[0]
    )
    return sizes.most_common(1)[0][0] if sizes else None
