"""The page of a report: complete, escaped, self-contained, with the plan's values and notices."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from typing import Any

import pytest
from planning_values import make_lanes, make_problem, merge
from report_page_tree import Element, Tree, cards_of, labels_of, page_of, rows_of, texts_of
from report_values import (
    EVIL_NAME,
    network,
    network_plan,
    plan_without_values,
    planned_graph,
    tuned_graph,
    tuned_network,
)
from rich.filesize import decimal

from tf_interop.planning.explain import explain_plan, sum_of_uses
from tf_interop.planning.make import make_plan
from tf_interop.planning.types import (
    GraphPlan,
    GraphPrediction,
    Plan,
    PlannedStage,
    RejectedStage,
    UnstagedConvolution,
)
from tf_interop.report.network import Network, NetworkNode, named_as_in
from tf_interop.report.page import render_page
from tf_interop.stage import Schedule

# A training step with 32 convolutions, of which 2 are in the profile, and unstaged.
PARTLY_MEASURED = GraphPlan(
    "f" * 16,
    32,
    (),
    batch_size=16,
    prediction=GraphPrediction(784.4, 784.4, 10, 10, None, "exact", unmeasured_count=30),
    unstaged=tuple(UnstagedConvolution(name, "GEMM", 392.2, 10, before_stage=0) for name in "ab"),
    mode="training",
)
UNMEASURED = GraphPlan(
    "f" * 16,
    11,
    (),
    batch_size=1,
    prediction=GraphPrediction(0, 0, 0, 0, None, "nothing to search", unmeasured_count=11),
    mode="inference",
)


def tuned(**measured: Any) -> GraphPlan:
    """A tuned graph with other values."""
    graph = tuned_graph()
    return dataclasses.replace(graph, measured=dataclasses.replace(graph.measured, **measured))


def with_spread(graph: GraphPlan, spread_us: float) -> GraphPlan:
    """A graph with stages of another spread."""
    stages = []
    for stage in graph.stages:
        prediction = dataclasses.replace(stage.prediction, spread_us=spread_us)
        stages.append(dataclasses.replace(stage, prediction=prediction))
    return dataclasses.replace(graph, stages=tuple(stages))


def numbers_of(page: Element) -> dict[str, str]:
    """The totals of a page, by name."""
    return {name: card.of_class("number")[0].text for name, card in cards_of(page).items()}


def graph_of(
    nodes: dict[str, str], stages: dict[str, float], merged: dict[str, float] | None = None
) -> GraphPlan:
    """A plan for convolutions; a and b read one image."""
    latencies_us = {"a": 10.0, "b": 20.0, "c": 10.0}
    keys = {"a": "x", "b": "x"}
    problem = make_problem(nodes, latencies_us, stages, merged=merged or {}, merge_keys=keys)
    return explain_plan(problem, make_plan(problem))


NO_STAGE = graph_of({"a": "", "b": ""}, {"a b": 32})


@pytest.mark.parametrize(
    ("graph", "verdict", "is_bold"),
    [
        (tuned(other_load=0.5), "1.84 times as fast as stock TensorFlow", True),
        (
            dataclasses.replace(tuned_graph(), unit_cores=(4, 1)),
            "by 1 unit on one core each and 1 unit on 4 cores each.",
            True,
        ),
        (tuned(ratio=1.02, error=0.03), "No significant gain over stock TensorFlow: 0.2", False),
        (
            dataclasses.replace(tuned(ratio=1.0, error=0.0), narrow_units=()),
            "No significant gain over stock TensorFlow (20.0 ms per step): the graph stays",
            False,
        ),
        (
            dataclasses.replace(tuned_graph(), narrow_units=(), split_units=("net/stem",)),
            "by splitting the batch over them for 12 operations.",
            True,
        ),
        (planned_graph(), "Expected: 1.60 times as fast, for the convolutions alone", False),
        (with_spread(planned_graph(), 70.0), "No significant gain expected: 0.13 ms", False),
        (
            dataclasses.replace(NO_STAGE, why_no_stage="none of 3 measured sets wins"),
            "The graph stays unchanged: none of 3 measured sets wins.",
            False,
        ),
        (
            dataclasses.replace(NO_STAGE, prediction=None, narrow_units=("a", "b")),
            "2 narrow units.",
            False,
        ),
    ],
)
def test_opens_with_a_verdict_in_bold_for_a_gain_beyond_its_error(
    graph: GraphPlan, verdict: str, is_bold: bool
) -> None:
    page = page_of(graph, {"backend": "host"} if graph.measured else None)
    [shown] = page.of_class("verdict")
    assert verdict in shown.text
    assert ("No whole step was measured" in shown.text) == (graph.measured is None)
    assert bool(page.of_class("gain")) == is_bold
    has_load = graph.measured is not None and graph.measured.other_load > 0
    assert ("Other programs took 50% of the cores" in page.text) == has_load
    # The warning is not for TensorFlow's own kernels, which were measured.
    assert not page.of_class("warning")


def test_compared_steps_have_errors_and_are_bold_for_a_gain_beyond_them() -> None:
    page = page_of(tuned_graph())
    [table] = page.of_class("compared")
    assert [row.text for row in rows_of(table)] == [
        "stock TensorFlow 1 20.00 ms 20.00 ms",
        "2 of 4 units narrow (1) taken 1.840 ± 0.020 10.90 ms 11.50 ms",
        "all units narrow 1.010 ± 0.020 19.80 ms 19.80 ms",
        "XLA (jit_compile=True) 1.250 16.00 ms –",
    ]
    assert [each.text for each in table.of_tag("b")] == ["1.840 ± 0.020"]
    assert labels_of(table.of_tag("thead")[0]) == ["simulated"]
    left = dataclasses.replace(tuned(ratio=1.0, error=0.0, step_ms=20.0), narrow_units=())
    assert "taken" not in page_of(left).of_class("compared")[0].text


def test_draws_and_lists_units_with_their_cores() -> None:
    page = page_of(tuned_graph(), networks=[tuned_network()])
    drawn = {each.of_tag("title")[0].text for each in page.of_class("node")}
    assert drawn == {
        "net/stem: all cores; Conv2D, Relu",
        f"{EVIL_NAME}: one core; Conv2D, 6 Mul",
        "net/right: one core; Conv2D, 4 Mul",
    }
    assert len(page.of_class("narrow")) == 2 + 1  # and the key
    assert sum(len(column.of_tag("path")) for column in page.of_class("edges")) == 2
    assert "2 of 4, with 12 operations, run on one core each" in page.text
    assert "Not drawn: 1 unit with no inputs but variables." in page.text
    [table] = page.of_class("units")
    assert [row.text for row in rows_of(table)] == [
        "net/scale all cores 3 Add, Rsqrt, Mul",
        "net/stem all cores 2 Conv2D, Relu",
        f"{EVIL_NAME} one core 7 Conv2D, 6 Mul",
        "net/right one core 5 Conv2D, 4 Mul",
    ]
    # A plan alone has only names. Hundreds of units are not drawn.
    [table] = page_of(tuned_graph()).of_class("units")
    assert [row.text for row in rows_of(table)] == [
        f"{EVIL_NAME} one core – –",
        "net/right one core – –",
    ]
    wide = dataclasses.replace(tuned_graph(), unit_cores=(1, 4))
    page = page_of(wide, networks=[tuned_network()])
    assert "net/right: 4 cores; Conv2D, 4 Mul" in {
        each.of_tag("title")[0].text for each in page.of_class("node")
    }
    assert "run on one core or 4 cores each" in page.text
    [_, *_, row] = rows_of(page.of_class("units")[0])
    assert row.text == "net/right 4 cores 5 Conv2D, 4 Mul"
    many = dataclasses.replace(tuned_network(), nodes=tuned_network().nodes * 200)
    page = page_of(tuned_graph(), networks=[many])
    assert not page.of_class("network") and page.of_class("units")


def test_shows_the_plans_totals_and_stages() -> None:
    graph = planned_graph()
    page = page_of(network_plan(), networks=[network()])
    cards = cards_of(page)
    assert numbers_of(page) == {
        "in stages": "222.0 µs",
        "one after another": "356.0 µs",
        "stages": "2",
        "peak memory": "7.1 MB",
    }
    assert cards["in stages"].of_class("labels")[0].text == "sum of measured modelled"
    assert cards["one after another"].of_class("labels")[0].text == "sum of measured"
    assert labels_of(cards["peak memory"]) == ["counted"]
    assert f"±{graph.spread_us:.1f} µs if all errors add up" in cards["in stages"].text
    assert cards["peak memory"].text.endswith("7.1 MB one after another; budget 33.6 MB")
    assert all("sum of measured" in each.text for each in page.of_tag("h4")[:2])
    assert len(page.of_class("node")) == 8 and len(page.of_class("around")) == 2
    assert not page.of_class("lacking")
    for panel, planned in zip(page.of_class("stage-panel"), graph.stages, strict=True):
        prediction, explanation = planned.prediction, planned.explanation
        assert labels_of(panel.of_class("heading")[0]) == [prediction.source.value, "measured"]
        [lanes] = panel.of_class("lanes")
        for lane, step, explained in zip(
            rows_of(lanes), planned.stage.steps, explanation.lanes, strict=True
        ):
            assert step.operation in lane.text
            assert f"note of {step.operation}" in lane.text
            assert lane.of_class("algorithm")[0].text == step.algorithm
            assert f" {explained.alone_us:.1f} µs " in lane.text
            assert f" {100 * explained.sm_use.registers:.0f} % " in lane.text
        [together] = lanes.of_tag("tfoot")
        uses = sum_of_uses([lane.sm_use for lane in explanation.lanes])
        shown = [*together.of_tag("td")[2:]]
        assert [each.text for each in shown] == [
            f"{prediction.latency_us:.1f} µs",
            decimal(prediction.workspace_bytes),
            *(f"{100 * total:.0f} %" for total in uses.values()),
        ]
        over = [each.attributes["class"] == "right over" for each in shown]
        assert over == [False, False, *(total > 1 for total in uses.values())]
        rows = rows_of(panel.of_tag("table")[1])
        for row, alternative in zip(rows, explanation.alternatives, strict=True):
            assert f"{alternative.latency_us:.1f} µs" in row.text
            assert labels_of(row) == [alternative.source.value]


def test_escapes_names_from_graphs_everywhere() -> None:
    plan = Plan((planned_graph(), tuned_graph()))
    root = page_of(plan, title=EVIL_NAME, networks=[network(), tuned_network()])
    [script] = root.of_tag("script")
    assert "alert" not in script.text
    assert root.of_tag("h1")[0].text == EVIL_NAME
    assert EVIL_NAME in root.of_class("stage-panel")[1].text
    assert EVIL_NAME in root.of_class("units")[0].text
    assert sum(EVIL_NAME in each.text for each in root.of_tag("title")) > 2
    [row] = [row for row in root.of_tag("tr") if "<b>dw</b>" in row.text]
    assert row.text == "<b>dw</b> Conv2D dtype Expected float32, got int8."


def test_the_page_is_self_contained_and_runs_only_its_script() -> None:
    page = render_page(network_plan(), title="x", networks=[network()])
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
    allowed = ["default-src 'none'"]
    for tag in ("style", "script"):
        [text] = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        allowed.append(f"{tag}-src 'sha256-{digest}'")
    assert policy.split("; ")[:3] == allowed


def rejecting(*saved_us: float | None) -> GraphPlan:
    """A plan without a stage that rejected pairs with these savings."""
    pairs = (RejectedStage(("a", f"b{number}"), "why", 1, us) for number, us in enumerate(saved_us))
    return dataclasses.replace(NO_STAGE, rejected=tuple(pairs))


@pytest.mark.parametrize(
    ("graph", "promising"),
    [
        (rejecting(-2.0, None, 3.0), ["a and b1 together: why."]),
        (rejecting(-2.0, 0.0), []),
        # The convolutions are better off in their stages.
        (planned_graph(), []),
        (tuned_graph(), []),
        (
            tuned(ratio=1.1),
            ["2 of 4 units narrow (1), 1.84 ± 0.02 times as fast as stock TensorFlow."],
        ),
    ],
)
def test_names_a_promising_alternative_near_the_top(graph: GraphPlan, promising: list[str]) -> None:
    found = texts_of(page_of(graph), "promising")
    assert [text.partition(": ")[2] for text in found] == promising


def test_simulated_values_are_never_called_measured() -> None:
    page = page_of(network_plan(simulated="made up for a test"), networks=[network()])
    assert page.of_class("warning")[0].text.endswith("made up for a test")
    [main] = page.of_tag("main")
    assert set(labels_of(main)) == {"simulated", "modelled", "counted"}
    assert "measured" not in main.text.replace("No whole step was measured", "")


def test_shows_the_steps_of_lanes() -> None:
    [lanes] = page_of(graph_of({"a": "", "b": "a", "c": ""}, {"a>b c": 18})).of_class("lanes")
    assert [row.text for row in rows_of(lanes)] == [
        "0 a GEMM → b GEMM 30.0 µs 5 bytes",
        "1 c GEMM 10.0 µs 5 bytes",
    ]
    apart = {"a": "", "b": "", "c": ""}
    graph = graph_of(apart, {"a b": 24}, {"a b": 20})
    page = page_of(graph)
    [panel] = page.of_class("stage-panel")
    assert "33 % less" in panel.text
    [lane] = rows_of(panel.of_class("lanes")[0])
    # The wider convolution was not measured alone.
    merged = "0 merged into one wider convolution a WINOGRAD b WINOGRAD 30.0 µs one after another –"
    assert lane.text == merged
    [details] = [its for its in page.of_tag("details") if its.of_class("rejected")]
    assert "open" not in details.attributes and graph.rejected
    assert [row.text for row in rows_of(details)] == [
        f"{' '.join(each.nodes)} {each.count} {each.why_not}" for each in graph.rejected
    ]
    [panel] = page_of(graph_of(apart, {"a b": 24}, {"a b": 26})).of_class("stage-panel")
    [row] = [row for row in panel.of_tag("tr") if "WINOGRAD" in row.text]
    assert row.text.startswith("2 merged with WINOGRAD 26.0 µs")


def test_shows_every_batch_size_of_a_stage() -> None:
    stage = make_lanes("a b")
    asking = dataclasses.replace(stage.lanes[0], priority=-1)
    schedules = (
        Schedule(2, merge("a b", "GEMM")),
        Schedule(8, dataclasses.replace(stage, lanes=(asking, stage.lanes[1]))),
        Schedule(32, make_lanes("a>b")),
    )
    graph = GraphPlan("fedcba9876543210", 2, (PlannedStage(stage, schedules=schedules),))
    [table] = page_of(graph).of_class("schedules")
    assert [row.text for row in rows_of(table)] == [
        "2 lane 0: a with GEMM and b with GEMM, merged into one wider convolution",
        "8 lane 0: a with GEMM, priority -1 lane 1: b with GEMM",
        "32 lane 0: a with GEMM → b with GEMM",
        "any other in sequence",
    ]


def test_links_to_every_graph() -> None:
    graph = planned_graph()
    plan = Plan((graph, dataclasses.replace(graph, mode="training", batch_size=1)))
    page = page_of(plan, networks=[network(), None])
    links = page.of_tag("nav")[0].of_tag("a")
    assert [link.text for link in links] == ["0123456789abcdef, batch 8", "training, batch 1"]
    sections = page.of_class("graph")
    assert [each.attributes["href"] for each in links] == [
        f"#{each.attributes['id']}" for each in sections
    ]
    assert [bool(each.of_class("network")) for each in sections] == [True, False]


def test_a_network_may_number_scopes_differently() -> None:
    graph = GraphPlan("f" * 16, 2, (PlannedStage(make_lanes("net/0 net/1")),))
    renamed = Network(tuple(NetworkNode(f"net_1/{number}", ()) for number in range(2)))
    assert [node.name for node in named_as_in(graph, renamed).nodes] == ["net/0", "net/1"]


def test_shows_first_the_stage_that_saves_most_or_the_widest() -> None:
    def first_of(plan: Plan | GraphPlan) -> list[bool]:
        panels = page_of(plan).of_class("stage-panel")
        return ["first" in each.attributes["class"].split() for each in panels]

    assert first_of(network_plan()) == [False, True]  # saves 103 against 31 µs
    stages = tuple(map(PlannedStage, map(make_lanes, ("a", "b c", "d e"))))
    assert first_of(GraphPlan("f" * 16, 7, stages)) == [False, True, False]


@pytest.mark.parametrize(
    ("graph", "numbers", "notice", "command"),
    [
        (
            PARTLY_MEASURED,
            {"one after another": "784.4 µs", "stages": "0", "peak memory": "10 bytes"},
            "Incomplete. 2 of 32 convolutions are measured. The others are in no stage",
            "tf-interop profile MODEL --batch 16 --training -o profile.json",
        ),
        (
            UNMEASURED,
            {"stages": "0"},
            "Nothing measured. 0 of 11 convolutions",
            "tf-interop profile MODEL --batch 1 -o profile.json",
        ),
        (
            dataclasses.replace(planned_graph(), convolution_count=10),
            {"in stages": "222.0 µs", "one after another": "356.0 µs"},
            "Incomplete. 8 of 10 convolutions are measured",
            "tf-interop profile MODEL --batch 8 -o profile.json",
        ),
    ],
)
def test_says_what_the_plan_lacks(
    graph: GraphPlan, numbers: dict[str, str], notice: str, command: str
) -> None:
    page = page_of(graph)
    assert numbers.items() <= numbers_of(page).items()
    assert graph.stages or set(numbers_of(page)) == set(numbers)
    assert texts_of(page, "notice")[0].startswith(notice)
    assert command in page.text
    # Nothing is drawn if nothing is known.
    assert bool(page.of_class("timeline")) == bool(graph.unstaged)
    assert bool(page.of_class("lacking")) == bool(graph.unstaged)


def test_warns_of_stages_that_were_measured_on_a_cpu() -> None:
    [warning] = texts_of(page_of(planned_graph(), {"backend": "host"}), "warning")
    assert "A CPU, not a GPU." in warning and "oneDNN" in warning
    assert not page_of(planned_graph(), {"backend": "cudnn"}).of_class("warning")


def test_says_first_that_times_are_unknown_without_a_planner() -> None:
    [graph] = plan_without_values().graphs
    page = page_of(graph)
    [times] = texts_of(page, "notice")
    assert times.startswith("No times are known.") and "depth 1 depends on no other" in times
    assert not page.of_class("timeline") and not page.of_tag("tfoot")
    [panel] = page.of_class("stage-panel")
    assert "always: depth 1" in panel.text and "left_too" in panel.text
    assert "priority -1, 64 SMs of its own merged into one wider convolution" in panel.text
    assert "the plan pins no algorithm" in page.text
    assert "A plan does not hold dependencies" in page.text
