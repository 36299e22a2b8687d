"""The structs and functions of the core's C interface, as `cc_kernels/core/c_api.h` states them.

Whatever changes there changes here, and `INTERFACE_VERSION` with it.
"""

from __future__ import annotations

import ctypes
from typing import Any

INTERFACE_VERSION = 4
"""What `TfiCoreVersion` has to give."""

SINK_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)


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


_DEVICE = ctypes.c_void_p
_CONVOLUTION = ctypes.POINTER(ConvolutionStruct)
_OPTIONS = ctypes.POINTER(MeasureOptionsStruct)

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "TfiCoreOpen": (
        ctypes.c_int,
        (ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), SINK_TYPE),
    ),
    "TfiCoreCudnnVersion": (None, (SINK_TYPE,)),
    "TfiCoreDescribe": (
        ctypes.c_int,
        (_DEVICE, ctypes.POINTER(DeviceDescriptionStruct), *[SINK_TYPE] * 5),
    ),
    "TfiCoreListAlgorithms": (
        ctypes.c_int,
        (_DEVICE, _CONVOLUTION, ctypes.c_int32, ctypes.c_int32, SINK_TYPE, SINK_TYPE),
    ),
    "TfiCoreResolveAlgorithm": (
        ctypes.c_int,
        (
            *(_DEVICE, _CONVOLUTION, ctypes.c_char_p, _OPTIONS),
            *(ctypes.POINTER(ctypes.c_int32), SINK_TYPE, SINK_TYPE),
        ),
    ),
    "TfiCoreMeasureConvolution": (
        ctypes.c_int,
        (
            *(_DEVICE, _CONVOLUTION, ctypes.c_char_p, _OPTIONS),
            *(ctypes.POINTER(MeasurementStruct), SINK_TYPE, KERNEL_SINK_TYPE),
            *(SINK_TYPE, SINK_TYPE),
        ),
    ),
    "TfiCoreMeasureStage": (
        ctypes.c_int,
        (
            *(_DEVICE, ctypes.POINTER(StageStruct), _OPTIONS),
            *(ctypes.POINTER(StageMeasurementStruct), ctypes.POINTER(ctypes.c_int32)),
            *(ctypes.POINTER(ctypes.c_size_t), SINK_TYPE, SINK_TYPE, SINK_TYPE),
        ),
    ),
}
"""What each function returns and takes."""


def declare_functions(functions: ctypes.CDLL) -> None:
    """Tells ctypes what the functions of the loaded library return and take."""
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(functions, name)
        function.restype = result
        function.argtypes = arguments
