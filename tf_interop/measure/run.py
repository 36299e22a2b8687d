"""Measures a list of convolutions and stages (`jobs.py`), and needs no TensorFlow."""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Callable, Iterable

from tf_interop.measure.core import Backend
from tf_interop.measure.jobs import Job, Phase, ProfileJobs, RunOptions, StageJob, describe_job
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    Entry,
    FailureKind,
    StageFailure,
)
from tf_interop.profile.worklist import ConfigurationList

Say = Callable[[str, int, int, str], object]
"""Is told the phase, how many convolutions or stages of it were looked through and how many there
are, and in a few words what is measured now and what time is left."""
# Of the budget, if there are stages.
_SHARE_BEFORE_STAGES = 0.6


class End(enum.Enum):
    """Why a run ended."""

    FINISHED = "everything is measured"
    OUT_OF_TIME = "the time is over"
    STOPPED = "it was stopped"
    DEVICE_LOST = "the device failed, and works again only in a new process, if at all"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        end: why.
        measured_count: measurements of this run.
        failure_count: failures of this run.
        left: what is left to measure, a part for each phase; empty if nothing is, and where the
            device was lost.
        notes: convolutions that have no algorithms, and why.
    """

    end: End
    measured_count: int
    failure_count: int
    left: tuple[str, ...]
    notes: tuple[str, ...]


class ProfileRun:
    """One run over a list."""

    def __init__(
        self,
        backend: Backend,
        configurations: ConfigurationList,
        options: RunOptions,
        *,
        before: Iterable[Entry] = (),
        keep: Callable[[Entry], None] = lambda entry: None,
        should_stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares a run; time counts from now.

        What runs `before` measured is not measured again. `keep` is given each new entry, and
        `should_stop` is asked before each measurement.
        """
        self._backend = backend
        self._has_stages = bool(configurations.stages)
        self._options = options
        self._keep = keep
        self._should_stop = should_stop
        self._clock = clock
        self._start = clock()
        self._jobs = ProfileJobs(backend, configurations, options, before)
        self._is_device_lost = False
        self._measured_count = 0
        self._failure_count = 0

    def run(self, say: Say) -> Outcome:
        """Measures until everything is measured, the time is over, or it is told to stop."""
        end = self._run(say)
        # A device that was lost cannot say what it has for what was not begun.
        is_left_known = end not in (End.FINISHED, End.DEVICE_LOST)
        left = tuple(self._jobs.describe_left()) if is_left_known else ()
        notes = tuple(self._jobs.notes)
        return Outcome(end, self._measured_count, self._failure_count, left, notes)

    def _run(self, say: Say) -> End:
        for phase, share in self._phases():
            units = list(self._jobs.units(phase))
            for number, jobs in enumerate(units):
                if self._is_over(share):
                    break
                say(phase.value, number, len(units), self._time_left())
                for job in jobs():
                    if self._should_stop():
                        return End.STOPPED
                    if self._is_over(share):
                        break
                    what = f"now {describe_job(job)}"
                    say(phase.value, number, len(units), self._time_left() + what)
                    self._measure(job)
                    if self._is_device_lost:
                        return End.DEVICE_LOST
            else:
                if units:
                    say(phase.value, len(units), len(units), self._time_left())
            if self._should_stop():
                return End.STOPPED
        if self._options.budget_seconds is None:
            return End.FINISHED
        left = (any(jobs()) for phase in Phase for jobs in self._jobs.units(phase))
        return End.OUT_OF_TIME if any(left) else End.FINISHED

    def _time_left(self) -> str:
        budget = self._options.budget_seconds
        if budget is None:
            return ""
        return f"{max(0.0, self._start + budget - self._clock()):.0f} s left "

    def _phases(self) -> list[tuple[Phase, float]]:
        """The phases, each with the share of the budget that is over when it ends."""
        if self._options.budget_seconds is None or not self._has_stages:
            return [(phase, 1.0) for phase in Phase]
        return [
            (Phase.OWN_CHOICE, 1.0),
            (Phase.OTHERS, _SHARE_BEFORE_STAGES),
            (Phase.STAGES, 1.0),
            (Phase.OTHERS, 1.0),
            (Phase.STAGES, 1.0),
        ]

    def _is_over(self, share: float) -> bool:
        budget = self._options.budget_seconds
        return budget is not None and self._clock() - self._start >= share * budget

    def _measure(self, job: Job) -> None:
        options, measured = self._options.measure, self._jobs.measured
        is_refused = False
        if isinstance(job, StageJob):
            entry: Entry = self._backend.measure_stage(
                job.key.stage,
                options,
                sequential_algorithms=job.sequential_algorithms,
                images=job.images,
            )
        else:
            resolved = self._jobs.resolve(job)
            is_refused = isinstance(resolved, AlgorithmFailure)
            if isinstance(resolved, AlgorithmFailure):
                entry = resolved
            elif before := measured.find_resolved(resolved, allow_tf32=job.tf32):
                measured.add(before, job)
                return
            else:
                entry = self._backend.measure_algorithm(
                    job.configuration, resolved.algorithm, options
                )
        self._keep(entry)
        # Under the name that was asked for, too, which need not be resolved again in this run.
        measured.add(entry, job.key if isinstance(job, StageJob) else job)
        if not isinstance(entry, (AlgorithmFailure, StageFailure)):
            self._measured_count += 1
            return
        self._failure_count += 1
        # A kernel that reads where it must not makes every call after it fail, in CUDA. Those would
        # be taken for failures of what is measured next.
        if entry.kind is FailureKind.FAILED and not is_refused:
            self._is_device_lost = not self._does_device_work()

    def _does_device_work(self) -> bool:
        """Whether it still runs what it ran before."""
        ran = self._jobs.measured.last_measured
        if ran is None:
            return False
        quick = dataclasses.replace(
            self._options.measure,
            allow_tf32=ran.tf32,
            warmup_ms=0,
            repetitions=1,
            trace_kernels=False,
        )
        again = self._backend.measure_algorithm(ran.configuration, ran.algorithm, quick)
        return isinstance(again, AlgorithmMeasurement)
