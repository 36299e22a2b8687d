"""The jobs of a list: the measurements that are left, the most useful first.

Order:
  1. every convolution with the algorithm that the backend would choose, the costliest first;
  2. every convolution with what else the backend would consider, then with every other algorithm
     that was asked for;
  3. stages, with what proved fastest alone; pairs then also with other combinations, and what is
     to be merged with other algorithms of the wider convolution.

Where time is limited, 3 begins when part of the time is over, and what is left of 2 follows.
A stage that was measured before a faster algorithm was found for one of its convolutions is then
measured again.

One algorithm may have several names: `eng1` runs as `eng1_k2=5`, and `FFT` as `nchw+FFT` where the
layout is NHWC. Measurements have the name of what ran. So a name that no entry has is resolved
before it is measured, and what it stands for is measured once.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from tf_interop.convolution import ConvolutionConfiguration, merged_configuration, multiply_adds
from tf_interop.measure.core import AlgorithmScope, Backend, MeasureOptions
from tf_interop.profile.check import check_algorithm, names_engine
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmKey,
    AlgorithmMeasurement,
    Entry,
    EntryKey,
    StageKey,
    StageMeasurement,
    as_with_tf32,
    entry_key,
    fastest_first,
)
from tf_interop.profile.tables import describe_convolution
from tf_interop.profile.worklist import ConfigurationList, ListedStage
from tf_interop.stage import Lane, Stage


class Phase(enum.Enum):
    """What is being measured."""

    OWN_CHOICE = "convolutions, as the backend chooses"
    OTHERS = "convolutions, other algorithms"
    STAGES = "stages"


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What to measure of a list, and how.

    Attributes:
        algorithms: which algorithms of each convolution, or names of those that alone are measured.
        pair_algorithms: how many algorithms of each convolution of a pair are combined.
        measure: how to measure.
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
        key: of its entry: the stage, with an algorithm for each step, and whether TF32 is allowed.
        sequential_algorithms: what is fastest alone for each step, to compare with.
        images: see `ListedStage`.
    """

    key: StageKey
    sequential_algorithms: tuple[str, ...]
    images: tuple[int, ...]


Job = AlgorithmKey | StageJob
"""One algorithm, by the name that is asked for, or one stage."""


def describe_job(job: Job) -> str:
    """What is measured, in one line."""
    if isinstance(job, AlgorithmKey):
        what, tf32 = f"{describe_convolution(job.configuration)}, {job.algorithm}", job.tf32
    else:
        stage, tf32 = job.key
        merged = ", merged" if any(lane.merged for lane in stage.lanes) else ""
        algorithms = " | ".join(str(each.algorithm) for each in stage.steps)
        what = f"{len(stage.steps)} convolutions{merged}, {algorithms}"
    return what if tf32 else f"{what}, without TF32"


