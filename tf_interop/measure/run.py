"""Measures the convolutions and stages of a list, the most useful first; needs no TensorFlow.

Order:
  1. every convolution with the algorithm that the backend would choose, the costliest first;
  2. every convolution with the other algorithms that the backend would consider, then with all
     other requested ones;
  3. stages with the algorithms that are fastest alone; then pairs with other combinations, and
     merged lanes with other algorithms of the wider convolution.

If time is limited, 3 begins after part of it, and the rest of 2 follows. A stage is measured again
if a faster algorithm has been found for one of its convolutions since.

One algorithm may have several names: `eng1` runs as `eng1_k2=5`, and `FFT` as `nchw+FFT` if the
layout is NHWC. An entry has the name of the algorithm that ran. A name without an entry is
therefore resolved before it is measured, and each algorithm is measured once.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from tf_interop.convolution import ConvolutionConfiguration, merged_configuration, multiply_adds
from tf_interop.measure.core import AlgorithmScope, Backend, MeasureOptions
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmKey,
    AlgorithmMeasurement,
    Entry,
    EntryKey,
    FailureKind,
    StageFailure,
    StageKey,
    StageMeasurement,
    as_with_tf32,
    check_algorithm,
    entry_key,
    fastest_first,
    names_engine,
)
from tf_interop.profile.tables import describe_convolution
from tf_interop.profile.worklist import ConfigurationList, ListedStage
from tf_interop.stage import Lane, Stage
from tf_interop.terminal import count_of

Say = Callable[[str, int, int, str], object]
"""Called with the phase, the number of its convolutions or stages that are done, their total, and
a few words on the current measurement and the time left."""


class Phase(enum.Enum):
    """A part of the order."""

    OWN_CHOICE = "convolutions, as the backend chooses"
    OTHERS = "convolutions, other algorithms"
    STAGES = "stages"


# Each phase with the share of the budget after which it ends.
_ORDER = (
    (Phase.OWN_CHOICE, 1.0),
    (Phase.OTHERS, 0.6),
    (Phase.STAGES, 1.0),
    (Phase.OTHERS, 1.0),
    (Phase.STAGES, 1.0),
)


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What to measure, and how.

    Attributes:
        algorithms: a scope for every convolution, or names to measure instead.
        pair_algorithms: the number of algorithms for each convolution of a pair to combine.
        budget_seconds: no measurement begins later than this; None for no limit.
    """

    algorithms: AlgorithmScope | tuple[str, ...] = AlgorithmScope.ALL
    pair_algorithms: int = 3
    measure: MeasureOptions = dataclasses.field(default_factory=MeasureOptions)
    budget_seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class StageJob:
    """One stage to measure.

    Attributes:
        key: the stage, with an algorithm for each step, and whether TF32 is allowed.
        sequential_algorithms: for each step the fastest one alone.
        images: see `ListedStage`.
    """

    key: StageKey
    sequential_algorithms: tuple[str, ...]
    images: tuple[int, ...]


Job = AlgorithmKey | StageJob
"""One algorithm, by the requested name, or one stage."""


def describe_job(job: Job) -> str:
    """Describes a measurement in one line."""
    if isinstance(job, AlgorithmKey):
        what, tf32 = f"{describe_convolution(job.configuration)}, {job.algorithm}", job.tf32
    else:
        stage, tf32 = job.key
        merged = ", merged" if stage.is_merged else ""
        algorithms = " | ".join(str(each.algorithm) for each in stage.steps)
        what = f"{len(stage.steps)} convolutions{merged}, {algorithms}"
    return what if tf32 else f"{what}, without TF32"


_Unit = Callable[[], Iterable[Job]]
"""A function that returns the remaining jobs for one convolution or stage."""


