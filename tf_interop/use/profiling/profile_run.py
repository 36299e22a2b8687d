"""Measures a list of convolutions and stages, the most useful first, and needs no TensorFlow.

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
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from tf_interop.decide.measuring.choose_algorithms import combinations_for_pair
from tf_interop.know.algorithm import check_algorithm
from tf_interop.know.convolution import ConvolutionConfiguration
from tf_interop.know.convolution_size import multiply_adds
from tf_interop.know.installed.measuring import (
    AlgorithmList,
    AlgorithmScope,
    MeasureOptions,
    ResolvedAlgorithm,
    StageStep,
)
from tf_interop.know.merged_convolution import merged_configuration
from tf_interop.know.profiles.configuration_list import (
    ConfigurationList,
    ListedConvolution,
    ListedStage,
)
from tf_interop.know.profiles.profile import (
    AlgorithmFailure,
    AlgorithmKey,
    AlgorithmMeasurement,
    Entry,
    FailureKind,
    MeasuredConvolution,
    ProfiledDevice,
    StageFailure,
    StageKey,
    StageMeasurement,
)
from tf_interop.use.profiling.known_measurements import KnownMeasurements
from tf_interop.use.profiling.profile_tables import describe_convolution

_SHARE_BEFORE_STAGES = 0.6


class Backend(Protocol):
    """What measures: `MeasuringBackend`, or a stand-in."""

    def list_algorithms(
        self,
        configuration: ConvolutionConfiguration,
        scope: AlgorithmScope = ...,
        *,
        allow_tf32: bool = ...,
    ) -> AlgorithmList:
        """See `MeasuringBackend.list_algorithms`."""

    def resolve_algorithm(
        self,
        configuration: ConvolutionConfiguration,
        algorithm: str,
        options: MeasureOptions | None = ...,
    ) -> ResolvedAlgorithm | AlgorithmFailure:
        """See `MeasuringBackend.resolve_algorithm`."""

    def measure_algorithm(
        self,
        configuration: ConvolutionConfiguration,
        algorithm: str | None = ...,
        options: MeasureOptions | None = ...,
    ) -> AlgorithmMeasurement | AlgorithmFailure:
        """See `MeasuringBackend.measure_algorithm`."""

    def measure_stage(
        self,
        steps: Sequence[StageStep],
        options: MeasureOptions | None = ...,
        *,
        sequential_algorithms: Sequence[str | None] = ...,
        sm_counts: Sequence[int] = ...,
        priorities: Sequence[int] = ...,
        merged: Sequence[bool] = ...,
    ) -> StageMeasurement | StageFailure:
        """See `MeasuringBackend.measure_stage`."""


class Phase(enum.Enum):
    """What is being measured."""

    OWN_CHOICE = "convolutions, as the backend chooses"
    CONSIDERED = "convolutions, what the backend considers"
    OTHERS = "convolutions, other algorithms"
    STAGES = "stages"


class End(enum.Enum):
    """Why a run ended."""

    FINISHED = "everything is measured"
    OUT_OF_TIME = "the time is over"
    STOPPED = "it was stopped"
    DEVICE_LOST = "the device failed, and works again in a new process at best"


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What to measure of a list, and how.

    Attributes:
        scope: which algorithms of each convolution.
        algorithms: names of algorithms; where there are any, these alone are measured.
        tf32: whether TF32 is allowed; both values one after the other where both are there.
        pair_algorithms: how many algorithms of each convolution of a pair are combined.
        measure: how to measure.
        budget_seconds: no measurement begins later than this; None for no limit.
    """

    scope: AlgorithmScope = AlgorithmScope.ALL
    algorithms: tuple[str, ...] = ()
    tf32: tuple[bool, ...] = (True,)
    pair_algorithms: int = 3
    measure: MeasureOptions = dataclasses.field(default_factory=MeasureOptions)
    budget_seconds: float | None = None


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


class Listener(Protocol):
    """Is told what goes on."""

    def begin(self, phase: Phase, done: int, total: int) -> None:
        """The `done`-th of `total` convolutions or stages of a phase begins."""

    def measure(self, what: str) -> None:
        """A measurement begins."""


@dataclasses.dataclass(frozen=True)
class _AlgorithmJob:
    """One algorithm to measure."""

    configuration: ConvolutionConfiguration
    algorithm: str
    tf32: bool

    @property
    def key(self) -> AlgorithmKey:
        return AlgorithmKey(self.configuration, self.algorithm, self.tf32)

    def __str__(self) -> str:
        return (
            f"{describe_convolution(self.configuration)}, {self.algorithm}{_tf32_words(self.tf32)}"
        )


