"""What of a list is to be measured, the most useful first, as jobs.

Order:
  1. every convolution with the algorithm that the backend would choose, the costliest first;
  2. every convolution with what else the backend would consider;
  3. every other algorithm that was asked for;
  4. stages, with what proved fastest alone; pairs then also with other combinations, and what is
     to be merged with other algorithms of the wider convolution.

Where time is limited, 4 begins when part of the time is over, and what is left of 2 and 3 follows.
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
from collections.abc import Callable, Iterable, Iterator, Sequence

from tf_interop.algorithm import check_algorithm
from tf_interop.convolution import ConvolutionConfiguration, merged_configuration, multiply_adds
from tf_interop.measure.backend import (
    AlgorithmList,
    AlgorithmScope,
    Backend,
    MeasureOptions,
    ResolvedAlgorithm,
)
from tf_interop.measure.choose_algorithms import combinations_for_pair
from tf_interop.measure.measured import Measurements
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmKey,
    AlgorithmMeasurement,
    StageKey,
)
from tf_interop.profile.tables import describe_convolution
from tf_interop.profile.types import ProfiledDevice
from tf_interop.profile.worklist import (
    ConfigurationList,
    ListedConvolution,
    ListedStage,
)
from tf_interop.stage import Lane, Stage


class Phase(enum.Enum):
    """What is being measured."""

    OWN_CHOICE = "convolutions, as the backend chooses"
    CONSIDERED = "convolutions, what the backend considers"
    OTHERS = "convolutions, other algorithms"
    STAGES = "stages"


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What to measure of a list, and how.

    Attributes:
        algorithms: which algorithms of each convolution, or names of those that alone are measured.
        tf32: whether TF32 is allowed; both values one after the other where both are there.
        pair_algorithms: how many algorithms of each convolution of a pair are combined.
        measure: how to measure.
        budget_seconds: no measurement begins later than this; None for no limit.
    """

    algorithms: AlgorithmScope | tuple[str, ...] = AlgorithmScope.ALL
    tf32: tuple[bool, ...] = (True,)
    pair_algorithms: int = 3
    measure: MeasureOptions = dataclasses.field(default_factory=MeasureOptions)
    budget_seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class StageJob:
    """One stage to measure.

    Attributes:
        stage: what to run, with an algorithm for each step.
        tf32: whether TF32 is allowed.
        sequential_algorithms: what is fastest alone for each step, to compare with.
    """

    stage: Stage[ConvolutionConfiguration]
    tf32: bool
    sequential_algorithms: tuple[str, ...]

    @property
    def key(self) -> StageKey:
        """That of its entry."""
        return StageKey(self.stage, self.tf32)


Job = AlgorithmKey | StageJob
"""One algorithm, by the name that is asked for, or one stage."""


def describe_job(job: Job) -> str:
    """What is measured, in one line."""
    if isinstance(job, AlgorithmKey):
        what = f"{describe_convolution(job.configuration)}, {job.algorithm}"
    else:
        steps = job.stage.steps
        merged = ", merged" if any(lane.merged for lane in job.stage.lanes) else ""
        algorithms = " | ".join(str(each.algorithm) for each in steps)
        what = f"{len(steps)} convolutions{merged}, {algorithms}"
    return what if job.tf32 else f"{what}, without TF32"


