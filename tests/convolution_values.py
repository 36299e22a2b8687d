"""Plain configurations of convolutions, for tests to change."""

from __future__ import annotations

import dataclasses

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionKind

CONFIGURATION = ConvolutionConfiguration(
    op="Conv2D",
    kind=ConvolutionKind.FORWARD,
    depthwise=False,
    dtype="float32",
    layout="NHWC",
    image_shape=(8, 28, 28, 16),
    filter_shape=(3, 3, 16, 32),
    output_shape=(8, 28, 28, 32),
    strides=(1, 1),
    dilations=(1, 1),
    padding="SAME",
    group_count=1,
)

# Small enough to be run many times.
TINY = dataclasses.replace(
    CONFIGURATION, image_shape=(1, 8, 8, 3), filter_shape=(3, 3, 3, 4), output_shape=(1, 8, 8, 4)
)
