"""How much a convolution has to compute."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable

from tf_interop.know.convolution import ConvolutionConfiguration


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
    filter_height, filter_width, channels_per_group, _ = configuration.filter_shape
    per_output = 1 if configuration.depthwise else channels_per_group
    values = (*configuration.output_shape, filter_height, filter_width, per_output)
    return math.prod(value for value in values if value is not None)


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
