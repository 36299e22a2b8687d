"""Plans with one part removed, to measure the gain of that part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from tf_interop.planning.types import Plan, PlannedStage
from tf_interop.stage import Lane, Stage


def without_concurrency(plan: Plan) -> Plan:
    """The plan with the same algorithms, and each stage's convolutions on a single lane.

    A merged lane becomes a stage of its own, because its algorithm belongs to the wider
    convolution.
    """

    def split(planned: PlannedStage) -> Iterable[PlannedStage]:
        if planned.schedules:
            # Batch sizes may merge different lanes, so the stage cannot be split for all of them.
            return [planned.map(lambda stage: Stage.in_sequence(stage.steps))]
        lanes = planned.stage.lanes
        rest = [step for lane in lanes if not lane.merged for step in lane.steps]
        stages = [Stage((Lane(lane.steps, merged=True),)) for lane in lanes if lane.merged]
        stages += [Stage.in_sequence(rest)] if rest else []
        return map(PlannedStage, stages)

    return _with_stages(plan, split)


def without_pinning(plan: Plan) -> Plan:
    """The plan with the same lanes and options, and no algorithm pinned."""

    def unpin(planned: PlannedStage) -> Iterable[PlannedStage]:
        yield planned.map(lambda stage: stage.with_algorithms([None] * len(stage.steps)))

    return _with_stages(plan, unpin)


def _with_stages(plan: Plan, change: Callable[[PlannedStage], Iterable[PlannedStage]]) -> Plan:
    # The predictions were for the whole plan.
    graphs = (
        dataclasses.replace(
            graph,
            stages=tuple(
                dataclasses.replace(changed, prediction=None)
                for stage in graph.stages
                for changed in change(stage)
            ),
            prediction=None,
            unstaged=(),
        )
        for graph in plan.graphs
    )
    return dataclasses.replace(plan, graphs=tuple(graphs))
