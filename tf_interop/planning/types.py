"""A plan: the stages of one or more graphs, with an algorithm pinned for every convolution."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import Annotated, Generic, Literal

import msgspec

from tf_interop.errors import PlanError
from tf_interop.planning.sm_model import SmUse
from tf_interop.profile.entries import Count, NotNegative, Positive, PositiveCount, Share
from tf_interop.stage import Schedule, Stage, T
from tf_interop.structure import Landmark, Structure
from tf_interop.versioned_file import VersionedFormat

Bytes = Count
Microseconds = NotNegative
CLEARLY_FASTER = 1.05
"""A variant that asks the user to change the program is recommended if it is so much faster."""

LEAST_SAVED_US = 0.05
"""A smaller saving counts as none, because it would print as 0.0 µs."""


class ValueSource(enum.Enum):
    """The origin of a value."""

    MEASURED = "measured"
    MODELLED = "modelled"


@dataclasses.dataclass(frozen=True, slots=True)
class StagePrediction:
    """The planner's expectations for a stage, from its measurements or from the model of SMs.

    Attributes:
        latency_us: a time that can be summed over stages. For a measured stage it is
            `sequential_us` less the measured relative saving.
        spread_us: error of `latency_us`.
        sequential_us: time of its convolutions one after another, each with the algorithm that is
            fastest alone. It is always measured.
        source: whether `latency_us` was measured.
        workspace_bytes: sum over the lanes.
        peak_bytes: workspaces, the stage's outputs, and in a plan earlier outputs that are still
            needed.
    """

    latency_us: Microseconds
    spread_us: Microseconds
    sequential_us: Microseconds
    source: ValueSource
    workspace_bytes: Bytes
    peak_bytes: Bytes

    @property
    def saved_us(self) -> float:
        """The time that it saves; negative if it takes longer than one after another."""
        return self.sequential_us - self.latency_us

    @property
    def wins(self) -> bool:
        """Whether it is faster than one after another by more than the error."""
        return self.latency_us + self.spread_us < self.sequential_us


@dataclasses.dataclass(frozen=True, slots=True)
class StageChoice(Generic[T]):
    """One way to run convolutions together.

    Attributes:
        stage: its operations are names of nodes; in a search, numbers of configurations (see
            `PlanningProblem.number_of`).
        why_not: in a plan, the reason against it.
    """

    stage: Stage[T]
    prediction: StagePrediction
    why_not: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class GraphPrediction:
    """The planner's expectations for all measured convolutions of a graph.

    Attributes:
        latency_us: sum over the stages and the unstaged convolutions.
        sequential_us: time of all convolutions one after another.
        peak_bytes: the largest of any stage, as in StagePrediction.
        sequential_peak_bytes: the same if all convolutions run one after another.
        memory_budget_bytes: limit for `peak_bytes`; None for no limit.
        search: kind and extent of the search, in words.
    """

    latency_us: Microseconds
    sequential_us: Microseconds
    peak_bytes: Bytes
    sequential_peak_bytes: Bytes
    memory_budget_bytes: Bytes | None
    search: str


@dataclasses.dataclass(frozen=True, slots=True)
class LaneAlone:
    """Measurements of a lane's convolutions, each alone.

    For a lane of several steps, times are sums and the workspace is the largest one. A merged
    lane's algorithm belongs to the wider convolution, so its `alone_us` equals `fastest_us`.

    Attributes:
        alone_us: time with the pinned algorithms.
        workspace_bytes: need of the pinned algorithms.
        fastest_algorithm: the algorithm that is fastest alone; None for a lane of several steps.
        fastest_us: time with the algorithms that are fastest alone.
        sm_use: of the pinned algorithm; None for a lane of several steps, and if its kernels or
            the device are unknown.
    """

    alone_us: Microseconds
    workspace_bytes: Bytes
    fastest_algorithm: str | None
    fastest_us: Microseconds
    sm_use: SmUse | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RejectedStage:
    """Independent convolutions that share no stage.

    Attributes:
        count: how many sets of convolutions with the same costs the graph has.
        saved_us: time that running them together would save; negative if it takes longer, None if
            it is unknown.
    """

    nodes: Annotated[tuple[str, ...], msgspec.Meta(min_length=2)]
    why_not: str
    count: PositiveCount = 1
    saved_us: float | None = None

    @property
    def may_win(self) -> bool:
        """Whether running them together may be faster, as far as is known."""
        return self.saved_us is None or self.saved_us >= LEAST_SAVED_US


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedStage:
    """Convolutions that run as one stage.

    Attributes:
        stage: its operations are names of nodes.
        why: the reason for the stage in a few words, such as the policy that made it.
        prediction: None if no planner made the stage.
        alone: measurements of each lane; empty if no planner made the stage.
        alternatives: some of the other ways to run it, fastest first.
        schedules: for a graph whose batch size is unknown until it runs, a schedule for each
            planned batch size, ascending. `stage` is then one of them, and any other batch size
            runs in sequence. Empty if `stage` applies to every batch size.
    """

    stage: Stage[str]
    why: str = ""
    prediction: StagePrediction | None = None
    alone: tuple[LaneAlone, ...] = ()
    alternatives: tuple[StageChoice[str], ...] = ()
    schedules: tuple[Schedule[str], ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of its nodes, lane after lane."""
        return self.stage.operations

    @property
    def ways(self) -> tuple[Schedule[str], ...]:
        """Its schedules, or a single one for every batch size."""
        return self.schedules or (Schedule(None, self.stage),)

    def map(self, change: Callable[[Stage[str]], Stage[str]]) -> PlannedStage:
        """Changes the stage at every batch size, and drops what explains it."""
        schedules = (dataclasses.replace(each, stage=change(each.stage)) for each in self.schedules)
        stage = change(self.stage)
        return PlannedStage(stage, self.why, self.prediction, schedules=tuple(schedules))

    def validate(self) -> None:
        """Checks the rules that hold in any graph.

        Raises:
            ValueError: the stage or a schedule is invalid; they do not have the same convolutions,
                each once; batch sizes do not ascend; or `alone` does not have a value for each
                lane. Names the field, such as `.schedules[1].stage`.
        """
        sizes = [schedule.batch_size or 0 for schedule in self.schedules]
        if sizes != sorted(set(sizes)) or min(sizes, default=1) < 1:
            raise ValueError(f"Expected ascending batch sizes, got {sizes} at `.schedules`")
        expected = sorted(set(self.nodes))
        places = {".stage": self.stage}
        for number, schedule in enumerate(self.schedules):
            places[f".schedules[{number}].stage"] = schedule.stage
        if len(self.alone) not in (0, len(self.stage.lanes)):
            raise ValueError(
                f"Expected {len(self.stage.lanes)} lanes, got {len(self.alone)} at `.alone`"
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
        algorithm: the one that `latency_us` was measured with. It is not pinned.
        before_stage: index of the next stage; the number of stages if none follows. Convolutions
            before the same stage run in their order.
    """

    node: str
    algorithm: str | None
    latency_us: Microseconds
    before_stage: Count


@dataclasses.dataclass(frozen=True, slots=True)
class ComparedStep:
    """Measured steps of one variant of a graph.

    Attributes:
        step_ms: median.
        ratio: speed relative to stock TensorFlow in the same process.
        error: of `ratio`, between processes; None if it is unknown.
    """

    name: str
    step_ms: Positive
    ratio: Positive
    error: NotNegative | None = None

    @property
    def is_gain(self) -> bool:
        """Whether it is faster than stock by more than the error."""
        return self.error is not None and self.ratio - self.error > 1


STOCK = "stock TensorFlow"
OURS = "tf_interop.enable()"
XLA = "XLA (jit_compile=True)"
"""The names of the variants in a comparison."""


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredStep:
    """Measured steps of a graph on the machine that its plan was made on.

    Attributes:
        compared: stock TensorFlow, `tf_interop.enable()`, and perhaps XLA.
        way: how the graph, which times itself, ran; empty if it has no units, None if it was still
            trying ways.
        cores: cores that TensorFlow uses.
        other_load: share of the cores that other programs took meanwhile.
    """

    compared: Annotated[tuple[ComparedStep, ...], msgspec.Meta(min_length=2)]
    way: str | None
    cores: PositiveCount
    other_load: Share = 0.0

    @property
    def stock_ms(self) -> float:
        """The median step of stock TensorFlow."""
        return self.compared[0].step_ms

    @property
    def ours(self) -> ComparedStep:
        """The step under `tf_interop.enable()`."""
        return self.compared[1]

    @property
    def fastest(self) -> ComparedStep:
        """The fastest variant; ours or stock's, unless XLA is clearly faster than both."""
        usual = max(self.compared[:2], key=lambda each: each.ratio)
        best = max(self.compared, key=lambda each: each.ratio)
        return best if best.ratio > CLEARLY_FASTER * usual.ratio else usual

    @property
    def xla(self) -> ComparedStep | None:
        """The step under XLA; None if it was not measured."""
        return next((each for each in self.compared if each.name == XLA), None)


GraphMode = Literal["inference", "training"]
"""Whether a graph computes a model's results, or a whole training step."""


@dataclasses.dataclass(frozen=True, slots=True)
class GraphPlan:
    """The plan of one graph.

    Attributes:
        fingerprint: of the graph's structure (see `tf_interop.structure`).
        landmarks: all convolutions of the graph, planned or not, in their places.
        batch_size: None if the stages apply to every batch size.
        prediction: None if no planner made the stages.
        unstaged: the planned convolutions in no stage, in their expected order.
        rejected: some of the stages that the plan does not make: those that may win, then those
            that lose least.
        mode: None if it is unknown, as for a function.
        measured: whole steps on a CPU, if they were measured.
        as_stock: whether the graph stays as it is, because stock TensorFlow was measured faster.
        jit_compile: whether it is a function that XLA compiles.
    """

    fingerprint: str
    landmarks: tuple[Landmark, ...]
    stages: tuple[PlannedStage, ...] = ()
    batch_size: PositiveCount | None = None
    prediction: GraphPrediction | None = None
    unstaged: tuple[UnstagedConvolution, ...] = ()
    rejected: tuple[RejectedStage, ...] = ()
    mode: GraphMode | None = None
    measured: MeasuredStep | None = None
    as_stock: bool = False
    jit_compile: bool = False

    @property
    def structure(self) -> Structure:
        """The structure of the graph."""
        return Structure(self.fingerprint, self.landmarks)

    @property
    def convolution_count(self) -> int:
        """The number of all convolutions of the graph, planned or not."""
        return len(self.landmarks)

    @property
    def unmeasured_count(self) -> int:
        """The number of convolutions that a planner left out, because no algorithm was measured."""
        if self.prediction is None:
            return 0
        staged_count = sum(len(stage.nodes) for stage in self.stages)
        return self.convolution_count - staged_count - len(self.unstaged)

    @property
    def spread_us(self) -> float:
        """Error of the predicted time if all stages are off in the same direction."""
        return sum(each.prediction.spread_us for each in self.stages if each.prediction)

    @property
    def in_order(self) -> list[tuple[int, PlannedStage | UnstagedConvolution]]:
        """Stages and unstaged convolutions in order, with the index of the same or next stage."""
        units: list[tuple[int, PlannedStage | UnstagedConvolution]] = [
            *((each.before_stage, each) for each in self.unstaged),
            *enumerate(self.stages),
        ]
        # The sort is stable: unstaged convolutions come before the stage with their index.
        return sorted(units, key=lambda each: each[0])


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The content of a plan file.

    Attributes:
        graphs: one entry for each graph and batch size.
        format: always `tf_interop.plan`.
        version: version of the format.
        made_with: software versions, such as {"tensorflow": "2.21.0"}.
    """

    graphs: tuple[GraphPlan, ...]
    format: str = "tf_interop.plan"
    version: int = 1
    made_with: dict[str, str] = dataclasses.field(default_factory=dict)


def first_of_each(graphs: Iterable[GraphPlan]) -> tuple[GraphPlan, ...]:
    """The first entry for each graph and batch size."""
    entries: dict[tuple[str, int | None], GraphPlan] = {}
    for graph in graphs:
        entries.setdefault((graph.fingerprint, graph.batch_size), graph)
    return tuple(entries.values())


def check_each_once(keys: Iterable[tuple[str, int | None]]) -> None:
    """Raises ValueError if two graphs of a plan have the same fingerprint and batch size."""
    seen: set[tuple[str, int | None]] = set()
    for index, key in enumerate(keys):
        if key in seen:
            raise ValueError(
                f"Expected each graph once for a batch size, got fingerprint {key[0]!r} again at "
                f"`$.graphs[{index}].fingerprint`"
            )
        seen.add(key)


def _check_plan(plan: Plan) -> None:
    """Checks the rules that the types cannot express."""
    check_each_once((graph.fingerprint, graph.batch_size) for graph in plan.graphs)
    sizes: dict[str, int] = {}
    for index, graph in enumerate(plan.graphs):
        place = f"$.graphs[{index}]"
        if sizes.setdefault(graph.fingerprint, len(graph.landmarks)) != len(graph.landmarks):
            raise ValueError(
                f"Expected as many landmarks as before for fingerprint {graph.fingerprint!r}, got "
                f"{len(graph.landmarks)} at `{place}.landmarks`"
            )
        for number, stage in enumerate(graph.stages):
            try:
                stage.validate()
            except ValueError as error:
                raise ValueError(f"{error} in `{place}.stages[{number}]`") from error
        if graph.as_stock and graph.stages:
            raise ValueError(f"Expected no stages with `as_stock`, got some at `{place}`")
        landmarks = {each.name for each in graph.landmarks}
        names = [name for stage in graph.stages for name in stage.nodes]
        names += [each.node for each in graph.unstaged]
        if len(set(names)) < len(names) or not landmarks.issuperset(names):
            raise ValueError(
                f"Expected each of the {len(landmarks)} landmarks at most once, got {names} at "
                f"`{place}`"
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
