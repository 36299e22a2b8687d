"""Plans with one part of what a plan does taken out, so that the share of each part shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from tf_interop.planning.types import Plan, PlannedStage
from tf_interop.stage import Lane, Stage


def without_concurrency(plan: Plan) -> Plan:
    """The same algorithms, the convolutions of each stage one after another on a single lane.

    A lane whose convolutions are merged into one stays as it is, as a stage of its own: merging
    needs no second lane, and its algorithm is that of the wide convolution. What lanes ask of the
    device otherwise goes: shares of the SMs are for lanes beside one another.
    """
    return _with_stages(plan, _one_after_another)


def without_pinning(plan: Plan) -> Plan:
    """The same lanes, streams and SM shares; which algorithms run is left to the runner."""
    return _with_stages(plan, _without_algorithms)


def _with_stages(plan: Plan, change: Callable[[PlannedStage], Iterator[PlannedStage]]) -> Plan:
    # What was expected was expected of the whole, and not of what is left.
    graphs = tuple(
        dataclasses.replace(
            graph,
            stages=tuple(
                dataclasses.replace(changed, prediction=None, explanation=None)
                for stage in graph.stages
                for changed in change(stage)
            ),
            prediction=None,
            unstaged=(),
        )
        for graph in plan.graphs
    )
    return dataclasses.replace(plan, graphs=graphs)


def _one_after_another(planned: PlannedStage) -> Iterator[PlannedStage]:
    why = "the plan's algorithms, one after another"
    if planned.schedules:
        # Which lanes are merged may differ by batch size, and a stage cannot be split for one.
        changed = _with_each_stage(planned, lambda stage: Stage.in_sequence(stage.steps))
        yield dataclasses.replace(changed, why=why)
        return
    merged = [lane for lane in planned.stage.lanes if lane.merged]
    rest = [step for lane in planned.stage.lanes if not lane.merged for step in lane.steps]
    for stage in (
        *(Stage((Lane(lane.steps, merged=True),)) for lane in merged),
        *([Stage.in_sequence(rest)] if rest else []),
    ):
        yield dataclasses.replace(planned, stage=stage, why=why)


def _without_algorithms(planned: PlannedStage) -> Iterator[PlannedStage]:
    changed = _with_each_stage(
        planned, lambda stage: stage.with_algorithms([None] * len(stage.steps))
    )
    yield dataclasses.replace(changed, why="the plan's lanes, no algorithm pinned")


def _with_each_stage(
    planned: PlannedStage, change: Callable[[Stage[str]], Stage[str]]
) -> PlannedStage:
    return dataclasses.replace(
        planned,
        stage=change(planned.stage),
        schedules=tuple(
            dataclasses.replace(each, stage=change(each.stage)) for each in planned.schedules
        ),
    )
