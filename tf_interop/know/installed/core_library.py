"""Measuring through the compiled core, which needs no TensorFlow; nor does this module.

The interface is stated in `cc_kernels/core/c_api.h`, its structs in `core_interface`. This module
is the only one that calls it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import functools
import math
import pathlib
from collections.abc import Sequence

from tf_interop.errors import LibraryError
from tf_interop.know.convolution import ConvolutionConfiguration
from tf_interop.know.installed.core_interface import (
    INTERFACE_VERSION,
    KERNEL_SINK_TYPE,
    SINK_TYPE,
    DeviceDescriptionStruct,
    KernelStruct,
    LaneStruct,
    MeasurementStruct,
    MeasureOptionsStruct,
    StageMeasurementStruct,
    StageStruct,
    StepStruct,
    to_convolution_struct,
)
from tf_interop.know.installed.library_file import find_library_file
from tf_interop.know.profiles.profile import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    FailureKind,
    KernelMeasurement,
    MeasuredConvolution,
    SmLimits,
    StageFailure,
    StageMeasurement,
)

CORE_LIBRARY_NAME = "libtf_interop_core.so"

_REBUILD = "Build it again, in tf_interop's source folder: scripts/setup.sh"

# Of StatusCode in cc_kernels/core/status.h.
_INVALID_ARGUMENT = 1
_FAILURE_KINDS = {2: FailureKind.UNSUPPORTED, 3: FailureKind.OUT_OF_MEMORY}

# A larger error is no rounding: TF32 and half round by 2^-11, bfloat16 by 2^-9 of a value, and sums
# of thousands of halves that are kept in half come to some hundredths of the largest element. What
# is computed from other elements than it should be is off by as much as the elements are large.
_LARGEST_ERROR = 0.1


class AlgorithmScope(enum.Enum):
    """Which algorithms of a convolution to list."""

    HEURISTIC = "heuristic"
    """What the backend itself would consider, best first."""
    ALL = "all"
    """These, and every other one in its default setting."""
    KNOBS = "knobs"
    """These, and every other setting with one knob moved off its default."""


_SCOPES = {AlgorithmScope.HEURISTIC: 0, AlgorithmScope.ALL: 1, AlgorithmScope.KNOBS: 2}


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
        allow_tf32: whether float convolutions may be computed in TF32.
        trace_kernels: whether GPU kernels are traced, in a run of their own.
    """

    warmup_runs: int = 3
    repetitions: int = 20
    cache_bytes: int | None = None
    head_start_bytes: int | None = None
    workspace_limit_bytes: int = 1 << 30
    reference_limit_multiply_adds: float = 2e8
    seed: int = 0
    allow_tf32: bool = True
    trace_kernels: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceDescription:
    """What the core knows of the device that it measures on, without NVML.

    Attributes:
        backend: `cudnn` or `host`.
        name: the device's name, as its driver or the operating system gives it.
        compute_capability: such as `9.0`; empty for a CPU.
        sm_count: streaming multiprocessors; for a CPU the cores that the process may use.
        memory_bytes: memory of the device.
        sm_limits: None for a CPU.
        cudnn: cuDNN's version such as `9.10.2`; empty for a CPU.
        cuda: version of CUDA that the driver supports, such as `12.8`; empty for a CPU.
    """

    backend: str
    name: str
    compute_capability: str
    sm_count: int
    memory_bytes: int
    sm_limits: SmLimits | None
    cudnn: str
    cuda: str


@dataclasses.dataclass(frozen=True, slots=True)
class AlgorithmList:
    """The algorithms that may be able to compute a convolution.

    Attributes:
        algorithms: names, each once.
        error: why there are none, or None.
    """

    algorithms: tuple[str, ...]
    error: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class ResolvedAlgorithm:
    """What would be measured under a name; two names of one algorithm have the same.

    Attributes:
        algorithm: what its measurement would be filed under.
        tf32: whether it may round float operands to TF32 or less.
    """

    algorithm: str
    tf32: bool


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


