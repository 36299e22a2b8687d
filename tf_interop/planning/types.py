"""A plan: the stages of one or more graphs, with an algorithm pinned for every convolution.

Its file is versioned JSON (`plan_schema`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Annotated, Literal

import msgspec

from tf_interop.errors import PlanError
from tf_interop.planning.problem import ValueSource
from tf_interop.profile.entries import Share
from tf_interop.profile.occupancy import SmUse
from tf_interop.stage import LARGEST_INT, Schedule, Stage
from tf_interop.versioned_file import VersionedFormat

Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Microseconds = Annotated[float, msgspec.Meta(ge=0)]
LEAST_SAVED_US = 0.05
"""Less is shown as 0.0 µs, and counts as nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class StagePrediction:
    """What the planner expects of a stage.

    Attributes:
        latency_us: of the stage.
        spread_us: how far that may be off.
        sequential_us: of its convolutions one after another, each with the algorithm that is
            fastest alone.
        source: whether `latency_us` was measured; `sequential_us` always was.
        workspace_bytes: of all lanes together.
        peak_bytes: that, the stage's outputs, and outputs of earlier convolutions that are read
            later.
    """

    latency_us: Microseconds
    spread_us: Microseconds
    sequential_us: Microseconds
    source: ValueSource
    workspace_bytes: Bytes
    peak_bytes: Bytes


@dataclasses.dataclass(frozen=True, slots=True)
class GraphPrediction:
    """What the planner expects of all convolutions of a graph.

    Attributes:
        latency_us: the sum of all stages and of the convolutions in none.
        sequential_us: of all convolutions one after another.
        peak_bytes: the most of all stages, as in StagePrediction.
        sequential_peak_bytes: the same if they run one after another.
        memory_budget_bytes: what no stage may exceed; None for no limit.
        search: how the stages were searched for, and how far.
        unmeasured_count: convolutions of the graph that no algorithm was measured for. They are in
            no stage, and in none of these values.
    """

    latency_us: Microseconds
    sequential_us: Microseconds
    peak_bytes: Bytes
    sequential_peak_bytes: Bytes
    memory_budget_bytes: Bytes | None
    search: str
    unmeasured_count: Annotated[int, msgspec.Meta(ge=0)] = 0


@dataclasses.dataclass(frozen=True, slots=True)
class LaneExplanation:
    """What was measured of a lane's convolutions alone.

    A lane of several has the sum of their times, and the most workspace that one of them needs. The
    algorithm of a merged lane is that of the wider convolution: there `alone_us` is with what is
    fastest alone.

    Attributes:
        alone_us: with the algorithms that the plan pins.
        workspace_bytes: of those algorithms.
        fastest_algorithm: what is fastest alone; None for a lane of several.
        fastest_us: with what is fastest alone.
        sm_use: of the pinned algorithm; None if its kernels or the device are not known, and for
            a lane of several.
    """

    alone_us: Microseconds
    workspace_bytes: Bytes
    fastest_algorithm: str | None
    fastest_us: Microseconds
    sm_use: SmUse | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Alternative:
    """Another way to run the convolutions of a stage, and why it was not chosen.

    Attributes:
        stage: the same convolutions.
        latency_us: of the stage.
        source: whether that was measured.
        workspace_bytes: of all lanes together.
        why_not: the reason, for reading.
    """

    stage: Stage[str]
    latency_us: Microseconds
    source: ValueSource
    workspace_bytes: Bytes
    why_not: str


