"""Traces, by the rules of the format as Perfetto reads it."""

from __future__ import annotations

import collections
import itertools
import json

import pytest
from report_values import EVIL_NAME, network_plan, plan_without_values

from tf_interop.planning.types import GraphPlan, GraphPrediction, Plan, UnstagedConvolution
from tf_interop.report.timeline_trace import trace_of_plan


def test_events_are_complete_named_and_overlap_in_no_row() -> None:
    trace = json.loads(json.dumps(trace_of_plan(network_plan())))
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    metadata = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    assert len(spans) + len(metadata) == len(trace["traceEvents"])
    for event in spans:
        assert set(event) == {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"}
        assert event["ts"] >= 0 and event["dur"] > 0
    named = {(event["pid"], event["tid"]) for event in metadata if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in spans} <= named
    rows = collections.defaultdict(list)
    for event in spans:
        rows[event["pid"], event["tid"]].append(event)
    for row in rows.values():
        for before, after in itertools.pairwise(sorted(row, key=lambda event: event["ts"])):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-9
    assert [event["args"]["name"] for event in metadata if event["name"] == "process_name"] == [
        "batch 8: one after another",
        "batch 8: in stages",
    ]
    assert {event["name"] for event in spans} >= {EVIL_NAME, "stem"}


def test_spans_are_as_long_as_the_plan_says_and_say_what_the_time_is() -> None:
    plan = network_plan()
    trace = trace_of_plan(plan)
    assert plan.graphs[0].prediction is not None
    ends = collections.defaultdict(float)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            ends[event["pid"]] = max(ends[event["pid"]], event["ts"] + event["dur"])
    assert ends[1] == pytest.approx(plan.graphs[0].prediction.sequential_us)
    assert ends[2] == pytest.approx(plan.graphs[0].prediction.latency_us)
    [span] = [
        event for event in trace["traceEvents"] if event["name"] == EVIL_NAME and event["pid"] == 2
    ]
    assert span["args"]["time is"] == "modelled"
    assert span["args"]["stage"] == 1 and span["cat"] == "stage 1"
    assert span["args"]["algorithm"] == "IMPLICIT_PRECOMP_GEMM"
    # Alone it takes less than the stage.
    assert span["args"]["alone_us"] == 48.0 and span["dur"] == 62.0


def test_simulated_times_are_never_called_measured() -> None:
    trace = trace_of_plan(network_plan(simulated="made up"))
    kinds = {event["args"]["time is"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert kinds == {"simulated", "modelled"}
    assert trace["otherData"]["simulated"] == "made up"


def test_graphs_without_times_are_left_out() -> None:
    both = Plan((*plan_without_values().graphs, *network_plan().graphs))
    assert trace_of_plan(plan_without_values())["traceEvents"] == []
    assert {event["pid"] for event in trace_of_plan(both)["traceEvents"]} == {1, 2}


def test_a_graph_without_stages_is_one_process_that_says_what_it_lacks() -> None:
    unstaged = UnstagedConvolution("a", "GEMM", 10.0, 10, before_stage=0)
    prediction = GraphPrediction(10.0, 10.0, 10, 10, None, "exact", unmeasured_count=2)
    graph = GraphPlan("f" * 16, 3, (), 8, prediction, (unstaged,), mode="training")
    trace = trace_of_plan(Plan((graph,)))
    assert [
        event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"
    ] == ["batch 8, training: one after another (incomplete: 1 of 3 convolutions measured)"]
