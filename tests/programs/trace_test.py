"""Traces of `tf-interop run --trace` and of TensorFlow's profiler, on the CPU."""

from __future__ import annotations

import collections
import json
import pathlib
import time
from typing import Any

import pytest
import tensorflow as tf
from command_line import invoke, run_process
from profiled_events import profile

import tf_interop
from tf_interop.planning.types import GraphPlan, load_plan
from tf_interop.runtime.plugin import get_plugin

CALLS = 10  # of each op in a trace

PROGRAM = """
import sys
import branched_models
import tensorflow as tf

step = tf.function(branched_models.build_module())
for _ in range(int(sys.argv[1])):
    step(tf.ones((2, 16, 16, 3)))
raise ValueError("of the program")
"""


def run(folder: pathlib.Path, calls: int, *, stages: bool) -> tuple[GraphPlan, dict[str, Any]]:
    """Runs the program with a trace; returns the plan that it saved, and the trace."""
    (folder / "program.py").write_text(PROGRAM)
    ended = run_process(
        *("run", "--policy", "always", "--trace", "trace.json", "--save-plan", "plan.json"),
        *("program.py", str(calls)),
        folder=folder,
        TF_INTEROP_LIBRARY=str(get_plugin().library.build_info.path),
        TF_INTEROP_HOST_STAGES=str(int(stages)),
    )
    # The trace is written even if the program fails.
    assert ended.returncode == 1 and ended.stderr.endswith("ValueError: of the program\n")
    [graph] = load_plan(folder / "plan.json").graphs
    return graph, json.loads((folder / "trace.json").read_text())


def events_of(trace: dict[str, Any]) -> list[dict[str, Any]]:
    assert trace["otherData"]["made by"] == "tf-interop run"
    events = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    named = {each["tid"] for each in trace["traceEvents"] if each["name"] == "thread_name"}
    assert {each["tid"] for each in events} == named
    return events


def ends(event: dict[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def test_has_the_units_of_the_first_calls(tmp_path: pathlib.Path) -> None:
    graph, trace = run(tmp_path, CALLS + 3, stages=False)
    assert graph.stages == ()
    events = events_of(trace)
    of_op = collections.defaultdict(list)
    for each in events:
        of_op[each["args"]["op"]].append(each["args"]["call"])
    [named] = trace["otherData"]["graphs"].values()
    assert set(of_op) == set(named["units"])
    assert len(of_op) > 1
    assert named["convolutions"] == list(graph.structure.names)
    assert all(sorted(its) == list(range(1, CALLS + 1)) for its in of_op.values())
    # The program's calls run one after another.
    last: dict[int, float] = collections.defaultdict(float)
    for each in events:
        call = each["args"]["call"]
        last[call] = max(last[call], ends(each))
    assert all(each["ts"] >= last.get(each["args"]["call"] - 1, 0) for each in events)
    operations = {name for each in events for name in each["args"]["operations"]}
    assert any("stem" in name for name in operations)
    assert {each["args"]["runs"] for each in events} == {"on 1 core"}


def test_has_lanes_inside_their_stage_for_a_report(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, trace = run(tmp_path, 4, stages=True)
    events = events_of(trace)
    stages = {
        (each["args"]["op"], each["args"]["call"]): each
        for each in events
        if each["cat"] == "stage"
    }
    assert len(stages) == len(graph.stages) * 3
    lanes = [each for each in events if each["cat"] == "lane"]
    assert len(lanes) == 3 * sum(len(each.nodes) for each in graph.stages)
    for each in lanes:
        stage = stages[each["args"]["op"], each["args"]["call"]]
        assert stage["ts"] <= each["ts"] and ends(each) <= ends(stage)
        assert each["dur"] > 0 and each["args"]["algorithm"] == "BUFFERED"
    monkeypatch.chdir(tmp_path)
    invoke("report plan.json --trace trace.json -o page.html")
    page = (tmp_path / "page.html").read_text()
    assert "In a run: " in page and "the median of 3 calls" in page


def test_tensorflows_profiler_names_stages_and_lanes(
    plugin_as_after_import: None, tmp_path: pathlib.Path
) -> None:
    @tf.function
    def branches(image: Any) -> Any:
        left = tf.nn.conv2d(image, tf.ones([1, 1, 8, 8]), 1, "SAME", name="left")
        right = tf.nn.conv2d(image, tf.ones([3, 3, 8, 8]), 1, "SAME", name="right")
        return tf.concat([left, right], -1)

    def call() -> None:
        branches(tf.ones([2, 16, 16, 8]))
        time.sleep(0.2)  # the launching thread may end its span after the results are there

    tf_interop.enable(policy="always")
    call()
    events = profile(tmp_path, call)
    [stage] = [event for event in events if event.name.startswith("stage ")]
    assert stage.name != "stage "
    assert stage.details["schedule"] == "for every batch size"
    assert (stage.details["convolutions"], stage.details["lanes"]) == ("2", "2")
    for lane, name in enumerate(("left", "right")):
        [span] = [event for event in events if event.name == f"lane {lane}: {name} [BUFFERED]"]
        assert span.thread == stage.thread
        details = [span.details[key] for key in ("lane", "convolutions", "algorithm")]
        assert details == [str(lane), name, "BUFFERED"]