@dataclasses.dataclass(frozen=True, slots=True)
class StageExplanation:
    """What a stage's algorithms were chosen by.

    Attributes:
        lanes: of each lane.
        alternatives: some others, fastest first.
    """

    lanes: tuple[LaneExplanation, ...]
    alternatives: tuple[Alternative, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class RejectedStage:
    """Convolutions that do not depend on each other and yet share no stage.

    Attributes:
        nodes: their names.
        why_not: the reason, for reading.
        count: how many such sets there are in the graph, of convolutions that cost the same.
        saved_us: what running them together would save, as far as it is known: below 0 if it
            takes longer. None if nothing is known.
    """

    nodes: Annotated[tuple[str, ...], msgspec.Meta(min_length=2)]
    why_not: str
    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    saved_us: float | None = None

    @property
    def may_win(self) -> bool:
        """Whether nothing says that one after another they take as long or less."""
        return self.saved_us is None or self.saved_us >= LEAST_SAVED_US


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedStage:
    """Convolutions that run as one stage.

    Attributes:
        stage: of the names of convolution nodes in the graph.
        why: the reason for the stage in a few words, such as the policy that made it.
        prediction: what the planner expects; None if no planner made the stage.
        explanation: what it was chosen by; likewise.
        schedules: how it runs at each of several batch sizes, ascending, where the graph's is not
            known before it runs; `stage` is then that of one of them, and another batch size runs
            in sequence. Empty if `stage` holds for every batch size.
    """

    stage: Stage[str]
    why: str = ""
    prediction: StagePrediction | None = None
    explanation: StageExplanation | None = None
    schedules: tuple[Schedule[str], ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of its convolutions, lane after lane."""
        return self.stage.operations

    @property
    def ways(self) -> tuple[Schedule[str], ...]:
        """How it runs, at each batch size that it has a schedule for or at every one."""
        return self.schedules or (Schedule(None, self.stage),)

    def map(self, change: Callable[[Stage[str]], Stage[str]]) -> PlannedStage:
        """The same with another stage, at each batch size; it comes without an explanation."""
        schedules = (dataclasses.replace(each, stage=change(each.stage)) for each in self.schedules)
        return dataclasses.replace(
            self, stage=change(self.stage), explanation=None, schedules=tuple(schedules)
        )

    def validate(self) -> None:
        """Checks what holds for a stage of any graph.

        Raises:
            ValueError: the stage or a schedule is not valid, or is not of the same convolutions,
                each once; schedules are not in ascending order of their batch sizes; or there is
                not one explanation for each lane. Names the field, such as `.schedules[1].stage`.
        """
        sizes = [schedule.batch_size or 0 for schedule in self.schedules]
        if sizes != sorted(set(sizes)) or min(sizes, default=1) < 1:
            raise ValueError(f"Expected ascending batch sizes, got {sizes} at `.schedules`")
        expected = sorted(set(self.nodes))
        places = {".stage": self.stage}
        for number, schedule in enumerate(self.schedules):
            places[f".schedules[{number}].stage"] = schedule.stage
        if self.explanation and len(self.explanation.lanes) != len(self.stage.lanes):
            raise ValueError(
                f"Expected {len(self.stage.lanes)} lanes, got {len(self.explanation.lanes)} at "
                "`.explanation.lanes`"
            )
        for place, stage in places.items():
            try:
                stage.validate()
            except ValueError as error:
                raise ValueError(f"{error} of `{place}`") from error
            if sorted(stage.operations) != expected:
                raise ValueError(
                    f"Expected each of {expected} once, got {sorted(stage.operations)} at `{place}`"
                )


@dataclasses.dataclass(frozen=True, slots=True)
class UnstagedConvolution:
    """A convolution in no stage, as the planner expects it to run.

    Attributes:
        node: the name of the convolution node in the graph.
        algorithm: that its latency is of. It is not pinned.
        latency_us: what it takes.
        peak_bytes: its workspace and output, and outputs of earlier convolutions that are read
            later.
        before_stage: the place of the stage that it runs before; the number of stages for one that
            runs after all of them. Several before one stage run in their order.
    """

    node: str
    algorithm: str | None
    latency_us: Microseconds
    peak_bytes: Bytes
    before_stage: Annotated[int, msgspec.Meta(ge=0)]


@dataclasses.dataclass(frozen=True, slots=True)
class ComparedStep:
    """Whole steps of one way to run a graph.

    Attributes:
        name: of the way, for reading.
        step_ms: its median step.
        ratio: how many times as fast as stock TensorFlow in the same process it is.
        error: of `ratio`; None if it is not known.
        predicted_ms: what the simulation gives for it; None if none was simulated.
    """

    name: str
    step_ms: Annotated[float, msgspec.Meta(gt=0)]
    ratio: Annotated[float, msgspec.Meta(gt=0)]
    error: Annotated[float, msgspec.Meta(ge=0)] | None = None
    predicted_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None

    @property
    def is_gain(self) -> bool:
        """Whether it is faster than stock by more than the error."""
        return self.error is not None and self.ratio - self.error > 1


XLA = "XLA (jit_compile=True)"
"""What XLA is called among the ways that are compared."""


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredStep:
    """Whole steps of a graph on the machine that its plan was made on.

    Attributes:
        stock_ms: the median step of stock TensorFlow.
        step_ms: that of the plan, measured alternately with stock in one process.
        ratio: how many times as fast as stock the plan is.
        error: of `ratio`.
        predicted_ms: what a simulation of TensorFlow's executor gives for the plan.
        unit_count: units of the graph, narrow or not.
        unit_op_count: the operations that the narrow or split ones hold.
        cores: of the machine, as TensorFlow uses them.
        other_load: the share of them that other programs took meanwhile.
        compared: everything that was measured beside each other, stock first.
    """

    stock_ms: Annotated[float, msgspec.Meta(gt=0)]
    step_ms: Annotated[float, msgspec.Meta(gt=0)]
    ratio: Annotated[float, msgspec.Meta(gt=0)]
    error: Annotated[float, msgspec.Meta(ge=0)]
    predicted_ms: Annotated[float, msgspec.Meta(ge=0)]
    unit_count: Annotated[int, msgspec.Meta(ge=0)]
    unit_op_count: Annotated[int, msgspec.Meta(ge=0)]
    cores: Annotated[int, msgspec.Meta(ge=1)]
    other_load: Share = 0.0
    compared: tuple[ComparedStep, ...] = ()

    @property
    def is_gain(self) -> bool:
        """Whether the plan is faster than stock by more than the error."""
        return self.ratio - self.error > 1

    @property
    def faster_xla(self) -> ComparedStep | None:
        """XLA, where it was compared and beats the plan, and stock, by more than five percent."""
        least_ratio = 1.05 * max(self.ratio, 1.0)
        ways = (each for each in self.compared if each.name == XLA and each.ratio > least_ratio)
        return next(ways, None)


GraphMode = Literal["inference", "training"]
"""What a graph computes of its model: its results, or a whole pass of training."""


@dataclasses.dataclass(frozen=True, slots=True)
class GraphPlan:
    """The stages of one graph.

    Attributes:
        fingerprint: identifies the graph's convolutions (see `fingerprint_convolutions`).
        convolution_count: convolutions that the finder saw in the graph.
        stages: the stages; convolutions in none of them stay as they are.
        batch_size: that the stages were planned for; None if it does not matter.
        prediction: what the planner expects; None if no planner made the stages.
        unstaged: the convolutions in no stage, in the order in which they are expected to run;
            empty if no planner made the stages.
        rejected: some of the stages that could have been and are not, those first that may win,
            then those that lose least.
        why_no_stage: why there is none, for reading; empty if there is one, and where no planner
            made the plan.
        mode: what the graph computes of its model; None if that is not known, as for a function.
        narrow_units: canonical names of the units that run on one core each, or a few, on a CPU.
        split_units: canonical names of the units that run once for each part of the batch, each
            part on its share of the cores, on a CPU. A plan has these or `narrow_units`.
        unit_cores: how many cores each of `narrow_units` runs on; empty for one each.
        measured: whole steps with those units, where they were measured.
    """

    fingerprint: str
    convolution_count: Annotated[int, msgspec.Meta(ge=0)]
    stages: tuple[PlannedStage, ...]
    batch_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    prediction: GraphPrediction | None = None
    unstaged: tuple[UnstagedConvolution, ...] = ()
    rejected: tuple[RejectedStage, ...] = ()
    why_no_stage: str = ""
    mode: GraphMode | None = None
    narrow_units: tuple[str, ...] = ()
    split_units: tuple[str, ...] = ()
    unit_cores: tuple[Annotated[int, msgspec.Meta(ge=1, le=LARGEST_INT)], ...] = ()
    measured: MeasuredStep | None = None

    @property
    def cores_of(self) -> dict[str, int]:
        """How many cores each narrow unit runs on, by its name."""
        cores = self.unit_cores or (1,) * len(self.narrow_units)
        return dict(zip(self.narrow_units, cores, strict=True))

    @property
    def units(self) -> tuple[str, ...]:
        """The units that are narrow or split."""
        return self.narrow_units or self.split_units

    @property
    def unit_kind(self) -> str:
        """What its units are: `narrow` or `split`."""
        return "split" if self.split_units else "narrow"

    @property
    def spread_us(self) -> float:
        """How far the predicted time may be off, if all stages are off alike."""
        return sum(each.prediction.spread_us for each in self.stages if each.prediction)

    @property
    def changes_graph(self) -> bool:
        """Whether there is a stage, or a unit that is narrow or split."""
        return bool(self.stages or self.narrow_units or self.split_units)

    @property
    def planned_nodes(self) -> list[str]:
        """The names of the convolutions in stages, then of those in none."""
        return [
            *(name for stage in self.stages for name in stage.nodes),
            *(each.node for each in self.unstaged),
        ]

    @property
    def in_order(self) -> list[tuple[int, PlannedStage | UnstagedConvolution]]:
        """What runs one after another, with its number: that of a stage that is or comes next."""
        units: list[tuple[int, PlannedStage | UnstagedConvolution]] = [
            *((each.before_stage, each) for each in self.unstaged),
            *enumerate(self.stages),
        ]
        # Stable: what is in no stage comes before the stage of its number.
        return sorted(units, key=lambda each: each[0])


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What a plan file holds.

    Attributes:
        graphs: one entry for each graph that the plan was made for.
        format: always `tf_interop.plan`.
        version: version of the format.
        made_with: versions of the software that made it, such as {"tensorflow": "2.21.0"}.
    """

    graphs: tuple[GraphPlan, ...]
    format: str = "tf_interop.plan"
    version: int = 1
    made_with: dict[str, str] = dataclasses.field(default_factory=dict)


def check_each_once(keys: Iterable[tuple[str, int | None]]) -> None:
    """Checks that no two graphs of a plan have one fingerprint and batch size."""
    seen: set[tuple[str, int | None]] = set()
    for index, key in enumerate(keys):
        if key in seen:
            raise ValueError(
                f"Expected each graph once for a batch size, got fingerprint {key[0]!r} again at "
                f"`$.graphs[{index}].fingerprint`"
            )
        seen.add(key)


def _check_plan(plan: Plan) -> None:
    """Checks what the types allow and no plan may be."""
    check_each_once((graph.fingerprint, graph.batch_size) for graph in plan.graphs)
    for index, graph in enumerate(plan.graphs):
        place = f"$.graphs[{index}]"
        for number, stage in enumerate(graph.stages):
            try:
                stage.validate()
            except ValueError as error:
                raise ValueError(f"{error} in `{place}.stages[{number}]`") from error
        if graph.unit_cores and len(graph.unit_cores) != len(graph.narrow_units):
            raise ValueError(
                f"Expected the cores of {len(graph.narrow_units)} narrow units, got "
                f"{len(graph.unit_cores)} at `{place}.unit_cores`"
            )
        names = graph.planned_nodes
        if len(set(names)) < len(names) or len(names) > graph.convolution_count:
            raise ValueError(
                f"Expected each of at most {graph.convolution_count} convolutions once, got "
                f"{names} at `{place}`"
            )


PLAN_FILE = VersionedFormat(
    Plan,
    noun="plan",
    check=_check_plan,
    error=PlanError,
    remedy="Correct the file, or plan the graph again.",
)
load_plan = PLAN_FILE.load
save_plan = PLAN_FILE.save
plan_schema = PLAN_FILE.schema
