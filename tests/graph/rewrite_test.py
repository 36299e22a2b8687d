"""Stages and units in place of their steps: the new graph, and the parts that do not change."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
from graph_builder import (
    CPU,
    FLOAT,
    GPU,
    GraphBuilder,
    graph_of,
    node_of,
    nodes_of,
    same_graph,
    set_attributes,
)
from planning_graphs import make_lanes
from tensorflow.core.framework import graph_pb2, types_pb2

from tf_interop.graph.check import check_rewrite
from tf_interop.graph.program import (
    CONV_STAGE_OP,
    UNIT_OP,
    decode_node,
    result_operand,
)
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.rewrite import AS_STOCK, rewrite_stages, rewrite_units
from tf_interop.graph.units import Unit, find_units
from tf_interop.graph.view import GraphView
from tf_interop.stage import Lane, Schedule, Stage, Step

STAGE = "tf_interop/stage_0"


def checked(
    graph: GraphBuilder,
    rewrite: Callable[[GraphView], graph_pb2.GraphDef],
    preserve: Collection[str] = (),
) -> graph_pb2.GraphDef:
    """The new graph, which passes the check; asserts that the old one did not change."""
    before = graph_pb2.GraphDef.FromString(graph.graph_def.SerializeToString())
    view = GraphView(graph.graph_def, preserve)
    rewritten = rewrite(view)
    assert same_graph(graph.graph_def, before)
    check_rewrite(view, GraphView(rewritten))
    return rewritten


def with_stages(
    graph: GraphBuilder, *stages: Stage[str], preserve: Collection[str] = ()
) -> graph_pb2.GraphDef:
    schedules = [(Schedule(None, stage),) for stage in stages]
    return checked(graph, lambda view: rewrite_stages(view, schedules), preserve)


def units_of(view: GraphView) -> tuple[Unit, ...]:
    return find_units(view, GraphProperties(view))[0]


def with_units(graph: GraphBuilder) -> graph_pb2.GraphDef:
    """Makes all units narrow."""
    return checked(graph, lambda view: rewrite_units(view, units_of(view)))


def described(graph_def: graph_pb2.GraphDef) -> dict[str, str]:
    """Op and inputs of each node with inputs; contents of units, and of stage `k` as `Sk`."""
    texts = {}
    for node in graph_def.node:
        words = [node.op, *node.input]
        if node.op == CONV_STAGE_OP:
            stage: Any = decode_node(node)
            names = [each.name for each in stage.steps]
            steps = [f"{each.name}({' '.join(each.input)})" for each in stage.steps]
            lanes = [
                " ".join(names[step] for step in lane.operations)
                for lane in stage.schedules[0].stage.lanes
            ]
            words = [
                "Stage",
                *node.input,
                "|",
                *steps,
                "->",
                *(names[place] for place, _ in stage.results),
            ]
            if lanes != names:
                words += ["lanes", ",".join(lanes)]
            words += [f"kept:{stage.inputs[place]}" for place in stage.kept_inputs]
        elif node.op == UNIT_OP:
            unit = decode_node(node)
            steps = [f"{step.name}({' '.join(step.input)})" for step in unit.steps]
            words = ["Unit", *node.input, "|", *steps, "->", *map(result_operand, unit.results)]
            words += [f"kept:{unit.inputs[place]}" for place in unit.kept_inputs]
        if node.input:
            texts[node.name] = " ".join(words)
    return {
        name.replace("tf_interop/stage_", "S"): text.replace("tf_interop/stage_", "S")
        for name, text in texts.items()
    }


TWO = "a = Conv2D x f; b = Conv2D x f"
# Graphs, the lanes of their stages, names to preserve, and the nodes with inputs in the new graphs.
STAGES = {
    "two_convolutions": (
        "a = Conv2D x f ^c ^d; b = Conv2D x:0 g ^d ^f ^c; after_a = Relu6 a; "
        "after_b = Add b:0 x ^a ^b; waits = NoOp ^a ^c ^b",
        ["a, b"],
        "",
        "S0 = Stage x f g ^c ^d | a(inputs:0 inputs:1) b(inputs:0 inputs:2) -> a b; "
        "after_a = Relu6 S0; after_b = Add S0:1 x; waits = NoOp ^S0 ^c",
    ),
    # A result is an output if a node outside reads it, or if no node does.
    "a_chain_in_a_lane": (
        "a = Conv2D x f; apart = Conv2D x f; b = Conv2D a a; d = Conv2D b:0 a ^a; "
        "reads = Add b apart; waits = NoOp ^a ^d",
        ["a b d, apart"],
        "",
        "S0 = Stage x f | a(inputs:0 inputs:1) b(steps:0:0 steps:0:0) d(steps:1:0 steps:0:0) "
        "apart(inputs:0 inputs:1) -> b d apart lanes a b d,apart; "
        "reads = Add S0 S0:2; waits = NoOp ^S0",
    ),
    # A node that reads a stage's output needs no control dependency on it.
    "a_stage_that_reads_a_stage": (
        "a1 = Conv2D x f; a2 = Conv2D x g; b1 = Conv2D a2 f ^a1; b2 = Conv2D x a1 ^a2 ^c",
        ["a1, a2", "b1, b2"],
        "",
        "S0 = Stage x f g | a1(inputs:0 inputs:1) a2(inputs:0 inputs:2) -> a1 a2; "
        "S1 = Stage S0:1 f x S0 ^c | b1(inputs:0 inputs:1) b2(inputs:2 inputs:3) -> b1 b2",
    ),
    # A value fed for b must still reach its readers.
    "a_preserved_name": (
        f"{TWO}; after = Add a b ^b",
        ["a, b"],
        "b not_there",
        "S0 = Stage x f | a(inputs:0 inputs:1) b(inputs:0 inputs:1) -> a b; b = Identity S0:1; "
        "after = Add S0 b ^b",
    ),
    "filters_that_may_be_held_are_marked": (
        f"k = Const; l = ReadVariableOp; m = Const; kept = ReadVariableOp; "
        f"away = ReadVariableOp @{CPU}; same = Identity k; a = Conv2D x l; "
        "b = _FusedConv2D x k:0 c; w = Conv2D x f; d = Conv2DBackpropInput s m g; "
        "e = DepthwiseConv2dNative x l; r = Conv2D x kept; not_away = Conv2D x away; "
        "n = Conv2D x same",
        ["a, b, d, e, w, r, not_away, n"],
        "kept",
        "same = Identity k; S0 = Stage x l k:0 c m g f kept away same s | a(inputs:0 inputs:1) "
        "b(inputs:0 inputs:2 inputs:3) d(inputs:10 inputs:4 inputs:5) e(inputs:0 inputs:1) "
        "w(inputs:0 inputs:6) r(inputs:0 inputs:7) not_away(inputs:0 inputs:8) "
        "n(inputs:0 inputs:9) -> a b d e w r not_away n kept:l kept:k:0 kept:m kept:kept",
    ),
    "a_filter_that_a_session_may_feed_is_not": (
        "x = Placeholder; f = ReadVariableOp; g = ReadVariableOp; a = Conv2D x f; b = Conv2D x g",
        ["a, b"],
        "g",
        "S0 = Stage x f g | a(inputs:0 inputs:1) b(inputs:0 inputs:2) -> a b kept:f",
    ),
}


@pytest.mark.parametrize(("nodes", "stages", "preserve", "expected"), STAGES.values(), ids=STAGES)
def test_stages(nodes: str, stages: list[str], preserve: str, expected: str) -> None:
    graph = graph_of(nodes)
    graph.graph_def.library.function.add().signature.name = "function"
    lanes = [make_lanes(*stage.split(", ")) for stage in stages]
    rewritten = with_stages(graph, *lanes, preserve=preserve.split())
    assert described(rewritten) == nodes_of(expected)
    for node in rewritten.node:
        if node.op == CONV_STAGE_OP:
            assert node.device == GPU
            steps = [each.name for each in decode_node(node).steps]
            assert list(node.experimental_debug_info.original_node_names) == steps
    # Everything else, such as nodes that read no step, stays as it was.
    changed = {name for each in lanes for name in each.operations}
    changed |= {
        name
        for name, text in nodes_of(nodes).items()
        if changed & {read.strip("^").partition(":")[0] for read in text.split()[1:]}
    }
    for node in graph.graph_def.node:
        if node.name not in changed:
            assert node_of(rewritten, node.name) == node
    expected_rest = graph_pb2.GraphDef(library=graph.graph_def.library)
    expected_rest.versions.CopyFrom(graph.graph_def.versions)
    del rewritten.node[:]
    assert rewritten == expected_rest


def test_writes_each_schedule_in_the_same_bytes_each_time() -> None:
    planned = [
        Schedule(8, Stage((Lane((Step("b", "FFT"),), -1), Lane((Step("a"), Step("d")), 1)))),
        Schedule(32, make_lanes("+d:GEMM a:GEMM", "b")),
    ]
    view = GraphView(graph_of(f"{TWO}; d = Conv2D x f").graph_def)
    rewritten = rewrite_stages(view, [planned])
    assert same_graph(rewritten, rewrite_stages(view, [planned]))
    decoded: Any = decode_node(node_of(rewritten, STAGE))
    names = [operation.name for operation in decoded.steps]
    assert [
        Schedule(each.batch_size, each.stage.map(names.__getitem__)) for each in decoded.schedules
    ] == planned


def test_redirects_colocation() -> None:
    graph = graph_of(f"another = Conv2D x f; {TWO}; other = Conv2D x g; near_both = Neg x")
    for name, classes in {
        **{"a": ["loc:@x", "loc:@b"], "b": ["loc:@a", "loc:@other"], "other": ["loc:@g"]},
        "near_both": ["loc:@b", "loc:@c", "loc:@a"],
    }.items():
        set_attributes(graph.node(name), _class=classes)
    rewritten = with_stages(graph, make_lanes("a", "b"), make_lanes("other", "another"))
    assert {
        node.name: list(node.attr["_class"].list.s)
        for node in rewritten.node
        if "_class" in node.attr
    } == {
        STAGE: [b"loc:@tf_interop/stage_1", b"loc:@x"],
        "tf_interop/stage_1": [b"loc:@g"],
        "near_both": [f"loc:@{STAGE}".encode(), b"loc:@c"],
    }


def test_picks_a_free_name() -> None:
    graph = graph_of(f"{TWO}; reads = Add {STAGE} {STAGE}_1")
    assert f"{STAGE}_2" in {node.name for node in with_stages(graph, make_lanes("a", "b")).node}


# Graphs, and the nodes with inputs in the new graphs.
UNITS = {
    # The unit has the name of the last step that is read.
    "results_on_the_way": (
        "a = Conv2D x w; b = Relu a; c = Foo a b; d = NoOp ^a",
        "b = Unit x w | a(inputs:0 inputs:1) b(steps:0:0) -> steps:1:0 steps:0:0; "
        "c = Foo b:1 b; d = NoOp ^b",
    ),
    "control_dependencies": (
        "e = Foo x; a = Conv2D x w ^e ^x; b = Relu a ^e ^a; c = Foo b ^a ^e",
        "e = Foo x; b = Unit x w ^e | a(inputs:0 inputs:1) b(steps:0:0) -> steps:1:0; c = Foo b ^e",
    ),
    "constant_filters": (
        "w = Const; v = Const; a = Conv2D x w; b = AddV2 a v",
        "b = Unit x w v | a(inputs:0 inputs:1) b(steps:0:0 inputs:2) -> steps:1:0 kept:w",
    ),
    # The op divides its first input, and is timed by its sizes.
    "the_first_input_has_the_batch": (
        "a = Conv2DBackpropInput s w x; b = ReluGrad a y",
        "b = Unit x s w y | a(inputs:1 inputs:2 inputs:0) b(steps:0:0 inputs:3) -> steps:1:0",
    ),
    "a_constant_has_no_batch": (
        "k = Const; a = Mul k x; b = Relu a",
        "b = Unit x k | a(inputs:1 inputs:0) b(steps:0:0) -> steps:1:0",
    ),
}


@pytest.mark.parametrize(("nodes", "expected"), UNITS.values(), ids=UNITS)
def test_units(nodes: str, expected: str) -> None:
    assert described(with_units(graph_of(nodes, CPU))) == nodes_of(expected)


def test_outputs_of_one_step_keep_their_ports() -> None:
    graph = GraphBuilder(CPU)
    for source in ("x", "scale", "offset", "mean", "variance"):
        graph.source(source)
    graph.add("n", "FusedBatchNormV3", "x", "scale", "offset", "mean", "variance", T=FLOAT)
    graph.node("n").attr["U"].type = FLOAT
    graph.add("f", "Foo", "n", "n:1")
    graph.add("g", "Foo", "n:2", "n:5", "^n")
    rewritten = with_units(graph)
    unit = decode_node(node_of(rewritten, "n"))
    assert unit.results == ((0, 0), (0, 1), (0, 2), (0, 5))
    assert list(node_of(rewritten, "f").input) == ["n", "n:1"]
    assert list(node_of(rewritten, "g").input) == ["n:2", "n:3"]


def test_a_step_loses_its_notes_and_a_unit_names_its_originals() -> None:
    graph = graph_of("a = Cast x; b = Relu a; c = Foo a b", CPU)
    node = graph.node("a")
    node.ClearField("attr")
    node.attr["SrcT"].type, node.attr["DstT"].type = FLOAT, types_pb2.DT_BFLOAT16
    set_attributes(node, _grappler_note="n", Truncate=True)
    node.experimental_debug_info.original_node_names.append("original")
    set_attributes(graph.node("b"), T=types_pb2.DT_BFLOAT16)
    unit = node_of(with_units(graph), "b")
    assert unit.device == CPU
    assert list(unit.attr["Tin"].list.type) == [FLOAT]
    assert list(unit.attr["Tout"].list.type) == [types_pb2.DT_BFLOAT16] * 2
    assert list(unit.experimental_debug_info.original_node_names) == ["a", "b"]
    step, _ = decode_node(unit).steps
    assert (step.op, step.device, step.attr["Truncate"].b) == ("Cast", "", True)
    assert "_grappler_note" not in step.attr
    assert not step.HasField("experimental_debug_info")


@pytest.mark.parametrize(("cores", "timed_graph"), [(AS_STOCK, ""), (4, ""), (1, "timed")])
def test_cores_timing_and_shapes(cores: int, timed_graph: str) -> None:
    graph = graph_of("a = Conv2D x w; b = Relu a; c = Relu y", CPU)
    view = GraphView(graph.graph_def)
    units = units_of(view)
    rewritten = rewrite_units(
        view,
        units,
        cores=cores,
        output_shapes=lambda index, _: (None, 3) if view.names[index] == "b" else None,
        timed_graph=timed_graph,
    )
    check_rewrite(view, GraphView(rewritten))
    found = [decode_node(node) for node in rewritten.node if node.op == UNIT_OP]
    assert [each.cores for each in found] == [cores] * 2
    assert {each.timed_graph for each in found} == {timed_graph}
    if timed_graph:
        assert [(each.timed_unit, each.timed_units) for each in found] == [(0, 2), (1, 2)]
    shapes = {each.name: each.output_shapes for each in found}
    assert shapes == {"b": ((None, 3),), "c": ()}
