"""The page of a report: complete, escaped, self-contained, with the plan's values and notices."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from typing import Any

import pytest
from plan_values import landmarks_of, make_lanes, measured_step
from planning_values import make_problem
from report_values import (
    EVIL_NAME,
    labels_of,
    network,
    network_plan,
    page_of,
    parse_page,
    plan_without_values,
    planned_graph,
    rows_of,
    texts_of,
    tuned_graph,
)

from tf_interop.planning.explain import explain_plan
from tf_interop.planning.make import make_plan
from tf_interop.planning.types import (
    XLA,
    ComparedStep,
    GraphPlan,
    Plan,
    PlannedStage,
)
from tf_interop.report.network import Network, NetworkNode, named_as_in
from tf_interop.report.page import microseconds, render_page
from tf_interop.stage import Schedule
from tf_interop.structure import Structure


def tuned(*args: Any, **measured: Any) -> GraphPlan:
    """The tuned graph with these arguments of `measured_step`."""
    return replace(tuned_graph(), measured=measured_step(*args, **measured))


def graph_of(
    nodes: dict[str, str], stages: dict[str, float], merged: dict[str, float] | None = None
) -> GraphPlan:
    """A plan for convolutions; a and b read one image."""
    latencies_us = {"a": 10.0, "b": 20.0, "c": 10.0}
    keys = {"a": "x", "b": "x"}
    problem = make_problem(nodes, latencies_us, stages, merged=merged or {}, merge_keys=keys)
    return explain_plan(problem, make_plan(problem))


FAST_XLA = ComparedStep(XLA, 17.0, 1.2)
NO_STAGE = graph_of({"a": "", "b": ""}, {"a b": 32})
WITHIN_ERROR = replace(planned_graph().prediction, latency_us=355.0)


@pytest.mark.parametrize(
    ("is_bold", "graph", "verdict"),
    [
        (True, tuned_graph(),
         "tf_interop.enable() is 1.84 times as fast: 10.87 ms per step instead of 20.00 ms. It "
         "runs on one core."),
        (False, tuned(2.0, way=None), "Not final, because the graph was still trying ways to run"),
        (False, tuned(1.02, 0.03), "gains nothing significant: 19.61 ms per step instead of 20.00"),
        (False, replace(tuned(0.8), as_stock=True),
         "Stock TensorFlow is faster, so the graph stays as it is: 25.00 ms per step instead of"),
        (False, replace(tuned_graph(), measured=measured_step(1.0, others=[FAST_XLA])),
         "XLA is 1.20 times as fast as stock TensorFlow: comp"),
        (False, planned_graph(), "Expected: 1.60 times as fast, for the convolutions alone"),
        (False, replace(planned_graph(), prediction=WITHIN_ERROR),
         "No significant gain expected: 0.00 ms"),
        (False, NO_STAGE,
         "The graph stays unchanged: the nearest to winning, a and b: measured 2.0 µs slower"),
        (False, tuned(2.0, other_load=0.5),
         "Not reliable, because other programs took 50 % of the cores"),
    ],
)  # fmt: skip
def test_opens_with_a_verdict_in_bold_for_a_gain_beyond_its_error(
    is_bold: bool, graph: GraphPlan, verdict: str
) -> None:
    page = page_of(graph)
    [shown] = page.of_class("verdict")
    assert verdict in shown.words
    assert ("No whole step was measured" in shown.words) == (graph.measured is None)
    assert bool(page.of_class("gain")) == is_bold


def test_compared_steps_have_errors_and_are_bold_for_a_gain_beyond_them() -> None:
    page = page_of(tuned_graph(), networks=[network()])
    [table] = page.of_class("compared")
    assert rows_of(table) == [
        "stock TensorFlow 1 20.00 ms",
        "tf_interop.enable() fastest 1.840 ± 0.020 10.87 ms",
        "XLA (jit_compile=True) 1.250 16.00 ms",
    ]
    assert [each.words for each in table.of_tag("b")] == ["1.840 ± 0.020"]
    assert "Values without an error were measured in one process" in page.words
    # Nothing else is known of its parts.
    assert not page.of_class("network") and not page.of_class("card")


def test_explains_at_the_end_only_labels_that_the_page_has() -> None:
    for graph in (tuned_graph(), planned_graph()):
        page = page_of(graph)
        [footer] = page.of_tag("footer")
        assert set(labels_of(footer)) == set(labels_of(page)) - {"fastest"}
        assert ("A sum adds up" in footer.words) == (graph.measured is None)


def test_shows_the_plans_totals_and_stages() -> None:
    page = page_of(network_plan(), networks=[network()])
    assert texts_of(page, "card") == [
        "in stages 222.0 µs sum of measured modelled ±13.4 µs if all errors add up",
        "one after another 356.0 µs sum of measured",
        "stages 2 5 of 8 convolutions",
        "peak memory 7.1 MB counted 7.1 MB one after another; budget 33.6 MB",
    ]
    assert all("sum of measured" in each.words for each in page.of_tag("h4")[:2])
    boxes = texts_of(page, "node")
    assert len(boxes) == 8 and len(page.of_class("around")) == 2
    assert "stem: in no stage; note of stem stem ·, 20.0 µs" in boxes
    assert "a_1x1: stage 0; note of a_1x1 a_1x1 ·, 27.0 µs" in boxes
    assert not page.of_class("lacking")
    first, second = page.of_class("stage-panel")
    assert first.words.startswith(
        "Stage 0 30.0 µs measured ± 1.0 µs, one after another 61.0 µs sum of measured : 51 % less"
    )
    assert [row.words for row in first.of_tag("tr")] == [
        "lane convolutions and algorithms alone workspace "
        "registers shared memory thread slots block slots ALU time",
        "0 a_1x1 IMPLICIT_PRECOMP_GEMM note of a_1x1 27.0 µs 262.1 kB 38 % 9 % 12 % 3 % 50 %",
        "1 a_reduce FFT_TILING note of a_reduce Alone IMPLICIT_PRECOMP_GEMM is fastest, 34.0 µs. "
        "38.0 µs 1.0 MB 16 % 30 % 12 % 3 % 50 %",
        "together with outputs and other live tensors 2.9 MB; budget 33.6 MB "
        "30.0 µs 1.3 MB 53 % 39 % 25 % 6 % 100 %",
        "algorithms time workspace why not",
        "IMPLICIT_PRECOMP_GEMM IMPLICIT_PRECOMP_GEMM 34.0 µs modelled 524.3 kB not faster",
        "FFT_TILING FFT_TILING 38.0 µs modelled 2.1 MB not faster",
    ]
    assert second.words.startswith("Stage 1 62.0 µs modelled ± 12.4 µs")
    assert texts_of(first, "over") == [] and texts_of(second, "over") == ["112 %", "150 %"]


def test_escapes_names_from_graphs_everywhere() -> None:
    root = page_of(network_plan(), title=EVIL_NAME, networks=[network()])
    assert not root.of_tag("script")
    assert root.of_tag("h1")[0].words == EVIL_NAME
    assert EVIL_NAME in root.of_class("stage-panel")[1].words
    assert sum(EVIL_NAME in each.words for each in root.of_tag("title")) > 2
    [row] = [row for row in root.of_tag("tr") if "<b>dw</b>" in row.words]
    assert row.words == "<b>dw</b> Conv2D dtype Expected float32, got int8."


def test_the_page_is_self_contained_and_runs_no_script() -> None:
    page = render_page(network_plan(), title="x", networks=[network()])
    root = parse_page(page)
    assert not re.search(r"https?://|url\(|@import|\bsrc=|<link|<img|<iframe", page)
    names = {name for each in root.iter() for name in each.attrib}
    assert "style" not in names and not any(name.startswith("on") for name in names)
    [policy] = [
        each.get("content")
        for each in root.of_tag("meta")
        if each.get("http-equiv") == "Content-Security-Policy"
    ]
    [style] = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.split("; ")[:2] == ["default-src 'none'", f"style-src 'sha256-{digest}'"]


def test_long_times_and_those_beside_them_are_in_milliseconds() -> None:
    times_us = [(999.9, 0.0), (1250.0, 0.0), (5.0, 1250.0), (5.0, 12500.0)]
    shown = [microseconds(*each) for each in times_us]
    assert shown == ["999.9 µs", "1.250 ms", "0.005 ms", "0.01 ms"]


def test_shows_the_steps_of_lanes() -> None:
    [lanes] = page_of(graph_of({"a": "", "b": "a", "c": ""}, {"a>b c": 18})).of_class("lanes")
    assert rows_of(lanes) == [
        "0 a GEMM → b GEMM 30.0 µs 5 bytes",
        "1 c GEMM 10.0 µs 5 bytes",
    ]
    apart = {"a": "", "b": "", "c": ""}
    graph = graph_of(apart, {"a b": 24}, {"a b": 20})
    page = page_of(graph)
    [panel] = page.of_class("stage-panel")
    assert "33 % less" in panel.words
    # The wider convolution was not measured alone.
    assert rows_of(panel.of_class("lanes")[0]) == [
        "0 merged into one wider convolution a WINOGRAD b WINOGRAD 30.0 µs one after another –"
    ]
    [details] = [its for its in page.of_tag("details") if its.of_class("rejected")]
    assert graph.rejected and rows_of(details) == [
        f"{' '.join(each.nodes)} {each.count} {each.why_not}" for each in graph.rejected
    ]
    [panel] = page_of(graph_of(apart, {"a b": 24}, {"a b": 26})).of_class("stage-panel")
    [row] = [row for row in panel.of_tag("tr") if "WINOGRAD" in row.words]
    assert row.words.startswith("2 merged with WINOGRAD 26.0 µs")


def test_shows_every_batch_size_of_a_stage() -> None:
    schedules = (
        Schedule(2, make_lanes("+a:GEMM b:GEMM")),
        Schedule(32, make_lanes("a:GEMM>b:GEMM")),
    )
    stage = PlannedStage(make_lanes("a", "b"), schedules=schedules)
    [table] = page_of(GraphPlan("f" * 16, landmarks_of("a", "b"), (stage,))).of_class("schedules")
    assert rows_of(table) == [
        "2 lane 0: a and b, merged into one wider convolution, with GEMM",
        "32 lane 0: a with GEMM → b with GEMM",
        "any other in sequence",
    ]


def test_links_to_every_graph() -> None:
    graph = planned_graph()
    plan = Plan((graph, replace(graph, mode="training", batch_size=1)))
    page = page_of(plan, networks=[network(), None])
    links = page.of_tag("nav")[0].of_tag("a")
    assert [link.words for link in links] == ["0123456789abcdef, batch 8", "training, batch 1"]
    sections = page.of_class("graph")
    assert [each.get("href") for each in links] == [f"#{each.get('id')}" for each in sections]
    assert [bool(each.of_class("network")) for each in sections] == [True, False]


def test_a_network_may_have_other_names() -> None:
    graph = GraphPlan("f", landmarks_of("net/0", "net/1"))
    # Places count, not names.
    nodes = tuple(NetworkNode(name, ()) for name in ("net_1/1", "net_1/0"))
    network = Network(nodes, structure=Structure("f", landmarks_of("net_1/1", "net_1/0")))
    renamed = named_as_in(graph, network)
    assert [node.name for node in renamed.nodes] == ["net/0", "net/1"]


def test_shows_first_the_stage_that_saves_most_or_the_widest() -> None:
    def first_of(plan: Plan | GraphPlan) -> list[bool]:
        panels = page_of(plan).of_class("stage-panel")
        return ["first" in each.get("class").split() for each in panels]

    assert first_of(network_plan()) == [False, True]  # saves 103 against 31 µs
    stages = tuple(PlannedStage(make_lanes(*names)) for names in ("a", "bc", "de"))
    assert first_of(GraphPlan("f" * 16, landmarks_of(*"abcde"), stages)) == [False, True, False]


def with_more(graph: GraphPlan, count: int) -> GraphPlan:
    """The plan of a graph with more convolutions, which were not measured."""
    more = landmarks_of(*(f"more_{number}" for number in range(count)))
    return replace(graph, landmarks=graph.landmarks + more)


@pytest.mark.parametrize(
    ("graph", "names", "lacking", "notice", "options"),
    [
        (replace(with_more(NO_STAGE, 30), batch_size=16, mode="training"),
         ["one after another", "stages", "peak memory"],
         ["incomplete: 2 of 32 convolutions measured"],
         "Incomplete. 2 of 32 convolutions are measured. The others are in no stage",
         "--batch 16 --training"),
        (replace(NO_STAGE, unstaged=(), batch_size=1),
         ["stages"], [], "Nothing measured. 0 of 2 convolutions", "--batch 1"),
        (with_more(planned_graph(), 2),
         ["in stages", "one after another", "stages", "peak memory"],
         2 * ["incomplete: 8 of 10 convolutions measured"],
         "Incomplete. 8 of 10 convolutions are measured", "--batch 8"),
    ],
)  # fmt: skip
def test_says_what_the_plan_lacks(
    graph: GraphPlan, names: list[str], lacking: list[str], notice: str, options: str
) -> None:
    page = page_of(graph)
    assert texts_of(page, "name") == names
    assert texts_of(page, "lacking") == lacking
    assert texts_of(page, "notice")[0].startswith(notice)
    assert f"tf-interop profile MODEL {options} -o profile.json" in page.words
    # Nothing is drawn if nothing is known.
    assert bool(page.of_class("timeline")) == bool(lacking)


def test_warns_of_stages_that_were_measured_on_a_cpu() -> None:
    host = {"backend": "host"}
    [warning] = texts_of(page_of(planned_graph(), host), "warning")
    assert "A CPU, not a GPU." in warning and "oneDNN" in warning
    assert not page_of(planned_graph(), {"backend": "cudnn"}).of_class("warning")
    # TensorFlow's own kernels were measured.
    assert not page_of(tuned_graph(), host).of_class("warning")


def test_says_first_that_times_are_unknown_without_a_planner() -> None:
    [graph] = plan_without_values().graphs
    page = page_of(graph)
    [times] = texts_of(page, "notice")
    assert times.startswith("No times are known.") and "depth 1 depends on no other" in times
    assert not page.of_class("timeline") and not page.of_tag("tfoot")
    [panel] = page.of_class("stage-panel")
    assert "always: depth 1" in panel.words and "left_too" in panel.words
    assert "priority -1 merged into one wider convolution" in panel.words
    assert "the plan pins no algorithm" in page.words
    assert "A plan does not contain dependencies" in page.words
    assert [each.words for each in page.of_tag("h2")] == [f"Graph {graph.fingerprint}"]
