"""A plan: the stages of one or more graphs, with an algorithm pinned for every convolution."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import msgspec

from tf_interop.plan.problem import FigureSource
from tf_interop.profile.entries import Share

PLAN_FORMAT = "tf_interop.plan"
PLAN_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class PinnedConvolution:
    """One convolution of a stage.

    Attributes:
        node: the name of the convolution node in the graph.
        algorithm: the algorithm pinned for it; None leaves the choice to the runner.
    """

    node: str
    algorithm: str | None = None


Bytes = Annotated[int, msgspec.Meta(ge=0)]
Microseconds = Annotated[float, msgspec.Meta(ge=0)]


# What the op's attributes and CUDA hold.
_LARGEST_INT = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class LaneOptions:
    """What a lane asks of the device beyond a stream.

    The device gives what it can: it rounds SM counts up, and where it cannot give what the lanes of
    a stage ask for, they run without (`tf_interop.status().counters.refused_lane_options`).

    Attributes:
        priority: of the lane's stream, as CUDA counts: lower goes first, 0 is the usual one.
        sm_count: streaming multiprocessors that no other lane uses; 0 for a share of those that
            the other lanes leave.
        merged: whether the lane's convolutions, which read the same image and differ in their
            filters and output channels only, run as one wider convolution. Where they turn out not
            to fit together they run one after another.
    """

    priority: Annotated[int, msgspec.Meta(ge=-_LARGEST_INT, le=_LARGEST_INT)] = 0
    sm_count: Annotated[int, msgspec.Meta(ge=0, le=_LARGEST_INT)] = 0
    merged: bool = False


# The length bounds hold for what a file says; they are part of the schema.
Lane = Annotated[tuple[PinnedConvolution, ...], msgspec.Meta(min_length=1)]


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
    source: FigureSource
    workspace_bytes: Bytes
    peak_bytes: Bytes


@dataclasses.dataclass(frozen=True, slots=True)
class GraphPrediction:
    """What the planner expects of all convolutions of a graph.

    Attributes:
        latency_us: the sum of all stages and of the convolutions in none.
        sequential_us: of all convolutions one after another.
        peak_bytes: the most of all stages, as in StagePrediction.
        sequential_peak_bytes: the same of one after another.
        memory_budget_bytes: what no stage may exceed; None for no limit.
        search: how the stages were searched for, and how far.
        unmeasured_count: convolutions of the graph that no algorithm was measured for. They are in
            no stage, and in none of these figures.
    """

    latency_us: Microseconds
    sequential_us: Microseconds
    peak_bytes: Bytes
    sequential_peak_bytes: Bytes
    memory_budget_bytes: Bytes | None
    search: str
    unmeasured_count: Annotated[int, msgspec.Meta(ge=0)] = 0


@dataclasses.dataclass(frozen=True, slots=True)
class SmUse:
    """What an algorithm takes of one SM, alone: that of its kernels which takes the most time.

    Attributes:
        registers: share of an SM's registers that its resident blocks hold.
        shared_memory: of its shared memory.
        threads: of its thread slots.
        blocks: of its block slots.
        alu_utilization: share of the time in which the busiest arithmetic pipe works; None where it
            was not measured.
        dram_utilization: of DRAM's throughput; likewise.
        memory_stall: share of the warps' stalls that wait for memory; likewise.
    """

    registers: Share
    shared_memory: Share
    threads: Share
    blocks: Share
    alu_utilization: Share | None = None
    dram_utilization: Share | None = None
    memory_stall: Share | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class LaneExplanation:
    """What was measured of a lane's convolution alone.

    A merged lane has several, and its algorithm is that of the wider one: there `alone_us` is their
    time one after another, each with what is fastest alone, and `workspace_bytes` the most that one
    of them needs then.

    Attributes:
        alone_us: with the algorithm that the plan pins.
        workspace_bytes: of that algorithm.
        fastest_algorithm: what is fastest alone; None for a merged lane.
        fastest_us: with that; for a merged lane as `alone_us`.
        sm_use: of the pinned algorithm; None where its kernels or the device are not known, and for
            a merged lane.
    """

    alone_us: Microseconds
    workspace_bytes: Bytes
    fastest_algorithm: str | None
    fastest_us: Microseconds
    sm_use: SmUse | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Alternative:
    """Other ways to run the convolutions of a stage, and why they were not chosen.

    Attributes:
        algorithms: one for each convolution, in the order of the stage.
        latency_us: of the stage with them.
        source: whether that was measured.
        workspace_bytes: of all lanes together.
        why_not: the reason, for reading.
        lanes: the lane of each convolution, where several would run merged in one; empty where each
            would have a lane of its own.
    """

    algorithms: tuple[str | None, ...]
    latency_us: Microseconds
    source: FigureSource
    workspace_bytes: Bytes
    why_not: str
    lanes: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()

    @property
    def algorithms_of_lanes(self) -> tuple[tuple[str | None, ...], ...]:
        """The algorithms of each lane; one with several is merged."""
        of_lanes: dict[int, list[str | None]] = {}
        lanes = self.lanes or range(len(self.algorithms))
        for lane, algorithm in zip(lanes, self.algorithms, strict=True):
            of_lanes.setdefault(lane, []).append(algorithm)
        return tuple(map(tuple, of_lanes.values()))


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
class MissedStage:
    """Convolutions that do not depend on each other and yet share no stage.

    Attributes:
        nodes: their names.
        why_not: the reason, for reading.
        count: how many such sets there are in the graph, of convolutions that cost the same.
    """

    nodes: Annotated[tuple[str, ...], msgspec.Meta(min_length=2)]
    why_not: str
    count: Annotated[int, msgspec.Meta(ge=1)] = 1


@dataclasses.dataclass(frozen=True, slots=True)
class BatchSchedule:
    """How the convolutions of a stage run at one batch size.

    Attributes:
        batch_size: that of the graph.
        lanes: what each stream group runs, in order; a single lane runs in sequence.
        lane_options: what each lane asks of the device; empty where none asks for anything.
    """

    batch_size: Annotated[int, msgspec.Meta(ge=1, le=_LARGEST_INT)]
    lanes: Annotated[tuple[Lane, ...], msgspec.Meta(min_length=1)]
    lane_options: tuple[LaneOptions, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedStage:
    """Convolutions that run at the same time.

    Attributes:
        lanes: what each stream group runs, in order, or merged where its options say so.
        why: the reason for the stage in a few words, such as the policy that made it.
        lane_options: what each lane asks of the device; empty where none asks for anything.
        prediction: what the planner expects; None where no planner made the stage.
        explanation: what it was chosen by; likewise.
        schedules: how it runs at each of several batch sizes, ascending, where the graph's is not
            known before it runs; `lanes` are then those of one of them, and another batch size runs
            in sequence. Empty where `lanes` hold for every batch size.
    """

    lanes: Annotated[tuple[Lane, ...], msgspec.Meta(min_length=1)]
    why: str = ""
    lane_options: tuple[LaneOptions, ...] = ()
    prediction: StagePrediction | None = None
    explanation: StageExplanation | None = None
    schedules: tuple[BatchSchedule, ...] = ()

    @property
    def convolutions(self) -> tuple[PinnedConvolution, ...]:
        """All convolutions of the stage, lane after lane."""
        return tuple(pinned for lane in self.lanes for pinned in lane)

    def check_lane_options(self) -> None:
        """Checks that there are options for every lane, or for none.

        Raises:
            ValueError: there are not, or a stage asks for less than no SMs.
        """
        _check_lane_options(self.lanes, self.lane_options)

    def check_schedules(self) -> None:
        """Checks that every schedule is for the stage's convolutions, and for a batch size more.

        Raises:
            ValueError: one is not, or its options are not those of its lanes.
        """
        sizes = [schedule.batch_size for schedule in self.schedules]
        if sizes != sorted(set(sizes)) or min(sizes, default=1) < 1:
            raise ValueError(f"Expected schedules for ascending batch sizes, got {sizes}")
        members = sorted(pinned.node for pinned in self.convolutions)
        for schedule in self.schedules:
            scheduled = sorted(pinned.node for lane in schedule.lanes for pinned in lane)
            if scheduled != members or not all(schedule.lanes):
                raise ValueError(
                    f"Expected a schedule of {members} for batch size {schedule.batch_size}, got "
                    f"{scheduled} on {len(schedule.lanes)} lanes"
                )
            _check_lane_options(schedule.lanes, schedule.lane_options)


def is_merged(run: PlannedStage | BatchSchedule, lane: int) -> bool:
    """Whether the convolutions of a lane are to run as one wider convolution."""
    return bool(run.lane_options) and run.lane_options[lane].merged


def _check_lane_options(lanes: tuple[Lane, ...], lane_options: tuple[LaneOptions, ...]) -> None:
    if lane_options and len(lane_options) != len(lanes):
        raise ValueError(
            f"Expected options for none or all of {len(lanes)} lanes, got {len(lane_options)}"
        )
    for options in lane_options:
        if not 0 <= options.sm_count <= _LARGEST_INT:
            raise ValueError(
                f"Expected an SM count from 0 to {_LARGEST_INT}, got {options.sm_count}"
            )
        if abs(options.priority) > _LARGEST_INT:
            raise ValueError(f"Expected a priority near 0, got {options.priority}")


@dataclasses.dataclass(frozen=True, slots=True)
class AloneConvolution:
    """A convolution in no stage, as the planner expects it to run.

    Attributes:
        node: the name of the convolution node in the graph.
        algorithm: that its figures are of. It is not pinned.
        latency_us: what it takes.
        peak_bytes: its workspace and output, and outputs of earlier convolutions that are read
            later.
        before_stage: the place of the stage that it runs before; the number of stages for one that
            runs behind all of them. Several before one stage run in their order.
    """

    node: str
    algorithm: str | None
    latency_us: Microseconds
    peak_bytes: Bytes
    before_stage: Annotated[int, msgspec.Meta(ge=0)]


ModelStep = Literal["inference", "training"]
"""What a graph computes of its model: what it answers, or a whole step of training."""


@dataclasses.dataclass(frozen=True, slots=True)
class GraphPlan:
    """The stages of one graph.

    Attributes:
        fingerprint: identifies the graph's convolutions (see `fingerprint_convolutions`).
        convolution_count: convolutions that the finder saw in the graph.
        stages: the stages; convolutions in none of them are left alone.
        batch_size: that the stages were planned for; None where it does not matter.
        prediction: what the planner expects; None where no planner made the stages.
        alone: the convolutions in no stage, in the order in which they are expected to run; empty
            where no planner made the stages.
        missed: some of the stages that could have been and are not, the most promising first.
        why_no_stage: why there is none, for reading; empty where there is one, and where no planner
            made the plan.
        step: what the graph computes of its model; None where that is not known, as for a function.
    """

    fingerprint: str
    convolution_count: Annotated[int, msgspec.Meta(ge=0)]
    stages: tuple[PlannedStage, ...]
    batch_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    prediction: GraphPrediction | None = None
    alone: tuple[AloneConvolution, ...] = ()
    missed: tuple[MissedStage, ...] = ()
    why_no_stage: str = ""
    step: ModelStep | None = None


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
    format: str = PLAN_FORMAT
    version: int = PLAN_VERSION
    made_with: dict[str, str] = dataclasses.field(default_factory=dict)
