"""Plans with one part of what a plan does taken out, so that the share of each part shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from tf_interop.planning.types import Plan, PlannedStage
from tf_interop.stage import Lane, Stage


def without_concurrency(plan: Plan) -> Plan:
    """The same algorithms, the convolutions of each stage one after another on a single lane.

    A lane whose convolutions are merged into one stays as it is, as a stage of its own: merging
    needs no second lane, and its algorithm is that of the wide convolution. What lanes ask of the
    device otherwise goes: shares of the SMs are for lanes beside one another.
    """

    def change(planned: PlannedStage) -> Iterable[PlannedStage]:
        if planned.schedules:
            # Which lanes are merged may differ by batch size: a stage cannot be split for one.
            return [planned.map(lambda stage: Stage.in_sequence(stage.steps))]
        lanes = planned.stage.lanes
        rest = [step for lane in lanes if not lane.merged for step in lane.steps]
        stages = [Stage((Lane(lane.steps, merged=True),)) for lane in lanes if lane.merged]
        stages += [Stage.in_sequence(rest)] if rest else []
        return [dataclasses.replace(planned, stage=stage) for stage in stages]

    return _with_stages(plan, change, "the plan's algorithms, one after another")


def without_pinning(plan: Plan) -> Plan:
    """The same lanes, streams and SM shares; which algorithms run is left to the runner."""

    def change(planned: PlannedStage) -> Iterable[PlannedStage]:
        yield planned.map(lambda stage: stage.with_algorithms([None] * len(stage.steps)))

    return _with_stages(plan, change, "the plan's lanes, no algorithm pinned")


def _with_stages(
    plan: Plan, change: Callable[[PlannedStage], Iterable[PlannedStage]], why: str
) -> Plan:
    # What was expected was expected of the whole, and not of what is left.
    graphs = (
        dataclasses.replace(
            graph,
            stages=tuple(
                dataclasses.replace(changed, why=why, prediction=None, explanation=None)
                for stage in graph.stages
                for changed in change(stage)
            ),
            prediction=None,
            unstaged=(),
        )
        for graph in plan.graphs
    )
    return dataclasses.replace(plan, graphs=tuple(graphs))
