"""The policy `always`: the groups, and the convolutions left out."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_graphs import CONFIGURATION, INCEPTION, make_graph

from tf_interop.convolution import RefusalReason
from tf_interop.graph.independence import Independence
from tf_interop.planning.always import group_always, leave_out_unmeasured
from tf_interop.planning.check import check_stages


def _group_always(nodes: dict[str, str], **keywords: dict[str, str]) -> list[list[str]]:
    view, convolutions = make_graph(nodes, **keywords)
    stages = group_always(convolutions, Independence(view, convolutions))
    check_stages(stages, view, convolutions)
    return [list(stage.nodes) for stage in stages]


@pytest.mark.parametrize(
    ("nodes", "keywords", "expected"),
    [
        (INCEPTION, {}, [["1x1", "3x3_reduce", "5x5_reduce", "pool_proj"], ["3x3", "5x5"]]),
        ({"a": "Placeholder"}, {}, []),
        ({"a": "Conv2D", "b": "Conv2D a", "c": "Conv2D b"}, {}, [["a"], ["b"], ["c"]]),
        (
            INCEPTION,
            {"devices": {"1x1": "/gpu:1", "5x5_reduce": "/gpu:1"}},
            [["1x1", "5x5_reduce"], ["3x3_reduce", "pool_proj"], ["3x3", "5x5"]],
        ),
        (
            INCEPTION,
            {"regions": {"3x3": "branch"}},
            [["1x1", "3x3_reduce", "5x5_reduce", "pool_proj"], ["3x3"], ["5x5"]],
        ),
        ({"a": "Conv2D", "b": "Conv2D", "c": "Conv2D ^a"}, {}, [["a", "b"], ["c"]]),
    ],
    ids=["module", "nothing", "chain", "devices", "regions", "control_dependency"],
)
def test_groups_levels_by_device_and_region(
    nodes: dict[str, str], keywords: dict[str, dict[str, str]], expected: list[list[str]]
) -> None:
    assert _group_always(nodes, **keywords) == expected


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, str]]:
    nodes: dict[str, str] = {}
    for node in range(draw(st.integers(1, 14))):
        sources = draw(st.sets(st.sampled_from(sorted(nodes)), max_size=2)) if nodes else set()
        op = draw(st.sampled_from(["Conv2D", "Conv2D", "Relu"]))
        nodes[f"n{node}"] = " ".join([op, *sorted(sources)])
    return nodes, {name: draw(st.sampled_from(["/gpu:0", "/gpu:1"])) for name in nodes}


@settings(deadline=None)
@given(graph=graphs(), data=st.data())
def test_any_of_the_stages_are_legal_in_any_graph(
    graph: tuple[dict[str, str], dict[str, str]], data: st.DataObject
) -> None:
    nodes, devices = graph
    view, convolutions = make_graph(nodes, devices=devices)
    stages = group_always(convolutions, Independence(view, convolutions))
    names = [name for stage in stages for name in stage.nodes]
    assert sorted(names) == sorted(node.name for node in convolutions)
    check_stages(stages, view, convolutions)
    if stages:
        some = data.draw(st.lists(st.sampled_from(stages), unique_by=id))
        check_stages(some, view, convolutions)


@pytest.mark.parametrize(
    ("device_type", "has_bfloat16", "kept"),
    [
        ("GPU", True, "float bfloat"),
        ("GPU", False, "float"),
        ("CPU", False, "float bfloat double deep leaky"),
    ],
)
def test_leaves_out_convolutions_that_a_gpu_may_be_unable_to_run(
    device_type: str, has_bfloat16: bool, kept: str
) -> None:
    configurations = {
        "float": CONFIGURATION,
        "bfloat": dataclasses.replace(CONFIGURATION, dtype="bfloat16"),
        "double": dataclasses.replace(CONFIGURATION, dtype="float64"),
        "deep": dataclasses.replace(CONFIGURATION, strides=(1, 1, 1), dilations=(1, 1, 1)),
        "leaky": dataclasses.replace(
            CONFIGURATION, op="_FusedConv2D", fused_ops=("BiasAdd", "LeakyRelu")
        ),
    }
    _, convolutions = make_graph(
        dict.fromkeys(configurations, "Conv2D"), configurations=configurations
    )
    found, refusals = leave_out_unmeasured(convolutions, device_type, has_bfloat16=has_bfloat16)
    assert [node.name for node in found] == kept.split()
    assert {each.node for each in refusals} == configurations.keys() - kept.split()
    assert all(each.reason is RefusalReason.NOT_MEASURED for each in refusals)
