"""The check of a rewritten graph: what it accepts, and each fault that it finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from graph_builder import CPU, GraphBuilder, node_of, set_attributes
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.errors import GraphError
from tf_interop.graph.check import check_rewrite
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.rewrite import rewrite_stages
from tf_interop.graph.view import GraphView
from tf_interop.plan.types import PinnedConvolution, PlannedStage

_STAGE = "tf_interop/stage_0"
_PRESERVED = ("d",)


def _before() -> graph_pb2.GraphDef:
    graph = GraphBuilder()
    for name in ("x", "f", "g", "c"):
        graph.source(name)
    graph.conv("a", "x", "f", "^c")
    graph.conv("b", "x", "g")
    graph.conv("d", "f", "g")
    graph.conv("alone", "x", "f")
    graph.add("reads", "AddN", "a", "b", "d", "alone")
    graph.add("waits", "NoOp", "^b", "^c")
    graph.add("placed", "Neg", "x", _class=["loc:@a"])
    graph.add("apart", "Neg", "x", kind="plain")
    graph.graph_def.library.function.add().signature.name = "function"
    return graph.graph_def


def _after(before: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    view = GraphView(before)
    convolutions, _ = find_convolutions(view, GraphProperties(view))
    lanes = tuple((PinnedConvolution(name),) for name in ("a", "b", "d"))
    return rewrite_stages(view, [PlannedStage(lanes)], convolutions, _PRESERVED)


def _remove(graph_def: graph_pb2.GraphDef, name: str) -> None:
    graph_def.node.remove(node_of(graph_def, name))


def _set_input(graph_def: graph_pb2.GraphDef, name: str, position: int, text: str | None) -> None:
    inputs = node_of(graph_def, name).input
    if text is None:
        del inputs[position]
    elif position == len(inputs):
        inputs.append(text)
    else:
        inputs[position] = text


def _change_step(
    graph_def: graph_pb2.GraphDef,
    position: int,
    change: Callable[[node_def_pb2.NodeDef], object],
) -> None:
    steps = node_of(graph_def, _STAGE).attr["steps"].list.s
    step = node_def_pb2.NodeDef.FromString(steps[position])
    change(step)
    steps[position] = step.SerializeToString(deterministic=True)


def _swap_operands(step: node_def_pb2.NodeDef) -> None:
    step.input.reverse()


def test_accepts_a_rewrite() -> None:
    before = _before()
    check_rewrite(GraphView(before), GraphView(_after(before)), _PRESERVED)
    check_rewrite(GraphView(before), GraphView(_after(before)), _PRESERVED, readers_only=True)


def test_accepts_no_rewrite() -> None:
    before = GraphView(_before())
    check_rewrite(before, before, ["not there"])


def test_accepts_stages_from_before() -> None:
    after = GraphView(_after(_before()))
    check_rewrite(after, after, _PRESERVED)


_SEEN_BY_BOTH = [
    (lambda g: _remove(g, "apart"), "'apart'"),
    (lambda g: g.node.add(name="new", op="NoOp"), "'new'"),
    (lambda g: _remove(g, _STAGE), "to name a node"),
    (lambda g: _set_input(g, "reads", 0, f"{_STAGE}:1"), "inputs of 'reads'"),
    (lambda g: _set_input(g, "reads", 1, f"{_STAGE}:2"), "inputs of 'reads'"),
    (lambda g: _set_input(g, "reads", 1, f"{_STAGE}:3"), "output of.*at node 'reads'"),
    (lambda g: _set_input(g, "reads", 0, "x"), "inputs of 'reads'"),
    (lambda g: _set_input(g, "reads", 3, None), "inputs of 'reads'"),
    (lambda g: _set_input(g, "reads", 4, "^apart"), "control dependencies.*node 'reads'"),
    (lambda g: set_attributes(node_of(g, "reads"), N=5), "'reads'"),
    (lambda g: setattr(node_of(g, "reads"), "device", CPU), "'reads'"),
    (lambda g: setattr(node_of(g, "reads"), "op", "Other"), "'reads'"),
    (lambda g: _set_input(g, "waits", 0, None), "control dependencies.*node 'waits'"),
    (lambda g: _set_input(g, "waits", 1, None), "control dependencies.*node 'waits'"),
    (lambda g: _set_input(g, "d", 0, _STAGE), "input of 'd'"),
    (lambda g: _set_input(g, "d", 1, "^apart"), "control dependencies.*node 'd'"),
    (lambda g: setattr(node_of(g, "d"), "op", "Neg"), "op of 'd'"),
    (lambda g: setattr(node_of(g, "d"), "device", CPU), "device of 'd'"),
    (lambda g: setattr(node_of(g, "d").attr["T"], "type", 19), "dtype of 'd'"),
    (lambda g: _set_input(g, _STAGE, 3, None), f"control dependencies.*node '{_STAGE}'"),
    (lambda g: _set_input(g, _STAGE, 4, "^apart"), f"control dependencies.*node '{_STAGE}'"),
    (lambda g: _set_input(g, _STAGE, 0, "apart"), "operands of 'a'"),
    (lambda g: setattr(node_of(g, _STAGE), "device", CPU), "device of 'a'"),
    (lambda g: _change_step(g, 1, _swap_operands), "operands of 'b'"),
    (
        lambda g: _change_step(g, 1, lambda step: set_attributes(step, padding="VALID")),
        "attributes of 'b'",
    ),
    (lambda g: _change_step(g, 1, lambda step: step.attr.pop("dilations")), "attributes of 'b'"),
    (
        lambda g: _change_step(g, 1, lambda step: setattr(step, "op", "DepthwiseConv2dNative")),
        "op and attributes of 'b'",
    ),
    (lambda g: _change_step(g, 1, lambda step: setattr(step, "name", "alone")), "'alone'|'b'"),
    (lambda g: _change_step(g, 1, lambda step: setattr(step, "name", "apart")), "'apart'"),
]

_SEEN_BY_FULL_CHECK = [
    (lambda g: set_attributes(node_of(g, "apart"), kind="fancy"), "'apart'"),
    (lambda g: _set_input(g, "apart", 0, "f"), "inputs of 'apart'"),
    (lambda g: node_of(g, "placed").attr.pop("_class"), "_class of 'placed'"),
    (lambda g: set_attributes(node_of(g, "placed"), _class=["loc:@a"]), "_class of 'placed'"),
    (lambda g: setattr(node_of(g, "alone"), "op", "Identity"), "'alone'"),
    (lambda g: setattr(g.versions, "producer", 1), "versions"),
    (lambda g: g.library.function.pop(), "library"),
]


@pytest.mark.parametrize(("change", "match"), _SEEN_BY_BOTH + _SEEN_BY_FULL_CHECK)
def test_rejects(change: Callable[[graph_pb2.GraphDef], object], match: str) -> None:
    before = _before()
    after = _after(before)
    change(after)
    with pytest.raises(GraphError, match=match):
        check_rewrite(GraphView(before), GraphView(after), _PRESERVED)


@pytest.mark.parametrize(("change", "match"), _SEEN_BY_BOTH)
def test_rejects_with_readers_only(
    change: Callable[[graph_pb2.GraphDef], object], match: str
) -> None:
    before = _before()
    after = _after(before)
    change(after)
    with pytest.raises(GraphError, match=match):
        check_rewrite(GraphView(before), GraphView(after), _PRESERVED, readers_only=True)


def test_rejects_a_reader_of_an_output_that_convolutions_lack() -> None:
    before = _before()
    after = _after(before)
    node_of(before, "reads").input[0] = "a:1"
    node_of(after, "reads").input[0] = f"{_STAGE}:1"
    with pytest.raises(GraphError, match="output 0 of convolution 'a', got 1 at node 'reads'"):
        check_rewrite(GraphView(before), GraphView(after), _PRESERVED)


def test_rejects_a_preserved_name_that_is_gone() -> None:
    before = _before()
    after = _after(before)
    with pytest.raises(GraphError, match="keep node 'a'"):
        check_rewrite(GraphView(before), GraphView(after), ["a", "d"])


def test_rejects_a_convolution_in_two_stages() -> None:
    before = _before()
    after = _after(before)
    copy = after.node.add()
    copy.CopyFrom(node_of(after, _STAGE))
    copy.name = "tf_interop/stage_1"
    with pytest.raises(GraphError, match="to be one step"):
        check_rewrite(GraphView(before), GraphView(after), _PRESERVED)


def test_rejects_a_stage_of_two_regions() -> None:
    graph = GraphBuilder()
    for name in ("x", "f", "c"):
        graph.source(name)
    graph.add("switch", "Switch", "x", "c")
    graph.conv("a", "switch", "f")
    graph.conv("b", "switch:1", "f")
    view = GraphView(graph.graph_def)
    convolutions, _ = find_convolutions(view, GraphProperties(view))
    same_region = [
        type(node)(node.name, node.index, node.device, "", node.configuration)
        for node in convolutions
    ]
    stage = PlannedStage(((PinnedConvolution("a"),), (PinnedConvolution("b"),)))
    after = rewrite_stages(view, [stage], same_region, ())
    with pytest.raises(GraphError, match=r"one control-flow region.*'a'.*'b'"):
        check_rewrite(view, GraphView(after), ())


def test_rejects_a_stage_of_what_is_before_and_behind_a_value_that_is_fed() -> None:
    graph = GraphBuilder()
    for name in ("x", "f", "p"):
        graph.source(name, op="Placeholder")
    graph.conv("a", "x", "f")
    graph.conv("b", "p", "f")
    graph.add("fetched", "AddN", "a", "b")
    view = GraphView(graph.graph_def)
    convolutions, _ = find_convolutions(view, GraphProperties(view))
    stage = PlannedStage(((PinnedConvolution("a"),), (PinnedConvolution("b"),)))
    preserved = ("p", "fetched")
    after = GraphView(rewrite_stages(view, [stage], convolutions, preserved))
    check_rewrite(view, after, preserved)
    with pytest.raises(GraphError, match=r"one control-flow region.*'a'.*'b'"):
        check_rewrite(view, after, preserved, fetches=["fetched:0"])


def test_rejects_a_stage_that_makes_a_cycle() -> None:
    graph = GraphBuilder()
    graph.source("x")
    graph.conv("a", "x", "x")
    graph.conv("b", "a", "x")
    after = _after_with_stage_of_a_and_b()
    with pytest.raises(GraphError, match="cycle"):
        check_rewrite(GraphView(graph.graph_def), GraphView(after), ())


def _after_with_stage_of_a_and_b() -> graph_pb2.GraphDef:
    """A stage of two independent convolutions, the first of which then reads the second."""
    graph = GraphBuilder()
    graph.source("x")
    graph.source("y")
    graph.conv("a", "x", "x")
    graph.conv("b", "y", "x")
    view = GraphView(graph.graph_def)
    convolutions, _ = find_convolutions(view, GraphProperties(view))
    stage = PlannedStage(((PinnedConvolution("a"),), (PinnedConvolution("b"),)))
    after = rewrite_stages(view, [stage], convolutions, ())
    _remove(after, "y")
    _set_input(after, _STAGE, 1, _STAGE)
    return after


@pytest.mark.parametrize(
    ("changes", "preserved", "match"),
    [
        ({"op": "_Arg"}, [], "'f' of op _Arg"),
        ({"device": CPU}, [], "on its device"),
        ({}, ["f"], "cannot be fed"),
    ],
)
def test_check_rewrite_rejects_what_is_taken_as_constant(
    changes: dict[str, str], preserved: list[str], match: str
) -> None:
    graph = GraphBuilder()
    graph.source("x")
    graph.add("f", "Const")
    for name in ("a", "b"):
        graph.conv(name, "x", "f")
    view = GraphView(graph.graph_def)
    convolutions, _ = find_convolutions(view, GraphProperties(view))
    stage = PlannedStage(tuple((PinnedConvolution(name),) for name in ("a", "b")))
    after = rewrite_stages(view, [stage], convolutions, ())
    check_rewrite(view, GraphView(after), [])
    for graph_def in (graph.graph_def, after):
        for field, value in changes.items():
            setattr(node_of(graph_def, "f"), field, value)
    with pytest.raises(GraphError, match=match):
        check_rewrite(GraphView(graph.graph_def), GraphView(after), preserved)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda g: g.node.add(name="x", op="NoOp"), "two nodes 'x'"),
        (lambda g: _set_input(g, "apart", 0, "nowhere"), "'nowhere'"),
        (lambda g: _set_input(g, "apart", 0, "apart"), "cycle"),
        (lambda g: _remove(g, "reads"), "keep node 'reads'"),
        (lambda g: node_of(g, _STAGE).attr.pop("steps"), "'steps'"),
        (lambda g: _set_input(g, "reads", 0, f"{_STAGE}:3"), "'reads'"),
        (lambda g: _set_input(g, "reads", 0, f"{_STAGE}:-1"), "'reads'"),
    ],
)
def test_rejects_what_is_not_well_formed(
    change: Callable[[graph_pb2.GraphDef], object], match: str
) -> None:
    before = _before()
    after = _after(before)
    change(after)
    with pytest.raises(GraphError, match=match):
        check_rewrite(GraphView(before), GraphView(after), [*_PRESERVED, "reads"])
