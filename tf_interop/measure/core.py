"""The compiled core: finds it, loads it and measures through it, without TensorFlow.

The interface is read from the library's own header, which is installed next to it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib.util
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.errors import LibraryError
from tf_interop.measure.core_arguments import convolution_fields, make_lanes, make_struct
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmKey,
    AlgorithmMeasurement,
    FailureKind,
    KernelMeasurement,
    StageFailure,
    StageMeasurement,
)
from tf_interop.profile.types import ProfiledDevice, SmLimits, today
from tf_interop.stage import Stage

CORE_LIBRARY_NAME = "libtf_interop_core.so"

# The version of cc_kernels/core/c_api.h that this module was written for.
_VERSION = 3
_FIRST_MARK, _LAST_MARK = "// ---- Python reads from here", "// ---- Python reads to here"
_REBUILD = "Rebuild it in the source folder of tf_interop: scripts/setup.sh"


@dataclasses.dataclass(frozen=True)
class CoreLibrary:
    """The loaded library: cffi's maker of structs, and the functions. See `load_core_library`."""

    ffi: Any
    functions: Any

    def cudnn_version(self) -> str:
        """The version of libcudnn, such as `9.10.2`, or "" if there is none. Needs no GPU."""
        version, sink = self.collect()
        self.functions.TfiCudnnVersion(sink)
        return version[0]

    def open_backend(self, name: str) -> Backend:
        """Opens a backend; opening it again returns the same one.

        Args:
            name: `host`, or `cudnn` for the first GPU. TF_INTEROP_LIBCUDNN may name a libcudnn.so.9
                that is not on the loader's path.

        Raises:
            LibraryError: there is no such backend, or its GPU, driver or cuDNN is missing.
        """
        device = self.ffi.new("TfiDevice **")
        error, error_sink = self.collect()
        if self.functions.TfiOpen(name.encode(), device, error_sink):
            raise LibraryError(f"The backend '{name}' does not open: {error[0]}")
        return Backend(self, name, device[0])

    def collect(self) -> tuple[list[str], Any]:
        """A list, and a sink that appends strings from the library to it while the sink lives."""
        collected: list[str] = []

        def take(text: Any, size: int) -> None:
            collected.append(bytes(self.ffi.unpack(text, size)).decode(errors="replace"))

        return collected, self.ffi.callback("TfiSink", take)


@functools.cache
def load_core_library() -> CoreLibrary:
    """Loads the library into this process, once.

    Raises:
        LibraryError: the library or its header is missing, does not load or has another version of
            the interface, or this CPU lacks instructions that the library was compiled for.
    """
    import cffi  # not at the top: most programs do not measure

    path = find_library_file(CORE_LIBRARY_NAME)
    if path is None or not path.is_file():
        raise LibraryError(
            f"The compiled library {path or CORE_LIBRARY_NAME} is missing. {_REBUILD}"
        )
    ffi = cffi.FFI()
    try:
        _, declarations = path.with_suffix(".h").read_text().split(_FIRST_MARK)
        # Drops the rest of the mark's line.
        ffi.cdef(declarations.split(_LAST_MARK)[0].partition("\n")[2])
        functions = ffi.dlopen(str(path))
        version = functions.TFI_CORE_VERSION
        is_supported = functions.TfiCpuIsSupported()
    except (OSError, ValueError, AttributeError, cffi.FFIError, cffi.CDefError) as error:
        raise LibraryError(f"{path} does not load: {error}. {_REBUILD}") from error
    if version != _VERSION:
        raise LibraryError(
            f"{path} has version {version} of the interface, but tf_interop needs version "
            f"{_VERSION}. {_REBUILD}"
        )
    if not is_supported:
        raise LibraryError(
            f"{path} was compiled for CPUs with AVX2 and FMA, which this CPU lacks. Build it with "
            "an empty CMake option TF_INTEROP_CPU_FLAGS."
        )
    return CoreLibrary(ffi, functions)


# From StatusCode in cc_kernels/core/status.h.
_INVALID_ARGUMENT = 1
_FAILURE_KINDS = {2: FailureKind.UNSUPPORTED, 3: FailureKind.OUT_OF_MEMORY}

# Rounding errors are smaller: TF32 and half round by 2^-11 and bfloat16 by 2^-9 of a value, and
# sums of thousands of halves that are kept in half err by a few hundredths of the largest element.
# The error of a convolution that reads the wrong elements is about as large as the elements.
_LARGEST_ERROR = 0.1
_WRONG_RESULT = (
    "Expected an error of at most {} relative to the result in double precision, got {:.3g} "
    "(infinite if elements are not finite or were not written)."
)


class AlgorithmScope(enum.Enum):
    """Which algorithms of a convolution to list."""

    HEURISTIC = "heuristic"
    """The ones that the backend itself would consider, best first."""
    ALL = "all"
    """These, and every other algorithm in its default setting."""
    KNOBS = "knobs"
    """These, and every setting that differs from a default in one knob."""


