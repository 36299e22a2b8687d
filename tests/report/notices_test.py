"""Reports of plans that hold less than one might think, and say so."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from planning_values import make_lanes, make_problem
from profile_values import CPU, GPU, LARGE, SMALL, make_algorithm, make_profile
from report_page_tree import Element, cards_of, labels_of, page_of, rows_of, texts_of
from report_values import network_problem, plan_without_values, planned_graph, run_record

from tf_interop.planning.explain import explain_plan
from tf_interop.planning.make import make_plan
from tf_interop.planning.types import GraphPlan, GraphPrediction, PlannedStage, UnstagedConvolution
from tf_interop.profile.types import Profile
from tf_interop.report.network import Network, NetworkNode, network_of_problem
from tf_interop.report.words import short_names

NETWORK = network_of_problem(network_problem())

# Of a training step of 32 convolutions, 2 are in the profile, and unstaged.
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


def network_of_names(names: list[str], batch_size: int | None = None) -> Network:
    return Network(tuple(NetworkNode(name, ()) for name in names), batch_size=batch_size)


def plan_without_stages() -> GraphPlan:
    problem = make_problem({"a": "", "b": ""}, {"a": 10, "b": 20}, {"a b": 32})
    return explain_plan(problem, make_plan(problem))


def lacking_of(page: Element) -> dict[str, str]:
    return {
        name: card.of_class("lacking")[0].text
        for name, card in cards_of(page).items()
        if card.of_class("lacking")
    }


def test_a_partly_measured_plan_says_so_on_every_time() -> None:
    page = page_of(PARTLY_MEASURED)
    assert lacking_of(page) == {"one after another": "incomplete: 2 of 32 convolutions measured"}
    [notice] = [each for each in texts_of(page, "notice") if "Incomplete." in each]
    assert "30 of 32 convolutions were not measured" in notice
    assert notice.endswith("tf-interop profile MODEL --batch 16 --training -o profile.json")
    page = page_of(dataclasses.replace(planned_graph(), convolution_count=10))
    incomplete = "incomplete: 8 of 10 convolutions measured"
    assert lacking_of(page) == {"in stages": incomplete, "one after another": incomplete}
    assert not page_of(planned_graph()).of_class("lacking")


def test_all_convolutions_in_no_stage_are_counted_and_those_that_are_known_named() -> None:
    page = page_of(PARTLY_MEASURED)
    assert "32 convolutions in no stage, 30 of them not measured" in page.text
    assert "The plan does not name 30 of them" in page.text
    network = network_of_names(["a", "b", *(f"n{i}" for i in range(30))])
    page = page_of(PARTLY_MEASURED, networks=(network,))
    rows = [row.text for row in rows_of(page.of_class("unstaged-list")[0])]
    assert len(rows) == 32
    assert rows[0] == "a GEMM 392.2 µs" and rows[-1] == "n29 – not measured"
    assert "The plan does not name" not in page.text


def test_where_nothing_was_measured_no_value_stands_and_what_to_do_does() -> None:
    page = page_of(UNMEASURED)
    cards = cards_of(page)
    assert set(cards) == {"time", "stages"}
    assert not cards["time"].of_class("number")
    assert lacking_of(page) == {"time": "nothing measured"}
    [notice] = texts_of(page, "notice")
    assert notice.startswith("Nothing measured.")
    assert notice.endswith("tf-interop profile MODEL --batch 1 -o profile.json")
    assert "0.0 µs" not in page.text
    assert "11 convolutions in no stage, 11 of them not measured" in page.text
    assert not page.of_class("network") and not page.of_class("timeline")


def test_totals_are_called_sums_and_memory_counted() -> None:
    graph = planned_graph()
    page = page_of(graph)
    cards = cards_of(page)
    assert cards["in stages"].of_class("labels")[0].text == "sum of measured modelled"
    assert cards["one after another"].of_class("labels")[0].text == "sum of measured"
    assert labels_of(cards["ratio"]) == []
    assert labels_of(cards["peak memory"]) == ["counted"]
    spread_us = sum(each.prediction.spread_us for each in graph.stages if each.prediction)
    assert f"± {spread_us:.1f} µs if all stages are off alike" in cards["in stages"].text
    assert all("sum of measured" in each.text for each in page.of_tag("h4")[:2])
    assert "Nothing took that long as a whole" in page.of_tag("footer")[0].text


def test_a_plan_without_stages_says_why_and_shows_no_identity() -> None:
    graph = dataclasses.replace(plan_without_stages(), why_no_stage="none of 3 measured sets wins")
    assert not graph.stages
    page = page_of(graph)
    [notice] = texts_of(page, "notice")
    assert notice.startswith("No stage. None of 3 measured sets wins.")
    assert notice.endswith("a and b: measured 2.0 us slower than one after another.")
    assert set(cards_of(page)) == {"one after another", "stages", "peak memory"}
    assert len(page.of_class("timeline")) == 1
    for each, is_open in ((page, True), (page_of(planned_graph()), False)):
        [details] = [its for its in each.of_tag("details") if its.of_class("rejected")]
        assert ("open" in details.attributes) == is_open


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (plan_without_stages(), "in the plan's order; 40 bytes in the graph's own"),
        (planned_graph(), "40 bytes one after"),
    ],
)
def test_two_peaks_are_told_apart(graph: GraphPlan, expected: str) -> None:
    assert graph.prediction is not None
    prediction = dataclasses.replace(graph.prediction, sequential_peak_bytes=40)
    page = page_of(dataclasses.replace(graph, prediction=prediction))
    assert expected in cards_of(page)["peak memory"].text


CPU_RUN = dataclasses.replace(
    run_record(),
    graphs=tuple(dataclasses.replace(each, device_type="CPU") for each in run_record().graphs),
)


@pytest.mark.parametrize(
    ("made_with", "shown", "warning"),
    [
        ({"backend": "host", "device": "a CPU"}, {}, ["A CPU, not a GPU.", "oneDNN"]),
        ({}, {"profile": make_profile(device=CPU)}, ["A CPU, not a GPU."]),
        ({"backend": "cudnn"}, {"profile": make_profile(device=GPU)}, []),
        ({}, {"run": CPU_RUN}, ["The run was on a CPU"]),
        ({}, {"run": run_record()}, []),
        (
            {"device": "NVIDIA H100"},
            {"profile": make_profile(device=GPU)},
            ["a profile of NVIDIA H100", "of NVIDIA H200"],
        ),
    ],
)
def test_a_page_says_which_device_it_is_of(
    made_with: dict[str, str], shown: dict[str, Any], warning: list[str]
) -> None:
    page = page_of(planned_graph(), made_with, **shown)
    warnings = " ".join(texts_of(page, "warning"))
    assert bool(warnings) == bool(warning) and all(each in warnings for each in warning)
    assert "backend" not in " ".join(texts_of(page, "facts"))


def profile_of(*sides: int) -> Profile:
    sized = (dataclasses.replace(SMALL, filter_shape=(side, side, 16, 32)) for side in sides)
    return make_profile(*map(make_algorithm, sized), device=GPU)


@pytest.mark.parametrize(
    ("profile", "batch_size", "networks", "is_notice", "text"),
    [
        (profile_of(1), 8, (NETWORK,), True, "has 2 of 8 convolutions"),
        (profile_of(1, 3), 8, (NETWORK,), False, "has 8 of 8 convolutions"),
        (
            make_profile(make_algorithm(LARGE), device=GPU),
            1,
            (),
            True,
            "has 0 of 8 convolutions of this graph: it is of batch size 8, the plan of 1",
        ),
        (make_profile(make_algorithm(LARGE), device=GPU), 8, (), False, "not known without"),
    ],
)
def test_a_profile_says_how_many_of_the_convolutions_it_has(
    profile: Profile, batch_size: int, networks: tuple[Network, ...], is_notice: bool, text: str
) -> None:
    graph = dataclasses.replace(planned_graph(), batch_size=batch_size)
    page = page_of(graph, networks=networks, profile=profile)
    assert text in page.text
    assert any(text in each for each in texts_of(page, "notice")) == is_notice


def test_stages_of_no_planner_say_first_that_no_times_are_known() -> None:
    [graph] = plan_without_values().graphs
    network = network_of_names(["left", "left_too", "right", "last"], batch_size=1)
    page = page_of(graph, networks=(network,))
    times, sizes = texts_of(page, "notice")
    assert times.startswith("No times are known.") and "depth 1 depends on no other" in times
    assert sizes.startswith("Any batch size.") and "batch size 1" in sizes
    assert "the plan pins no algorithm there" in page.text
    assert "A plan does not hold what depends on what" not in page.text
    assert "A plan does not hold what depends on what" in page_of(graph).text


def test_scopes_of_inlined_functions_are_explained() -> None:
    stage = make_lanes("StatefulPartitionedCall/net_1/stem_1")
    graph = GraphPlan("f" * 16, 1, (PlannedStage(stage),))
    assert "TensorFlow puts StatefulPartitionedCall/" in page_of(graph).text
    assert "TensorFlow puts StatefulPartitionedCall/" not in page_of(planned_graph()).text


def test_names_are_short_where_they_stay_different() -> None:
    gradient = "gradient_tape/net_1/{}/convolution/Conv2DBackpropFilter"
    assert short_names(
        [
            "net_1/stem_1/convolution",
            "net_1/block_1/Relu",
            gradient.format("stem_1"),
            gradient.format("block_1"),
        ]
    ) == {
        "net_1/stem_1/convolution": "stem_1",
        "net_1/block_1/Relu": "block_1",
        gradient.format("stem_1"): "stem_1 ∂w",
        gradient.format("block_1"): "block_1 ∂w",
    }
    assert short_names(["a/x/Conv2D", "a/x/Conv2D_1"])["a/x/Conv2D"] == "Conv2D"


def test_times_on_one_scale_have_one_unit() -> None:
    def sequential(planned: Any, sequential_us: float) -> Any:
        prediction = dataclasses.replace(planned.prediction, sequential_us=sequential_us)
        return dataclasses.replace(planned, prediction=prediction)

    graph = sequential(planned_graph(), 2500.0)
    stages = (
        dataclasses.replace(sequential(stage, 1200.0), explanation=None) for stage in graph.stages
    )
    page = page_of(dataclasses.replace(graph, stages=tuple(stages)))
    cards = cards_of(page)
    assert cards["in stages"].of_class("number")[0].text == "0.222 ms"
    assert cards["one after another"].of_class("number")[0].text == "2.500 ms"
    assert all(" ms" in each.text and " µs" not in each.text for each in page.of_tag("h4")[:2])
    assert [each.of_tag("span")[-1].text for each in page.of_class("names")] == ["ms", "ms"]
    assert page.of_class("ticks")[0].of_tag("text")[1].text == "0.5"
