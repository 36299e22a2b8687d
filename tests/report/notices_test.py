"""Reports of plans that hold less than one might think, and say so."""

from __future__ import annotations

import dataclasses

import pytest
from planning_values import make_problem
from profile_values import CPU, GPU, LARGE, SMALL, make_algorithm, make_profile
from report_page_tree import Element, labels_of, page_of
from report_values import (
    network_plan,
    network_problem,
    plan_without_figures,
    planned_graph,
    run_record,
)

from tf_interop.plan.explain import explain_plan
from tf_interop.plan.make import make_plan
from tf_interop.plan.types import (
    AloneConvolution,
    GraphPlan,
    GraphPrediction,
    PinnedConvolution,
    Plan,
    PlannedStage,
)
from tf_interop.profile.types import Profile
from tf_interop.report.data import graph_titles, make_report
from tf_interop.report.network import Network, NetworkNode, network_of_problem
from tf_interop.report.node_names import short_names


def _page(
    graph: GraphPlan,
    *,
    networks: tuple[Network, ...] = (),
    profile: Profile | None = None,
    **made_with: str,
) -> Element:
    plan = Plan((graph,), made_with=made_with)
    return page_of(make_report(plan, title="x", networks=networks, profile=profile))


def _figures(page: Element) -> dict[str, Element]:
    return {each.of_class("name")[0].text: each for each in page.of_class("figure")}


def _notices(page: Element) -> list[str]:
    return [each.text for each in page.of_class("notice")]


def _partly_measured() -> GraphPlan:
    """Of a training step of 32 convolutions, 2 are in the profile, and alone."""
    return GraphPlan(
        "f" * 16,
        32,
        (),
        batch_size=16,
        prediction=GraphPrediction(784.4, 784.4, 10, 10, None, "exact", unmeasured_count=30),
        alone=tuple(
            AloneConvolution(name, "GEMM", 392.2, 10, before_stage=0) for name in ("a", "b")
        ),
        step="training",
    )


def _unmeasured() -> GraphPlan:
    prediction = GraphPrediction(0, 0, 0, 0, None, "nothing to search", unmeasured_count=11)
    return GraphPlan("f" * 16, 11, (), batch_size=1, prediction=prediction, step="inference")


def _without_stages() -> GraphPlan:
    problem = make_problem({"a": "", "b": ""}, {"a": 10, "b": 20}, {"a b": 32})
    return explain_plan(problem, make_plan(problem))


def test_a_partly_measured_plan_says_so_on_every_time() -> None:
    page = _page(_partly_measured())
    figures = _figures(page)
    assert figures["one after another"].of_class("number")[0].text == "784.4 µs"
    [lacking] = figures["one after another"].of_class("lacking")
    assert lacking.text == "incomplete: 2 of 32 convolutions measured"
    assert "Incomplete. 30 of 32 convolutions were not measured." in _notices(page)[0]
    assert _notices(page)[0].endswith(
        "tf-interop profile MODEL --batch 16 --training -o profile.json"
    )
    with_stages = dataclasses.replace(planned_graph(), convolution_count=10)
    figures = _figures(_page(with_stages))
    for name in ("in stages", "one after another"):
        [lacking] = figures[name].of_class("lacking")
        assert lacking.text == "incomplete: 8 of 10 convolutions measured"
    assert not _page(planned_graph()).of_class("lacking")


def test_all_convolutions_in_no_stage_are_counted_and_those_that_are_known_named() -> None:
    page = _page(_partly_measured())
    assert "32 convolutions in no stage, 30 of them not measured" in page.text
    assert "The plan does not name 30 of them" in page.text
    network = Network(
        tuple(NetworkNode(name, ()) for name in ("a", "b", *(f"n{i}" for i in range(30))))
    )
    page = _page(_partly_measured(), networks=(network,))
    [table] = page.of_class("unstaged-list")
    rows = [row.text for row in table.of_tag("tbody")[0].of_tag("tr")]
    assert len(rows) == 32
    assert rows[0] == "a GEMM 392.2 µs" and rows[-1] == "n29 – not measured"
    assert "The plan does not name" not in page.text


def test_where_nothing_was_measured_no_figure_stands_and_what_to_do_does() -> None:
    page = _page(_unmeasured())
    figures = _figures(page)
    assert set(figures) == {"time", "stages"}
    assert not figures["time"].of_class("number")
    assert figures["time"].of_class("lacking")[0].text == "nothing measured"
    [notice] = _notices(page)
    assert notice.startswith("Nothing measured. No algorithm of its 11 convolutions")
    assert notice.endswith("tf-interop profile MODEL --batch 1 -o profile.json")
    assert "0.0 µs" not in page.text
    assert "11 convolutions in no stage, 11 of them not measured" in page.text
    assert not page.of_class("network") and not page.of_class("timeline")


