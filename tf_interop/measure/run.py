"""Measures a list of convolutions and stages (`jobs.py`), and needs no TensorFlow."""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Callable, Iterable

from tf_interop.measure.backend import Backend
from tf_interop.measure.jobs import Job, Phase, ProfileJobs, RunOptions, StageJob, describe_job
from tf_interop.measure.measured import Measurements
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    Entry,
    FailureKind,
    StageFailure,
    StageMeasurement,
)
from tf_interop.profile.types import ProfiledDevice
from tf_interop.profile.worklist import ConfigurationList

# Of the budget, where there are stages.
_SHARE_BEFORE_STAGES = 0.6


class End(enum.Enum):
    """Why a run ended."""

    FINISHED = "everything is measured"
    OUT_OF_TIME = "the time is over"
    STOPPED = "it was stopped"
    DEVICE_LOST = "the device failed, and works again in a new process at best"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        end: why.
        measured_count: measurements of this run.
        failure_count: failures of this run.
        left: what is left to measure, a part for each phase; empty where nothing is, and where the
            device was lost.
        notes: convolutions that have no algorithms, and why.
    """

    end: End
    measured_count: int
    failure_count: int
    left: tuple[str, ...]
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a run has come.

    Attributes:
        phase: what is being measured.
        done: convolutions or stages of the phase that were looked through.
        total: all of them.
        what: the measurement that begins, or empty.
        is_end: whether the phase ends, for now.
        seconds_left: of the budget; None where there is none.
    """

    phase: Phase
    done: int
    total: int
    what: str
    is_end: bool
    seconds_left: float | None


class ProfileRun:
    """One run over a list."""

    def __init__(
        self,
        backend: Backend,
        configurations: ConfigurationList,
        options: RunOptions,
        *,
        before: Iterable[Entry] = (),
        device: ProfiledDevice | None = None,
        keep: Callable[[Entry], None] = lambda entry: None,
        should_stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares a run; time counts from now.

        Args:
            backend: measures.
            configurations: what to measure.
            options: how.
            before: entries of runs before; what they hold is not measured again.
            device: what is measured on, to choose combinations by; None where that is open.
            keep: is given each new entry.
            should_stop: asked before each measurement.
            clock: seconds that go by.
        """
        self._backend = backend
        self._has_stages = bool(configurations.stages)
        self._options = options
        self._keep = keep
        self._should_stop = should_stop
        self._clock = clock
        self._start = clock()
        self._measured = Measurements(before)
        self._jobs = ProfileJobs(backend, configurations, options, self._measured, device)
        self._is_device_lost = False
        self._measured_count = 0
        self._failure_count = 0

    def run(self, say: Callable[[Progress], None]) -> Outcome:
        """Measures until everything is measured, the time is over, or it is told to stop.

        Args:
            say: is told what goes on.
        """
        end = self._run(say)
        # A device that was lost cannot say what it has for what was not begun.
        is_left_known = end not in (End.FINISHED, End.DEVICE_LOST)
        left = tuple(self._jobs.describe_left()) if is_left_known else ()
        return Outcome(end, self._measured_count, self._failure_count, left, self._jobs.notes)

    def _run(self, say: Callable[[Progress], None]) -> End:
        for phase, share in self._phases():
            units = list(self._jobs.units(phase))
            done = 0
            for number, jobs in enumerate(units):
                if self._is_over(share):
                    break
                say(self._progress(phase, number, len(units)))
                for job in jobs():
                    if self._should_stop():
                        return End.STOPPED
                    if self._is_over(share):
                        break
                    say(self._progress(phase, number, len(units), describe_job(job)))
                    self._measure(job)
                    if self._is_device_lost:
                        return End.DEVICE_LOST
                else:
                    done += 1
            if done:
                say(self._progress(phase, done, len(units), is_end=True))
            if self._should_stop():
                return End.STOPPED
        if self._options.budget_seconds is not None and any(self._jobs.pending()):
            return End.OUT_OF_TIME
        return End.FINISHED

    def _progress(
        self, phase: Phase, done: int, total: int, what: str = "", *, is_end: bool = False
    ) -> Progress:
        budget = self._options.budget_seconds
        left = None if budget is None else max(0.0, self._start + budget - self._clock())
        return Progress(phase, done, total, what, is_end, left)

    def _phases(self) -> list[tuple[Phase, float]]:
        """The phases, each with the share of the budget that is over when it ends."""
        if self._options.budget_seconds is None or not self._has_stages:
            return [(phase, 1.0) for phase in Phase]
        alone, rest = (Phase.CONSIDERED, Phase.OTHERS), tuple(Phase)[1:]
        return [
            (Phase.OWN_CHOICE, 1.0),
            *((phase, _SHARE_BEFORE_STAGES) for phase in alone),
            (Phase.STAGES, 1.0),
            *((phase, 1.0) for phase in rest),
        ]

    def _is_over(self, share: float) -> bool:
        budget = self._options.budget_seconds
        return budget is not None and self._clock() - self._start >= share * budget

    def _measure(self, job: Job) -> None:
        if isinstance(job, StageJob):
            entry = self._backend.measure_stage(
                job.stage,
                self._jobs.measure_options(job),
                sequential_algorithms=job.sequential_algorithms,
            )
            self._take_measured(job, entry)
            return
        resolved = self._jobs.resolve(job)
        if isinstance(resolved, AlgorithmFailure):
            self._take(job, resolved)
            return
        before = self._measured.find_resolved(job.configuration, resolved, allow_tf32=job.tf32)
        if before is not None:
            self._measured.add_name(job, before)
            return
        self._take_measured(
            job,
            self._backend.measure_algorithm(
                job.configuration, resolved.algorithm, self._jobs.measure_options(job)
            ),
        )

    def _take_measured(self, job: Job, entry: Entry) -> None:
        self._take(job, entry)
        if isinstance(entry, (AlgorithmFailure, StageFailure)):
            # A kernel that reads where it must not makes every call after it fail, in CUDA. Those
            # would be taken for failures of what is measured next.
            self._is_device_lost = entry.kind is FailureKind.FAILED and not self._does_device_work()

    def _does_device_work(self) -> bool:
        """Whether it still runs what it ran before."""
        ran = self._measured.last_measured
        if ran is None:
            return False
        quick = dataclasses.replace(
            self._options.measure,
            warmup_runs=0,
            repetitions=1,
            trace_kernels=False,
            allow_tf32=ran.tf32,
        )
        again = self._backend.measure_algorithm(ran.configuration, ran.algorithm, quick)
        return isinstance(again, AlgorithmMeasurement)

    def _take(self, job: Job, entry: Entry) -> None:
        self._keep(entry)
        self._measured.add(entry)
        # Under the name that was asked for, too, which need not be resolved again in this run.
        self._measured.add_name(job.key if isinstance(job, StageJob) else job, entry)
        if isinstance(entry, (AlgorithmMeasurement, StageMeasurement)):
            self._measured_count += 1
        else:
            self._failure_count += 1
