"""The compiled core, which needs no TensorFlow: finding it, loading it, measuring through it.

What goes through its C interface is read from the library's own header, which lies beside it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.errors import LibraryError
from tf_interop.measure.core_arguments import convolution_fields, make, to_lanes
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

# Of the interface in cc_kernels/core/c_api.h that this package was written for.
_VERSION = 3
_FIRST_MARK, _LAST_MARK = "// ---- Python reads from here", "// ---- Python reads to here"
_REBUILD = "Build it again, in tf_interop's source folder: scripts/setup.sh"


class CoreLibrary:
    """The loaded library. Use `load_core_library`, which loads it once.

    Attributes:
        ffi: makes the structs of the interface.
        functions: the functions of the interface.
    """

    def __init__(self, ffi: Any, functions: Any) -> None:
        self.ffi = ffi
        self.functions = functions

    def cudnn_version(self) -> str:
        """The version of libcudnn, such as `9.10.2`; empty if there is none. Uses no GPU."""
        version, sink = self.collect()
        self.functions.TfiCudnnVersion(sink)
        return version[0]

    def open_backend(self, name: str) -> Backend:
        """Opens a backend, the same one every time.

        Args:
            name: `host` or `cudnn`. The latter takes the first GPU; where cuDNN is not on the
                loader's path, TF_INTEROP_LIBCUDNN names libcudnn.so.9.

        Raises:
            LibraryError: there is no such backend, or no GPU, driver or cuDNN for it.
        """
        device = self.ffi.new("TfiDevice **")
        error, error_sink = self.collect()
        if self.functions.TfiOpen(name.encode(), device, error_sink):
            raise LibraryError(f"Expected backend '{name}' to open: {error[0]}")
        return Backend(self, name, device[0])

    def collect(self) -> tuple[list[str], Any]:
        """A list, and a sink of the library that puts strings into it while it lives."""
        collected: list[str] = []

        def take(text: Any, size: int) -> None:
            collected.append(bytes(self.ffi.unpack(text, size)).decode(errors="replace"))

        return collected, self.ffi.callback("TfiSink", take)


@functools.cache
def load_core_library() -> CoreLibrary:
    """Loads the library into this process, once.

    Raises:
        LibraryError: it or its header is missing, it does not load, has another version of the
            interface, or this CPU lacks instructions that it was compiled for.
    """
    import cffi  # here, as most programs need none of it

    path = find_library_file(CORE_LIBRARY_NAME)
    if path is None or not path.is_file():
        raise LibraryError(
            f"The compiled library {path or CORE_LIBRARY_NAME} is missing. {_REBUILD}"
        )
    ffi = cffi.FFI()
    try:
        _, declarations = path.with_suffix(".h").read_text().split(_FIRST_MARK)
        # The mark's line goes on after the mark.
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
            "the CMake option TF_INTEROP_CPU_FLAGS empty."
        )
    return CoreLibrary(ffi, functions)


# Of StatusCode in cc_kernels/core/status.h.
_INVALID_ARGUMENT = 1
_FAILURE_KINDS = {2: FailureKind.UNSUPPORTED, 3: FailureKind.OUT_OF_MEMORY}

# A larger error is no rounding: TF32 and half round by 2^-11, bfloat16 by 2^-9 of a value, and sums
# of thousands of halves that are kept in half come to some hundredths of the largest element. What
# is computed from other elements than it should be is off by as much as the elements are large.
_LARGEST_ERROR = 0.1
_WRONG_RESULT = (
    "Expected a largest error of at most {} relative to the result in double precision, got {:.3g} "
    "(infinite where elements are not finite or were not written)."
)


class AlgorithmScope(enum.Enum):
    """Which algorithms of a convolution to list."""

    HEURISTIC = "heuristic"
    """What the backend itself would consider, best first."""
    ALL = "all"
    """These, and every other one in its default setting."""
    KNOBS = "knobs"
    """These, and every other setting with one knob moved off its default."""


@dataclasses.dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How to measure; `cc_kernels/core/measure/timing.h` says what is done with it.

    Attributes:
        warmup_ms: how long runs are not timed, up to a minute.
        repetitions: timed runs, at least 1.
        workspace_limit_bytes: the most that one convolution may need.
        warm_caches: whether operands are in the caches as far as these hold them, as after a run
            just before; else they are in memory.
        allow_tf32: whether float convolutions may be computed in TF32.
        trace_kernels: whether GPU kernels are traced, in a run of their own.
    """

    warmup_ms: float = 20
    repetitions: int = 20
    workspace_limit_bytes: int = 1 << 30
    warm_caches: bool = False
    allow_tf32: bool = True
    trace_kernels: bool = True


