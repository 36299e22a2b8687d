"""Stages for an unknown batch size: which are made of plans for several, and how they run."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest
from planning_graphs import CONFIGURATION, make_graph, make_stage

from tf_interop.errors import PlanError
from tf_interop.graph.fingerprint import fingerprint_convolutions
from tf_interop.plan.batch_schedules import stages_for_batch_sizes
from tf_interop.plan.check import check_stages
from tf_interop.plan.file import load_plan, save_plan
from tf_interop.plan.lookup import stages_from_plan
from tf_interop.plan.problem import FigureSource
from tf_interop.plan.types import (
    AloneConvolution,
    BatchSchedule,
    GraphPlan,
    GraphPrediction,
    LaneOptions,
    PinnedConvolution,
    Plan,
    PlannedStage,
    StagePrediction,
)

NODES = {"a": "Conv2D", "b": "Conv2D", "c": "Conv2D"}
UNKNOWN = dict.fromkeys(
    NODES, dataclasses.replace(CONFIGURATION, image_shape=(None, 28, 28, 16), output_shape=None)
)


def pinned(*lanes: str, saved_us: float | None = None) -> PlannedStage:
    """A stage of lanes such as `"a:FFT b"`, predicted to take 100 us less `saved_us`."""
    stage = PlannedStage(
        tuple(
            tuple(PinnedConvolution(name, algorithm or None) for name, _, algorithm in parts)
            for parts in ([item.partition(":") for item in lane.split()] for lane in lanes)
        )
    )
    if saved_us is None:
        return stage
    prediction = StagePrediction(100.0 - saved_us, 1.0, 100.0, FigureSource.MEASURED, 0, 0)
    return dataclasses.replace(stage, prediction=prediction)


def entry(batch_size: int, *stages: PlannedStage, alone: dict[str, str] | None = None) -> GraphPlan:
    """A plan of a graph that takes 1000 us in sequence."""
    return GraphPlan(
        "",
        len(NODES),
        stages,
        batch_size,
        GraphPrediction(900.0, 1000.0, 0, 0, None, "exact"),
        tuple(
            AloneConvolution(node, algorithm, 10.0, 0, 0)
            for node, algorithm in (alone or {}).items()
        ),
    )


def test_gives_a_stage_the_schedule_of_each_batch_size() -> None:
    [stage] = stages_for_batch_sizes(
        [entry(32, pinned("b:GEMM", "a:FFT")), entry(8, pinned("a:FFT b:WINOGRAD"))]
    )
    assert stage.lanes == pinned("b:GEMM", "a:FFT").lanes
    assert stage.schedules == (
        BatchSchedule(8, pinned("a:FFT b:WINOGRAD").lanes),
        BatchSchedule(32, pinned("b:GEMM", "a:FFT").lanes),
    )
    assert stage.why == "of the plan for batch sizes 8, 32, grouped as for 32"


def test_runs_in_sequence_where_a_plan_groups_otherwise() -> None:
    [stage] = stages_for_batch_sizes(
        [
            entry(32, pinned("a:FFT", "b", saved_us=90)),
            entry(8, pinned("b:GEMM", "c"), alone={"a": "WINOGRAD"}),
        ]
    )
    # What is alone takes the algorithm that is fastest alone; what the plan puts beside others
    # has none that says anything about running in sequence.
    assert stage.schedules[0] == BatchSchedule(8, pinned("a:WINOGRAD b").lanes)


def test_keeps_the_options_of_each_schedule() -> None:
    options = (LaneOptions(priority=-1), LaneOptions(sm_count=8))
    large = dataclasses.replace(pinned("a", "b"), lane_options=options)
    [stage] = stages_for_batch_sizes([entry(8, pinned("a", "b")), entry(32, large)])
    assert [schedule.lane_options for schedule in stage.schedules] == [(), options]
    assert stage.lane_options == options


def test_takes_the_grouping_that_saves_most_over_all_batch_sizes() -> None:
    small = entry(8, pinned("a", "b", saved_us=90))
    large = entry(32, pinned("b", "c", saved_us=20))
    [stage] = stages_for_batch_sizes([small, large])
    assert stage.lanes == pinned("a", "b").lanes
    # With one more batch size that gains by the other grouping, that one is better in all.
    larger = entry(64, pinned("b", "c", saved_us=80))
    [stage] = stages_for_batch_sizes([small, large, larger])
    assert stage.lanes == pinned("b", "c").lanes


def test_takes_the_largest_where_nothing_is_predicted() -> None:
    entries = [
        dataclasses.replace(entry(size, stage), prediction=None)
        for size, stage in ((1, pinned("a", "b")), (32, pinned("b", "c")), (8, pinned("a", "c")))
    ]
    [stage] = stages_for_batch_sizes(entries)
    assert stage.lanes == pinned("b", "c").lanes


def test_a_plan_for_one_batch_size_holds_for_no_other() -> None:
    [stage] = stages_for_batch_sizes([entry(8, pinned("a", "b"))])
    assert [schedule.batch_size for schedule in stage.schedules] == [8]
    assert stage.why == "of the plan for batch size 8"


def _plan(*entries: GraphPlan) -> Plan:
    _, convolutions = make_graph(NODES)
    fingerprint = fingerprint_convolutions(convolutions)
    return Plan(tuple(dataclasses.replace(each, fingerprint=fingerprint) for each in entries))


def test_a_graph_of_unknown_batch_size_takes_all_entries() -> None:
    plan = _plan(entry(8, pinned("a:FFT", "b")), entry(32, pinned("a", "b:GEMM")))
    view, convolutions = make_graph(NODES, configurations=UNKNOWN)
    [stage] = stages_from_plan(plan, convolutions)
    check_stages([stage], view, convolutions)
    assert [schedule.batch_size for schedule in stage.schedules] == [8, 32]
    # A graph whose batch size is known goes by its own entry.
    _, known = make_graph(NODES)
    assert stages_from_plan(plan, known) == (pinned("a:FFT", "b"),)


def test_names_schedules_as_this_trace_of_the_model() -> None:
    traced = {f"net_4/{name}": op for name, op in NODES.items()}
    configurations = dict.fromkeys(traced, UNKNOWN["a"])
    _, convolutions = make_graph(traced, configurations=configurations)
    fingerprint = fingerprint_convolutions(convolutions)
    plan = Plan(
        tuple(
            dataclasses.replace(
                entry(size, pinned("net_1/a", "net_1/b"), alone={"net_1/c": "FFT"}),
                fingerprint=fingerprint,
            )
            for size in (8, 32)
        )
    )
    [stage] = stages_from_plan(plan, convolutions)
    assert {schedule.lanes for schedule in stage.schedules} == {pinned("net_4/a", "net_4/b").lanes}


def test_a_plan_file_keeps_schedules(tmp_path: pathlib.Path) -> None:
    view, convolutions = make_graph(NODES, configurations=UNKNOWN)
    plan = _plan(entry(8, pinned("a:FFT", "b")), entry(32, pinned("a", "b:GEMM")))
    stages = stages_from_plan(plan, convolutions)
    made = GraphPlan(fingerprint_convolutions(convolutions), len(convolutions), stages)
    save_plan(Plan((made,)), tmp_path / "plan.json")
    assert stages_from_plan(load_plan(tmp_path / "plan.json"), convolutions) == stages
    check_stages(stages, view, convolutions)


@pytest.mark.parametrize(
    ("schedules", "message"),
    [
        ((BatchSchedule(8, pinned("a").lanes),), "Expected a schedule of .'a', 'b'. for batch"),
        ((BatchSchedule(8, pinned("a", "b", "c").lanes),), "Expected a schedule of"),
        ((BatchSchedule(8, (*pinned("a", "b").lanes, ())),), "on 3 lanes|length >= 1"),
        (
            tuple(BatchSchedule(size, pinned("a", "b").lanes) for size in (8, 8)),
            "ascending batch sizes, got .8, 8.",
        ),
        (
            (BatchSchedule(8, pinned("a", "b").lanes, (LaneOptions(),)),),
            "options for none or all of 2 lanes, got 1",
        ),
        ((BatchSchedule(8, pinned("a", "b:NONSENSE").lanes),), "NONSENSE"),
    ],
)
def test_refuses_schedules_that_are_not_of_the_stage(
    schedules: tuple[BatchSchedule, ...], message: str, tmp_path: pathlib.Path
) -> None:
    stage = dataclasses.replace(make_stage("a", "b"), schedules=schedules)
    view, convolutions = make_graph(NODES)
    with pytest.raises(PlanError, match=message):
        check_stages([stage], view, convolutions)
    with pytest.raises(PlanError, match=message):
        save_plan(Plan((GraphPlan("0" * 16, 3, (stage,)),)), tmp_path / "plan.json")
