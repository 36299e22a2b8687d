"""The compiled core: finds it, loads it and measures through it, without TensorFlow.

The interface is read from the library's own header, which is installed next to it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import os
import pathlib
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from tf_interop.convolution import SPATIAL_AXES, ConvolutionConfiguration, ConvolutionKind
from tf_interop.errors import LibraryError
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmKey,
    AlgorithmMeasurement,
    FailureKind,
    KernelMeasurement,
    StageFailure,
    StageMeasurement,
    check_configuration,
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
        """Opens a backend; opening it again gives the same one.

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
        """A list, and a sink that appends strings of the library to it while the sink lives."""
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
# sums of thousands of halves that are kept in half err by some hundredths of the largest element.
# A convolution that reads the wrong elements errs by as much as the elements are large.
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
        warmup_ms: how long untimed runs last, up to a minute.
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
        if failed is not None or not names:
            raise ValueError("the backend lists none" if failed is None else failed[1])
        return tuple(names)

    def resolve_algorithm(
        self, configuration: ConvolutionConfiguration, algorithm: str, options: MeasureOptions
    ) -> AlgorithmKey | AlgorithmFailure:
        """Finds out what `measure_algorithm` would run under a name, without running it.

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
        self,
        configuration: ConvolutionConfiguration,
        algorithm: str | None,
        options: MeasureOptions,
    ) -> AlgorithmMeasurement | AlgorithmFailure:
        """Measures one convolution with one algorithm, alone.

        An algorithm of None is the backend's own choice; its failure has an empty name.

        Raises:
            ValueError: a shape is unknown, the core has no such convolution, or the options are
                out of range. An algorithm that the backend lacks is a failure instead.
        """
        source = self._source(options)
        measured = self.library.ffi.new("TfiMeasurement *")
        ran, sink = self.library.collect()
        trace_errors, trace_sink = self.library.collect()
        kernels: list[tuple[KernelMeasurement, float]] = []
        kernel_sink = self.library.ffi.callback(
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
        """Measures a stage on its lanes, and the same steps in sequence.

        The sequence, in which nothing is merged, runs once with the stage's own algorithms and once
        with `sequential_algorithms`. The result's spread is the sum of the spreads of the lanes and
        of the second sequence.

        Args:
            stage: an algorithm of None is the backend's own choice.
            options: how to measure.
            sequential_algorithms: for each step the fastest one alone; empty for the stage's own.
            images: a number for each step; steps with one number read one image. Empty gives each
                step, or each merged lane, its own image.

        Raises:
            ValueError: the stage is illegal, a shape is unknown, or the core has no such
                convolution. An algorithm that cannot run, or a lane that cannot be merged, is a
                failure instead.
        """
        stage.validate()
        source = self._source(options)
        ffi = self.library.ffi
        lanes, kept = _to_lanes(ffi, stage, sequential_algorithms, images)
        measured = ffi.new("TfiStageMeasurement *")
        sm_counts = ffi.new("int32_t[]", len(stage.lanes))
        ran, sink = self.library.collect()
        ran_in_sequence, sequence_sink = self.library.collect()
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
        return _make(self.library.ffi, "TfiConvolution *", convolution_fields(configuration))

    def _options(self, options: MeasureOptions) -> Any:
        return _make(self.library.ffi, "TfiMeasureOptions *", dataclasses.asdict(options))

    def _kernel(self, name: Any, kernel: Any) -> tuple[KernelMeasurement, float]:
        measured = KernelMeasurement(
            name=bytes(self.library.ffi.string(name)).decode(errors="replace"),
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
    """Finds the file of a compiled library, or None if it has not been built.

    `TF_INTEROP_LIBRARY` and `TF_INTEROP_CORE_LIBRARY` name files to use instead of the installed.
    """
    is_core = name == CORE_LIBRARY_NAME
    named = os.environ.get("TF_INTEROP_CORE_LIBRARY" if is_core else "TF_INTEROP_LIBRARY")
    if named:
        return pathlib.Path(named)
    # An editable install has two folders for one package: Python files here, the library there.
    import tf_interop

    for folder in tf_interop.__path__:
        candidate = pathlib.Path(folder) / name
        if candidate.is_file():
            return candidate
    return None


_Value = TypeVar("_Value")

_KINDS = {
    ConvolutionKind.FORWARD: 0,
    ConvolutionKind.BACKWARD_INPUT: 1,
    ConvolutionKind.BACKWARD_FILTER: 2,
}
_DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "float64": 3}
_LAYOUTS = {"NHWC": 0, "NCHW": 1, "NDHWC": 0, "NCDHW": 1}
# Whether there is a bias, and the activation.
_FUSED_OPS = {
    (): (False, 0),
    ("BiasAdd",): (True, 0),
    ("BiasAdd", "Relu"): (True, 1),
    ("BiasAdd", "Relu6"): (True, 2),
    ("BiasAdd", "LeakyRelu"): (True, 3),
    ("BiasAdd", "Elu"): (True, 4),
}
_DIMENSIONS = ("depth", "height", "width")
_PADS = ("pad_front", "pad_back", "pad_top", "pad_bottom", "pad_left", "pad_right")


def convolution_fields(configuration: ConvolutionConfiguration) -> dict[str, Any]:
    """The fields of a `TfiConvolution`; the core checks the sizes.

    Raises:
        ValueError: a shape is unknown, the filter does not fit the channels, or the core has no
            such dtype, layout, padding or fused operation.
    """
    check_configuration(configuration, "$")
    if configuration.fused_ops not in _FUSED_OPS:
        raise ValueError(
            f"Expected fused_ops to be one of {', '.join(map(str, _FUSED_OPS))}, got "
            f"{configuration.fused_ops}."
        )
    axes = SPATIAL_AXES[configuration.layout]
    channel_axis = configuration.layout.index("C")
    image, filter_, output = (
        cast("tuple[int, ...]", shape)
        for shape in (
            configuration.image_shape,
            configuration.filter_shape,
            configuration.output_shape,
        )
    )
    image_sizes = [image[axis] for axis in axes]
    channels = image[channel_axis]
    # The core derives the filter's channels from the others, so all three have to agree here.
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
    has_bias, activation = _FUSED_OPS[configuration.fused_ops]
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
        "kind": _KINDS[configuration.kind],
        "dtype": _DTYPES[configuration.dtype],
        "layout": _LAYOUTS[configuration.layout],
        "activation": activation,
        "has_bias": has_bias,
        "leaky_relu_alpha": configuration.leaky_relu_alpha,
    }


def _make(ffi: Any, kind: str, fields: object) -> Any:
    """A struct or an array of the library; numbers that do not fit raise a ValueError."""
    try:
        return ffi.new(kind, fields)
    except OverflowError as error:
        raise ValueError(f"Expected sizes that fit into the core's integers: {error}") from error


def _to_lanes(
    ffi: Any,
    stage: Stage[ConvolutionConfiguration],
    sequential_algorithms: Sequence[str | None],
    images: Sequence[int],
) -> tuple[Any, list[object]]:
    """The lanes of a stage as an array of `TfiLane`, and the objects that have to outlive it."""
    count = len(stage.steps)
    for name, values in (("sequential algorithm", sequential_algorithms), ("image", images)):
        if len(values) not in (0, count):
            raise ValueError(
                f"Expected a {name} for each of {count} steps or for none, got {len(values)}."
            )
    kept: list[object] = []

    def text(algorithm: str | None) -> Any:
        kept.append(ffi.new("char[]", (algorithm or "").encode()))
        return kept[-1]

    sequential = iter(sequential_algorithms)
    image = iter(images or (-1,) * count)
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
        kept.append(_make(ffi, "TfiStep[]", steps))
        lanes.append({"options": lane.options, "steps": kept[-1], "step_count": len(steps)})
    return _make(ffi, "TfiLane[]", lanes), kept


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
    for axis in range(len(image)):
        reach = (filter_[axis] - 1) * configuration.dilations[axis] + 1
        outputs = -(-image[axis] // configuration.strides[axis])
        covered = (outputs - 1) * configuration.strides[axis] + reach
        total = max(covered - image[axis], 0)
        same.append((total // 2, total - total // 2))
    return same
