"""How much a convolution has to compute."""

from __future__ import annotations

import math

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
