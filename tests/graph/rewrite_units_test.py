"""Units in place of their steps: the new graph, what stays as it was, and what is refused."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from graph_builder import (
    CPU,
    FLOAT,
    GraphBuilder,
    graph_of,
    node_of,
    nodes_of,
    same_graph,
    set_attributes,
)
from tensorflow.core.framework import graph_pb2, types_pb2

from tf_interop.graph.check import check_rewrite
from tf_interop.graph.rewrite_units import rewrite_units
from tf_interop.graph.unit_node import UNIT_OP, decode_unit, result_operand
from tf_interop.graph.units import find_units
from tf_interop.graph.view import GraphView


def rewrite(graph: GraphBuilder, preserve: Collection[str] = ()) -> graph_pb2.GraphDef:
    """Makes all units narrow; the judge looks at it, and the old graph may not have changed."""
    before = graph_pb2.GraphDef.FromString(graph.graph_def.SerializeToString())
    view = GraphView(graph.graph_def)
    units, _ = find_units(view, nodes_to_preserve=preserve)
    rewritten = rewrite_units(view, units, preserve)
    assert same_graph(graph.graph_def, before)
    check_rewrite(view, GraphView(rewritten), preserve)
    return rewritten


def described(graph_def: graph_pb2.GraphDef) -> dict[str, str]:
    """Op and inputs of each node that has any; of a unit what it holds as well."""
    texts = {}
    for node in graph_def.node:
        words = [node.op, *node.input]
        if node.op == UNIT_OP:
            unit = decode_unit(node)
            steps = [f"{step.name}({' '.join(step.input)})" for step in unit.steps]
            words = ["Unit", *node.input, "|", *steps, "->", *map(result_operand, unit.results)]
            words += [f"constant:{unit.inputs[place]}" for place in unit.constant_inputs]
        if node.input:
            texts[node.name] = " ".join(words)
    return texts


# Graphs, and of the new ones the nodes with inputs.
REWRITTEN = {
    # The unit is called as the last step that is read.
    "results_on_the_way": (
        "a = Conv2D x w; b = Relu a; c = Foo a b; d = NoOp ^a",
        "b = Unit x w | a(inputs:0 inputs:1) b(steps:0:0) -> steps:1:0 steps:0:0; "
        "c = Foo b:1 b; d = NoOp ^b",
    ),
    # Whoever reads it and however it is written.
    "each_tensor_is_one_input": (
        "a = Conv2D x:0 w; b = AddV2 a x; c = AddV2 b s:1",
        "c = Unit x:0 w s:1 | a(inputs:0 inputs:1) b(steps:0:0 inputs:0) c(steps:1:0 inputs:2) "
        "-> steps:2:0",
    ),
    "control_dependencies": (
        "e = Foo x; a = Conv2D x w ^e ^x; b = Relu a ^e ^a; c = Foo b ^a ^e",
        "e = Foo x; b = Unit x w ^e | a(inputs:0 inputs:1) b(steps:0:0) -> steps:1:0; c = Foo b ^e",
    ),
    "constant_filters": (
        "w = Const; v = Const; a = Conv2D x w; b = AddV2 a v",
        "b = Unit x w v | a(inputs:0 inputs:1) b(steps:0:0 inputs:2) -> steps:1:0 constant:w",
    ),
    # What has the batch comes first, as batch_sizes go by it.
    "the_first_input_has_the_batch": (
        "a = Conv2DBackpropInput s w x; b = ReluGrad a y",
        "b = Unit x s w y | a(inputs:1 inputs:2 inputs:0) b(steps:0:0 inputs:3) -> steps:1:0",
    ),
    "a_constant_has_no_batch": (
        "k = Const; a = Mul k x; b = Relu a",
        "b = Unit x k | a(inputs:1 inputs:0) b(steps:0:0) -> steps:1:0",
    ),
}


@pytest.mark.parametrize(("nodes", "expected"), REWRITTEN.values(), ids=REWRITTEN)
def test_rewrites(nodes: str, expected: str) -> None:
    assert described(rewrite(graph_of(nodes, CPU))) == nodes_of(expected)


def test_outputs_of_one_step_keep_their_ports() -> None:
    graph = GraphBuilder(CPU)
    for source in ("x", "scale", "offset", "mean", "variance"):
        graph.source(source)
    graph.add("n", "FusedBatchNormV3", "x", "scale", "offset", "mean", "variance", T=FLOAT)
    graph.node("n").attr["U"].type = FLOAT
    graph.add("f", "Foo", "n", "n:1")
    graph.add("g", "Foo", "n:2", "n:5", "^n")
    rewritten = rewrite(graph)
    unit = decode_unit(node_of(rewritten, "n"))
    assert unit.results == ((0, 0), (0, 1), (0, 2), (0, 5))
    assert list(node_of(rewritten, "f").input) == ["n", "n:1"]
    assert list(node_of(rewritten, "g").input) == ["n:2", "n:3"]


def test_a_step_is_its_node_without_notes_and_a_unit_says_what_it_stands_for() -> None:
    graph = graph_of("a = Cast x; b = Relu a; c = Foo a b", CPU)
    node = graph.node("a")
    node.ClearField("attr")
    node.attr["SrcT"].type, node.attr["DstT"].type = FLOAT, types_pb2.DT_BFLOAT16
    set_attributes(node, _grappler_note="n", Truncate=True)
    node.experimental_debug_info.original_node_names.append("original")
    set_attributes(graph.node("b"), T=types_pb2.DT_BFLOAT16)
    unit = node_of(rewrite(graph), "b")
    assert unit.device == CPU
    assert list(unit.attr["Tin"].list.type) == [FLOAT]
    assert list(unit.attr["Tout"].list.type) == [types_pb2.DT_BFLOAT16] * 2
    assert list(unit.experimental_debug_info.original_node_names) == ["a", "b"]
    step, _ = decode_unit(unit).steps
    assert (step.op, step.device, step.attr["Truncate"].b) == ("Cast", "", True)
    assert "_grappler_note" not in step.attr
    assert not step.HasField("experimental_debug_info")


def test_batch_sizes_cores_and_shapes() -> None:
    graph = graph_of("a = Conv2D x w; b = Relu a; c = Relu y", CPU)
    view = GraphView(graph.graph_def)
    units, _ = find_units(view)
    rewritten = rewrite_units(
        view,
        units,
        (),
        cores=[{8: 4, 2: 1}, {None: 1}],
        output_shapes=lambda index, _: (None, 3) if view.names[index] == "b" else None,
    )
    check_rewrite(view, GraphView(rewritten), ())
    by_name = {node.name: decode_unit(node) for node in rewritten.node if node.op == UNIT_OP}
    assert (by_name["b"].batch_sizes, by_name["c"].batch_sizes) == ((2, 8), ())
    assert (by_name["b"].cores, by_name["c"].cores) == ((1, 4), ())
    assert (by_name["b"].output_shapes, by_name["c"].output_shapes) == (((None, 3),), ())
