"""The structs of the core's C interface, as `cc_kernels/core/c_api.h` states them.

Whatever changes there changes here, and `INTERFACE_VERSION` with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, TypeVar

from tf_interop.know.convolution import (
    SPATIAL_AXES,
    ConvolutionConfiguration,
    ConvolutionKind,
    Shape,
)

INTERFACE_VERSION = 4
"""What `TfiCoreVersion` has to give."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

SINK_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)

_KINDS = {
    ConvolutionKind.FORWARD: 0,
    ConvolutionKind.BACKWARD_INPUT: 1,
    ConvolutionKind.BACKWARD_FILTER: 2,
}
_DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "float64": 3}
_LAYOUTS = {"NHWC": 0, "NCHW": 1, "NDHWC": 0, "NCDHW": 1}
_FUSED_OPS = {
    (): (False, 0),
    ("BiasAdd",): (True, 0),
    ("BiasAdd", "Relu"): (True, 1),
    ("BiasAdd", "Relu6"): (True, 2),
    ("BiasAdd", "LeakyRelu"): (True, 3),
    ("BiasAdd", "Elu"): (True, 4),
}


class ExactStructure(ctypes.Structure):
    """A struct that refuses an integer that its field cannot hold: ctypes cuts it off."""

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        names = (field[0] for field in self._fields_)
        for name, value in (dict(zip(names, values, strict=False)) | named).items():
            if isinstance(value, int) and getattr(self, name) != value:
                raise ValueError(f"Expected {name} to fit in the core's integer, got {value}.")


class ConvolutionStruct(ExactStructure):
    """`TfiCoreConvolution`."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("layout", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("has_bias", ctypes.c_int32),
        ("leaky_relu_alpha", ctypes.c_float),
        ("spatial_rank", ctypes.c_int64),
        ("image_depth", ctypes.c_int64),
        ("filter_depth", ctypes.c_int64),
        ("output_depth", ctypes.c_int64),
        ("stride_depth", ctypes.c_int64),
        ("dilation_depth", ctypes.c_int64),
        ("pad_front", ctypes.c_int64),
        ("pad_back", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("image_height", ctypes.c_int64),
        ("image_width", ctypes.c_int64),
        ("image_channels", ctypes.c_int64),
        ("filter_height", ctypes.c_int64),
        ("filter_width", ctypes.c_int64),
        ("output_height", ctypes.c_int64),
        ("output_width", ctypes.c_int64),
        ("output_channels", ctypes.c_int64),
        ("stride_height", ctypes.c_int64),
        ("stride_width", ctypes.c_int64),
        ("dilation_height", ctypes.c_int64),
        ("dilation_width", ctypes.c_int64),
        ("pad_top", ctypes.c_int64),
        ("pad_bottom", ctypes.c_int64),
        ("pad_left", ctypes.c_int64),
        ("pad_right", ctypes.c_int64),
        ("group_count", ctypes.c_int64),
    )


class StepStruct(ExactStructure):
    """`TfiCoreStep`."""

    _fields_ = (
        ("convolution", ConvolutionStruct),
        ("name", ctypes.c_char_p),
        ("algorithm", ctypes.c_char_p),
        ("lane", ctypes.c_int64),
    )


class LaneStruct(ExactStructure):
    """`TfiCoreLane`."""

    _fields_ = (
        ("priority", ctypes.c_int32),
        ("sm_count", ctypes.c_int32),
        ("merged", ctypes.c_int32),
    )


class StageStruct(ctypes.Structure):
    """`TfiCoreStage`."""

    _fields_ = (
        ("steps", ctypes.POINTER(StepStruct)),
        ("step_count", ctypes.c_size_t),
        ("sequential_algorithms", ctypes.POINTER(ctypes.c_char_p)),
        ("lanes", ctypes.POINTER(LaneStruct)),
        ("lane_count", ctypes.c_size_t),
    )


class DeviceDescriptionStruct(ctypes.Structure):
    """`TfiCoreDeviceDescription`."""

    _fields_ = (
        ("memory_bytes", ctypes.c_int64),
        ("sm_count", ctypes.c_int32),
        ("sm_registers", ctypes.c_int32),
        ("sm_shared_memory_bytes", ctypes.c_int32),
        ("sm_threads", ctypes.c_int32),
        ("sm_blocks", ctypes.c_int32),
        ("sm_reserved_shared_memory_bytes", ctypes.c_int32),
    )


class KernelStruct(ctypes.Structure):
    """`TfiCoreKernel`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("grid", ctypes.c_int32 * 3),
        ("block", ctypes.c_int32 * 3),
        ("registers_per_thread", ctypes.c_int32),
        ("shared_memory_bytes", ctypes.c_int64),
        ("elapsed_us", ctypes.c_double),
    )