class MeasuringBackend:
    """A backend of the core to measure on. Use `CoreLibrary.open_backend`."""

    def __init__(self, functions: ctypes.CDLL, name: str, device: ctypes.c_void_p) -> None:
        self.name = name
        self._functions = functions
        self._device = device

    def describe(self) -> DeviceDescription:
        """What this backend measures on.

        Raises:
            LibraryError: the driver does not say.
        """
        description = DeviceDescriptionStruct()
        name, compute_capability, cudnn, cuda, error = (_Strings() for _ in range(5))
        if self._functions.TfiCoreDescribe(
            self._device,
            ctypes.byref(description),
            name.sink,
            compute_capability.sink,
            cudnn.sink,
            cuda.sink,
            error.sink,
        ):
            raise LibraryError(f"Expected a description of backend '{self.name}': {error.only}")
        return DeviceDescription(
            backend=self.name,
            name=name.only,
            compute_capability=compute_capability.only,
            sm_count=description.sm_count,
            memory_bytes=description.memory_bytes,
            sm_limits=_sm_limits(description) if description.sm_threads else None,
            cudnn=cudnn.only,
            cuda=cuda.only,
        )

    def list_algorithms(
        self,
        configuration: ConvolutionConfiguration,
        scope: AlgorithmScope = AlgorithmScope.ALL,
        *,
        allow_tf32: bool = True,
    ) -> AlgorithmList:
        """Lists the algorithms to measure a convolution with.

        Args:
            configuration: what to compute; all its shapes are known.
            scope: which algorithms.
            allow_tf32: whether those that round float operands to TF32 may be among them.

        Raises:
            ValueError: a shape is not known, or the core has no such convolution.
        """
        names, error = _Strings(), _Strings()
        code = self._functions.TfiCoreListAlgorithms(
            self._device,
            ctypes.byref(to_convolution_struct(configuration)),
            _SCOPES[scope],
            allow_tf32,
            names.sink,
            error.sink,
        )
        if code:
            _raise_if_invalid(code, error.only)
            return AlgorithmList((), error.only)
        return AlgorithmList(names.all, None)

    def resolve_algorithm(
        self,
        configuration: ConvolutionConfiguration,
        algorithm: str,
        options: MeasureOptions | None = None,
    ) -> ResolvedAlgorithm | AlgorithmFailure:
        """Says what `measure_algorithm` would run under a name, without running it.

        Args:
            configuration: what to compute; all its shapes are known.
            algorithm: what to compute it with.
            options: how to measure.

        Returns:
            What would run, or a failure, with the name that was asked for, where nothing would.

        Raises:
            ValueError: as `measure_algorithm`.
        """
        options = options or MeasureOptions()
        tf32 = ctypes.c_int32()
        resolved, error = _Strings(), _Strings()
        code = self._functions.TfiCoreResolveAlgorithm(
            self._device,
            ctypes.byref(to_convolution_struct(configuration)),
            algorithm.encode(),
            ctypes.byref(_options_struct(options)),
            ctypes.byref(tf32),
            resolved.sink,
            error.sink,
        )
        if not code:
            return ResolvedAlgorithm(resolved.only, bool(tf32.value))
        _raise_if_invalid(code, error.only)
        return AlgorithmFailure(
            configuration,
            algorithm,
            options.allow_tf32,
            _failure_kind(code),
            error.only,
            self._source(options),
        )

    def measure_algorithm(
        self,
        configuration: ConvolutionConfiguration,
        algorithm: str | None = None,
        options: MeasureOptions | None = None,
    ) -> AlgorithmMeasurement | AlgorithmFailure:
        """Measures one convolution with one algorithm, alone.

        Args:
            configuration: what to compute; all its shapes are known.
            algorithm: what to compute it with; None for the backend's own choice, of which a
                failure has an empty name.
            options: how to measure.

        Raises:
            ValueError: a shape is not known, the core has no such convolution, or the options make
                no sense. An algorithm that the backend does not have is a failure.
        """
        options = options or MeasureOptions()
        source = self._source(options)
        measured = MeasurementStruct()
        ran, kernels, trace_error, error = _Strings(), _Kernels(), _Strings(), _Strings()
        code = self._functions.TfiCoreMeasureConvolution(
            self._device,
            ctypes.byref(to_convolution_struct(configuration)),
            (algorithm or "").encode(),
            ctypes.byref(_options_struct(options)),
            ctypes.byref(measured),
            ran.sink,
            kernels.sink,
            trace_error.sink,
            error.sink,
        )

        def fail(name: str, kind: FailureKind, reason: str) -> AlgorithmFailure:
            return AlgorithmFailure(configuration, name, options.allow_tf32, kind, reason, source)

        if code:
            _raise_if_invalid(code, error.only)
            return fail(algorithm or "", _failure_kind(code), error.only)
        if measured.relative_error > _LARGEST_ERROR:
            return fail(algorithm or ran.only, FailureKind.WRONG_RESULT, _describe_error(measured))
        for reason in trace_error.all:
            source += f", kernels not traced: {reason}"
        return AlgorithmMeasurement(
            configuration=configuration,
            algorithm=ran.only,
            tf32=bool(measured.reduces_precision),
            latency_us=measured.median_us,
            spread_us=measured.spread_us,
            workspace_bytes=measured.workspace_bytes,
            relative_error=None if measured.relative_error < 0 else measured.relative_error,
            deterministic=bool(measured.is_deterministic),
            kernels=kernels.all,
            source=source,
        )

    def measure_stage(
        self,
        steps: Sequence[StageStep],
        options: MeasureOptions | None = None,
        *,
        sequential_algorithms: Sequence[str | None] = (),
        sm_counts: Sequence[int] = (),
        priorities: Sequence[int] = (),
        merged: Sequence[bool] = (),
    ) -> StageMeasurement | StageFailure:
        """Measures a stage on its lanes, beside the same convolutions in sequence.

        The sequence is measured with the stage's own algorithms and with `sequential_algorithms`.
        The spread of the result is that of its lanes and of the latter sequence added up, since
        either figure may be off.

        Args:
            steps: the convolutions in launch order.
            options: how to measure.
            sequential_algorithms: of each step, the algorithm that is fastest alone; None for the
                backend's own choice. Empty: the steps' own.
            sm_counts: how many SMs each lane is to have for itself, 0 for a share of what is left;
                empty where lanes share all.
            priorities: of each lane's stream, as CUDA counts; empty where all are 0.
            merged: whether the convolutions of each lane run as one wider convolution on its lane,
                with the algorithm that they all name; in sequence they run by themselves. Empty
                where no lane is merged.

        Raises:
            ValueError: a shape is not known, the core has no such convolution, lanes are not
                numbered in order, or arguments are of different lengths. An algorithm that cannot
                be had, and a lane that cannot be merged, is a failure.
        """
        options = options or MeasureOptions()
        source = self._source(options)
        convolutions = tuple(
            MeasuredConvolution(step.configuration, step.algorithm) for step in steps
        )
        lanes = tuple(step.lane for step in steps)
        stage = _stage_struct(
            steps, sequential_algorithms, _lane_structs(sm_counts, priorities, merged)
        )
        measured = StageMeasurementStruct()
        given_sm_counts = (ctypes.c_int32 * stage.lane_count)()
        given_count = ctypes.c_size_t()
        ran, ran_in_sequence, error = _Strings(), _Strings(), _Strings()
        code = self._functions.TfiCoreMeasureStage(
            self._device,
            ctypes.byref(stage),
            ctypes.byref(_options_struct(options)),
            ctypes.byref(measured),
            given_sm_counts,
            ctypes.byref(given_count),
            ran.sink,
            ran_in_sequence.sink,
            error.sink,
        )
        if code:
            _raise_if_invalid(code, error.only)
            return StageFailure(
                convolutions=convolutions,
                lanes=lanes,
                tf32=options.allow_tf32,
                kind=_failure_kind(code),
                reason=error.only,
                source=source,
                sm_counts=tuple(sm_counts),
                priorities=tuple(priorities),
                merged=tuple(merged) if any(merged) else (),
            )
        return StageMeasurement(
            convolutions=tuple(
                MeasuredConvolution(step.configuration, algorithm)
                for step, algorithm in zip(steps, ran.all, strict=True)
            ),
            lanes=lanes,
            concurrent_us=measured.concurrent_us,
            same_sequential_us=measured.same_sequential_us,
            sequential_us=measured.sequential_us,
            spread_us=measured.concurrent_spread_us + measured.sequential_spread_us,
            workspace_bytes=measured.workspace_bytes,
            source=source,
            sequential_algorithms=ran_in_sequence.all,
            tf32=options.allow_tf32,
            sm_counts=tuple(given_sm_counts[: given_count.value]),
            priorities=tuple(priorities),
            merged=tuple(merged) if any(merged) else (),
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
        functions.TfiCoreOpen.argtypes = [ctypes.c_char_p, ctypes.c_void_p, SINK_TYPE]
        functions.TfiCoreCudnnVersion.restype = None
        functions.TfiCoreCudnnVersion.argtypes = [SINK_TYPE]
        functions.TfiCoreDescribe.restype = ctypes.c_int
        functions.TfiCoreDescribe.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *[SINK_TYPE] * 5]
        functions.TfiCoreListAlgorithms.restype = ctypes.c_int
        functions.TfiCoreListAlgorithms.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int32,
            ctypes.c_int32,
            SINK_TYPE,
            SINK_TYPE,
        ]
        functions.TfiCoreResolveAlgorithm.restype = ctypes.c_int
        functions.TfiCoreResolveAlgorithm.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            SINK_TYPE,
            SINK_TYPE,
        ]
        functions.TfiCoreMeasureConvolution.restype = ctypes.c_int
        functions.TfiCoreMeasureConvolution.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            SINK_TYPE,
            KERNEL_SINK_TYPE,
            SINK_TYPE,
            SINK_TYPE,
        ]
        functions.TfiCoreMeasureStage.restype = ctypes.c_int
        functions.TfiCoreMeasureStage.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            SINK_TYPE,
            SINK_TYPE,
            SINK_TYPE,
        ]

    def cudnn_version(self) -> str:
        """The version of libcudnn, such as `9.10.2`; empty where there is none. Uses no GPU."""
        version = _Strings()
        self._functions.TfiCoreCudnnVersion(version.sink)
        return version.only

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
        self.sink = SINK_TYPE(self._take)

    def _take(self, data: int, size: int) -> None:
        self._collected.append(ctypes.string_at(data, size).decode())

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self._collected)

    @property
    def only(self) -> str:
        (text,) = self._collected
        return text


