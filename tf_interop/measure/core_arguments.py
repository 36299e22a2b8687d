"""Convolutions, stages and options as the core takes them, and what it hands to sinks."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from tf_interop.convolution import (
    SPATIAL_AXES,
    ConvolutionConfiguration,
    ConvolutionKind,
    Shape,
)
from tf_interop.measure.backend import MeasureOptions, StageStep
from tf_interop.measure.core_interface import (
    KERNEL_SINK_TYPE,
    SINK_TYPE,
    ConvolutionStruct,
    KernelStruct,
    LaneStruct,
    MeasureOptionsStruct,
    StageStruct,
    StepStruct,
)
from tf_interop.profile.entries import KernelMeasurement

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

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


def to_lane_structs(
    sm_counts: Sequence[int], priorities: Sequence[int], merged: Sequence[bool]
) -> list[LaneStruct]:
    """What lanes ask for; none where no lane asks for anything.

    Raises:
        ValueError: there are not as many of each.
    """
    counts = {len(values) for values in (sm_counts, priorities, merged) if values}
    if len(counts) > 1:
        raise ValueError(
            f"Expected SM counts, priorities and merged for as many lanes each, got "
            f"{len(sm_counts)}, {len(priorities)} and {len(merged)}."
        )
    none = [0] * max(counts, default=0)
    return [
        LaneStruct(*options)
        for options in zip(priorities or none, sm_counts or none, merged or none, strict=True)
    ]


def to_stage_struct(
    steps: Sequence[StageStep],
    sequential_algorithms: Sequence[str | None],
    lane_structs: Sequence[LaneStruct],
) -> StageStruct:
    """What the core calls a stage of these steps.

    Raises:
        ValueError: there are neither none nor as many sequential algorithms as steps, or a
            convolution is none of the core's.
    """
    if sequential_algorithms and len(sequential_algorithms) != len(steps):
        raise ValueError(
            f"Expected a sequential algorithm for none or all of {len(steps)} steps, got "
            f"{len(sequential_algorithms)}."
        )
    lanes = (LaneStruct * len(lane_structs))(*lane_structs)
    structs = (StepStruct * len(steps))(
        *(
            StepStruct(
                to_convolution_struct(step.configuration),
                f"step {index}".encode(),
                (step.algorithm or "").encode(),
                step.lane,
            )
            for index, step in enumerate(steps)
        )
    )
    names = (ctypes.c_char_p * len(sequential_algorithms))(
        *((name or "").encode() for name in sequential_algorithms)
    )
    return StageStruct(
        structs, len(steps), names if sequential_algorithms else None, lanes, len(lanes)
    )


def to_options_struct(options: MeasureOptions) -> MeasureOptionsStruct:
    """What the core calls these options."""
    return MeasureOptionsStruct(
        warmup_runs=options.warmup_runs,
        repetitions=options.repetitions,
        cache_bytes=-1 if options.cache_bytes is None else options.cache_bytes,
        head_start_bytes=-1 if options.head_start_bytes is None else options.head_start_bytes,
        workspace_limit_bytes=options.workspace_limit_bytes,
        reference_limit_multiply_adds=options.reference_limit_multiply_adds,
        seed=options.seed,
        allow_tf32=options.allow_tf32,
        trace_kernels=options.trace_kernels,
    )


class CollectedStrings:
    """Collects what the library gives to a sink.

    Attributes:
        sink: what to hand to the library.
    """

    def __init__(self) -> None:
        self._collected: list[str] = []
        self.sink = SINK_TYPE(self._take)

    def _take(self, data: int, size: int) -> None:
        self._collected.append(ctypes.string_at(data, size).decode())

    @property
    def all(self) -> tuple[str, ...]:
        """What was given, in order."""
        return tuple(self._collected)

    @property
    def only(self) -> str:
        """The one string that was given."""
        (text,) = self._collected
        return text


class CollectedKernels:
    """Collects the GPU kernels that the library gives to a sink.

    Attributes:
        sink: what to hand to the library.
    """

    def __init__(self) -> None:
        self._collected: list[tuple[KernelMeasurement, float]] = []
        self.sink = KERNEL_SINK_TYPE(self._take)

    def _take(self, pointer: ctypes._Pointer[KernelStruct]) -> None:
        kernel = pointer.contents
        measured = KernelMeasurement(
            name=kernel.name.decode(errors="replace"),
            grid=tuple(kernel.grid),
            block=tuple(kernel.block),
            registers_per_thread=kernel.registers_per_thread,
            shared_memory_bytes=kernel.shared_memory_bytes,
            time_share=1.0,
        )
        self._collected.append((measured, kernel.elapsed_us))

    @property
    def all(self) -> tuple[KernelMeasurement, ...]:
        """What was given, in order, each with its share of the time."""
        total_us = sum(elapsed_us for _, elapsed_us in self._collected)
        return tuple(
            dataclasses.replace(kernel, time_share=elapsed_us / total_us)
            for kernel, elapsed_us in self._collected
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