class Measurements:
    """All measurements and failures so far.

    Attributes:
        last_measured: the algorithm that ran last; None if none has run.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        """Starts with the entries of earlier runs."""
        self.last_measured: AlgorithmMeasurement | None = None
        self._entries: dict[EntryKey, Entry] = {}
        self._alone: dict[ConvolutionConfiguration, dict[EntryKey, AlgorithmMeasurement]] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry, *names: EntryKey) -> None:
        """Adds an entry, also under further `names`."""
        key = entry_key(entry)
        self._entries.update(dict.fromkeys((key, *names), entry))
        if isinstance(entry, AlgorithmMeasurement):
            self._alone.setdefault(entry.configuration, {})[key] = entry
            self.last_measured = entry

    def has_algorithm(self, job: AlgorithmKey) -> bool:
        """Whether an algorithm was measured or failed under this name."""
        if job in self._entries:
            return True
        # An engine always rounds or never does. Other algorithms round if they may, so a
        # measurement without TF32 does not apply to a run with it.
        if job.configuration.dtype == "float32" and not names_engine(job.algorithm):
            return False
        exact = self._entries.get(job._replace(tf32=False))
        return isinstance(exact, AlgorithmMeasurement)

    def find_resolved(self, resolved: AlgorithmKey, *, allow_tf32: bool) -> Entry | None:
        """The measurement or failure of a resolved algorithm."""
        # A measurement's key tells whether it rounds, a failure's whether it was allowed to.
        exact = self._entries.get(resolved)
        if isinstance(exact, AlgorithmMeasurement):
            return exact
        return self._entries.get(resolved._replace(tf32=allow_tf32))

    def has_stage(self, job: StageJob) -> bool:
        """Whether a stage failed, or was measured next to the same sequence."""
        entry = self._entries.get(job.key)
        if not isinstance(entry, StageMeasurement):
            return entry is not None
        return entry.sequential_algorithms == job.sequential_algorithms

    def fastest(
        self, configuration: ConvolutionConfiguration, *, allow_tf32: bool
    ) -> tuple[AlgorithmMeasurement, ...]:
        """The measured algorithms of a convolution, fastest first."""
        measured = fastest_first(self._alone.get(configuration, {}).values())
        return as_with_tf32(measured, allow_tf32=allow_tf32)


class End(enum.Enum):
    """Why a run ended."""

    FINISHED = "everything is measured"
    OUT_OF_TIME = "the time is up"
    STOPPED = "it was stopped"
    DEVICE_LOST = "the device failed, and works again only in a new process, if at all"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        left: one line for each phase; empty if nothing is left or the device was lost.
        notes: convolutions without algorithms, and why.
    """

    end: End
    measured_count: int
    failure_count: int
    left: tuple[str, ...]
    notes: tuple[str, ...]