def test_totals_are_called_sums_and_memory_counted() -> None:
    page = _page(planned_graph())
    figures = _figures(page)
    assert figures["in stages"].of_class("labels")[0].text == "sum of measured modelled"
    assert figures["one after another"].of_class("labels")[0].text == "sum of measured"
    assert labels_of(figures["ratio"]) == []
    assert labels_of(figures["peak memory"]) == ["counted"]
    spread_us = sum(
        stage.prediction.spread_us for stage in planned_graph().stages if stage.prediction
    )
    assert f"± {spread_us:.1f} µs if all stages are off alike" in figures["in stages"].text
    assert all("sum of measured" in each.text for each in page.of_tag("h4")[:2])
    [footer] = page.of_tag("footer")
    assert "Nothing took that long as a whole" in footer.text


def test_a_plan_without_stages_says_why_and_shows_no_identity() -> None:
    graph = dataclasses.replace(_without_stages(), why_no_stage="none of 3 measured sets wins")
    assert not graph.stages
    page = _page(graph)
    [notice] = _notices(page)
    assert notice.startswith("No stage. None of 3 measured sets wins. The most promising")
    assert notice.endswith("a and b: measured 2.0 us slower than one after another.")
    assert set(_figures(page)) == {"one after another", "stages", "peak memory"}
    assert len(page.of_class("timeline")) == 1
    [details] = [each for each in page.of_tag("details") if each.of_class("missed")]
    assert "open" in details.attributes
    page = _page(planned_graph())
    [details] = [each for each in page.of_tag("details") if each.of_class("missed")]
    assert "open" not in details.attributes


@pytest.mark.parametrize(
    ("stages", "expected"),
    [(False, "in the plan's order; 40 bytes in the graph's own"), (True, "40 bytes one after")],
)
def test_two_peaks_are_told_apart(stages: bool, expected: str) -> None:
    graph = planned_graph() if stages else _without_stages()
    assert graph.prediction is not None
    prediction = dataclasses.replace(graph.prediction, sequential_peak_bytes=40)
    peak = _figures(_page(dataclasses.replace(graph, prediction=prediction)))["peak memory"]
    assert expected in peak.text


def _warnings(page: Element) -> list[str]:
    return [each.text for each in page.of_class("warning")]


def test_a_plan_for_a_cpu_says_that_it_is_of_no_gpu() -> None:
    [warning] = _warnings(_page(planned_graph(), backend="host", device="a CPU"))
    assert warning.startswith("A CPU, not a GPU.") and "oneDNN" in warning
    [warning] = _warnings(_page(planned_graph(), profile=make_profile(device=CPU)))
    assert warning.startswith("A CPU, not a GPU.")
    assert not _warnings(_page(planned_graph(), backend="cudnn", profile=make_profile(device=GPU)))
    assert "backend" not in dict(make_report(network_plan(backend="host"), title="x").facts)


def test_a_run_on_a_cpu_says_so() -> None:
    run = run_record()
    on_cpu = tuple(dataclasses.replace(each, device_type="CPU") for each in run.graphs)
    record = dataclasses.replace(run, graphs=on_cpu)
    report = make_report(plan_without_figures(), title="x", run=record)
    assert _warnings(page_of(report))[0].startswith("The run was on a CPU")
    assert not _warnings(page_of(make_report(plan_without_figures(), title="x", run=run)))


def test_a_profile_of_another_device_is_noticed() -> None:
    page = _page(planned_graph(), device="NVIDIA H100", profile=make_profile(device=GPU))
    [warning] = _warnings(page)
    assert "made by a profile of NVIDIA H100, and this one is of NVIDIA H200" in warning


def test_a_profile_says_how_many_of_the_convolutions_it_has() -> None:
    network = network_of_problem(network_problem())
    some = make_profile(
        make_algorithm(dataclasses.replace(SMALL, filter_shape=(1, 1, 16, 32))), device=GPU
    )
    page = _page(planned_graph(), networks=(network,), profile=some)
    assert _notices(page) == ["Another profile? The profile has 2 of 8 convolutions of this graph."]
    whole = make_profile(
        *(
            make_algorithm(dataclasses.replace(SMALL, filter_shape=(side, side, 16, 32)))
            for side in (1, 3)
        ),
        device=GPU,
    )
    page = _page(planned_graph(), networks=(network,), profile=whole)
    assert not _notices(page)
    assert "The profile has 8 of 8 convolutions of this graph." in page.text


