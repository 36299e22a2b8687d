"""The arguments of the compiled core's functions, as structs of its header."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from tf_interop.convolution import (
    DTYPE_BYTES,
    FUSED_OPS,
    SPATIAL_AXES,
    ConvolutionConfiguration,
    ConvolutionKind,
)
from tf_interop.profile.entries import check_configuration
from tf_interop.stage import Stage

_Value = TypeVar("_Value")

_KINDS = tuple(ConvolutionKind)
_DTYPES = tuple(DTYPE_BYTES)
_LAYOUTS = {"NHWC": 0, "NCHW": 1, "NDHWC": 0, "NCDHW": 1}
_DIMENSIONS = ("depth", "height", "width")
_PADS = ("pad_front", "pad_back", "pad_top", "pad_bottom", "pad_left", "pad_right")


def convolution_fields(configuration: ConvolutionConfiguration) -> dict[str, Any]:
    """The fields of a `TfiConvolution`; the core checks the sizes.

    Raises:
        ValueError: a shape is unknown, the filter does not fit the channels, or the core has no
            such dtype, layout, padding or fused operation.
    """
    check_configuration(configuration, "$")
    fused_ops = configuration.fused_ops
    if fused_ops and fused_ops not in FUSED_OPS:
        raise ValueError(
            f"Expected fused_ops to be empty or one of {', '.join(map(str, FUSED_OPS))}, got "
            f"{fused_ops}."
        )
    axes = SPATIAL_AXES[configuration.layout]
    channel_axis = configuration.layout.index("C")
    image, filter_, output = cast(
        "tuple[tuple[int, ...], ...]",
        (configuration.image_shape, configuration.filter_shape, configuration.output_shape),
    )
    image_sizes = [image[axis] for axis in axes]
    channels = image[channel_axis]
    # The core derives the filter's channels from the others, so all three must agree here.
    of_filter, filters = filter_[-2:]
    outputs = output[channel_axis]
    if configuration.depthwise:
        agrees = of_filter == channels and channels * filters == outputs
    else:
        agrees = of_filter > 0 and channels % of_filter == 0 and filters == outputs
    if not agrees:
        raise ValueError(
            f"Expected a filter for {channels} image and {outputs} output channels, got shape "
            f"{filter_}."
        )
    sizes = {
        "spatial_rank": len(axes),
        "batch": image[0],
        "image_channels": channels,
        "output_channels": outputs,
        "group_count": channels if configuration.depthwise else channels // of_filter,
    }
    pads = _with_depth(_pads(configuration, image_sizes, filter_), (0, 0))
    sizes |= zip(_PADS, itertools.chain(*pads), strict=True)
    for name, values in (
        ("image", image_sizes),
        ("filter", filter_[:-2]),
        ("output", [output[axis] for axis in axes]),
        ("stride", configuration.strides),
        ("dilation", configuration.dilations),
    ):
        by_dimension = zip(_DIMENSIONS, _with_depth(values, 1), strict=True)
        sizes |= {f"{name}_{dimension}": value for dimension, value in by_dimension}
    return {
        "sizes": sizes,
        "kind": _KINDS.index(configuration.kind),
        "dtype": _DTYPES.index(configuration.dtype),
        "layout": _LAYOUTS[configuration.layout],
        "activation": FUSED_OPS.index(fused_ops) if fused_ops else 0,
        "has_bias": bool(fused_ops),
        "leaky_relu_alpha": configuration.leaky_relu_alpha,
    }


def make_struct(ffi: Any, kind: str, fields: object) -> Any:
    """A struct or an array of the library; numbers that do not fit raise a ValueError."""
    try:
        return ffi.new(kind, fields)
    except OverflowError as error:
        raise ValueError(f"Expected sizes that fit into the core's integers: {error}") from error


def make_lanes(
    ffi: Any,
    stage: Stage[ConvolutionConfiguration],
    sequential_algorithms: Sequence[str | None],
    images: Sequence[int],
) -> tuple[Any, list[object]]:
    """The lanes of a stage as an array of `TfiLane`, and the objects that must outlive it."""
    kept: list[object] = []

    def text(algorithm: str | None) -> Any:
        kept.append(ffi.new("char[]", (algorithm or "").encode()))
        return kept[-1]

    sequential = iter(sequential_algorithms)
    image = iter(images or (-1,) * len(stage.steps))
    lanes = []
    for lane in stage.lanes:
        steps = [
            {
                "convolution": convolution_fields(step.operation),
                "algorithm": text(step.algorithm),
                "sequential_algorithm": text(next(sequential))
                if sequential_algorithms
                else ffi.NULL,
                "image": next(image),
            }
            for step in lane.steps
        ]
        kept.append(make_struct(ffi, "TfiStep[]", steps))
        lanes.append({"options": lane.options, "steps": kept[-1], "step_count": len(steps)})
    return make_struct(ffi, "TfiLane[]", lanes), kept


def _with_depth(spatial: Sequence[_Value], depth: _Value) -> tuple[_Value, ...]:
    """Adds a value for depth, which images do not have."""
    return (depth,) * (len(_DIMENSIONS) - len(spatial)) + tuple(spatial)


def _pads(
    configuration: ConvolutionConfiguration, image: Sequence[int], filter_: Sequence[int]
) -> list[tuple[int, int]]:
    """The padding before and after each spatial dimension, as TensorFlow pads."""
    if configuration.padding == "VALID":
        return [(0, 0)] * len(image)
    if configuration.padding == "EXPLICIT":
        pads = configuration.explicit_paddings
        if len(pads) != 2 * len(image):
            raise ValueError(f"Expected {2 * len(image)} explicit_paddings, got {pads}.")
        return list(zip(pads[::2], pads[1::2], strict=True))
    if configuration.padding != "SAME":
        raise ValueError(
            f"Expected padding SAME, VALID or EXPLICIT, got '{configuration.padding}'."
        )
    same: list[tuple[int, int]] = []
    sizes = zip(image, filter_[:-2], configuration.strides, configuration.dilations, strict=True)
    for size, taps, stride, dilation in sizes:
        outputs = -(-size // stride)
        covered = (outputs - 1) * stride + (taps - 1) * dilation + 1
        total = max(covered - size, 0)
        same.append((total // 2, total - total // 2))
    return same