@dataclasses.dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How to measure; `cc_kernels/core/measure/timing.h` uses these values.

    Attributes:
        warmup_ms: how long untimed runs last.
        repetitions: how often to time it, at least once.
        workspace_limit_bytes: the most that one convolution may need.
        warm_caches: keep operands in the caches, as after a previous run, instead of in memory.
        trace_kernels: trace GPU kernels in a run of its own.
    """

    warmup_ms: float = 20
    repetitions: int = 20
    workspace_limit_bytes: int = 1 << 30
    warm_caches: bool = False
    allow_tf32: bool = True
    trace_kernels: bool = True


@dataclasses.dataclass(frozen=True)
class Backend:
    """A backend to measure on, from `CoreLibrary.open_backend`."""

    library: CoreLibrary
    name: str
    device: Any

    def describe(self) -> ProfiledDevice:
        """The device as far as the core knows it, with today's date.

        Raises:
            LibraryError: the driver does not answer.
        """
        described = self.library.ffi.new("TfiDescription *")
        texts, sink = self.library.collect()
        error, error_sink = self.library.collect()
        functions = self.library.functions
        if functions.TfiDescribe(self.device, described, sink, error_sink):
            raise LibraryError(f"The backend '{self.name}' cannot describe its device: {error[0]}")
        name, compute_capability, cudnn, cuda = texts
        limits = (getattr(described, field.name) for field in dataclasses.fields(SmLimits))
        return ProfiledDevice(
            backend=self.name,
            name=name,
            compute_capability=compute_capability,
            sm_count=described.sm_count,
            cudnn=cudnn,
            memory_bytes=described.memory_bytes,
            driver="",
            cuda=cuda,
            clocks_mhz={},
            sm_limits=SmLimits(*limits) if described.threads else None,
            date=today(),
        )

    def list_algorithms(
        self,
        configuration: ConvolutionConfiguration,
        scope: AlgorithmScope = AlgorithmScope.ALL,
        *,
        allow_tf32: bool = True,
    ) -> tuple[str, ...]:
        """Lists the algorithms to measure a convolution with, each once.

        Raises:
            ValueError: there are none, a shape is unknown, or the core has no such convolution.
        """
        names, sink = self.library.collect()
        place = list(AlgorithmScope).index(scope)
        convolution = self._convolution(configuration)
        failed = self._call("TfiListAlgorithms", convolution, place, allow_tf32, sink)
        if not names:
            raise ValueError("the backend lists none" if failed is None else failed[1])
        return tuple(names)

    def resolve_algorithm(
        self, configuration: ConvolutionConfiguration, algorithm: str, options: MeasureOptions
    ) -> AlgorithmKey | AlgorithmFailure:
        """Finds the algorithm that `measure_algorithm` would run for a name, without running it.

        Returns:
            The key of that measurement, the same for two names of one algorithm. A failure with the
            given name if nothing would run.

        Raises:
            ValueError: as in `measure_algorithm`.
        """
        tf32 = self.library.ffi.new("int32_t *")
        resolved, sink = self.library.collect()
        failed = self._call(
            "TfiResolveAlgorithm",
            self._convolution(configuration),
            algorithm.encode(),
            self._options(options),
            tf32,
            sink,
        )
        if failed is None:
            return AlgorithmKey(configuration, resolved[0], bool(tf32[0]))
        allow, source = options.allow_tf32, self._source(options)
        return AlgorithmFailure(configuration, algorithm, allow, *failed, source)

    def measure_algorithm(
        self, configuration: ConvolutionConfiguration, algorithm: str, options: MeasureOptions
    ) -> AlgorithmMeasurement | AlgorithmFailure:
        """Measures one convolution with one algorithm, alone; "" is the backend's own choice.

        Raises:
            ValueError: a shape is unknown, or the core has no such convolution. An algorithm that
                the backend lacks is a failure instead.
        """
        source = self._source(options)
        measured = self.library.ffi.new("TfiMeasurement *")
        ran, sink = self.library.collect()
        trace_errors, trace_sink = self.library.collect()
        kernels: list[tuple[dict[str, Any], float]] = []

        def take(name: Any, kernel: Any) -> None:
            fields = {
                "name": bytes(self.library.ffi.string(name)).decode(errors="replace"),
                "grid": tuple(kernel.grid),
                "block": tuple(kernel.block),
                "registers_per_thread": kernel.registers_per_thread,
                "shared_memory_bytes": kernel.shared_memory_bytes,
            }
            kernels.append((fields, kernel.elapsed_us))

        kernel_sink = self.library.ffi.callback("TfiKernelSink", take)
        failed = self._call(
            "TfiMeasureConvolution",
            self._convolution(configuration),
            algorithm.encode(),
            self._options(options),
            measured,
            sink,
            kernel_sink,
            trace_sink,
        )
        error = measured.relative_error
        if failed is None and error > _LARGEST_ERROR:
            failed = FailureKind.WRONG_RESULT, _WRONG_RESULT.format(_LARGEST_ERROR, error)
        if failed is not None:
            return AlgorithmFailure(configuration, algorithm, options.allow_tf32, *failed, source)
        total_us = sum(elapsed_us for _, elapsed_us in kernels)
        return AlgorithmMeasurement(
            configuration=configuration,
            algorithm=ran[0],
            tf32=bool(measured.reduces_precision),
            latency_us=measured.time.median_us,
            spread_us=measured.time.spread_us,
            workspace_bytes=measured.workspace_bytes,
            relative_error=error,
            deterministic=bool(measured.is_deterministic),
            kernels=tuple(
                KernelMeasurement(**fields, time_share=elapsed_us / total_us)
                for fields, elapsed_us in kernels
            ),
            source=source + "".join(f", kernels not traced: {each}" for each in trace_errors),
        )

    def measure_stage(
        self,
        stage: Stage[ConvolutionConfiguration],
        options: MeasureOptions,
        *,
        sequential_algorithms: Sequence[str | None] = (),
        images: Sequence[int] = (),
    ) -> StageMeasurement | StageFailure:
        """Measures a stage on its lanes, and the same steps in sequence.

        The sequence, in which nothing is merged, runs once with the stage's own algorithms and once
        with `sequential_algorithms`. The result's spread is the sum of the spreads of the lanes and
        of the second sequence.

        Args:
            stage: an algorithm of None is the backend's own choice.
            options: how to measure.
            sequential_algorithms: the fastest one alone for each step; empty for the stage's own.
            images: a number for each step; steps with the same number read the same image. If
                empty, each step, or each merged lane, has its own image.

        Raises:
            ValueError: the stage is illegal, a shape is unknown, or the core has no such
                convolution. An algorithm that cannot run, or a lane that cannot be merged, is a
                failure instead.
        """
        stage.validate()
        source = self._source(options)
        ffi = self.library.ffi
        lanes, kept = make_lanes(ffi, stage, sequential_algorithms, images)
        measured = ffi.new("TfiStageMeasurement *")
        ran, sink = self.library.collect()
        ran_in_sequence, sequence_sink = self.library.collect()
        failed = self._call(
            "TfiMeasureStage",
            lanes,
            len(stage.lanes),
            self._options(options),
            measured,
            sink,
            sequence_sink,
        )
        del kept
        if failed is not None:
            return StageFailure(stage, options.allow_tf32, *failed, source)
        return StageMeasurement(
            stage=stage.with_algorithms(ran),
            tf32=options.allow_tf32,
            latency_us=measured.concurrent.median_us,
            same_sequential_us=measured.same_sequential.median_us,
            sequential_us=measured.sequential.median_us,
            spread_us=measured.concurrent.spread_us + measured.sequential.spread_us,
            workspace_bytes=measured.workspace_bytes,
            source=source + (f", images={(*images,)}" if images else ""),
            sequential_algorithms=tuple(ran_in_sequence),
        )

    def _call(self, function: str, *arguments: Any) -> tuple[FailureKind, str] | None:
        """Calls the library and returns why it failed, or None.

        Raises:
            ValueError: an argument is out of range.
        """
        error, error_sink = self.library.collect()
        code = getattr(self.library.functions, function)(self.device, *arguments, error_sink)
        if code == _INVALID_ARGUMENT:
            raise ValueError(error[0])
        return (_FAILURE_KINDS.get(code, FailureKind.FAILED), error[0]) if code else None

    def _convolution(self, configuration: ConvolutionConfiguration) -> Any:
        return make_struct(self.library.ffi, "TfiConvolution *", convolution_fields(configuration))

    def _options(self, options: MeasureOptions) -> Any:
        return make_struct(self.library.ffi, "TfiMeasureOptions *", dataclasses.asdict(options))

    def _source(self, options: MeasureOptions) -> str:
        given = ", ".join(f"{name}={value}" for name, value in dataclasses.asdict(options).items())
        return f"tf_interop core, backend {self.name}: {given}"


def find_library_file(name: str) -> pathlib.Path | None:
    """Finds the file of a compiled library, or None if it has not been built.

    `TF_INTEROP_LIBRARY` and `TF_INTEROP_CORE_LIBRARY` name files that replace the installed ones.
    """
    is_core = name == CORE_LIBRARY_NAME
    named = os.environ.get("TF_INTEROP_CORE_LIBRARY" if is_core else "TF_INTEROP_LIBRARY")
    if named:
        return pathlib.Path(named)
    package = importlib.util.find_spec("tf_interop")
    # An editable install has two folders: one with the Python files, one with the library.
    for folder in (package and package.submodule_search_locations) or ():
        candidate = pathlib.Path(folder) / name
        if candidate.is_file():
            return candidate
    return None
