"""Plans with one part removed, to measure the gain of that part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from tf_interop.planning.types import Plan, PlannedStage
from tf_interop.stage import Lane, Stage


def without_concurrency(plan: Plan) -> Plan:
    """The plan with the same algorithms, and each stage's convolutions on a single lane.

    A merged lane becomes a stage of its own: it needs no second lane, and its algorithm belongs to
    the wider convolution. Other lane options are dropped: they are for lanes that run together.
    """

    def split(planned: PlannedStage) -> Iterable[PlannedStage]:
        if planned.schedules:
            # Batch sizes may merge different lanes, so the stage cannot be split for all of them.
            return [planned.map(lambda stage: Stage.in_sequence(stage.steps))]
        lanes = planned.stage.lanes
        rest = [step for lane in lanes if not lane.merged for step in lane.steps]
        stages = [Stage((Lane(lane.steps, merged=True),)) for lane in lanes if lane.merged]
        stages += [Stage.in_sequence(rest)] if rest else []
        return [dataclasses.replace(planned, stage=stage) for stage in stages]

    return _with_stages(plan, split, "the plan's algorithms, one after another")


def without_pinning(plan: Plan) -> Plan:
    """The plan with the same lanes and options, and no algorithm pinned."""

    def unpin(planned: PlannedStage) -> Iterable[PlannedStage]:
        yield planned.map(lambda stage: stage.with_algorithms([None] * len(stage.steps)))

    return _with_stages(plan, unpin, "the plan's lanes, no algorithm pinned")


def _with_stages(
    plan: Plan, change: Callable[[PlannedStage], Iterable[PlannedStage]], why: str
) -> Plan:
    # The predictions were for the whole plan.
    graphs = (
        dataclasses.replace(
            graph,
            stages=tuple(
                PlannedStage(changed.stage, why, schedules=changed.schedules)
                for stage in graph.stages
                for changed in change(stage)
            ),
            prediction=None,
            unstaged=(),
        )
        for graph in plan.graphs
    )
    return dataclasses.replace(plan, graphs=tuple(graphs))
