"""Measuring through the compiled core, which needs no TensorFlow; nor does this module."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from collections.abc import Sequence

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.errors import LibraryError
from tf_interop.measure.backend import (
    AlgorithmList,
    AlgorithmScope,
    DeviceDescription,
    MeasureOptions,
    ResolvedAlgorithm,
    StageStep,
)
from tf_interop.measure.core_arguments import (
    CollectedKernels,
    CollectedStrings,
    to_convolution_struct,
    to_lane_structs,
    to_options_struct,
    to_stage_struct,
)
from tf_interop.measure.core_interface import (
    DeviceDescriptionStruct,
    MeasurementStruct,
    StageMeasurementStruct,
)
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    FailureKind,
    MeasuredConvolution,
    StageFailure,
    StageMeasurement,
)
from tf_interop.profile.types import SmLimits

# Of StatusCode in cc_kernels/core/status.h.
_INVALID_ARGUMENT = 1
_FAILURE_KINDS = {2: FailureKind.UNSUPPORTED, 3: FailureKind.OUT_OF_MEMORY}

# A larger error is no rounding: TF32 and half round by 2^-11, bfloat16 by 2^-9 of a value, and sums
# of thousands of halves that are kept in half come to some hundredths of the largest element. What
# is computed from other elements than it should be is off by as much as the elements are large.
_LARGEST_ERROR = 0.1

_SCOPES = {AlgorithmScope.HEURISTIC: 0, AlgorithmScope.ALL: 1, AlgorithmScope.KNOBS: 2}


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
        name, compute_capability, cudnn, cuda, error = (CollectedStrings() for _ in range(5))
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
        names, error = CollectedStrings(), CollectedStrings()
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
        resolved, error = CollectedStrings(), CollectedStrings()
        code = self._functions.TfiCoreResolveAlgorithm(
            self._device,
            ctypes.byref(to_convolution_struct(configuration)),
            algorithm.encode(),
            ctypes.byref(to_options_struct(options)),
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
        ran, kernels, trace_error, error = (
            CollectedStrings(),
            CollectedKernels(),
            CollectedStrings(),
            CollectedStrings(),
        )
        code = self._functions.TfiCoreMeasureConvolution(
            self._device,
            ctypes.byref(to_convolution_struct(configuration)),
            (algorithm or "").encode(),
            ctypes.byref(to_options_struct(options)),
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
        stage = to_stage_struct(
            steps, sequential_algorithms, to_lane_structs(sm_counts, priorities, merged)
        )
        measured = StageMeasurementStruct()
        given_sm_counts = (ctypes.c_int32 * stage.lane_count)()
        given_count = ctypes.c_size_t()
        ran, ran_in_sequence, error = CollectedStrings(), CollectedStrings(), CollectedStrings()
        code = self._functions.TfiCoreMeasureStage(
            self._device,
            ctypes.byref(stage),
            ctypes.byref(to_options_struct(options)),
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