@dataclasses.dataclass(frozen=True)
class _StageJob:
    """One stage to measure, with an algorithm for each convolution."""

    convolutions: tuple[MeasuredConvolution, ...]
    lanes: tuple[int, ...]
    tf32: bool
    sm_counts: tuple[int, ...]
    priorities: tuple[int, ...]
    merged: tuple[bool, ...]
    sequential_algorithms: tuple[str, ...]

    @property
    def key(self) -> StageKey:
        return StageKey(
            self.convolutions, self.lanes, self.tf32, self.sm_counts, self.priorities, self.merged
        )

    def __str__(self) -> str:
        algorithms = " | ".join(str(each.algorithm) for each in self.convolutions)
        merged = ", merged" if any(self.merged) else ""
        return (
            f"{len(self.convolutions)} convolutions{merged}, {algorithms}{_tf32_words(self.tf32)}"
        )


_Job = _AlgorithmJob | _StageJob


class ProfileRun:
    """One run over a list."""

    def __init__(
        self,
        backend: Backend,
        configurations: ConfigurationList,
        options: RunOptions,
        *,
        known: Iterable[Entry] = (),
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
            known: entries of runs before; what they hold is not measured again.
            device: what is measured on, to choose combinations by; None where it is not known.
            keep: is given each new entry.
            should_stop: asked before each measurement.
            clock: seconds that go by.
        """
        self._backend = backend
        self._list = configurations
        self._options = options
        self._device = device
        self._keep = keep
        self._should_stop = should_stop
        self._clock = clock
        self._start = clock()
        self._known = KnownMeasurements(known)
        self._names: dict[tuple[ConvolutionConfiguration, AlgorithmScope, bool], tuple[str, ...]]
        self._names = {}
        self._resolved: dict[AlgorithmKey, ResolvedAlgorithm | AlgorithmFailure] = {}
        self._notes: dict[str, None] = {}
        self._is_device_lost = False
        self._measured_count = 0
        self._failure_count = 0

    @property
    def seconds_left(self) -> float | None:
        """Of the budget; None where there is none."""
        if self._options.budget_seconds is None:
            return None
        return max(0.0, self._start + self._options.budget_seconds - self._clock())

    def run(self, listener: Listener) -> Outcome:
        """Measures until everything is measured, the time is over, or it is told to stop."""
        end = self._run(listener)
        # A device that was lost cannot say what it has for what was not begun.
        is_left_known = end not in (End.FINISHED, End.DEVICE_LOST)
        left = tuple(self._describe_left()) if is_left_known else ()
        return Outcome(end, self._measured_count, self._failure_count, left, tuple(self._notes))

    def _run(self, listener: Listener) -> End:
        for phase, share in self._phases():
            units = list(self._units(phase))
            for number, jobs in enumerate(units):
                if self._is_over(share):
                    break
                listener.begin(phase, number, len(units))
                for job in jobs():
                    if self._should_stop():
                        return End.STOPPED
                    if self._is_over(share):
                        break
                    listener.measure(str(job))
                    self._measure(job)
                    if self._is_device_lost:
                        return End.DEVICE_LOST
            if self._should_stop():
                return End.STOPPED
        if self._options.budget_seconds is not None and any(self._pending()):
            return End.OUT_OF_TIME
        return End.FINISHED

    def _phases(self) -> list[tuple[Phase, float]]:
        """The phases, each with the share of the budget that is over when it ends."""
        if self._options.budget_seconds is None or not self._list.stages:
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

    def _units(self, phase: Phase) -> Iterator[Callable[[], Iterator[_Job]]]:
        """The convolutions or stages of a phase: each gives the jobs that are not done yet."""
        if phase is Phase.STAGES:
            yield from self._stage_units()
            return
        for listed, tf32 in self._convolutions():
            yield functools.partial(self._algorithm_jobs, listed.configuration, tf32, phase)

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
    ) -> Iterator[_AlgorithmJob]:
        for name in self._algorithms(configuration, tf32, phase):
            if not self._known.has_algorithm(configuration, name, allow_tf32=tf32):
                yield _AlgorithmJob(configuration, name, tf32)

    def _algorithms(
        self, configuration: ConvolutionConfiguration, tf32: bool, phase: Phase
    ) -> tuple[str, ...]:
        if self._options.algorithms:
            named = self._options.algorithms if phase is Phase.OWN_CHOICE else ()
            return tuple(name for name in named if _is_of_kind(name, configuration))
        considered = self._listed(configuration, AlgorithmScope.HEURISTIC, tf32)
        if phase is Phase.OWN_CHOICE:
            return considered[:1]
        if phase is Phase.CONSIDERED or self._options.scope is AlgorithmScope.HEURISTIC:
            return considered
        return self._listed(configuration, self._options.scope, tf32)

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

    def _stage_units(self) -> Iterator[Callable[[], Iterator[_Job]]]:
        """First every stage with what is fastest alone, then pairs with other combinations."""
        stages = [
            (stage, tf32)
            for tf32 in self._options.tf32
            for stage in sorted(self._list.stages, key=self._stage_order)
            if self._matters(tf32, self._configurations_of(stage))
        ]
        jobs = [self._stage_jobs(stage, tf32) for stage, tf32 in stages]
        for rank in range(max(map(len, jobs), default=0)):
            for of_stage in jobs:
                if rank < len(of_stage):
                    yield functools.partial(self._unless_done, of_stage[rank])

    def _unless_done(self, job: _StageJob) -> Iterator[_StageJob]:
        if not self._known.has_stage(job.key, job.sequential_algorithms):
            yield job

    def _stage_order(self, stage: ListedStage) -> tuple[bool, int, bool]:
        """What a plan pins first, then what costs most; of one level first what is not merged."""
        cost = sum(multiply_adds(each) for each in self._configurations_of(stage))
        return not stage.algorithms, -cost * max(1, len(stage.origins)), any(stage.merged)

    def _configurations_of(self, stage: ListedStage) -> tuple[ConvolutionConfiguration, ...]:
        return tuple(self._list.convolutions[place].configuration for place in stage.convolutions)

    def _stage_jobs(self, stage: ListedStage, tf32: bool) -> list[_StageJob]:
        configurations = self._configurations_of(stage)
        alone = [self._known.fastest(each, allow_tf32=tf32) for each in configurations]
        if not all(alone):
            return []
        fastest = tuple(each[0].algorithm for each in alone)
        choices: list[tuple[str, ...]]
        if any(stage.merged):
            choices = self._choices_for_merged(stage, configurations, fastest, tf32)
        elif stage.algorithms:
            pinned = zip(configurations, stage.algorithms, fastest, strict=True)
            choices = [
                tuple(
                    self._name_of_pinned(_AlgorithmJob(each, name, tf32)) if name else other
                    for each, name, other in pinned
                )
            ]
        elif stage.lanes == (0, 1):
            combinations = combinations_for_pair(
                alone[0],
                alone[1],
                self._device,
                at_most_each=self._options.pair_algorithms,
            )
            choices = [(first.algorithm, second.algorithm) for first, second in combinations]
        else:
            choices = [fastest]
        return [
            _StageJob(
                convolutions=tuple(map(MeasuredConvolution, configurations, choice)),
                lanes=stage.lanes,
                tf32=tf32,
                sm_counts=stage.sm_counts,
                priorities=stage.priorities,
                merged=stage.merged,
                sequential_algorithms=fastest,
            )
            for choice in choices
        ]

    def _choices_for_merged(
        self,
        stage: ListedStage,
        configurations: tuple[ConvolutionConfiguration, ...],
        fastest: tuple[str, ...],
        tf32: bool,
    ) -> list[tuple[str, ...]]:
        """Algorithms for a stage with merged lanes, each of those of a wider convolution.

        Nothing is known of a wider convolution alone. So its algorithms come in the order in which
        the backend would consider them, or that were asked for by name.

        Returns:
            Several for each convolution, as many as of a pair; none where a wider one has none.
        """
        wide: dict[int, tuple[str, ...]] = {}
        for lane, is_merged in enumerate(stage.merged):
            if is_merged:
                places = [place for place, of in enumerate(stage.lanes) if of == lane]
                wider = merged_configuration([configurations[place] for place in places])
                pinned = stage.algorithms[places[0]] if stage.algorithms else None
                wide[lane] = self._algorithms_of_wider(wider, pinned, tf32)
        alone = [
            (pinned and self._name_of_pinned(_AlgorithmJob(each, pinned, tf32))) or other
            for each, pinned, other in zip(
                configurations, stage.algorithms or (None,) * len(fastest), fastest, strict=True
            )
        ]
        return [
            tuple(
                wide[lane][rank] if lane in wide else name
                for lane, name in zip(stage.lanes, alone, strict=True)
            )
            for rank in range(min(map(len, wide.values())))
        ]

    def _algorithms_of_wider(
        self, wider: ConvolutionConfiguration, pinned: str | None, tf32: bool
    ) -> tuple[str, ...]:
        if pinned is not None:
            names: Sequence[str] = (pinned,)
        elif self._options.algorithms:
            names = [name for name in self._options.algorithms if _is_of_kind(name, wider)]
        else:
            names = self._listed(wider, AlgorithmScope.HEURISTIC, tf32)
        resolved = (self._name_of_pinned(_AlgorithmJob(wider, name, tf32)) for name in names)
        return tuple(dict.fromkeys(resolved))[: self._options.pair_algorithms]

    def _name_of_pinned(self, job: _AlgorithmJob) -> str:
        """The name that a stage's measurement will have, or that was asked for if it cannot run."""
        resolved = self._resolve(job)
        return job.algorithm if isinstance(resolved, AlgorithmFailure) else resolved.algorithm

    def _resolve(self, job: _AlgorithmJob) -> ResolvedAlgorithm | AlgorithmFailure:
        if job.key not in self._resolved:
            self._resolved[job.key] = self._backend.resolve_algorithm(
                job.configuration, job.algorithm, self._measure_options(job)
            )
        return self._resolved[job.key]

    def _measure_options(self, job: _Job) -> MeasureOptions:
        return dataclasses.replace(self._options.measure, allow_tf32=job.tf32)

    def _measure(self, job: _Job) -> None:
        if isinstance(job, _StageJob):
            self._take_measured(job, self._measure_stage(job))
            return
        resolved = self._resolve(job)
        if isinstance(resolved, AlgorithmFailure):
            self._take(job, resolved)
            return
        known = self._known.find_resolved(job.configuration, resolved, allow_tf32=job.tf32)
        if known is not None:
            self._known.set_answer(job.key, known)
            return
        self._take_measured(
            job,
            self._backend.measure_algorithm(
                job.configuration, resolved.algorithm, self._measure_options(job)
            ),
        )

    def _measure_stage(self, job: _StageJob) -> StageMeasurement | StageFailure:
        entry = self._backend.measure_stage(
            [
                StageStep(each.configuration, lane, each.algorithm)
                for each, lane in zip(job.convolutions, job.lanes, strict=True)
            ],
            self._measure_options(job),
            sequential_algorithms=job.sequential_algorithms,
            sm_counts=job.sm_counts,
            priorities=job.priorities,
            merged=job.merged,
        )
        if isinstance(entry, StageMeasurement) and entry.sm_counts != job.sm_counts:
            return dataclasses.replace(entry, asked_sm_counts=job.sm_counts)
        return entry

    def _take_measured(self, job: _Job, entry: Entry) -> None:
        self._take(job, entry)
        if isinstance(entry, (AlgorithmFailure, StageFailure)):
            # A kernel that reads where it must not makes every call after it fail, in CUDA. Those
            # would be taken for failures of what is measured next.
            self._is_device_lost = entry.kind is FailureKind.FAILED and not self._does_device_work()

    def _does_device_work(self) -> bool:
        """Whether it still runs what it ran before."""
        ran = self._known.last_measured
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

    def _take(self, job: _Job, entry: Entry) -> None:
        self._keep(entry)
        self._known.add(entry)
        # Under the name that was asked for, too, which need not be resolved again in this run.
        self._known.set_answer(job.key, entry)
        if isinstance(entry, (AlgorithmMeasurement, StageMeasurement)):
            self._measured_count += 1
        else:
            self._failure_count += 1

    def _pending(self) -> Iterator[_Job]:
        for phase in Phase:
            for jobs in self._units(phase):
                yield from jobs()

    def _describe_left(self) -> Iterator[str]:
        unmeasured = sum(any(jobs()) for jobs in self._units(Phase.OWN_CHOICE))
        if unmeasured:
            yield f"{unmeasured} convolutions to measure at all"
        others = sum(sum(1 for _ in jobs()) for jobs in self._units(Phase.OTHERS))
        if others > unmeasured:
            yield f"{others - unmeasured} other algorithms"
        stages = sum(any(jobs()) for jobs in self._units(Phase.STAGES))
        if stages:
            yield f"{stages} stages"


def parse_budget(text: str) -> float:
    """Seconds from `90`, `90s`, `10m` or `1.5h`.

    Raises:
        ValueError: it is none of these.
    """
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise ValueError(f"Expected a time such as 90s, 10m or 1.5h, got '{text}'.")
    return seconds


def _tf32_words(tf32: bool) -> str:
    return "" if tf32 else ", without TF32"


def _is_of_kind(algorithm: str, configuration: ConvolutionConfiguration) -> bool:
    try:
        check_algorithm(algorithm, configuration.kind)
    except ValueError:
        return False
    return True