class _Kernels:
    """Collects the GPU kernels that the library gives to a sink."""

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
        total_us = sum(elapsed_us for _, elapsed_us in self._collected)
        return tuple(
            dataclasses.replace(kernel, time_share=elapsed_us / total_us)
            for kernel, elapsed_us in self._collected
        )


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
    if version != INTERFACE_VERSION:
        raise LibraryError(
            f"Expected version {INTERFACE_VERSION} of the interface of {path}, got {version}. "
            f"{_REBUILD}"
        )
    return CoreLibrary(path, functions)


def _raise_if_invalid(code: int, message: str) -> None:
    if code == _INVALID_ARGUMENT:
        raise ValueError(message)


def _failure_kind(code: int) -> FailureKind:
    return _FAILURE_KINDS.get(code, FailureKind.FAILED)


def _describe_error(measured: MeasurementStruct) -> str:
    if math.isinf(measured.relative_error):
        return "Expected a finite result, got elements that are not finite or were not written."
    return (
        f"Expected a largest error of at most {_LARGEST_ERROR} relative to the result in double "
        f"precision, got {measured.relative_error:.3g}."
    )


def _sm_limits(description: DeviceDescriptionStruct) -> SmLimits:
    return SmLimits(
        registers=description.sm_registers,
        shared_memory_bytes=description.sm_shared_memory_bytes,
        threads=description.sm_threads,
        blocks=description.sm_blocks,
        reserved_shared_memory_bytes=description.sm_reserved_shared_memory_bytes,
    )


def _lane_structs(
    sm_counts: Sequence[int], priorities: Sequence[int], merged: Sequence[bool]
) -> list[LaneStruct]:
    """What lanes ask for; none where no lane asks for anything."""
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


def _stage_struct(
    steps: Sequence[StageStep],
    sequential_algorithms: Sequence[str | None],
    lane_structs: Sequence[LaneStruct],
) -> StageStruct:
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


def _options_struct(options: MeasureOptions) -> MeasureOptionsStruct:
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
