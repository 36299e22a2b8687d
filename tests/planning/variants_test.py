"""Plans with one part taken out: what goes, and what stays."""

from __future__ import annotations

import dataclasses
import pathlib

from plan_values import PLAN

from tf_interop.planning.types import (
    GraphPlan,
    Plan,
    PlannedStage,
    load_plan,
    save_plan,
    without_concurrency,
    without_pinning,
)
from tf_interop.stage import Lane, Stage, Step

A, B, C = (Step(name, f"eng{place}") for place, name in enumerate("abc"))
STAGE = Stage((Lane((A,), sm_count=64), Lane((B, C), priority=-1)))


def plan_of(stage: Stage[str]) -> Plan:
    return Plan((GraphPlan("0123456789abcdef", 3, (PlannedStage(stage),), batch_size=8),))


def test_without_concurrency_keeps_algorithms_on_one_lane() -> None:
    [graph] = without_concurrency(plan_of(STAGE)).graphs
    # Of the SMs that others leave, a lane that is alone would get a share.
    assert [planned.stage for planned in graph.stages] == [Stage.in_sequence((A, B, C))]
    assert (graph.fingerprint, graph.batch_size) == ("0123456789abcdef", 8)


def test_without_concurrency_leaves_merged_lanes_merged() -> None:
    stage = Stage((Lane((A, dataclasses.replace(B, algorithm="eng0")), 0, 32, True), Lane((C,))))
    [graph] = without_concurrency(plan_of(stage)).graphs
    merged = Lane(stage.lanes[0].steps, merged=True)
    assert [planned.stage.lanes for planned in graph.stages] == [(merged,), (Lane((C,)),)]


def test_without_pinning_keeps_lanes_and_their_options() -> None:
    [graph] = without_pinning(plan_of(STAGE)).graphs
    assert [planned.stage for planned in graph.stages] == [STAGE.with_algorithms([None] * 3)]


def test_what_was_predicted_of_the_whole_goes_and_the_plan_stays_legal(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "plan.json"
    for change in (without_concurrency, without_pinning):
        changed = change(PLAN)
        for graph in changed.graphs:
            assert graph.prediction is None
            assert graph.unstaged == ()
            assert all(stage.prediction is None for stage in graph.stages)
            assert all(stage.explanation is None for stage in graph.stages)
        assert dataclasses.replace(changed, graphs=()) == dataclasses.replace(PLAN, graphs=())
        save_plan(changed, path)
        assert load_plan(path) == changed
