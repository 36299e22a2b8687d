"""The page of a report: whole, escaped, self-contained, and with the plan's values."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re

import pytest
from convolution_values import CONFIGURATION
from planning_values import make_lanes, make_problem, merge
from profile_values import GPU, make_profile
from report_page_tree import Element, Tree, cards_of, labels_of, page_of, rows_of
from report_values import (
    EVIL_NAME,
    network_plan,
    network_problem,
    plan_without_values,
    planned_graph,
    run_record,
)

from tf_interop.planning.explain import explain_plan
from tf_interop.planning.make import make_plan
from tf_interop.planning.types import BatchSchedule, GraphPlan, Plan, PlannedStage
from tf_interop.report.bars import memory_bars, sm_bars, time_bars
from tf_interop.report.drawing import draw_network
from tf_interop.report.network import describe_filter, network_for, network_of_problem
from tf_interop.report.page import render_page

NETWORKS = (network_of_problem(network_problem()),)


def test_totals_and_stages_are_those_of_the_plan() -> None:
    graph = planned_graph()
    page = page_of(network_plan(), networks=NETWORKS)
    cards = cards_of(page)
    assert {name: each.of_class("number")[0].text for name, each in cards.items()} == {
        "in stages": "222.0 µs",
        "one after another": "356.0 µs",
        "ratio": "1.60×",
        "stages": "2",
        "peak memory": "7.1 MB",
    }
    assert labels_of(cards["in stages"]) == ["measured", "modelled"]
    assert labels_of(cards["one after another"]) == ["measured"]
    assert cards["stages"].of_class("note")[0].text == "5 of 8 convolutions"
    assert cards["peak memory"].text.endswith("7.1 MB one after another; budget 33.6 MB")
    for panel, planned in zip(page.of_class("stage-panel"), graph.stages, strict=True):
        prediction, explanation = planned.prediction, planned.explanation
        assert prediction is not None and explanation is not None
        assert float(panel.attributes["data-latency-us"]) == prediction.latency_us
        assert float(panel.attributes["data-sequential-us"]) == prediction.sequential_us
        assert labels_of(panel.of_class("heading")[0]) == [prediction.source.value, "measured"]
        lanes = panel.of_class("lanes")[0].of_tag("li")
        for lane, step, explained in zip(
            lanes, planned.stage.steps, explanation.lanes, strict=True
        ):
            assert step.operation in lane.text
            assert lane.of_class("algorithm")[0].text == step.algorithm
            assert f"{explained.alone_us:.1f} µs alone" in lane.text
        rows = rows_of(panel.of_tag("table")[0])
        for row, alternative in zip(rows, explanation.alternatives, strict=True):
            assert f"{alternative.latency_us:.1f} µs" in row.text
            assert alternative.why_not in row.text
            assert labels_of(row) == [alternative.source.value]


def test_bars_add_up_to_what_the_plan_says_and_stand_against_the_limits() -> None:
    graph = planned_graph()
    for planned in graph.stages:
        prediction, explanation = planned.prediction, planned.explanation
        assert prediction is not None and explanation is not None
        times, memory = time_bars(planned), memory_bars(planned, graph.prediction)
        use = sm_bars(explanation.lanes)
        assert times is not None and memory is not None and use is not None
        totals = [sum(part.value for part in row.parts) for row in times.rows]
        alone = [lane.alone_us for lane in explanation.lanes]
        assert totals == [prediction.sequential_us, prediction.latency_us, *alone]
        assert times.rows[1].spread == prediction.spread_us
        totals = [sum(part.value for part in row.parts) for row in memory.rows]
        assert totals == [prediction.workspace_bytes, prediction.peak_bytes]
        assert memory.limit == 32 << 20
        for bars in (times, memory, use):
            assert all(sum(part.value for part in row.parts) <= bars.end for row in bars.rows)
            assert bars.limit is None or bars.limit < bars.end


def test_what_is_over_the_limit_of_an_sm_is_marked() -> None:
    explanation = planned_graph().stages[0].explanation
    assert explanation is not None and explanation.lanes[0].sm_use is not None
    lane = explanation.lanes[0]
    use = dataclasses.replace(explanation.lanes[0].sm_use, registers=0.92, shared_memory=0.39)
    crowded = dataclasses.replace(lane, sm_use=use)
    bars = sm_bars((crowded, crowded))
    assert bars is not None
    rows = {row.label: (row.text, row.is_over) for row in bars.rows}
    assert rows["registers"] == ("184 %", True)
    assert rows["shared memory"] == ("78 %", False)
    assert sm_bars((crowded, dataclasses.replace(crowded, sm_use=None))) is None


def test_names_from_graphs_are_text_wherever_they_stand() -> None:
    root = page_of(network_plan(), title=EVIL_NAME, networks=NETWORKS, run=run_record())
    assert len(root.of_tag("script")) == 1 and not root.of_tag("b")[0].attributes
    assert "alert(1)" not in root.of_tag("script")[0].text
    assert root.of_tag("h1")[0].text == EVIL_NAME
    assert EVIL_NAME in root.of_class("stage-panel")[1].text
    assert any(EVIL_NAME in each.text for each in root.of_tag("title"))
    assert any(EVIL_NAME in each.attributes.get("data-says", "") for each in root.of_class("node"))
    assert any(each.text == "train.py --name <i>x</i>" for each in root.of_tag("code"))
    assert not root.of_tag("i") and "<b>dw</b>" in root.text


def test_the_page_needs_nothing_else_and_allows_only_its_own_script() -> None:
    page = render_page(network_plan(), title="x", networks=NETWORKS, run=run_record())
    root = Tree(page).root
    assert not re.search(r"https?://|url\(|@import|\bsrc=|<link|<img|<iframe", page)
    assert not root.all(
        lambda each: any(name == "style" or name.startswith("on") for name in each.attributes)
    )
    [policy] = [
        each.attributes["content"]
        for each in root.of_tag("meta")
        if each.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        [text] = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy


def test_simulated_values_are_never_called_measured() -> None:
    page = page_of(network_plan(simulated="made up for a test"), networks=NETWORKS)
    assert page.of_class("warning")[0].text.endswith("made up for a test")
    [main] = page.of_tag("main")
    assert set(labels_of(main)) == {"simulated", "modelled", "counted"}
    assert "measured" not in main.text.replace("not measured", "")


def test_stages_and_dependencies_are_drawn() -> None:
    drawn = draw_network(planned_graph(), NETWORKS[0])
    assert {node.label for node in drawn.nodes} == {"1×1", "3×3"}
    assert len(drawn.edges) == sum(len(node.predecessors) for node in network_problem().nodes)
    assert len(drawn.frames) == len(planned_graph().stages)
    for frame in drawn.frames:
        inside = {
            node.name
            for node in drawn.nodes
            if frame.x < node.x < frame.x + frame.width
            and frame.y < node.y < frame.y + frame.height
        }
        assert inside == set(planned_graph().stages[frame.stage].nodes)
    # In the order of the plan it is a line.
    assert len(draw_network(planned_graph(), None).edges) == 4


def panel_of(
    nodes: dict[str, str], stages: dict[str, float], merged: dict[str, float]
) -> tuple[GraphPlan, Element]:
    """A plan with one stage, and the part of its page about that; a and b read one image."""
    latencies_us = {"a": 10.0, "b": 20.0, "c": 10.0}
    keys = {"a": "x", "b": "x"}
    problem = make_problem(nodes, latencies_us, stages, merged=merged, merge_keys=keys)
    graph = explain_plan(problem, make_plan(problem))
    [panel] = page_of(graph).of_class("stage-panel")
    return graph, panel


def test_a_lane_of_dependent_steps_shows_their_order() -> None:
    _, panel = panel_of({"a": "", "b": "a", "c": ""}, {"a>b c": 18}, {})
    first, second = panel.of_class("lanes")[0].of_tag("li")
    assert first.text == "lane 0 · 30.0 µs alone, 5 bytes of workspace a GEMM → b GEMM"
    assert "→" not in second.text


def test_what_is_merged_and_what_is_rejected_is_shown_with_the_reason() -> None:
    apart = {"a": "", "b": "", "c": ""}
    graph, panel = panel_of(apart, {"a b": 24}, {"a b": 20})
    assert "33 % less" in panel.text
    [lane] = panel.of_class("lane")
    assert lane.text == "lane 0 · merged into one wider convolution · 30.0 µs one after another"
    # Of the wider convolution alone nothing was measured.
    assert "lane 0 unmerged" in panel.text and "lane 0 alone" not in panel.text
    [table] = page_of(graph).of_class("rejected")
    assert graph.rejected
    assert [row.text for row in rows_of(table)] == [
        f"{' '.join(each.nodes)} {each.count} {each.why_not}" for each in graph.rejected
    ]
    _, panel = panel_of(apart, {"a b": 24}, {"a b": 26})
    [row] = [row for row in panel.of_tag("tr") if "WINOGRAD" in row.text]
    assert row.text.startswith("2 merged with WINOGRAD 26.0 µs")


def test_every_batch_size_of_a_stage_is_shown() -> None:
    stage = make_lanes("a b")
    asking = dataclasses.replace(stage.lanes[0], priority=-1)
    schedules = (
        BatchSchedule(2, merge("a b", "GEMM")),
        BatchSchedule(8, dataclasses.replace(stage, lanes=(asking, stage.lanes[1]))),
        BatchSchedule(32, make_lanes("a>b")),
    )
    graph = GraphPlan("fedcba9876543210", 2, (PlannedStage(stage, schedules=schedules),))
    [table] = page_of(graph).of_class("schedules")
    assert [row.text for row in rows_of(table)] == [
        "2 lane 0: a and b, merged into one wider convolution, with GEMM",
        "8 lane 0: a with GEMM, priority -1 lane 1: b with GEMM",
        "32 lane 0: a with GEMM → b with GEMM",
        "any other in sequence",
    ]


def test_convolutions_of_volumes_are_labelled_with_all_sizes() -> None:
    volume = dataclasses.replace(CONFIGURATION, op="Conv3D", filter_shape=(1, 3, 5, 16, 32))
    assert describe_filter(volume) == "1×3×5"


def test_every_measured_algorithm_of_a_convolution_is_listed() -> None:
    panel = page_of(network_plan(), networks=NETWORKS).of_class("stage-panel")[0]
    # What each computes, and what was measured of it.
    assert panel.of_class("note")[0].text.startswith("forward 8x28x28x16 * 1x1x16x32")
    [table] = panel.of_tag("details")[0].of_tag("table")
    assert [row.text for row in rows_of(table)] == [
        "IMPLICIT_PRECOMP_GEMM (pinned) 27.0 µs ± 0.5 µs 262.1 kB",
        "FFT_TILING 31.0 µs ± 0.5 µs 1.0 MB",
    ]


def test_a_run_adds_timings_and_refusals_and_a_profile_the_device() -> None:
    page = page_of(network_plan(), networks=NETWORKS, run=run_record())
    timings = {name: each for name, each in cards_of(page).items() if "whole call" in name}
    assert set(timings) == {"whole call, stock TensorFlow", "whole call, tf_interop"}
    assert timings["whole call, tf_interop"].of_class("number")[0].text == "1.901 ms"
    assert "other operations included" in timings["whole call, tf_interop"].text
    assert "Expected float32, got int8." in page.text
    assert "2 times: no workspace" in page.text
    assert "3 stages made of 8 convolutions on GPU" in page.text
    # A traced model says of refusals itself.
    [of_run] = run_record().graphs
    network = dataclasses.replace(NETWORKS[0], refusals=of_run.refusals)
    page = page_of(network_plan(), networks=[network], profile=make_profile(device=GPU))
    [row] = [row for row in page.of_tag("tr") if "<b>dw</b>" in row.text]
    assert row.text == "<b>dw</b> Conv2D dtype Expected float32, got int8."
    # And a profile of the device.
    [facts] = page.of_class("facts")
    assert all(fact in facts.text for fact in ("device NVIDIA H200", "SMs 132", "cuDNN 9.10.2"))


def test_graphs_are_told_apart() -> None:
    graph = planned_graph()
    plan = Plan(
        (
            dataclasses.replace(graph, mode="inference"),
            dataclasses.replace(graph, mode="training", batch_size=1),
            dataclasses.replace(graph, mode="training", batch_size=1, convolution_count=20),
        )
    )
    page = page_of(plan, networks=NETWORKS)
    links = page.of_tag("nav")[0].of_tag("a")
    assert [link.text for link in links] == [
        "batch 8, inference",
        "batch 1, training, 8 convolutions",
        "batch 1, training, 20 convolutions",
    ]
    sections = page.of_class("graph")
    assert [each.attributes["href"] for each in links] == [
        f"#{each.attributes['id']}" for each in sections
    ]
    # The problem is of batch size 8.
    in_order = ["in the order of the plan" in each.of_class("hint")[0].text for each in sections]
    assert in_order == [False, True, True]


def test_a_network_fits_under_other_numbers_of_the_model() -> None:
    nodes = tuple(
        dataclasses.replace(node, name=f"net_1/{number}")
        for number, node in enumerate(NETWORKS[0].nodes)
    )
    renamed = dataclasses.replace(NETWORKS[0], nodes=nodes)
    graph = planned_graph()
    name_of = {node.name: f"net/{number}" for number, node in enumerate(NETWORKS[0].nodes)}
    stages = tuple(
        dataclasses.replace(planned, stage=planned.stage.map(name_of.__getitem__))
        for planned in graph.stages
    )
    as_in_plan = dataclasses.replace(graph, stages=stages, unstaged=())
    found = network_for(as_in_plan, [renamed])
    assert found is not None
    assert {name for each in stages for name in each.nodes} <= {node.name for node in found.nodes}
    assert network_for(graph, [renamed]) is None


@pytest.mark.parametrize("stage", [0, 1])
def test_shows_first_what_saves_most_and_else_the_widest(stage: int) -> None:
    [stepper] = page_of(network_plan()).of_class("stepper")
    assert stepper.attributes["data-first"] == "1"  # saves 103 against 31 µs
    stages = [PlannedStage(make_lanes("a")), *map(PlannedStage, map(make_lanes, ("b c", "d e")))]
    [stepper] = page_of(GraphPlan("f" * 16, 7, tuple(stages[1 - stage :]))).of_class("stepper")
    assert stepper.attributes["data-first"] == str(stage)


def test_a_plan_without_values_has_a_page_too() -> None:
    page = page_of(plan_without_values())
    assert not page.of_class("timeline") and not page.of_class("bars")
    [panel] = page.of_class("stage-panel")
    assert "always: depth 1" in panel.text
    assert "priority -1, 64 SMs of its own · merged into one wider convolution" in panel.text
    assert "left_too" in panel.text