@dataclasses.dataclass
class ProfileRun:
    """One run over a list; its time starts when it is made.

    Attributes:
        before: entries of earlier runs, which are not measured again.
        keep: called with each new entry.
        should_stop: called before each measurement.
    """

    backend: Backend
    configurations: ConfigurationList
    options: RunOptions
    before: dataclasses.InitVar[Iterable[Entry]] = ()
    keep: Callable[[Entry], object] = lambda entry: None
    should_stop: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self, before: Iterable[Entry]) -> None:
        """Starts the clock."""
        self._start = self.clock()
        budget = self.options.budget_seconds
        self._budget_s = math.inf if budget is None else budget
        self._measured = Measurements(before)
        self._notes: dict[str, None] = {}
        self._names: dict[tuple[ConvolutionConfiguration, AlgorithmScope], tuple[str, ...]] = {}
        self._resolved: dict[AlgorithmKey, AlgorithmKey | AlgorithmFailure] = {}
        self._is_device_lost = False
        self._measured_count = 0
        self._failure_count = 0

    def run(self, say: Say) -> Outcome:
        """Measures until everything is done, the time is up, or `should_stop()`."""
        end = self._run(say)
        # A lost device cannot list algorithms.
        is_left_known = end not in (End.FINISHED, End.DEVICE_LOST)
        left = tuple(self._describe_left()) if is_left_known else ()
        return Outcome(end, self._measured_count, self._failure_count, left, tuple(self._notes))

    def _run(self, say: Say) -> End:
        for phase, share in _ORDER:
            units = list(self._units(phase))
            for number, jobs in enumerate(units):
                if self._is_over(share):
                    break
                say(phase.value, number, len(units), self._time_left())
                for job in jobs():
                    if self.should_stop():
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
            if self.should_stop():
                return End.STOPPED
        if math.isinf(self._budget_s):
            return End.FINISHED
        left = (any(jobs()) for phase in Phase for jobs in self._units(phase))
        return End.OUT_OF_TIME if any(left) else End.FINISHED

    def _time_left(self) -> str:
        left_s = max(0.0, self._start + self._budget_s - self.clock())
        return f"at most {left_s:.0f} s left " if math.isfinite(left_s) else ""

    def _is_over(self, share: float) -> bool:
        return self.clock() - self._start >= share * self._budget_s

    def _measure(self, job: Job) -> None:
        options, measured = self.options.measure, self._measured
        is_refused = False
        if isinstance(job, StageJob):
            entry: Entry = self.backend.measure_stage(
                job.key.stage,
                options,
                sequential_algorithms=job.sequential_algorithms,
                images=job.images,
            )
        else:
            resolved = self._resolve(job)
            is_refused = isinstance(resolved, AlgorithmFailure)
            if isinstance(resolved, AlgorithmFailure):
                entry = resolved
            elif before := measured.find_resolved(resolved, allow_tf32=job.tf32):
                measured.add(before, job)
                return
            else:
                entry = self.backend.measure_algorithm(
                    job.configuration, resolved.algorithm, options
                )
        self.keep(entry)
        # Under the requested name too, so that it is not resolved again.
        measured.add(entry, job.key if isinstance(job, StageJob) else job)
        if not isinstance(entry, (AlgorithmFailure, StageFailure)):
            self._measured_count += 1
            return
        self._failure_count += 1
        # After a kernel's illegal memory access every later CUDA call fails. Those failures would
        # look like failures of the next measurements.
        if entry.kind is FailureKind.FAILED and not is_refused:
            self._is_device_lost = not self._does_device_work()

    def _does_device_work(self) -> bool:
        """Whether the device still runs the algorithm that it ran last."""
        ran = self._measured.last_measured
        if ran is None:
            return False
        quick = dataclasses.replace(
            self.options.measure,
            allow_tf32=ran.tf32,
            warmup_ms=0,
            repetitions=1,
            trace_kernels=False,
        )
        again = self.backend.measure_algorithm(ran.configuration, ran.algorithm, quick)
        return isinstance(again, AlgorithmMeasurement)

    def _units(self, phase: Phase) -> Iterator[_Unit]:
        """The convolutions or stages of a phase, each as a function that returns its jobs."""
        if phase is Phase.STAGES:
            yield from self._stage_units()
            return
        convolutions = [
            listed.configuration
            for listed in sorted(
                self.configurations.convolutions,
                key=lambda listed: -listed.count * multiply_adds(listed.configuration),
            )
        ]
        asked = self.options.algorithms
        if phase is Phase.OWN_CHOICE:
            scopes: tuple[AlgorithmScope | None, ...] = (None,)
        else:
            scopes = () if isinstance(asked, tuple) else (AlgorithmScope.HEURISTIC, asked)
        for scope, configuration in itertools.product(dict.fromkeys(scopes), convolutions):
            yield functools.partial(self._algorithm_jobs, configuration, scope)

    def _describe_left(self) -> Iterator[str]:
        """Describes the remaining jobs, one line for each phase."""
        own, others, stages = (
            {job for jobs in self._units(phase) for job in jobs()} for phase in Phase
        )
        if own:
            yield f"{count_of(len(own), 'convolution')} not measured at all"
        if others - own:
            yield count_of(len(others - own), "other algorithm")
        if stages:
            yield count_of(len(stages), "stage")

    def _resolve(self, job: AlgorithmKey) -> AlgorithmKey | AlgorithmFailure:
        """Resolves the name of a job, once."""
        if job not in self._resolved:
            self._resolved[job] = self.backend.resolve_algorithm(
                job.configuration, job.algorithm, self.options.measure
            )
        return self._resolved[job]

    def _algorithm_jobs(
        self, configuration: ConvolutionConfiguration, scope: AlgorithmScope | None
    ) -> Iterator[AlgorithmKey]:
        """The jobs of a scope; for None, of the backend's first choice or the requested names."""
        if scope is not None:
            names = self._listed(configuration, scope)
        elif isinstance(self.options.algorithms, tuple):
            names = _of_kind(self.options.algorithms, configuration)
        else:
            names = self._listed(configuration, AlgorithmScope.HEURISTIC)[:1]
        for name in names:
            job = AlgorithmKey(configuration, name, self.options.measure.allow_tf32)
            if not self._measured.has_algorithm(job):
                yield job

    def _listed(
        self, configuration: ConvolutionConfiguration, scope: AlgorithmScope
    ) -> tuple[str, ...]:
        key = (configuration, scope)
        if key not in self._names:
            try:
                self._names[key] = self.backend.list_algorithms(
                    configuration, scope, allow_tf32=self.options.measure.allow_tf32
                )
            except ValueError as error:
                self._names[key] = ()
                self._notes[f"no algorithm for {describe_convolution(configuration)}: {error}"] = (
                    None
                )
        return self._names[key]

    def _stage_units(self) -> Iterator[_Unit]:
        """Every stage with the algorithms that are fastest alone, then other combinations."""
        jobs = map(self._stage_jobs, sorted(self.configurations.stages, key=self._stage_order))
        for of_one_rank in itertools.zip_longest(*jobs):
            for job in filter(None, of_one_rank):
                yield functools.partial(itertools.filterfalse, self._measured.has_stage, (job,))

    def _stage_order(self, listed: ListedStage) -> tuple[bool, int, bool]:
        """Stages of a plan first, then by cost; at equal cost merged ones last."""
        cost = sum(map(multiply_adds, self._stage_of(listed).operations))
        is_pinned = any(step.algorithm for step in listed.stage.steps)
        return not is_pinned, -cost * max(1, len(listed.origins)), listed.stage.is_merged

    def _stage_of(self, listed: ListedStage) -> Stage[ConvolutionConfiguration]:
        return listed.stage.map(lambda place: self.configurations.convolutions[place].configuration)

    def _stage_jobs(self, listed: ListedStage) -> list[StageJob]:
        stage = self._stage_of(listed)
        alone = [
            self._measured.fastest(each, allow_tf32=self.options.measure.allow_tf32)
            for each in stage.operations
        ]
        if not all(alone):
            return []
        fastest = tuple(each[0].algorithm for each in alone)
        return [
            StageJob(
                StageKey(stage.with_algorithms(choice), self.options.measure.allow_tf32),
                fastest,
                listed.images,
            )
            for choice in self._choices(stage, alone)
        ]

    def _choices(
        self,
        stage: Stage[ConvolutionConfiguration],
        alone: Sequence[Sequence[AlgorithmMeasurement]],
    ) -> list[tuple[str, ...]]:
        """The algorithms to measure a stage with, one for each step.

        A plan's algorithms stay. A merged lane uses the wider convolution's, which are not measured
        alone: in the backend's order, or as requested by name. Each of them makes one choice.
        """
        is_pinned = any(step.algorithm for step in stage.steps)
        if [len(lane.steps) for lane in stage.lanes] == [1, 1] and not is_pinned:
            return _combinations(*alone, at_most_each=self.options.pair_algorithms)
        fastest = iter(each[0].algorithm for each in alone)
        choices = [
            (lane.merged, self._choices_of_lane(lane, [next(fastest) for _ in lane.steps]))
            for lane in stage.lanes
        ]
        # Merged lanes change their algorithms together, by rank; other lanes have one choice.
        count = min((len(each) for merged, each in choices if merged), default=1)
        return [
            tuple(name for merged, each in choices for name in each[rank if merged else 0])
            for rank in range(count)
        ]

    def _choices_of_lane(
        self, lane: Lane[ConvolutionConfiguration], fastest: list[str]
    ) -> list[list[str]]:
        if not lane.merged:
            return [
                [
                    self._name_of(step.operation, step.algorithm) if step.algorithm else name
                    for step, name in zip(lane.steps, fastest, strict=True)
                ]
            ]
        wider, pinned = merged_configuration(lane.operations), lane.steps[0].algorithm
        if pinned is not None:
            names: tuple[str, ...] = (pinned,)
        elif isinstance(self.options.algorithms, tuple):
            names = _of_kind(self.options.algorithms, wider)
        else:
            names = self._listed(wider, AlgorithmScope.HEURISTIC)
        distinct = dict.fromkeys(self._name_of(wider, name) for name in names)
        return [[name] * len(fastest) for name in distinct][: self.options.pair_algorithms]

    def _name_of(self, configuration: ConvolutionConfiguration, name: str) -> str:
        """The name that the entry of a stage will have, or the given one if it cannot run."""
        return self._resolve(
            AlgorithmKey(configuration, name, self.options.measure.allow_tf32)
        ).algorithm


def _of_kind(algorithms: Iterable[str], configuration: ConvolutionConfiguration) -> tuple[str, ...]:
    """The algorithms that exist for this kind of convolution."""

    def is_of_kind(algorithm: str) -> bool:
        try:
            check_algorithm(algorithm, configuration.kind)
        except ValueError:
            return False
        return True

    return tuple(filter(is_of_kind, algorithms))


def _combinations(
    first: Sequence[AlgorithmMeasurement],
    second: Sequence[AlgorithmMeasurement],
    *,
    at_most_each: int,
) -> list[tuple[str, ...]]:
    """Combines the fastest algorithms of two convolutions; the smallest sum of times comes first.

    For two lanes of one convolution the order does not matter.
    """
    is_one = first[0].configuration == second[0].configuration
    ranked = itertools.product(enumerate(first[:at_most_each]), enumerate(second[:at_most_each]))
    pairs = [(a, b) for (rank, a), (other, b) in ranked if not is_one or rank <= other]
    pairs.sort(key=lambda pair: sum(each.latency_us for each in pair))
    return [(a.algorithm, b.algorithm) for a, b in pairs]