def test_a_profile_of_another_batch_size_is_noticed_without_the_model() -> None:
    profile = make_profile(make_algorithm(LARGE), device=GPU)
    one = dataclasses.replace(planned_graph(), batch_size=1)
    [notice] = _notices(_page(one, profile=profile))
    assert "has 0 of 8 convolutions of this graph: it is of batch size 8, the plan of 1" in notice
    page = _page(planned_graph(), profile=profile)
    assert not _notices(page) and "is not known without --model" in page.text


def test_stages_of_no_planner_say_first_that_no_times_are_known() -> None:
    [graph] = plan_without_figures().graphs
    nodes = ("left", "left_too", "right", "last")
    network = Network(tuple(NetworkNode(name, ()) for name in nodes), batch_size=1)
    page = _page(graph, networks=(network,))
    times, sizes = _notices(page)
    assert times.startswith("No times are known.") and "depth 1 depends on no other" in times
    assert sizes.startswith("Any batch size.") and "batch size 1" in sizes
    assert "the plan pins no algorithm there" in page.text


def test_scopes_of_inlined_functions_are_explained() -> None:
    lanes = ((PinnedConvolution("StatefulPartitionedCall/net_1/stem_1", "GEMM"),),)
    graph = GraphPlan("f" * 16, 1, (PlannedStage(lanes),))
    assert "TensorFlow puts StatefulPartitionedCall/" in _page(graph).text
    assert "TensorFlow puts StatefulPartitionedCall/" not in _page(planned_graph()).text


def test_shows_first_what_saves_most_and_else_the_widest() -> None:
    stages = tuple(
        PlannedStage(tuple((PinnedConvolution(name),) for name in names))
        for names in ("a", "bcd", "efg")
    )
    [graph] = make_report(Plan((GraphPlan("f" * 16, 7, stages),)), title="x").graphs
    assert graph.first_stage == 1
    [graph] = make_report(network_plan(), title="x").graphs
    assert graph.first_stage == 1  # saves 103 against 31 µs


def test_titles_name_the_step() -> None:
    graph = planned_graph()
    plan = Plan(
        (
            dataclasses.replace(graph, step="inference"),
            dataclasses.replace(graph, step="training", fingerprint="f"),
        )
    )
    assert graph_titles(plan) == ["batch 8, inference", "batch 8, training"]


def test_names_are_short_where_they_stay_different() -> None:
    assert short_names(
        [
            "net_1/stem_1/convolution",
            "net_1/block_1/Relu",
            "gradient_tape/net_1/stem_1/convolution/Conv2DBackpropFilter",
            "gradient_tape/net_1/block_1/convolution/Conv2DBackpropFilter",
        ]
    ) == {
        "net_1/stem_1/convolution": "stem_1",
        "net_1/block_1/Relu": "block_1",
        "gradient_tape/net_1/stem_1/convolution/Conv2DBackpropFilter": "stem_1 ∂w",
        "gradient_tape/net_1/block_1/convolution/Conv2DBackpropFilter": "block_1 ∂w",
    }
    assert short_names(["a/x/Conv2D", "a/x/Conv2D_1"]) == {
        "a/x/Conv2D": "Conv2D",
        "a/x/Conv2D_1": "Conv2D_1",
    }


def test_times_on_one_scale_have_one_unit() -> None:
    stages = tuple(
        dataclasses.replace(
            stage,
            prediction=dataclasses.replace(stage.prediction, sequential_us=1200.0),
            explanation=None,
        )
        for stage in planned_graph().stages
        if stage.prediction is not None
    )
    prediction = planned_graph().prediction
    assert prediction is not None
    graph = dataclasses.replace(
        planned_graph(),
        stages=stages,
        prediction=dataclasses.replace(prediction, sequential_us=2500.0),
    )
    page = _page(graph)
    figures = _figures(page)
    assert figures["in stages"].of_class("number")[0].text == "0.222 ms"
    assert figures["one after another"].of_class("number")[0].text == "2.500 ms"
    assert all(" ms" in each.text and " µs" not in each.text for each in page.of_tag("h4")[:2])
    assert [each.of_tag("span")[-1].text for each in page.of_class("names")] == ["ms", "ms"]
    assert page.of_class("ticks")[0].of_tag("text")[1].text == "0.5"