class ProfileJobs:
    """The jobs of one run: what a list asks for, and is not measured yet."""

    def __init__(
        self,
        backend: Backend,
        configurations: ConfigurationList,
        options: RunOptions,
        measured: Measurements,
        device: ProfiledDevice | None,
    ) -> None:
        """Prepares them; what there is to measure follows from what is measured by then.

        Args:
            backend: says which algorithms there are, and what their names stand for.
            configurations: what to measure.
            options: how.
            measured: what was measured up to now; the run adds to it.
            device: what is measured on, to choose combinations by; None where it is not known.
        """
        self._backend = backend
        self._list = configurations
        self._options = options
        self._measured = measured
        self._device = device
        self._names: dict[tuple[ConvolutionConfiguration, AlgorithmScope, bool], tuple[str, ...]]
        self._names = {}
        self._resolved: dict[AlgorithmKey, ResolvedAlgorithm | AlgorithmFailure] = {}
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Convolutions that have no algorithms, and why, as far as that was asked."""
        return tuple(self._notes)

    def units(self, phase: Phase) -> Iterator[Callable[[], Iterator[Job]]]:
        """The convolutions or stages of a phase: each gives the jobs that are not done yet."""
        if phase is Phase.STAGES:
            yield from self._stage_units()
            return
        for listed, tf32 in self._convolutions():
            yield functools.partial(self._algorithm_jobs, listed.configuration, tf32, phase)

    def pending(self) -> Iterator[Job]:
        """All jobs that are left."""
        for phase in Phase:
            for jobs in self.units(phase):
                yield from jobs()

    def describe_left(self) -> Iterator[str]:
        """What is left to measure, a part for each phase."""
        unmeasured = sum(any(jobs()) for jobs in self.units(Phase.OWN_CHOICE))
        if unmeasured:
            yield f"{unmeasured} convolutions to measure at all"
        others = sum(sum(1 for _ in jobs()) for jobs in self.units(Phase.OTHERS))
        if others > unmeasured:
            yield f"{others - unmeasured} other algorithms"
        stages = sum(any(jobs()) for jobs in self.units(Phase.STAGES))
        if stages:
            yield f"{stages} stages"

    def resolve(self, job: AlgorithmKey) -> ResolvedAlgorithm | AlgorithmFailure:
        """What would run under the name of a job, asked once for each."""
        if job not in self._resolved:
            self._resolved[job] = self._backend.resolve_algorithm(
                job.configuration, job.algorithm, self.measure_options(job)
            )
        return self._resolved[job]

    def measure_options(self, job: Job) -> MeasureOptions:
        """How to measure a job."""
        return dataclasses.replace(self._options.measure, allow_tf32=job.tf32)

    def _convolutions(self) -> list[tuple[ListedConvolution, bool]]:
        ordered = sorted(
            self._list.convolutions,
            key=lambda listed: -listed.count * multiply_adds(listed.configuration),
        )
        return [
            (listed, tf32)
            for tf32 in self._options.tf32
            for listed in ordered
            if self._matters(tf32, (listed.configuration,))
        ]

    def _matters(self, tf32: bool, configurations: Iterable[ConvolutionConfiguration]) -> bool:
        """Whether to measure with this value too: without floats both give the same."""
        is_float = any(each.dtype == "float32" for each in configurations)
        return is_float or tf32 == self._options.tf32[0]

    def _algorithm_jobs(
        self, configuration: ConvolutionConfiguration, tf32: bool, phase: Phase
    ) -> Iterator[AlgorithmKey]:
        for name in self._algorithms(configuration, tf32, phase):
            if not self._measured.has_algorithm(configuration, name, allow_tf32=tf32):
                yield AlgorithmKey(configuration, name, tf32)

    def _algorithms(
        self, configuration: ConvolutionConfiguration, tf32: bool, phase: Phase
    ) -> tuple[str, ...]:
        asked = self._options.algorithms
        if isinstance(asked, tuple):
            named = asked if phase is Phase.OWN_CHOICE else ()
            return tuple(name for name in named if _is_of_kind(name, configuration))
        considered = self._listed(configuration, AlgorithmScope.HEURISTIC, tf32)
        if phase is Phase.OWN_CHOICE:
            return considered[:1]
        if phase is Phase.CONSIDERED or asked is AlgorithmScope.HEURISTIC:
            return considered
        return self._listed(configuration, asked, tf32)

    def _listed(
        self, configuration: ConvolutionConfiguration, scope: AlgorithmScope, tf32: bool
    ) -> tuple[str, ...]:
        key = (configuration, scope, tf32)
        if key not in self._names:
            try:
                listed = self._backend.list_algorithms(configuration, scope, allow_tf32=tf32)
            except ValueError as error:
                listed = AlgorithmList((), str(error))
            if not listed.algorithms:
                reason = listed.error or "the backend lists none"
                self._notes[f"no algorithm for {describe_convolution(configuration)}: {reason}"] = (
                    None
                )
            self._names[key] = listed.algorithms
        return self._names[key]

    def _stage_units(self) -> Iterator[Callable[[], Iterator[Job]]]:
        """First every stage with what is fastest alone, then pairs with other combinations."""
        stages = [
            (stage, tf32)
            for tf32 in self._options.tf32
            for stage in sorted(self._list.stages, key=self._stage_order)
            if self._matters(tf32, self._stage_of(stage).operations)
        ]
        jobs = [self._stage_jobs(stage, tf32) for stage, tf32 in stages]
        for rank in range(max(map(len, jobs), default=0)):
            for of_stage in jobs:
                if rank < len(of_stage):
                    yield functools.partial(self._unless_done, of_stage[rank])

    def _unless_done(self, job: StageJob) -> Iterator[StageJob]:
        if not self._measured.has_stage(job.key, job.sequential_algorithms):
            yield job

    def _stage_order(self, listed: ListedStage) -> tuple[bool, int, bool]:
        """What a plan pins first, then what costs most; of one level first what is not merged."""
        cost = sum(map(multiply_adds, self._stage_of(listed).operations))
        is_pinned = any(step.algorithm for step in listed.stage.steps)
        is_merged = any(lane.merged for lane in listed.stage.lanes)
        return not is_pinned, -cost * max(1, len(listed.origins)), is_merged

    def _stage_of(self, listed: ListedStage) -> Stage[ConvolutionConfiguration]:
        return listed.stage.map(lambda place: self._list.convolutions[place].configuration)

    def _stage_jobs(self, listed: ListedStage, tf32: bool) -> list[StageJob]:
        stage = self._stage_of(listed)
        alone = [self._measured.fastest(each, allow_tf32=tf32) for each in stage.operations]
        if not all(alone):
            return []
        fastest = tuple(each[0].algorithm for each in alone)
        return [
            StageJob(stage.with_algorithms(choice), tf32, fastest)
            for choice in self._choices(stage, alone, tf32)
        ]

    def _choices(
        self,
        stage: Stage[ConvolutionConfiguration],
        alone: Sequence[Sequence[AlgorithmMeasurement]],
        tf32: bool,
    ) -> list[tuple[str, ...]]:
        """What to measure a stage with, one algorithm for each step.

        A plan's algorithms are taken as they are. Nothing is measured of a wider convolution alone.
        So its algorithms come in the order in which the backend would consider them, or that were
        asked for by name; each makes a choice, and there is none where a wider one has none.
        """
        is_pinned = any(step.algorithm for step in stage.steps)
        if [len(lane.steps) for lane in stage.lanes] == [1, 1] and not is_pinned:
            pairs = combinations_for_pair(
                alone[0], alone[1], self._device, at_most_each=self._options.pair_algorithms
            )
            return [(first.algorithm, second.algorithm) for first, second in pairs]
        fastest = iter(each[0].algorithm for each in alone)
        choices = [
            (lane.merged, self._choices_of_lane(lane, [next(fastest) for _ in lane.steps], tf32))
            for lane in stage.lanes
        ]
        # Merged lanes take their algorithms together, by rank; any other lane has one choice.
        count = min((len(each) for merged, each in choices if merged), default=1)
        return [
            tuple(name for merged, each in choices for name in each[rank if merged else 0])
            for rank in range(count)
        ]

    def _choices_of_lane(
        self, lane: Lane[ConvolutionConfiguration], fastest: list[str], tf32: bool
    ) -> list[list[str]]:
        if lane.merged:
            wider = merged_configuration(lane.operations)
            names = self._algorithms_of_wider(wider, lane.steps[0].algorithm, tf32)
            return [[name] * len(fastest) for name in names]
        return [
            [
                self._name_of_pinned(AlgorithmKey(step.operation, step.algorithm, tf32))
                if step.algorithm
                else name
                for step, name in zip(lane.steps, fastest, strict=True)
            ]
        ]

    def _algorithms_of_wider(
        self, wider: ConvolutionConfiguration, pinned: str | None, tf32: bool
    ) -> tuple[str, ...]:
        if pinned is not None:
            names: Sequence[str] = (pinned,)
        elif isinstance(self._options.algorithms, tuple):
            names = [name for name in self._options.algorithms if _is_of_kind(name, wider)]
        else:
            names = self._listed(wider, AlgorithmScope.HEURISTIC, tf32)
        resolved = (self._name_of_pinned(AlgorithmKey(wider, name, tf32)) for name in names)
        return tuple(dict.fromkeys(resolved))[: self._options.pair_algorithms]

    def _name_of_pinned(self, job: AlgorithmKey) -> str:
        """The name that a stage's measurement will have, or that was asked for if it cannot run."""
        resolved = self.resolve(job)
        return job.algorithm if isinstance(resolved, AlgorithmFailure) else resolved.algorithm


def _is_of_kind(algorithm: str, configuration: ConvolutionConfiguration) -> bool:
    try:
        check_algorithm(algorithm, configuration.kind)
    except ValueError:
        return False
    return True
