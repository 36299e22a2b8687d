"""Plans with one part taken out: what goes, and what stays."""

from __future__ import annotations

import dataclasses
import pathlib

from plan_values import PLAN

from tf_interop.plan.file import load_plan, save_plan
from tf_interop.plan.types import GraphPlan, LaneOptions, PinnedConvolution, Plan, PlannedStage
from tf_interop.plan.variants import without_concurrency, without_pinning

A, B, C = (PinnedConvolution(name, f"eng{place}") for place, name in enumerate("abc"))


def plan_of(stage: PlannedStage) -> Plan:
    return Plan((GraphPlan("0123456789abcdef", 3, (stage,), batch_size=8),))


def test_without_concurrency_keeps_algorithms_on_one_lane() -> None:
    options = (LaneOptions(sm_count=64), LaneOptions(priority=-1))
    changed = without_concurrency(plan_of(PlannedStage(((A,), (B, C)), lane_options=options)))
    [graph] = changed.graphs
    [stage] = graph.stages
    assert stage.lanes == ((A, B, C),)
    # Of the SMs that others leave, a lane that is alone would get a share.
    assert stage.lane_options == ()
    assert (graph.fingerprint, graph.batch_size) == ("0123456789abcdef", 8)


def test_without_concurrency_leaves_merged_lanes_merged() -> None:
    options = (LaneOptions(merged=True, sm_count=32), LaneOptions())
    changed = without_concurrency(plan_of(PlannedStage(((A, B), (C,)), lane_options=options)))
    first, second = changed.graphs[0].stages
    assert (first.lanes, first.lane_options) == (((A, B),), (LaneOptions(merged=True),))
    assert (second.lanes, second.lane_options) == (((C,),), ())


def test_without_pinning_keeps_lanes_and_their_options() -> None:
    options = (LaneOptions(sm_count=64), LaneOptions(priority=-1))
    changed = without_pinning(plan_of(PlannedStage(((A,), (B, C)), lane_options=options)))
    [stage] = changed.graphs[0].stages
    assert [[pinned.node for pinned in lane] for lane in stage.lanes] == [["a"], ["b", "c"]]
    assert all(pinned.algorithm is None for pinned in stage.convolutions)
    assert stage.lane_options == options


def test_what_was_predicted_of_the_whole_goes() -> None:
    for change in (without_concurrency, without_pinning):
        changed = change(PLAN)
        for graph in changed.graphs:
            assert graph.prediction is None
            assert graph.alone == ()
            assert all(stage.prediction is None for stage in graph.stages)
            assert all(stage.explanation is None for stage in graph.stages)
        assert dataclasses.replace(changed, graphs=()) == dataclasses.replace(PLAN, graphs=())


def test_changed_plans_are_legal(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.json"
    for change in (without_concurrency, without_pinning):
        save_plan(change(PLAN), path)
        assert load_plan(path) == change(PLAN)