KERNEL_SINK_TYPE = ctypes.CFUNCTYPE(None, ctypes.POINTER(KernelStruct))


class MeasureOptionsStruct(ExactStructure):
    """`TfiCoreMeasureOptions`."""

    _fields_ = (
        ("warmup_runs", ctypes.c_int64),
        ("repetitions", ctypes.c_int64),
        ("cache_bytes", ctypes.c_int64),
        ("head_start_bytes", ctypes.c_int64),
        ("workspace_limit_bytes", ctypes.c_int64),
        ("reference_limit_multiply_adds", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("allow_tf32", ctypes.c_int32),
        ("trace_kernels", ctypes.c_int32),
    )


class MeasurementStruct(ctypes.Structure):
    """`TfiCoreMeasurement`."""

    _fields_ = (
        ("median_us", ctypes.c_double),
        ("spread_us", ctypes.c_double),
        ("relative_error", ctypes.c_double),
        ("workspace_bytes", ctypes.c_int64),
        ("copies", ctypes.c_int64),
        ("is_deterministic", ctypes.c_int32),
        ("reduces_precision", ctypes.c_int32),
    )


class StageMeasurementStruct(ctypes.Structure):
    """`TfiCoreStageMeasurement`."""

    _fields_ = (
        ("concurrent_us", ctypes.c_double),
        ("concurrent_spread_us", ctypes.c_double),
        ("same_sequential_us", ctypes.c_double),
        ("same_sequential_spread_us", ctypes.c_double),
        ("sequential_us", ctypes.c_double),
        ("sequential_spread_us", ctypes.c_double),
        ("workspace_bytes", ctypes.c_int64),
        ("copies", ctypes.c_int64),
    )


def to_convolution_struct(configuration: ConvolutionConfiguration) -> ConvolutionStruct:
    """What the core calls a convolution; it checks the sizes itself.

    Raises:
        ValueError: a shape is not known, the filter does not fit the channels, or the core has no
            such dtype, layout, padding or fused operation.
    """
    layout = _number_of(_LAYOUTS, "layout", configuration.layout)
    axes = SPATIAL_AXES[configuration.layout]
    channel_axis = configuration.layout.index("C")
    image = _known("image", configuration.image_shape, configuration.layout)
    filter_ = _known("filter", configuration.filter_shape, configuration.layout)
    output = _known("output", configuration.output_shape, configuration.layout)
    for field in ("strides", "dilations"):
        if len(getattr(configuration, field)) != len(axes):
            raise ValueError(
                f"Expected {len(axes)} {field} in layout {configuration.layout}, got "
                f"{getattr(configuration, field)}."
            )
    image_sizes = tuple(image[axis] for axis in axes)
    image_channels, output_channels = image[channel_axis], output[channel_axis]
    pads = _pads(configuration, image_sizes, filter_)
    has_bias, activation = _number_of(_FUSED_OPS, "fused_ops", configuration.fused_ops)
    _check_filter(configuration, filter_, image_channels, output_channels)
    image_depth, image_height, image_width = _with_depth(image_sizes, 1)
    filter_depth, filter_height, filter_width = _with_depth(filter_[: len(axes)], 1)
    output_depth, output_height, output_width = _with_depth([output[axis] for axis in axes], 1)
    stride_depth, stride_height, stride_width = _with_depth(configuration.strides, 1)
    dilation_depth, dilation_height, dilation_width = _with_depth(configuration.dilations, 1)
    (pad_front, pad_back), (pad_top, pad_bottom), (pad_left, pad_right) = _with_depth(pads, (0, 0))
    return ConvolutionStruct(
        kind=_KINDS[configuration.kind],
        dtype=_number_of(_DTYPES, "dtype", configuration.dtype),
        layout=layout,
        activation=activation,
        has_bias=has_bias,
        leaky_relu_alpha=configuration.leaky_relu_alpha,
        spatial_rank=len(axes),
        image_depth=image_depth,
        filter_depth=filter_depth,
        output_depth=output_depth,
        stride_depth=stride_depth,
        dilation_depth=dilation_depth,
        pad_front=pad_front,
        pad_back=pad_back,
        batch=image[0],
        image_height=image_height,
        image_width=image_width,
        image_channels=image_channels,
        filter_height=filter_height,
        filter_width=filter_width,
        output_height=output_height,
        output_width=output_width,
        output_channels=output_channels,
        stride_height=stride_height,
        stride_width=stride_width,
        dilation_height=dilation_height,
        dilation_width=dilation_width,
        pad_top=pad_top,
        pad_bottom=pad_bottom,
        pad_left=pad_left,
        pad_right=pad_right,
        group_count=image_channels if configuration.depthwise else image_channels // filter_[-2],
    )


def _known(tensor: str, shape: Shape | None, layout: str) -> tuple[int, ...]:
    known = tuple(size for size in shape or () if size is not None)
    if shape is None or len(known) != len(shape) or len(shape) != len(layout):
        raise ValueError(
            f"Expected a configuration with the {tensor}'s shape known, of rank {len(layout)}, got "
            f"{shape}."
        )
    return known


def _with_depth(spatial: Sequence[_Value], depth: _Value) -> tuple[_Value, _Value, _Value]:
    """What is said of depth, height and width, where images have no depth."""
    *depths, height, width = spatial
    return (depths or [depth])[0], height, width


def _check_filter(
    configuration: ConvolutionConfiguration,
    filter_: tuple[int, ...],
    image_channels: int,
    output_channels: int,
) -> None:
    """The core knows the filter by image and output channels; here all three have to agree."""
    channels, filters = filter_[-2:]
    if configuration.depthwise:
        agrees = channels == image_channels and channels * filters == output_channels
    else:
        agrees = channels > 0 and image_channels % channels == 0 and filters == output_channels
    if not agrees:
        raise ValueError(
            f"Expected a filter for {image_channels} image and {output_channels} output channels, "
            f"got shape {filter_}."
        )


def _pads(
    configuration: ConvolutionConfiguration,
    image: Sequence[int],
    filter_: Sequence[int],
) -> list[tuple[int, int]]:
    """Before and after each spatial dimension, as TensorFlow pads."""
    dimensions = range(len(image))
    if configuration.padding == "VALID":
        return [(0, 0) for _ in dimensions]
    if configuration.padding == "EXPLICIT":
        pads = configuration.explicit_paddings
        if len(pads) != 2 * len(image):
            raise ValueError(f"Expected {2 * len(image)} explicit_paddings, got {pads}.")
        return [(pads[2 * axis], pads[2 * axis + 1]) for axis in dimensions]
    if configuration.padding != "SAME":
        raise ValueError(
            f"Expected padding SAME, VALID or EXPLICIT, got '{configuration.padding}'."
        )
    same: list[tuple[int, int]] = []
    for axis in dimensions:
        reach = (filter_[axis] - 1) * configuration.dilations[axis] + 1
        outputs = -(-image[axis] // configuration.strides[axis])
        covered = (outputs - 1) * configuration.strides[axis] + reach
        total = max(covered - image[axis], 0)
        same.append((total // 2, total - total // 2))
    return same


def _number_of(numbers: dict[_Key, _Value], field: str, value: _Key) -> _Value:
    if value not in numbers:
        accepted = ", ".join(str(key) for key in numbers)
        raise ValueError(f"Expected {field} to be one of {accepted}, got {value}.")
    return numbers[value]
