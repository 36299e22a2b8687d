"""The policy `always`: the groups, and the convolutions left out."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_graphs import CONFIGURATION, make_graph

from tf_interop.convolution import RefusalReason
from tf_interop.graph.independence import Independence
from tf_interop.planning.always import group_always, leave_out_unmeasured
from tf_interop.planning.check import check_stages


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, str]:
    nodes: dict[str, str] = {}
    for node in range(draw(st.integers(0, 14))):
        sources = draw(st.sets(st.sampled_from(sorted(nodes)), max_size=2)) if nodes else set()
        inputs = sorted(draw(st.sampled_from(["", "^"])) + source for source in sources)
        op = draw(st.sampled_from(["Conv2D", "Conv2D", "Relu"]))
        nodes[f"n{node}"] = " ".join([op, *reversed(inputs)])  # control dependencies last
    return nodes


@settings(deadline=None)
@given(nodes=graphs(), data=st.data())
def test_groups_levels_by_device_and_region(nodes: dict[str, str], data: st.DataObject) -> None:
    devices, regions = (
        {name: data.draw(st.sampled_from(values)) for name in nodes}
        for values in (("/gpu:0", "/gpu:1"), ("", "branch"))
    )
    view, convolutions = make_graph(nodes, devices=devices, regions=regions)
    stages = group_always(convolutions, Independence(view, convolutions))

    def depth(name: str) -> int:
        op, *sources = nodes[name].split()
        before = max((depth(source.removeprefix("^")) for source in sources), default=0)
        return before + (op == "Conv2D")

    groups: dict[tuple[int, str, str], list[str]] = {}
    for name in (node.name for node in convolutions):
        groups.setdefault((depth(name), devices[name], regions[name]), []).append(name)
    expected = sorted(groups.items(), key=lambda group: group[0][0])
    assert [list(stage.nodes) for stage in stages] == [group for _, group in expected]
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
