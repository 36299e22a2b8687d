"""The page of a report: whole, escaped, self-contained, and with the plan's figures."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re

import pytest
from convolution_values import CONFIGURATION
from planning_values import make_problem
from profile_values import GPU, make_profile
from report_page_tree import Tree, labels_of, page_of
from report_values import (
    EVIL_NAME,
    network_plan,
    network_problem,
    plan_without_figures,
    planned_graph,
    run_record,
)

from tf_interop.plan.explain import explain_plan
from tf_interop.plan.make import make_plan
from tf_interop.plan.types import (
    BatchSchedule,
    GraphPlan,
    LaneOptions,
    PinnedConvolution,
    Plan,
    PlannedStage,
)
from tf_interop.report.bars import sm_bars
from tf_interop.report.data import Report, graph_titles, make_report
from tf_interop.report.network import describe_filter, network_for, network_of_problem
from tf_interop.report.page import render_report


def _report(plan: Plan | None = None, *, with_network: bool = True, **others: object) -> Report:
    networks = (network_of_problem(network_problem()),) if with_network else ()
    return make_report(plan or network_plan(), title="A network", networks=networks, **others)  # type: ignore[arg-type]


def test_totals_and_stages_are_those_of_the_plan() -> None:
    graph = planned_graph()
    page = page_of(_report())
    figures = {each.of_class("name")[0].text: each for each in page.of_class("figure")}
    assert {name: each.of_class("number")[0].text for name, each in figures.items()} == {
        "in stages": "222.0 µs",
        "one after another": "356.0 µs",
        "ratio": "1.60×",
        "stages": "2",
        "peak memory": "7.1 MB",
    }
    assert labels_of(figures["in stages"]) == ["measured", "modelled"]
    assert labels_of(figures["one after another"]) == ["measured"]
    assert figures["stages"].of_class("note")[0].text == "5 of 8 convolutions"
    assert figures["peak memory"].text.endswith("7.1 MB one after another; budget 33.6 MB")
    panels = page.of_class("stage-panel")
    assert len(panels) == len(graph.stages)
    for panel, stage in zip(panels, graph.stages, strict=True):
        assert stage.prediction is not None and stage.explanation is not None
        assert float(panel.attributes["data-latency-us"]) == stage.prediction.latency_us
        assert float(panel.attributes["data-sequential-us"]) == stage.prediction.sequential_us
        assert labels_of(panel.of_class("heading")[0]) == [
            stage.prediction.source.value,
            "measured",
        ]
        lanes = panel.of_class("lanes")[0].of_tag("li")
        for lane, pinned, explained in zip(
            lanes, stage.convolutions, stage.explanation.lanes, strict=True
        ):
            assert pinned.node in lane.text
            assert lane.of_class("algorithm")[0].text == pinned.algorithm
            assert f"{explained.alone_us:.1f} µs alone" in lane.text
        rows = panel.of_tag("table")[0].of_tag("tbody")[0].of_tag("tr")
        for row, alternative in zip(rows, stage.explanation.alternatives, strict=True):
            assert f"{alternative.latency_us:.1f} µs" in row.text
            assert alternative.why_not in row.text
            assert labels_of(row) == [alternative.source.value]


def test_bars_add_up_to_what_the_plan_says_and_stand_against_the_limits() -> None:
    [first, second] = _report().graphs[0].stages
    for stage in (first, second):
        prediction, explanation = stage.planned.prediction, stage.planned.explanation
        assert prediction is not None and explanation is not None
        assert stage.times is not None and stage.memory is not None and stage.sm_use is not None
        one_by_one, together, *alone = stage.times.rows
        scale = together.segments[0].width / prediction.latency_us
        assert sum(each.width for each in one_by_one.segments) == pytest.approx(
            prediction.sequential_us * scale
        )
        assert [row.segments[0].width for row in alone] == pytest.approx(
            [lane.alone_us * scale for lane in explanation.lanes]
        )
        assert together.spread == pytest.approx(
            (
                (prediction.latency_us - prediction.spread_us) * scale,
                (prediction.latency_us + prediction.spread_us) * scale,
            )
        )
        workspaces, with_outputs = stage.memory.rows
        assert stage.memory.limit is not None
        share = sum(each.width for each in with_outputs.segments) / stage.memory.limit
        assert share == pytest.approx(prediction.peak_bytes / (32 << 20))
        share = sum(each.width for each in workspaces.segments) / stage.memory.limit
        assert share == pytest.approx(prediction.workspace_bytes / (32 << 20))
        for bars in (stage.times, stage.memory, stage.sm_use):
            for row in bars.rows:
                end = 0.0
                for segment in row.segments:
                    assert segment.start == pytest.approx(end)
                    end += segment.width
                assert end <= 1


def test_what_is_over_the_limit_of_an_sm_is_marked() -> None:
    explanation = planned_graph().stages[0].explanation
    assert explanation is not None
    lane = explanation.lanes[0]
    assert lane.sm_use is not None
    crowded = dataclasses.replace(
        lane, sm_use=dataclasses.replace(lane.sm_use, registers=0.92, shared_memory=0.39)
    )
    bars = sm_bars((crowded, crowded))
    assert bars is not None and bars.limit is not None
    rows = {row.label: row for row in bars.rows}
    assert (rows["registers"].text, rows["registers"].is_over) == ("184 %", True)
    assert (rows["shared memory"].text, rows["shared memory"].is_over) == ("78 %", False)
    assert sum(each.width for each in rows["registers"].segments) > bars.limit
    assert sm_bars((crowded, dataclasses.replace(crowded, sm_use=None))) is None


def test_names_from_graphs_are_text_wherever_they_stand() -> None:
    report = dataclasses.replace(_report(run=run_record()), title=EVIL_NAME)
    page = render_report(report)
    root = Tree(page).root
    assert len(root.of_tag("script")) == 1 and not root.of_tag("b")[0].attributes
    assert "alert(1)" not in root.of_tag("script")[0].text
    assert root.of_tag("h1")[0].text == EVIL_NAME
    assert EVIL_NAME in root.of_class("stage-panel")[1].text
    assert any(EVIL_NAME in each.text for each in root.of_tag("title"))
    assert any(EVIL_NAME in each.attributes.get("data-says", "") for each in root.of_class("node"))
    assert any(each.text == "train.py --name <i>x</i>" for each in root.of_tag("code"))
    assert not root.of_tag("i") and "<b>dw</b>" in root.text


def test_the_page_needs_nothing_else_and_allows_only_its_own_script() -> None:
    page = render_report(_report(run=run_record()))
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
        [text] = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy


def test_simulated_figures_are_never_called_measured() -> None:
    page = page_of(_report(network_plan(simulated="made up for a test")))
    assert page.of_class("warning")[0].text.endswith("made up for a test")
    [main] = page.of_tag("main")
    assert set(labels_of(main)) == {"simulated", "modelled", "counted"}
    assert "measured" not in main.text.replace("not measured", "")


def test_stages_and_dependencies_are_drawn() -> None:
    drawing = _report().graphs[0].network
    assert not drawing.is_order_only
    assert {node.label for node in drawing.nodes} == {"1×1", "3×3"}
    assert len(drawing.edges) == sum(len(node.predecessors) for node in network_problem().nodes)
    for stage in drawing.stages:
        inside = {
            node.title
            for node in drawing.nodes
            if stage.x < node.x < stage.x + stage.width
            and stage.y < node.y < stage.y + stage.height
        }
        names = {each.node for each in planned_graph().stages[stage.number].convolutions}
        assert inside == {f"{name}: stage {stage.number}" for name in names}


def test_without_dependencies_the_order_of_the_plan_is_drawn_and_said() -> None:
    report = _report(with_network=False)
    assert report.graphs[0].network.is_order_only
    text = page_of(report).text
    assert "A plan does not hold what depends on what" in text and "--model" in text


def test_stages_without_figures_have_a_page_too() -> None:
    page = page_of(_report(plan_without_figures()))
    assert "No planner made these stages" in page.text
    assert not page.of_class("timeline") and not page.of_class("bars")
    [panel] = page.of_class("stage-panel")
    assert "always: depth 1" in panel.text
    assert "priority -1, 64 SMs of its own, merged into one wider convolution" in panel.text
    assert "left_too" in panel.text


def _merged_graph(*, latency_us: float, of_two_lanes_us: float) -> GraphPlan:
    """Two convolutions of one image, measured merged and on two lanes, and one that is alone."""
    problem = make_problem(
        {"a": "", "b": "", "c": ""},
        {"a": 10, "b": 20, "c": 10},
        {"a b": of_two_lanes_us},
        merged={"a b": latency_us},
        merge_keys={"a": "x", "b": "x"},
    )
    return explain_plan(problem, make_plan(problem))


def test_a_merged_lane_says_what_it_saves_and_nothing_that_was_not_measured() -> None:
    graph = _merged_graph(latency_us=20, of_two_lanes_us=24)
    [panel] = page_of(_report(Plan((graph,)), with_network=False)).of_class("stage-panel")
    assert "33 % less" in panel.text
    [lane] = panel.of_class("lane")
    assert lane.text == "lane 0 · merged into one wider convolution · 30.0 µs one after another"
    assert "lane 0 unmerged" in panel.text and "lane 0 alone" not in panel.text


def test_an_alternative_says_what_it_merges() -> None:
    graph = _merged_graph(latency_us=26, of_two_lanes_us=24)
    [panel] = page_of(_report(Plan((graph,)), with_network=False)).of_class("stage-panel")
    [row] = [row for row in panel.of_tag("tr") if "WINOGRAD" in row.text]
    assert row.text.startswith("2 merged with WINOGRAD 26.0 µs")


def test_stages_that_the_plan_does_not_have_are_listed_with_the_reason() -> None:
    graph = _merged_graph(latency_us=20, of_two_lanes_us=24)
    [table] = page_of(_report(Plan((graph,)), with_network=False)).of_class("missed")
    rows = [row.text for row in table.of_tag("tbody")[0].of_tag("tr")]
    assert graph.missed
    assert rows == [f"{' '.join(each.nodes)} {each.count} {each.why_not}" for each in graph.missed]


def test_every_batch_size_of_a_stage_is_shown() -> None:
    a, b = PinnedConvolution("a", "GEMM"), PinnedConvolution("b", "GEMM")
    schedules = (
        BatchSchedule(2, ((a, b),), (LaneOptions(merged=True),)),
        BatchSchedule(8, ((a,), (b,)), (LaneOptions(priority=-1), LaneOptions())),
        BatchSchedule(32, ((a, b),)),
    )
    stage = PlannedStage(((a,), (b,)), lane_options=schedules[1].lane_options, schedules=schedules)
    plan = Plan((GraphPlan("fedcba9876543210", 2, (stage,)),))
    [table] = page_of(_report(plan, with_network=False)).of_class("schedules")
    assert [row.text for row in table.of_tag("tbody")[0].of_tag("tr")] == [
        "2 lane 0: a and b, merged into one wider convolution, with GEMM",
        "8 lane 0: a with GEMM, priority -1 lane 1: b with GEMM",
        "32 lane 0: a with GEMM, then b with GEMM",
        "any other in sequence",
    ]


def test_convolutions_of_volumes_are_labelled_with_all_sizes() -> None:
    volume = dataclasses.replace(CONFIGURATION, op="Conv3D", filter_shape=(1, 3, 5, 16, 32))
    assert describe_filter(volume) == "1×3×5"


def test_every_measured_algorithm_of_a_convolution_is_listed() -> None:
    panel = page_of(_report()).of_class("stage-panel")[0]
    [table] = panel.of_tag("details")[0].of_tag("table")
    rows = [row.text for row in table.of_tag("tbody")[0].of_tag("tr")]
    assert rows == [
        "IMPLICIT_PRECOMP_GEMM (pinned) 27.0 µs ± 0.5 µs 262.1 kB",
        "FFT_TILING 31.0 µs ± 0.5 µs 1.0 MB",
    ]


def test_a_run_adds_measured_steps_of_this_graph_and_batch_size_and_refusals() -> None:
    page = page_of(_report(run=run_record()))
    steps = {
        each.of_class("name")[0].text: each
        for each in page.of_class("figure")
        if "whole step" in each.text
    }
    assert set(steps) == {"whole step, stock TensorFlow", "whole step, tf_interop"}
    assert steps["whole step, tf_interop"].of_class("number")[0].text == "1.901 ms"
    assert "other operations included" in steps["whole step, tf_interop"].text
    assert "Expected float32, got int8." in page.text
    assert "2 times: no workspace" in page.text
    assert "3 stages made of 8 convolutions on GPU" in page.text


def test_convolutions_that_the_network_refuses_are_listed_with_the_reason() -> None:
    [of_run] = run_record().graphs
    network = dataclasses.replace(network_of_problem(network_problem()), refusals=of_run.refusals)
    page = page_of(make_report(network_plan(), title="A network", networks=[network]))
    [row] = [row for row in page.of_tag("tr") if "<b>dw</b>" in row.text]
    assert row.text == "<b>dw</b> Conv2D dtype Expected float32, got int8."


def test_a_profile_adds_the_device() -> None:
    facts = dict(_report(profile=make_profile(device=GPU)).facts)
    assert facts["device"] == "NVIDIA H200" and facts["SMs"] == "132"
    assert facts["cuDNN"] == "9.10.2"


def test_graphs_are_told_apart() -> None:
    [graph] = network_plan().graphs
    plan = Plan(
        (
            graph,
            dataclasses.replace(graph, batch_size=1),
            dataclasses.replace(graph, fingerprint="f", convolution_count=20),
        )
    )
    assert graph_titles(plan) == [
        "batch 8, 8 convolutions", "batch 1", "batch 8, 20 convolutions"
    ]  # fmt: skip
    page = page_of(_report(plan))
    anchors = [each.attributes["href"] for each in page.of_tag("nav")[0].of_tag("a")]
    sections = page.of_class("graph")
    assert anchors == [f"#{each.attributes['id']}" for each in sections]
    # The problem is of batch size 8 and the first graph's fingerprint.
    assert [each.network.is_order_only for each in _report(plan).graphs] == [False, True, True]


def test_a_network_fits_under_other_numbers_of_the_model() -> None:
    network = network_of_problem(network_problem())
    renamed = dataclasses.replace(
        network,
        nodes=tuple(
            dataclasses.replace(node, name=f"net_1/{number}")
            for number, node in enumerate(network.nodes)
        ),
    )
    graph = planned_graph()
    places = {node.name: number for number, node in enumerate(network.nodes)}
    as_in_plan = dataclasses.replace(
        graph,
        stages=tuple(
            dataclasses.replace(
                stage,
                lanes=tuple(
                    tuple(
                        dataclasses.replace(each, node=f"net/{places[each.node]}") for each in lane
                    )
                    for lane in stage.lanes
                ),
            )
            for stage in graph.stages
        ),
        alone=(),
    )
    found = network_for(as_in_plan, [renamed])
    assert found is not None
    names = {each.node for stage in as_in_plan.stages for each in stage.convolutions}
    assert names <= {node.name for node in found.nodes}
    assert network_for(graph, [renamed]) is None
