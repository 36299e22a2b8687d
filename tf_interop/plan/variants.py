"""Plans with one part of what a plan does taken out, so that the share of each part shows."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable

from tf_interop.plan.types import Lane, LaneOptions, Plan, PlannedStage


def without_concurrency(plan: Plan) -> Plan:
    """The same algorithms, the convolutions of each stage one after another on a single lane.

    A lane whose convolutions are merged into one stays as it is, as a stage of its own: merging
    needs no second lane, and its algorithm is that of the wide convolution. What lanes ask of the
    device otherwise goes: shares of the SMs are for lanes beside one another.
    """
    return _with_stages(plan, _one_after_another)


def without_pinning(plan: Plan) -> Plan:
    """The same lanes, streams and SM shares; which algorithms run is left to the runner."""
    return _with_stages(plan, _with_no_algorithm)


def _with_stages(plan: Plan, change: Callable[[PlannedStage], Iterable[PlannedStage]]) -> Plan:
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
            alone=(),
        )
        for graph in plan.graphs
    )
    return dataclasses.replace(plan, graphs=graphs)


def _one_after_another(stage: PlannedStage) -> Iterable[PlannedStage]:
    why = "the plan's algorithms, one after another"
    if stage.schedules:
        # Which lanes are merged may differ by batch size, and a stage cannot be split for one.
        schedules = tuple(
            dataclasses.replace(each, lanes=(_in_one_lane(each.lanes),), lane_options=())
            for each in stage.schedules
        )
        yield dataclasses.replace(
            stage,
            lanes=(_in_one_lane(stage.lanes),),
            lane_options=(),
            schedules=schedules,
            why=why,
        )
        return
    options = stage.lane_options or (LaneOptions(),) * len(stage.lanes)
    single = []
    for lane, asked in zip(stage.lanes, options, strict=True):
        if asked.merged:
            yield dataclasses.replace(
                stage, lanes=(lane,), lane_options=(LaneOptions(merged=True),), why=why
            )
        else:
            single.append(lane)
    if single:
        yield dataclasses.replace(stage, lanes=(_in_one_lane(single),), lane_options=(), why=why)


def _in_one_lane(lanes: Iterable[Lane]) -> Lane:
    return tuple(itertools.chain.from_iterable(lanes))


def _with_no_algorithm(stage: PlannedStage) -> Iterable[PlannedStage]:
    yield dataclasses.replace(
        stage,
        lanes=_unpinned(stage.lanes),
        schedules=tuple(
            dataclasses.replace(each, lanes=_unpinned(each.lanes)) for each in stage.schedules
        ),
        why="the plan's lanes, no algorithm pinned",
    )


def _unpinned(lanes: Iterable[Lane]) -> tuple[Lane, ...]:
    return tuple(
        tuple(dataclasses.replace(pinned, algorithm=None) for pinned in lane) for lane in lanes
    )
