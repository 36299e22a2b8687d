"""What a report shows of one stage: lanes, bars, and what else was considered."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from tf_interop.plan.problem import Candidate
from tf_interop.plan.tables import describe_lanes
from tf_interop.plan.types import (
    Alternative,
    GraphPlan,
    LaneOptions,
    PlannedStage,
    is_merged,
)
from tf_interop.profile.tables import describe_convolution
from tf_interop.report.bars import Bars, memory_bars, sm_bars, time_bars
from tf_interop.report.network import NetworkNode
from tf_interop.report.words import figure_label

_MOST_CANDIDATES = 12


@dataclasses.dataclass(frozen=True, slots=True)
class ReportConvolution:
    """A convolution of a lane.

    Attributes:
        node: its name in the graph.
        algorithm: pinned for it; None where the runner chooses.
        description: what it computes; empty where that is not known.
        candidates: what was measured of it alone, fastest first.
        more_candidates: how many more there are.
    """

    node: str
    algorithm: str | None
    description: str
    candidates: tuple[Candidate, ...]
    more_candidates: int


@dataclasses.dataclass(frozen=True, slots=True)
class ReportLane:
    """A lane of a stage.

    Attributes:
        number: its place.
        convolutions: what it runs, in order.
        options: what it asks of the device, in words; empty for nothing.
        unmerged_us: what the convolutions of a merged lane take one after another; None where that
            is not known, or the lane is not merged.
        alone_us: what it takes alone; None where that is not known, and for a merged lane.
        workspace_bytes: what it needs; likewise.
        fastest_algorithm: what would be faster alone; None for nothing.
        fastest_us: with that; None for nothing.
    """

    number: int
    convolutions: tuple[ReportConvolution, ...]
    options: str
    unmerged_us: float | None
    alone_us: float | None
    workspace_bytes: int | None
    fastest_algorithm: str | None
    fastest_us: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class ReportStage:
    """A stage.

    Attributes:
        number: its place in the plan.
        planned: what the plan says of it.
        label: what its time is.
        saved: the share of the time one after another that it saves; None where not known.
        lanes: its lanes.
        schedules: batch sizes, each with what its lanes run; none where `lanes` are for all.
        times: bars of its times.
        memory: bars of its memory.
        sm_use: bars of what it takes of an SM.
        alternatives: other algorithms, each with what its time is.
    """

    number: int
    planned: PlannedStage
    label: str
    saved: float | None
    lanes: tuple[ReportLane, ...]
    schedules: tuple[tuple[int, tuple[str, ...]], ...]
    times: Bars | None
    memory: Bars | None
    sm_use: Bars | None
    alternatives: tuple[tuple[Alternative, str], ...]

    @property
    def saved_us(self) -> float:
        """The time that it saves; 0 where that is not known."""
        prediction = self.planned.prediction
        return 0.0 if prediction is None else prediction.sequential_us - prediction.latency_us


def report_stage(
    number: int,
    stage: PlannedStage,
    graph: GraphPlan,
    nodes: Mapping[str, NetworkNode],
    *,
    simulated: bool,
) -> ReportStage:
    """Gathers what a report shows of a stage.

    Args:
        number: its place in the plan.
        stage: what the plan says of it.
        graph: whose stage it is.
        nodes: what is known of convolutions, by name.
        simulated: whether what is called measured was not.
    """
    prediction, explanation = stage.prediction, stage.explanation
    saved = None
    if prediction is not None and prediction.sequential_us and len(stage.convolutions) > 1:
        saved = 1 - prediction.latency_us / prediction.sequential_us
    return ReportStage(
        number=number,
        planned=stage,
        label=("" if prediction is None else figure_label(prediction.source, simulated=simulated)),
        saved=saved,
        lanes=tuple(_report_lane(lane, stage, nodes) for lane in range(len(stage.lanes))),
        schedules=tuple(
            (schedule.batch_size, tuple(describe_lanes(schedule))) for schedule in stage.schedules
        ),
        times=time_bars(stage),
        memory=memory_bars(stage, graph.prediction),
        sm_use=None if explanation is None else sm_bars(explanation.lanes),
        alternatives=(
            ()
            if explanation is None
            else tuple(
                (each, figure_label(each.source, simulated=simulated))
                for each in explanation.alternatives
            )
        ),
    )


def _report_lane(number: int, stage: PlannedStage, nodes: Mapping[str, NetworkNode]) -> ReportLane:
    explained = None if stage.explanation is None else stage.explanation.lanes[number]
    options = stage.lane_options[number] if stage.lane_options else LaneOptions()
    unmerged_us = None
    if explained is not None and is_merged(stage, number):
        unmerged_us, explained = explained.alone_us, None
    is_slower = explained is not None and not math.isclose(
        explained.fastest_us, explained.alone_us, rel_tol=1e-9
    )
    convolutions = []
    for pinned in stage.lanes[number]:
        node = nodes.get(pinned.node)
        configuration = None if node is None else node.configuration
        candidates = () if node is None or node.costs is None else node.costs.candidates
        in_order = sorted(candidates, key=lambda each: (each.latency_us, each.algorithm or ""))
        convolutions.append(
            ReportConvolution(
                node=pinned.node,
                algorithm=pinned.algorithm,
                description=("" if configuration is None else describe_convolution(configuration)),
                candidates=tuple(in_order[:_MOST_CANDIDATES]),
                more_candidates=max(0, len(in_order) - _MOST_CANDIDATES),
            )
        )
    return ReportLane(
        number=number,
        convolutions=tuple(convolutions),
        options=_options(options),
        unmerged_us=unmerged_us,
        alone_us=None if explained is None else explained.alone_us,
        workspace_bytes=None if explained is None else explained.workspace_bytes,
        fastest_algorithm=(
            explained.fastest_algorithm if explained is not None and is_slower else None
        ),
        fastest_us=explained.fastest_us if explained is not None and is_slower else None,
    )


def _options(options: LaneOptions) -> str:
    words = []
    if options.priority:
        words.append(f"priority {options.priority}")
    if options.sm_count:
        words.append(f"{options.sm_count} SMs of its own")
    if options.merged:
        words.append("merged into one wider convolution")
    return ", ".join(words)
