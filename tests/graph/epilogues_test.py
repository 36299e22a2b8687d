from __future__ import annotations

import pytest
from graph_builder import DOUBLE, HALF, GraphBuilder, add_shapes, graph_of, node_of

from tf_interop.graph.epilogues import (
    find_epilogues,
    fuse_epilogues,
    separate_epilogues,
    without_unread_convolutions,
)
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView

CHANNELS = 4


def network(nodes: str, bias: tuple[int, ...] = (CHANNELS,)) -> GraphBuilder:
    graph = graph_of(nodes)
    for name, shape in (("f", (3, 3, 2, CHANNELS)), ("b", bias)):
        add_shapes(graph.node(name), "_output_shapes", [shape])
    return graph


def fused(graph: GraphBuilder, *preserved: str) -> dict[str, str]:
    """The op, inputs and fused ops of each node after fusing, by name."""
    view = GraphView(graph.graph_def, preserved)
    found = find_epilogues(view, GraphProperties(view))
    result = {}
    for node in fuse_epilogues(view, found).node:
        if node.op not in ("_Arg", "Const"):
            text = [node.op, *node.input, *(o.decode() for o in node.attr["fused_ops"].list.s)]
            result[node.name] = " ".join(text)
    return result


@pytest.mark.parametrize("activation", ["Relu", "Relu6", "Elu"])
@pytest.mark.parametrize(
    ("addition", "bias"),
    [
        ("BiasAdd c b", (CHANNELS,)),
        ("AddV2 c b", (CHANNELS,)),
        ("AddV2 b c", (1, 1, 1, CHANNELS)),
        ("Add c b", (1, CHANNELS)),
    ],
)
def test_fuses_a_bias_and_an_activation(
    addition: str, bias: tuple[int, ...], activation: str
) -> None:
    graph = network(f"c = Conv2D x f ^w; a = {addition}; r = {activation} a; y = Neg r", bias)
    graph.node("a").attr["data_format"].s = b"NHWC"
    expected = {"r": f"_FusedConv2D x f b ^w BiasAdd {activation}", "y": "Neg r"}
    assert fused(graph) == expected


def test_two_convolutions_that_are_added_have_one_epilogue() -> None:
    graph = network("c = Conv2D x f; d = Conv2D z f; a = AddV2 c d; y = BiasAdd a b")
    for name in ("c", "d"):
        add_shapes(graph.node(name), "_output_shapes", [(1, 1, 1, CHANNELS)])
    assert fused(graph) == {
        "d": "Conv2D z f",
        "a": "_FusedConv2D x f d BiasAdd",
        "y": "BiasAdd a b",
    }


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ("a = BiasAdd c b; y = Neg a; z = Neg c", "c"),  # another reader of the convolution
        ("a = BiasAdd c b ^w; y = Neg a", "c"),  # waits for something
        ("a = Mul c b; y = Neg a", "c"),
        ("a = AddV2 c c; y = Neg b", "c"),
        ("a = BiasAdd b c; y = Neg a", "c"),  # the convolution is the bias
    ],
)
def test_keeps_what_is_no_bias(nodes: str, left: str) -> None:
    graph = network(f"c = Conv2D x f; {nodes}")
    graph.node("a").attr["data_format"].s = b"NHWC"
    assert fused(graph)[left] == "Conv2D x f"


@pytest.mark.parametrize("bias", [(1,), (CHANNELS, 1), (2, CHANNELS), (8, 8, 8, CHANNELS)])
def test_keeps_an_addition_of_another_shape(bias: tuple[int, ...]) -> None:
    assert "c" in fused(network("c = Conv2D x f; a = AddV2 c b; y = Neg a", bias))


def test_channels_first_have_their_bias_there() -> None:
    for bias, is_fused in (((CHANNELS, 1, 1), True), ((CHANNELS,), False)):
        graph = network("c = Conv2D x f; a = AddV2 c b; y = Neg a", bias)
        graph.node("c").attr["data_format"].s = b"NCHW"
        assert ("c" not in fused(graph)) == is_fused


def test_keeps_a_scalar_of_one_channel_and_doubles() -> None:
    graph = network("c = Conv2D x f; a = AddV2 c b; y = Neg a", ())
    add_shapes(graph.node("f"), "_output_shapes", [(3, 3, 2, 1)])
    assert "c" in fused(graph)
    doubles = network("c = Conv2D x f; a = AddV2 c b; y = Neg a")
    for name in "ca":
        doubles.node(name).attr["T"].type = DOUBLE
    assert "c" in fused(doubles)


def test_keeps_preserved_names_other_dtypes_and_other_devices() -> None:
    nodes = "c = Conv2D x f; a = AddV2 c b; r = Relu a; y = Neg r"
    assert "c" in fused(network(nodes), "c")
    assert fused(network(nodes), "a")["a"] == "_FusedConv2D x f b BiasAdd"
    other = network(nodes)
    other.node("a").attr["T"].type = HALF
    assert "c" in fused(other)
    assert "c" in fused(network(nodes.replace("AddV2 c b", "AddV2 c b @/device:CPU:0")))


def test_an_activation_with_a_second_reader_of_the_sum_stays() -> None:
    graph = network("c = Conv2D x f; a = AddV2 c b; r = Relu a; y = Neg a")
    assert fused(graph) == {"a": "_FusedConv2D x f b BiasAdd", "r": "Relu a", "y": "Neg a"}


def test_separating_all_restores_the_graph() -> None:
    graph = network(
        "c = Conv2D x f ^w; a = AddV2 b c; r = Relu a; d = Conv2D r g; e = BiasAdd d h; y = Neg e"
    )
    graph.node("e").attr["data_format"].s = b"NHWC"
    view = GraphView(graph.graph_def)
    found = find_epilogues(view, GraphProperties(view))
    assert len(found) == 2
    separated = separate_epilogues(fuse_epilogues(view, found), view, found)
    assert {node.name for node in separated.node} == set(view.names)
    order = [view.index_of[node.name] for node in separated.node]
    assert all(separated.node[i] == view.nodes[place] for i, place in enumerate(order))


def test_separating_keeps_inputs_that_moved_into_a_stage() -> None:
    graph = network("c = Conv2D x f; a = AddV2 b c; y = Neg a")
    view = GraphView(graph.graph_def)
    found = find_epilogues(view, GraphProperties(view))
    changed = fuse_epilogues(view, found)
    node_of(changed, "a").input[:] = ["stage", "f", "stage:1"]
    separated = separate_epilogues(changed, view, found)
    assert list(node_of(separated, "c").input) == ["stage", "f"]
    assert list(node_of(separated, "a").input) == ["stage:1", "c"]


def test_drops_only_convolutions_that_nothing_reads() -> None:
    graph = network("c = Conv2D x f; d = Conv2D c g; e = Conv2D x h; y = Neg c; z = Neg b")
    nodes = [node.name for node in graph.graph_def.node]
    kept = without_unread_convolutions(GraphView(graph.graph_def, ["e"]))
    assert {"c", "e", "y", "z"} <= set(kept.names) <= set(nodes) - {"d"}