class Measurements:
    """What has been measured, and what failed.

    Attributes:
        last_measured: an algorithm that the device can run; None if there is none yet.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        """Starts with entries of before."""
        self.last_measured: AlgorithmMeasurement | None = None
        self._entries: dict[EntryKey, Entry] = {}
        self._alone: dict[ConvolutionConfiguration, dict[EntryKey, AlgorithmMeasurement]] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry, *names: EntryKey) -> None:
        """Adds what was measured; it stands for other names, too."""
        key = entry_key(entry)
        self._entries.update(dict.fromkeys((key, *names), entry))
        if isinstance(entry, AlgorithmMeasurement):
            self._alone.setdefault(entry.configuration, {})[key] = entry
            self.last_measured = entry

    def has_algorithm(self, job: AlgorithmKey) -> bool:
        """Whether an algorithm was measured, or failed, by this name."""
        if job in self._entries:
            return True
        # An engine rounds or does not, whatever is allowed. Other algorithms round where they may,
        # so one that was measured without TF32 says nothing of how it runs with it.
        if job.configuration.dtype == "float32" and not names_engine(job.algorithm):
            return False
        exact = self._entries.get(job._replace(tf32=False))
        return isinstance(exact, AlgorithmMeasurement)

    def find_resolved(self, resolved: AlgorithmKey, *, allow_tf32: bool) -> Entry | None:
        """The measurement of what an algorithm was resolved to, or its failure."""
        # A measurement says whether it rounds, a failure whether it was allowed to.
        exact = self._entries.get(resolved)
        if isinstance(exact, AlgorithmMeasurement):
            return exact
        return self._entries.get(resolved._replace(tf32=allow_tf32))

    def has_stage(self, job: StageJob) -> bool:
        """Whether a stage failed, or was measured beside the same sequence."""
        entry = self._entries.get(job.key)
        if not isinstance(entry, StageMeasurement):
            return entry is not None
        return entry.sequential_algorithms == job.sequential_algorithms

    def fastest(
        self, configuration: ConvolutionConfiguration, *, allow_tf32: bool
    ) -> tuple[AlgorithmMeasurement, ...]:
        """The measured algorithms, each once, fastest first."""
        measured = fastest_first(self._alone.get(configuration, {}).values())
        return as_with_tf32(measured, allow_tf32=allow_tf32)


class ProfileJobs:
    """The jobs of one run: what a list asks for, and is not measured yet.

    Attributes:
        measured: what was measured up to now; the run adds to it.
        notes: convolutions that have no algorithms, and why, as far as that was asked.
    """

    def __init__(
        self,
        backend: Backend,
        configurations: ConfigurationList,
        options: RunOptions,
        before: Iterable[Entry],
    ) -> None:
        """Prepares the jobs; what was measured `before` is none."""
        self.measured = Measurements(before)
        self.notes: dict[str, None] = {}
        self._backend = backend
        self._list = configurations
        self._options = options
        self._allow_tf32 = options.measure.allow_tf32
        self._names: dict[tuple[ConvolutionConfiguration, AlgorithmScope], tuple[str, ...]] = {}
        self._resolved: dict[AlgorithmKey, AlgorithmKey | AlgorithmFailure] = {}

    def units(self, phase: Phase) -> Iterator[Callable[[], Iterator[Job]]]:
        """The convolutions or stages of a phase: each gives the jobs that are not done yet."""
        if phase is Phase.STAGES:
            yield from self._stage_units()
            return
        convolutions = [
            listed.configuration
            for listed in sorted(
                self._list.convolutions,
                key=lambda listed: -listed.count * multiply_adds(listed.configuration),
            )
        ]
        asked = self._options.algorithms
        if phase is Phase.OWN_CHOICE:
            scopes: tuple[AlgorithmScope | None, ...] = (None,)
        else:
            scopes = () if isinstance(asked, tuple) else (AlgorithmScope.HEURISTIC, asked)
        for scope, configuration in itertools.product(dict.fromkeys(scopes), convolutions):
            yield functools.partial(self._algorithm_jobs, configuration, scope)

    def describe_left(self) -> Iterator[str]:
        """What is left to measure, a part for each phase."""
        own, others, stages = (
            {job for jobs in self.units(phase) for job in jobs()} for phase in Phase
        )
        if own:
            yield f"{len(own)} convolutions to measure at all"
        if others - own:
            yield f"{len(others - own)} other algorithms"
        if stages:
            yield f"{len(stages)} stages"

    def resolve(self, job: AlgorithmKey) -> AlgorithmKey | AlgorithmFailure:
        """What would run under the name of a job, asked once for each."""
        if job not in self._resolved:
            self._resolved[job] = self._backend.resolve_algorithm(
                job.configuration, job.algorithm, self._options.measure
            )
        return self._resolved[job]

    def _algorithm_jobs(
        self, configuration: ConvolutionConfiguration, scope: AlgorithmScope | None
    ) -> Iterator[AlgorithmKey]:
        """Those of a scope; for None the backend's first choice, or what was asked for by name."""
        if scope is not None:
            names = self._listed(configuration, scope)
        elif isinstance(self._options.algorithms, tuple):
            names = _of_kind(self._options.algorithms, configuration)
        else:
            names = self._listed(configuration, AlgorithmScope.HEURISTIC)[:1]
        for name in names:
            job = AlgorithmKey(configuration, name, self._allow_tf32)
            if not self.measured.has_algorithm(job):
                yield job

    def _listed(
        self, configuration: ConvolutionConfiguration, scope: AlgorithmScope
    ) -> tuple[str, ...]:
        key = (configuration, scope)
        if key not in self._names:
            try:
                self._names[key] = self._backend.list_algorithms(
                    configuration, scope, allow_tf32=self._allow_tf32
                )
            except ValueError as error:
                self._names[key] = ()
                self.notes[f"no algorithm for {describe_convolution(configuration)}: {error}"] = (
                    None
                )
        return self._names[key]

    def _stage_units(self) -> Iterator[Callable[[], Iterator[Job]]]:
        """First every stage with what is fastest alone, then pairs with other combinations."""
        jobs = map(self._stage_jobs, sorted(self._list.stages, key=self._stage_order))
        for of_one_rank in itertools.zip_longest(*jobs):
            for job in filter(None, of_one_rank):
                yield functools.partial(self._unless_done, job)

    def _unless_done(self, job: StageJob) -> Iterator[StageJob]:
        if not self.measured.has_stage(job):
            yield job

    def _stage_order(self, listed: ListedStage) -> tuple[bool, int, bool]:
        """What a plan pins first, then what costs most; of one level first what is not merged."""
        cost = sum(map(multiply_adds, self._stage_of(listed).operations))
        is_pinned = any(step.algorithm for step in listed.stage.steps)
        is_merged = any(lane.merged for lane in listed.stage.lanes)
        return not is_pinned, -cost * max(1, len(listed.origins)), is_merged

    def _stage_of(self, listed: ListedStage) -> Stage[ConvolutionConfiguration]:
        return listed.stage.map(lambda place: self._list.convolutions[place].configuration)

    def _stage_jobs(self, listed: ListedStage) -> list[StageJob]:
        stage = self._stage_of(listed)
        alone = [
            self.measured.fastest(each, allow_tf32=self._allow_tf32) for each in stage.operations
        ]
        if not all(alone):
            return []
        fastest = tuple(each[0].algorithm for each in alone)
        return [
            StageJob(
                StageKey(stage.with_algorithms(choice), self._allow_tf32), fastest, listed.images
            )
            for choice in self._choices(stage, alone)
        ]

    def _choices(
        self,
        stage: Stage[ConvolutionConfiguration],
        alone: Sequence[Sequence[AlgorithmMeasurement]],
    ) -> list[tuple[str, ...]]:
        """What to measure a stage with, one algorithm for each step.

        A plan's algorithms are taken as they are. Nothing is measured of a wider convolution alone.
        So its algorithms come in the order in which the backend would consider them, or that were
        asked for by name; each makes a choice, and there is none where a wider one has none.
        """
        is_pinned = any(step.algorithm for step in stage.steps)
        if [len(lane.steps) for lane in stage.lanes] == [1, 1] and not is_pinned:
            return _combinations(*alone, at_most_each=self._options.pair_algorithms)
        fastest = iter(each[0].algorithm for each in alone)
        choices = [
            (lane.merged, self._choices_of_lane(lane, [next(fastest) for _ in lane.steps]))
            for lane in stage.lanes
        ]
        # Merged lanes take their algorithms together, by rank; any other lane has one choice.
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
        elif isinstance(self._options.algorithms, tuple):
            names = _of_kind(self._options.algorithms, wider)
        else:
            names = self._listed(wider, AlgorithmScope.HEURISTIC)
        distinct = dict.fromkeys(self._name_of(wider, name) for name in names)
        return [[name] * len(fastest) for name in distinct][: self._options.pair_algorithms]

    def _name_of(self, configuration: ConvolutionConfiguration, name: str) -> str:
        """The name that a stage's measurement will have, or that was asked for if it cannot run."""
        return self.resolve(AlgorithmKey(configuration, name, self._allow_tf32)).algorithm


def _of_kind(algorithms: Iterable[str], configuration: ConvolutionConfiguration) -> tuple[str, ...]:
    """Those that there are for convolutions of this kind."""

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
    """The fastest algorithms of two convolutions combined, those with the least time alone first.

    Of two lanes of one convolution the order makes no difference worth measuring.
    """
    is_one = first[0].configuration == second[0].configuration
    ranked = itertools.product(enumerate(first[:at_most_each]), enumerate(second[:at_most_each]))
    pairs = [(a, b) for (rank, a), (other, b) in ranked if not is_one or rank <= other]
    pairs.sort(key=lambda pair: sum(each.latency_us for each in pair))
    return [(a.algorithm, b.algorithm) for a, b in pairs]
