"""Measuring through the compiled core, which needs no TensorFlow; nor does this module.

The interface is stated in `cc_kernels/core/c_api.h`. This module is the only one that uses it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import TypeVar

from tf_interop.errors import LibraryError
from tf_interop.know.convolution import ConvolutionConfiguration, ConvolutionKind, Shape
from tf_interop.know.library_file import find_library_file
from tf_interop.know.profile import MeasuredConvolution, StageMeasurement

CORE_LIBRARY_NAME = "libtf_interop_core.so"

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_VERSION = 1
_REBUILD = "Build it again, in tf_interop's source folder: scripts/setup.sh"

_SINK_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)

_KINDS = {
    ConvolutionKind.FORWARD: 0,
    ConvolutionKind.BACKWARD_INPUT: 1,
    ConvolutionKind.BACKWARD_FILTER: 2,
}
_DTYPES = {"float32": 0, "float16": 1}
_LAYOUTS = {"NHWC": 0, "NCHW": 1}
_FUSED_OPS = {
    (): (False, 0),
    ("BiasAdd",): (True, 0),
    ("BiasAdd", "Relu"): (True, 1),
    ("BiasAdd", "Relu6"): (True, 2),
    ("BiasAdd", "LeakyRelu"): (True, 3),
    ("BiasAdd", "Elu"): (True, 4),
}


class _Convolution(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("layout", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("has_bias", ctypes.c_int32),
        ("leaky_relu_alpha", ctypes.c_float),
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


class _Step(ctypes.Structure):
    _fields_ = (
        ("convolution", _Convolution),
        ("name", ctypes.c_char_p),
        ("algorithm", ctypes.c_char_p),
        ("lane", ctypes.c_int64),
    )


class _MeasureOptions(ctypes.Structure):
    _fields_ = (
        ("warmup_runs", ctypes.c_int64),
        ("repetitions", ctypes.c_int64),
        ("cache_bytes", ctypes.c_int64),
        ("head_start_bytes", ctypes.c_int64),
        ("workspace_limit_bytes", ctypes.c_int64),
        ("reference_limit_multiply_adds", ctypes.c_double),
        ("seed", ctypes.c_uint64),
    )


class _Measurement(ctypes.Structure):
    _fields_ = (
        ("median_us", ctypes.c_double),
        ("spread_us", ctypes.c_double),
        ("relative_error", ctypes.c_double),
        ("workspace_bytes", ctypes.c_int64),
        ("copies", ctypes.c_int64),
        ("is_deterministic", ctypes.c_int32),
    )


class _StageMeasurement(ctypes.Structure):
    _fields_ = (
        ("concurrent_us", ctypes.c_double),
        ("concurrent_spread_us", ctypes.c_double),
        ("sequential_us", ctypes.c_double),
        ("sequential_spread_us", ctypes.c_double),
        ("workspace_bytes", ctypes.c_int64),
        ("copies", ctypes.c_int64),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How to measure; `cc_kernels/core/measure.h` says what is done with it.

    Attributes:
        warmup_runs: runs before the timed ones.
        repetitions: timed runs, at least 1.
        cache_bytes: what the copies of all operands have to exceed together; None for the device's
            default (32 MiB on host, 64 MiB on cudnn).
        head_start_bytes: memory that is filled before each timed run, to give the host time to
            enqueue it; None for the device's default (none on host, 256 MiB on cudnn).
        workspace_limit_bytes: the most that one convolution may need.
        reference_limit_multiply_adds: the error is measured up to this size.
        seed: of the operands, which are normal with mean 0 and deviation 1.
    """

    warmup_runs: int = 3
    repetitions: int = 20
    cache_bytes: int | None = None
    head_start_bytes: int | None = None
    workspace_limit_bytes: int = 1 << 30
    reference_limit_multiply_adds: float = 2e8
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class StageStep:
    """One convolution of a stage to be measured.

    Attributes:
        configuration: what it computes; all its shapes are known.
        lane: its lane; lanes are numbered 0, 1, 2, … in the order of the steps.
        algorithm: pinned, or None for the backend's own choice.
    """

    configuration: ConvolutionConfiguration
    lane: int
    algorithm: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ConvolutionResult:
    """What one convolution costs alone.

    Attributes:
        configuration: what was computed.
        algorithm: what ran.
        median_us: of the timed runs.
        spread_us: half the distance between their 10th and 90th percentile.
        workspace_bytes: what the algorithm needs.
        relative_error: the largest difference from the result in double precision, relative to the
            largest value of that; infinite where an element is not finite; None where it was not
            measured because the convolution is over the limit.
        deterministic: whether two runs gave the same bits.
        source: what measured, and how.
    """

    configuration: ConvolutionConfiguration
    algorithm: str
    median_us: float
    spread_us: float
    workspace_bytes: int
    relative_error: float | None
    deterministic: bool
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage costs, on its lanes and in sequence; both were measured by turns.

    Attributes:
        convolutions: what ran, in the order of the steps, with the algorithm of each.
        lanes: the lane of each.
        concurrent_us: median on the lanes, from fork to join.
        concurrent_spread_us: half the distance between the 10th and 90th percentile.
        sequential_us: median of the same convolutions with the same algorithms on one stream.
        sequential_spread_us: half the distance between the 10th and 90th percentile.
        workspace_bytes: what all lanes need together.
        fallbacks: why pinned algorithms were replaced, if any was.
        source: what measured, and how.
    """

    convolutions: tuple[MeasuredConvolution, ...]
    lanes: tuple[int, ...]
    concurrent_us: float
    concurrent_spread_us: float
    sequential_us: float
    sequential_spread_us: float
    workspace_bytes: int
    fallbacks: tuple[str, ...]
    source: str

    def to_profile(self, alone: StageResult | None = None) -> StageMeasurement:
        """The entry of a profile.

        A profile compares a stage with its convolutions in sequence, each with the algorithm that
        is fastest alone. The spread is the sum of both, since either figure may be off.

        Args:
            alone: where those algorithms are others than the stage's, a result for the same
                convolutions in the same order with them; its sequential figures are taken.

        Raises:
            ValueError: `alone` is of other convolutions.
        """
        sequence = self if alone is None else alone
        ours, theirs = (
            [measured.configuration for measured in result.convolutions]
            for result in (self, sequence)
        )
        if ours != theirs:
            raise ValueError(f"Expected a result for {ours}, got one for {theirs}.")
        return StageMeasurement(
            convolutions=self.convolutions,
            concurrent_us=self.concurrent_us,
            sequential_us=sequence.sequential_us,
            spread_us=self.concurrent_spread_us + sequence.sequential_spread_us,
            source=self.source,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class MeasurementFailure:
    """Why there is no measurement.

    Attributes:
        reason: what was expected and what came, such as an algorithm that cannot run the shape.
        source: what measured, and how.
    """

    reason: str
    source: str


class MeasuringBackend:
    """A backend of the core to measure on. Use `CoreLibrary.open_backend`."""

    def __init__(self, functions: ctypes.CDLL, name: str, device: ctypes.c_void_p) -> None:
        self.name = name
        self._functions = functions
        self._device = device

    def list_algorithms(self) -> tuple[str, ...]:
        """The algorithms that can be pinned; none on cudnn, which does not list them yet."""
        names = _Strings()
        self._functions.TfiCoreListAlgorithms(self._device, names.sink)
        return names.all

    def measure_convolution(
        self,
        configuration: ConvolutionConfiguration,
        algorithm: str | None = None,
        options: MeasureOptions | None = None,
    ) -> ConvolutionResult | MeasurementFailure:
        """Measures one convolution with one algorithm, alone.

        Args:
            configuration: what to compute; all its shapes are known.
            algorithm: what to compute it with; None for the backend's own choice.
            options: how to measure.

        Raises:
            ValueError: a shape is not known, or the core has no such convolution.
        """
        options = options or MeasureOptions()
        source = self._source(options)
        convolution = _to_struct(configuration)
        result = _Measurement()
        ran, error = _Strings(), _Strings()
        failed = self._functions.TfiCoreMeasureConvolution(
            self._device,
            ctypes.byref(convolution),
            (algorithm or "").encode(),
            ctypes.byref(_options_struct(options)),
            ctypes.byref(result),
            ran.sink,
            error.sink,
        )
        if failed:
            return MeasurementFailure(error.only, source)
        return ConvolutionResult(
            configuration=configuration,
            algorithm=ran.only,
            median_us=result.median_us,
            spread_us=result.spread_us,
            workspace_bytes=result.workspace_bytes,
            relative_error=None if result.relative_error < 0 else result.relative_error,
            deterministic=bool(result.is_deterministic),
            source=source,
        )

    def measure_stage(
        self, steps: Sequence[StageStep], options: MeasureOptions | None = None
    ) -> StageResult | MeasurementFailure:
        """Measures a stage on its lanes beside the same convolutions in sequence.

        Args:
            steps: the convolutions in launch order.
            options: how to measure.

        Raises:
            ValueError: a shape is not known, or the core has no such convolution.
        """
        options = options or MeasureOptions()
        source = self._source(options)
        structs = (_Step * len(steps))(
            *(
                _Step(
                    _to_struct(step.configuration),
                    f"step {index}".encode(),
                    (step.algorithm or "").encode(),
                    step.lane,
                )
                for index, step in enumerate(steps)
            )
        )
        result = _StageMeasurement()
        ran, fallbacks, error = _Strings(), _Strings(), _Strings()
        failed = self._functions.TfiCoreMeasureStage(
            self._device,
            structs,
            len(steps),
            ctypes.byref(_options_struct(options)),
            ctypes.byref(result),
            ran.sink,
            fallbacks.sink,
            error.sink,
        )
        if failed:
            return MeasurementFailure(error.only, source)
        return StageResult(
            convolutions=tuple(
                MeasuredConvolution(step.configuration, algorithm)
                for step, algorithm in zip(steps, ran.all, strict=True)
            ),
            lanes=tuple(step.lane for step in steps),
            concurrent_us=result.concurrent_us,
            concurrent_spread_us=result.concurrent_spread_us,
            sequential_us=result.sequential_us,
            sequential_spread_us=result.sequential_spread_us,
            workspace_bytes=result.workspace_bytes,
            fallbacks=fallbacks.all,
            source=source,
        )

    def _source(self, options: MeasureOptions) -> str:
        given = ", ".join(
            f"{field.name}={getattr(options, field.name)}" for field in dataclasses.fields(options)
        )
        return f"tf_interop core, backend {self.name}: {given}"


class CoreLibrary:
    """The loaded library. Use `load_core_library`, which loads it once."""

    def __init__(self, path: pathlib.Path, functions: ctypes.CDLL) -> None:
        self.path = path
        self._functions = functions
        functions.TfiCoreOpen.restype = ctypes.c_int
        functions.TfiCoreOpen.argtypes = [ctypes.c_char_p, ctypes.c_void_p, _SINK_TYPE]
        functions.TfiCoreListAlgorithms.restype = None
        functions.TfiCoreListAlgorithms.argtypes = [ctypes.c_void_p, _SINK_TYPE]
        functions.TfiCoreMeasureConvolution.restype = ctypes.c_int
        functions.TfiCoreMeasureConvolution.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            _SINK_TYPE,
            _SINK_TYPE,
        ]
        functions.TfiCoreMeasureStage.restype = ctypes.c_int
        functions.TfiCoreMeasureStage.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
            ctypes.c_void_p,
            _SINK_TYPE,
            _SINK_TYPE,
            _SINK_TYPE,
        ]

    def open_backend(self, name: str) -> MeasuringBackend:
        """Opens a backend, the same one every time.

        Args:
            name: `host` or `cudnn`. The latter takes the first GPU; where cuDNN is not on the
                loader's path, TF_INTEROP_LIBCUDNN names libcudnn.so.9.

        Raises:
            LibraryError: there is no such backend, or no GPU, driver or cuDNN for it.
        """
        device = ctypes.c_void_p()
        error = _Strings()
        if self._functions.TfiCoreOpen(name.encode(), ctypes.byref(device), error.sink):
            raise LibraryError(f"Expected backend '{name}' to open: {error.only}")
        return MeasuringBackend(self._functions, name, device)


class _Strings:
    """Collects what the library gives to a sink."""

    def __init__(self) -> None:
        self._collected: list[str] = []
        self.sink = _SINK_TYPE(self._take)

    def _take(self, data: int, size: int) -> None:
        self._collected.append(ctypes.string_at(data, size).decode())

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self._collected)

    @property
    def only(self) -> str:
        (text,) = self._collected
        return text


def find_core_library() -> pathlib.Path | None:
    """The library's file, or None where it has not been built.

    TF_INTEROP_CORE_LIBRARY names another file than the one that was installed with the package.
    """
    return find_library_file(CORE_LIBRARY_NAME, "TF_INTEROP_CORE_LIBRARY")


@functools.cache
def load_core_library() -> CoreLibrary:
    """Loads the library into this process, once.

    Raises:
        LibraryError: it is missing, does not load, has another version of the interface, or this
            CPU lacks instructions that it was compiled for.
    """
    path = find_core_library()
    if path is None or not path.is_file():
        raise LibraryError(
            f"Expected the compiled library {path or CORE_LIBRARY_NAME}, found none. {_REBUILD}"
        )
    try:
        functions = ctypes.CDLL(str(path))
        is_supported = bool(functions.TfiCoreCpuIsSupported())
        version = int(functions.TfiCoreVersion())
    except (OSError, AttributeError) as error:
        raise LibraryError(f"{path} does not load: {error}. {_REBUILD}") from error
    if not is_supported:
        raise LibraryError(
            f"{path} was compiled for CPUs with AVX2 and FMA, which this CPU lacks. Build it with "
            "the CMake option TF_INTEROP_CPU_FLAGS empty."
        )
    if version != _VERSION:
        raise LibraryError(
            f"Expected version {_VERSION} of the interface of {path}, got {version}. {_REBUILD}"
        )
    return CoreLibrary(path, functions)


def _options_struct(options: MeasureOptions) -> _MeasureOptions:
    return _MeasureOptions(
        warmup_runs=options.warmup_runs,
        repetitions=options.repetitions,
        cache_bytes=-1 if options.cache_bytes is None else options.cache_bytes,
        head_start_bytes=-1 if options.head_start_bytes is None else options.head_start_bytes,
        workspace_limit_bytes=options.workspace_limit_bytes,
        reference_limit_multiply_adds=options.reference_limit_multiply_adds,
        seed=options.seed,
    )


def _to_struct(configuration: ConvolutionConfiguration) -> _Convolution:
    """What the core calls a convolution; it checks the sizes itself."""
    layout = _number_of(_LAYOUTS, "layout", configuration.layout)
    image_axes = (0, 1, 2, 3) if configuration.layout == "NHWC" else (0, 2, 3, 1)
    image = _known("image", configuration.image_shape)
    filter_ = _known("filter", configuration.filter_shape)
    output = _known("output", configuration.output_shape)
    batch, image_height, image_width, image_channels = (image[axis] for axis in image_axes)
    _, output_height, output_width, output_channels = (output[axis] for axis in image_axes)
    pad_top, pad_bottom, pad_left, pad_right = _pads(
        configuration, (image_height, image_width), filter_[:2]
    )
    has_bias, activation = _number_of(_FUSED_OPS, "fused_ops", configuration.fused_ops)
    _check_filter(configuration, filter_, image_channels, output_channels)
    return _Convolution(
        kind=_KINDS[configuration.kind],
        dtype=_number_of(_DTYPES, "dtype", configuration.dtype),
        layout=layout,
        activation=activation,
        has_bias=has_bias,
        leaky_relu_alpha=configuration.leaky_relu_alpha,
        batch=batch,
        image_height=image_height,
        image_width=image_width,
        image_channels=image_channels,
        filter_height=filter_[0],
        filter_width=filter_[1],
        output_height=output_height,
        output_width=output_width,
        output_channels=output_channels,
        stride_height=configuration.strides[0],
        stride_width=configuration.strides[1],
        dilation_height=configuration.dilations[0],
        dilation_width=configuration.dilations[1],
        pad_top=pad_top,
        pad_bottom=pad_bottom,
        pad_left=pad_left,
        pad_right=pad_right,
        group_count=image_channels if configuration.depthwise else image_channels // filter_[2],
    )


def _known(tensor: str, shape: Shape | None) -> tuple[int, int, int, int]:
    if shape is None or len(shape) != 4:
        raise ValueError(f"Expected a configuration with the {tensor}'s shape known, got {shape}.")
    first, second, third, fourth = shape
    if first is None or second is None or third is None or fourth is None:
        raise ValueError(f"Expected a configuration with the {tensor}'s shape known, got {shape}.")
    return first, second, third, fourth


def _check_filter(
    configuration: ConvolutionConfiguration,
    filter_: tuple[int, int, int, int],
    image_channels: int,
    output_channels: int,
) -> None:
    """The core knows the filter by image and output channels; here all three have to agree."""
    channels, filters = filter_[2], filter_[3]
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
    image: tuple[int, int],
    filter_: tuple[int, int],
) -> tuple[int, int, int, int]:
    """Top, bottom, left and right, as TensorFlow pads."""
    if configuration.padding == "VALID":
        return 0, 0, 0, 0
    if configuration.padding == "EXPLICIT":
        top, bottom, left, right = configuration.explicit_paddings
        return top, bottom, left, right
    if configuration.padding != "SAME":
        raise ValueError(
            f"Expected padding SAME, VALID or EXPLICIT, got '{configuration.padding}'."
        )
    pads: list[int] = []
    for axis in (0, 1):
        reach = (filter_[axis] - 1) * configuration.dilations[axis] + 1
        outputs = -(-image[axis] // configuration.strides[axis])
        covered = (outputs - 1) * configuration.strides[axis] + reach
        total = max(covered - image[axis], 0)
        pads += [total // 2, total - total // 2]
    return pads[0], pads[1], pads[2], pads[3]


def _number_of(numbers: dict[_Key, _Value], field: str, value: _Key) -> _Value:
    if value not in numbers:
        accepted = ", ".join(str(key) for key in numbers)
        raise ValueError(f"Expected {field} to be one of {accepted}, got {value}.")
    return numbers[value]
