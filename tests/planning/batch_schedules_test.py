"""Stages for an unknown batch size: which are made of plans for several, and how they run."""

from __future__ import annotations

import dataclasses
import pathlib

from planning_graphs import CONFIGURATION, make_graph, make_lanes, make_stage

from tf_interop.graph.fingerprint import fingerprint_convolutions
from tf_interop.planning.check import check_stages
from tf_interop.planning.file import load_plan, save_plan
from tf_interop.planning.lookup import stages_for_batch_sizes, stages_from_plan
from tf_interop.planning.problem import ValueSource
from tf_interop.planning.types import (
    BatchSchedule,
    GraphPlan,
    GraphPrediction,
    Plan,
    PlannedStage,
    StagePrediction,
    UnstagedConvolution,
)
from tf_interop.stage import Lane, Stage, Step

NODES = {"a": "Conv2D", "b": "Conv2D", "c": "Conv2D"}
UNKNOWN = dict.fromkeys(
    NODES, dataclasses.replace(CONFIGURATION, image_shape=(None, 28, 28, 16), output_shape=None)
)


def saving(stage: PlannedStage, saved_us: float) -> PlannedStage:
    """The stage, predicted to take 100 us less `saved_us`."""
    prediction = StagePrediction(100.0 - saved_us, 1.0, 100.0, ValueSource.MEASURED, 0, 0)
    return dataclasses.replace(stage, prediction=prediction)


def entry(
    batch_size: int, *stages: PlannedStage, unstaged: dict[str, str] | None = None
) -> GraphPlan:
    """A plan of a graph that takes 1000 us in sequence."""
    return GraphPlan(
        "",
        len(NODES),
        stages,
        batch_size,
        GraphPrediction(900.0, 1000.0, 0, 0, None, "exact"),
        tuple(
            UnstagedConvolution(node, algorithm, 10.0, 0, 0)
            for node, algorithm in (unstaged or {}).items()
        ),
    )


def test_gives_a_stage_the_schedule_of_each_batch_size() -> None:
    small = make_lanes("a:FFT b:WINOGRAD")
    large = Stage((Lane((Step("b", "GEMM"),), priority=-1), Lane((Step("a", "FFT"),), sm_count=8)))
    [stage] = stages_for_batch_sizes(
        [entry(32, PlannedStage(large)), entry(8, PlannedStage(small))]
    )
    assert stage.stage == large
    assert stage.schedules == (BatchSchedule(8, small), BatchSchedule(32, large))
    assert stage.why == "of the plan for batch sizes 8, 32, grouped as for 32"


def test_runs_in_sequence_where_a_plan_groups_otherwise() -> None:
    [stage] = stages_for_batch_sizes(
        [
            entry(32, saving(make_stage("a:FFT", "b"), 90)),
            entry(8, make_stage("b:GEMM", "c"), unstaged={"a": "WINOGRAD"}),
        ]
    )
    # What is in no stage takes the algorithm that is fastest alone; what the plan puts beside
    # others has none that says anything about running in sequence.
    assert stage.schedules[0] == BatchSchedule(8, make_lanes("a:WINOGRAD b"))


def test_takes_the_grouping_that_saves_most_over_all_batch_sizes() -> None:
    small = entry(8, saving(make_stage("a", "b"), 90))
    large = entry(32, saving(make_stage("b", "c"), 20))
    [stage] = stages_for_batch_sizes([small, large])
    assert stage.stage == make_lanes("a", "b")
    # With one more batch size that gains by the other grouping, that one is better in all.
    larger = entry(64, saving(make_stage("b", "c"), 80))
    [stage] = stages_for_batch_sizes([small, large, larger])
    assert stage.stage == make_lanes("b", "c")


def test_takes_the_largest_where_nothing_is_predicted() -> None:
    lanes = {1: ("a", "b"), 32: ("b", "c"), 8: ("a", "c")}
    entries = [
        dataclasses.replace(entry(size, make_stage(*each)), prediction=None)
        for size, each in lanes.items()
    ]
    [stage] = stages_for_batch_sizes(entries)
    assert stage.stage == make_lanes("b", "c")


def test_a_plan_for_one_batch_size_holds_for_no_other() -> None:
    [stage] = stages_for_batch_sizes([entry(8, make_stage("a", "b"))])
    assert [schedule.batch_size for schedule in stage.schedules] == [8]
    assert stage.why == "of the plan for batch size 8"


def _plan(*entries: GraphPlan) -> Plan:
    _, convolutions = make_graph(NODES)
    fingerprint = fingerprint_convolutions(convolutions)
    return Plan(tuple(dataclasses.replace(each, fingerprint=fingerprint) for each in entries))


def test_a_graph_of_unknown_batch_size_takes_all_entries() -> None:
    plan = _plan(entry(8, make_stage("a:FFT", "b")), entry(32, make_stage("a", "b:GEMM")))
    view, convolutions = make_graph(NODES, configurations=UNKNOWN)
    [stage] = stages_from_plan(plan, convolutions)
    check_stages([stage], view, convolutions)
    assert [schedule.batch_size for schedule in stage.schedules] == [8, 32]
    # A graph whose batch size is known goes by its own entry.
    _, known = make_graph(NODES)
    assert stages_from_plan(plan, known) == (make_stage("a:FFT", "b"),)


def test_a_plan_file_keeps_schedules(tmp_path: pathlib.Path) -> None:
    view, convolutions = make_graph(NODES, configurations=UNKNOWN)
    plan = _plan(entry(8, make_stage("a:FFT", "b")), entry(32, make_stage("a", "b:GEMM")))
    stages = stages_from_plan(plan, convolutions)
    made = GraphPlan(fingerprint_convolutions(convolutions), len(convolutions), stages)
    save_plan(Plan((made,)), tmp_path / "plan.json")
    assert stages_from_plan(load_plan(tmp_path / "plan.json"), convolutions) == stages
    check_stages(stages, view, convolutions)