class Backend:
    """A backend of the core to measure on. Use `CoreLibrary.open_backend`."""

    def __init__(self, library: CoreLibrary, name: str, device: Any) -> None:
        self.name = name
        self._library = library
        self._device = device

    def describe(self) -> ProfiledDevice:
        """What this backend measures on, as far as the core can tell, and today's date.

        Raises:
            LibraryError: the driver does not say.
        """
        described = self._library.ffi.new("TfiDescription *")
        texts, sink = self._library.collect()
        error, error_sink = self._library.collect()
        functions = self._library.functions
        if functions.TfiDescribe(self._device, described, sink, error_sink):
            raise LibraryError(f"Expected a description of backend '{self.name}': {error[0]}")
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

        Those that round float operands to TF32 may be among them if `allow_tf32`.

        Raises:
            ValueError: there are none, a shape is not known, or the core has no such convolution.
        """
        names, sink = self._library.collect()
        place = list(AlgorithmScope).index(scope)
        convolution = self._convolution(configuration)
        failed = self._call("TfiListAlgorithms", convolution, place, allow_tf32, sink)
        if failed is not None or not names:
            raise ValueError("the backend lists none" if failed is None else failed[1])
        return tuple(names)

    def resolve_algorithm(
        self, configuration: ConvolutionConfiguration, algorithm: str, options: MeasureOptions
    ) -> AlgorithmKey | AlgorithmFailure:
        """Says what `measure_algorithm` would run under a name, without running it.

        Returns:
            What its measurement would be filed under; two names of one algorithm have the same. A
            failure, with the name that was asked for, where nothing would run.

        Raises:
            ValueError: as `measure_algorithm`.
        """
        tf32 = self._library.ffi.new("int32_t *")
        resolved, sink = self._library.collect()
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
        self,
        configuration: ConvolutionConfiguration,
        algorithm: str | None,
        options: MeasureOptions,
    ) -> AlgorithmMeasurement | AlgorithmFailure:
        """Measures one convolution with one algorithm, alone.

        All shapes are known. An algorithm of None is the backend's own choice, of which a failure
        has an empty name.

        Raises:
            ValueError: a shape is not known, the core has no such convolution, or the options make
                no sense. An algorithm that the backend does not have is a failure.
        """
        source = self._source(options)
        measured = self._library.ffi.new("TfiMeasurement *")
        ran, sink = self._library.collect()
        trace_errors, trace_sink = self._library.collect()
        kernels: list[tuple[KernelMeasurement, float]] = []
        kernel_sink = self._library.ffi.callback(
            "TfiKernelSink", lambda name, kernel: kernels.append(self._kernel(name, kernel))
        )
        failed = self._call(
            "TfiMeasureConvolution",
            self._convolution(configuration),
            (algorithm or "").encode(),
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
            name = algorithm or "".join(ran)
            return AlgorithmFailure(configuration, name, options.allow_tf32, *failed, source)
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
                dataclasses.replace(kernel, time_share=elapsed_us / total_us)
                for kernel, elapsed_us in kernels
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
        """Measures a stage on its lanes, beside the same steps in sequence.

        The sequence is measured with the stage's own algorithms and with `sequential_algorithms`;
        in it nothing is merged. The spread of the result is that of the lanes and of the latter
        sequence added up, since either value may be off.

        An algorithm of None is the backend's own choice.

        Args:
            stage: what to run.
            options: how to measure.
            sequential_algorithms: of each step, the one that is fastest alone. Empty: the stage's.
            images: of each step; those with the same number read one image. Empty: each has its
                own, but for those of a merged lane.

        Raises:
            ValueError: the stage is not legal, a shape is not known, or the core has no such
                convolution. An algorithm that cannot be had, and a lane that cannot be merged, is a
                failure.
        """
        stage.validate()
        source = self._source(options)
        ffi = self._library.ffi
        lanes, kept = to_lanes(ffi, stage, sequential_algorithms, images)
        measured = ffi.new("TfiStageMeasurement *")
        sm_counts = ffi.new("int32_t[]", len(stage.lanes))
        ran, sink = self._library.collect()
        ran_in_sequence, sequence_sink = self._library.collect()
        failed = self._call(
            "TfiMeasureStage",
            lanes,
            len(stage.lanes),
            self._options(options),
            measured,
            sm_counts,
            sink,
            sequence_sink,
        )
        del kept
        if failed is not None:
            return StageFailure(stage, options.allow_tf32, *failed, source)
        granted = tuple(sm_counts)
        asked = tuple(lane.sm_count for lane in stage.lanes)
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
            granted_sm_counts=() if granted == asked else granted,
        )

    def _call(self, function: str, *arguments: Any) -> tuple[FailureKind, str] | None:
        """Calls the library; why it failed, or None.

        Raises:
            ValueError: an argument makes no sense.
        """
        error, error_sink = self._library.collect()
        code = getattr(self._library.functions, function)(self._device, *arguments, error_sink)
        if code == _INVALID_ARGUMENT:
            raise ValueError(error[0])
        return (_FAILURE_KINDS.get(code, FailureKind.FAILED), error[0]) if code else None

    def _convolution(self, configuration: ConvolutionConfiguration) -> Any:
        return make(self._library.ffi, "TfiConvolution *", convolution_fields(configuration))

    def _options(self, options: MeasureOptions) -> Any:
        return make(self._library.ffi, "TfiMeasureOptions *", dataclasses.asdict(options))

    def _kernel(self, name: Any, kernel: Any) -> tuple[KernelMeasurement, float]:
        measured = KernelMeasurement(
            name=bytes(self._library.ffi.string(name)).decode(errors="replace"),
            grid=tuple(kernel.grid),
            block=tuple(kernel.block),
            registers_per_thread=kernel.registers_per_thread,
            shared_memory_bytes=kernel.shared_memory_bytes,
            time_share=1.0,
        )
        return measured, kernel.elapsed_us

    def _source(self, options: MeasureOptions) -> str:
        given = ", ".join(f"{name}={value}" for name, value in dataclasses.asdict(options).items())
        return f"tf_interop core, backend {self.name}: {given}"


def find_library_file(name: str) -> pathlib.Path | None:
    """A library's file, or None if it has not been built.

    `TF_INTEROP_LIBRARY` and `TF_INTEROP_CORE_LIBRARY` name other files than those installed with
    the package.
    """
    is_core = name == CORE_LIBRARY_NAME
    named = os.environ.get("TF_INTEROP_CORE_LIBRARY" if is_core else "TF_INTEROP_LIBRARY")
    if named:
        return pathlib.Path(named)
    # An editable install keeps the Python files and the library in two folders of one package.
    import tf_interop

    for folder in tf_interop.__path__:
        candidate = pathlib.Path(folder) / name
        if candidate.is_file():
            return candidate
    return None
