"""The check of a rewritten graph: what it accepts, and each fault that it finds."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from graph_builder import CPU, graph_of, node_of, set_attributes
from planning_graphs import make_lanes
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.errors import GraphError
from tf_interop.graph.check import check_rewrite
from tf_interop.graph.program import Schedule
from tf_interop.graph.rewrite import rewrite_stages
from tf_interop.graph.view import GraphView

_STAGE = "tf_interop/stage_0"
_PRESERVED = ("d",)


def _before() -> graph_pb2.GraphDef:
    graph = graph_of(
        {
            **{"a": "Conv2D x f ^c", "b": "Conv2D x g", "d": "Conv2D f g", "inner": "Conv2D x f"},
            **{"after_inner": "Conv2D inner f ^inner", "alone": "Conv2D x f"},
            **{"reads": "AddN a b d alone after_inner", "waits": "NoOp ^b ^c"},
            **{"placed": "Neg x", "apart": "Neg x"},
        }
    )
    set_attributes(graph.node("placed"), _class=["loc:@a"])
    set_attributes(graph.node("apart"), kind="plain")
    graph.graph_def.library.function.add().signature.name = "function"
    return graph.graph_def


def _staged(
    graph_def: graph_pb2.GraphDef, *lanes: str, preserved: Sequence[str] = ()
) -> graph_pb2.GraphDef:
    stage = (Schedule(None, make_lanes(*lanes)),)
    return rewrite_stages(GraphView(graph_def), [stage], preserved)


def _after(before: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    return _staged(before, "a", "b", "d", "inner after_inner", preserved=_PRESERVED)


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


def _change_program(graph_def: graph_pb2.GraphDef, change: Callable[[Any], object]) -> None:
    program = node_of(graph_def, _STAGE).attr["program"]
    document = json.loads(program.s)
    change(document)
    program.s = json.dumps(document).encode()


def _change_operation(
    graph_def: graph_pb2.GraphDef,
    place: int,
    change: Callable[[node_def_pb2.NodeDef], object],
) -> None:
    def changed(document: Any) -> None:
        serialized = base64.b64decode(document["operations"][place])
        operation = node_def_pb2.NodeDef.FromString(serialized)
        change(operation)
        document["operations"][place] = base64.b64encode(operation.SerializeToString()).decode()

    _change_program(graph_def, changed)


def _swap_operands(operation: node_def_pb2.NodeDef) -> None:
    operation.input.reverse()


def test_accepts_a_rewrite_and_none() -> None:
    before = GraphView(_before())
    after = GraphView(_after(_before()))
    check_rewrite(before, after, _PRESERVED)
    check_rewrite(before, after, _PRESERVED, readers_only=True)
    check_rewrite(before, before, ["not there"])
    check_rewrite(after, after, _PRESERVED)


# Operations: a, b, d, inner, after_inner. Outputs: all but inner.
_SEEN_BY_BOTH = [
    (lambda g: _remove(g, "apart"), "'apart'"),
    (lambda g: g.node.add(name="new", op="NoOp"), "'new'"),
    (lambda g: _remove(g, _STAGE), _STAGE),
    (lambda g: g.node.add(name="x", op="NoOp"), "two nodes 'x'"),
    (lambda g: _set_input(g, "apart", 0, "nowhere"), "'nowhere'"),
    (lambda g: _set_input(g, "apart", 0, "apart"), "cycle"),
    (lambda g: _remove(g, "d"), "'d'"),
    (lambda g: node_of(g, _STAGE).attr.pop("program"), "'program'"),
    (lambda g: _set_input(g, "reads", 0, f"{_STAGE}:-1"), "'reads'"),
    (lambda g: _set_input(g, "reads", 0, f"{_STAGE}:1"), "inputs of 'reads'"),
    (lambda g: _set_input(g, "reads", 1, f"{_STAGE}:2"), "inputs of 'reads'"),
    (lambda g: _set_input(g, "reads", 1, f"{_STAGE}:4"), "output of.*at node 'reads'"),
    (lambda g: _set_input(g, "reads", 0, "x"), "inputs of 'reads'"),
    (lambda g: _set_input(g, "reads", 3, None), "inputs of 'reads'"),
    (lambda g: _set_input(g, "reads", 5, "^apart"), "control dependencies.*node 'reads'"),
    (lambda g: set_attributes(node_of(g, "reads"), N=5), "'reads'"),
    (lambda g: setattr(node_of(g, "reads"), "device", CPU), "'reads'"),
    (lambda g: setattr(node_of(g, "reads"), "op", "Other"), "'reads'"),
    (lambda g: _set_input(g, "waits", 0, None), "control dependencies.*node 'waits'"),
    (lambda g: _set_input(g, "waits", 1, None), "control dependencies.*node 'waits'"),
    (lambda g: _set_input(g, "d", 0, _STAGE), "'d'"),
    (lambda g: _set_input(g, "d", 1, "^apart"), "'d'"),
    (lambda g: setattr(node_of(g, "d"), "op", "Neg"), "'d'"),
    (lambda g: setattr(node_of(g, "d"), "device", CPU), "'d'"),
    (lambda g: setattr(node_of(g, "d").attr["T"], "type", 19), "'d'"),
    (lambda g: _set_input(g, _STAGE, 3, None), f"control dependencies.*node '{_STAGE}'"),
    (lambda g: _set_input(g, _STAGE, 4, "^apart"), f"control dependencies.*node '{_STAGE}'"),
    (lambda g: _set_input(g, _STAGE, 0, "apart"), "operand of 'a'"),
    (lambda g: setattr(node_of(g, _STAGE), "device", CPU), "device of 'a'"),
    (lambda g: _change_operation(g, 1, _swap_operands), "operand of 'b'"),
    (lambda g: _change_operation(g, 4, _swap_operands), "'inner'|'after_inner'"),
    (
        lambda g: _change_operation(g, 4, lambda each: each.input.__setitem__(0, "inputs:0")),
        "'inner'|'after_inner'",
    ),
    (
        lambda g: _change_operation(g, 1, lambda each: set_attributes(each, padding="VALID")),
        "attributes of 'b'",
    ),
    (
        lambda g: _change_operation(g, 1, lambda each: each.attr.pop("dilations")),
        "attributes of 'b'",
    ),
    (
        lambda g: _change_operation(g, 1, lambda each: setattr(each, "op", "_FusedConv2D")),
        "'b'",
    ),
    (lambda g: _change_operation(g, 1, lambda each: setattr(each, "name", "alone")), "'alone'|'b'"),
    (lambda g: _change_operation(g, 1, lambda each: setattr(each, "name", "apart")), "'apart'"),
    (lambda g: _change_program(g, lambda program: program["outputs"].reverse()), "'d'|'reads'"),
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


@pytest.mark.parametrize("readers_only", [False, True])
@pytest.mark.parametrize(("change", "match"), _SEEN_BY_BOTH + _SEEN_BY_FULL_CHECK)
def test_rejects(
    change: Callable[[graph_pb2.GraphDef], object], match: str, readers_only: bool
) -> None:
    if readers_only and (change, match) in _SEEN_BY_FULL_CHECK:
        return
    before = _before()
    after = _after(before)
    change(after)
    with pytest.raises(GraphError, match=match):
        check_rewrite(GraphView(before), GraphView(after), _PRESERVED, readers_only=readers_only)


@pytest.mark.parametrize("read", ["inner", "a:1"])
def test_rejects_a_reader_of_what_is_no_output(read: str) -> None:
    before = _before()
    after = _after(before)
    node_of(before, "reads").input[0] = read
    name, _, port = read.partition(":")
    with pytest.raises(GraphError, match=f"output {port or 0} of '{name}'"):
        check_rewrite(GraphView(before), GraphView(after), _PRESERVED)


def test_rejects_a_preserved_name_that_is_gone() -> None:
    before = _before()
    with pytest.raises(GraphError, match="keep node 'a'"):
        check_rewrite(GraphView(before), GraphView(_after(before)), ["a", "d"])


def test_rejects_a_convolution_in_two_stages() -> None:
    before = _before()
    after = _after(before)
    copy = after.node.add()
    copy.CopyFrom(node_of(after, _STAGE))
    copy.name = "tf_interop/stage_1"
    with pytest.raises(GraphError, match="one stage"):
        check_rewrite(GraphView(before), GraphView(after), _PRESERVED)


@pytest.mark.parametrize("control", ["^a", "^b"])
def test_rejects_an_order_against_a_control_dependency(control: str) -> None:
    graph = graph_of(dict.fromkeys("abd", "Conv2D x f"))
    # As if b or d had been taken without a look at what it waits for.
    after = _staged(graph.graph_def, "a d", "b")
    graph.node("d" if control == "^b" else "b").input.append(control)
    with pytest.raises(GraphError, match=f"'{control[1:]}' before"):
        check_rewrite(GraphView(graph.graph_def), GraphView(after), ())


TWO_REGIONS = r"one control-flow region.*'a'.*'b'"


def test_rejects_a_stage_of_two_regions() -> None:
    graph = graph_of({"s": "Switch x c", "a": "Conv2D s f", "b": "Conv2D s:1 f"}).graph_def
    with pytest.raises(GraphError, match=TWO_REGIONS):
        check_rewrite(GraphView(graph), GraphView(_staged(graph, "a", "b")), ())


SOURCES = dict.fromkeys("xpf", "Placeholder")


@pytest.mark.parametrize(
    ("nodes", "lanes", "preserved", "match"),
    [
        pytest.param(
            {"a": "Conv2D x f", "b": "Conv2D p f", "fetched": "AddN a b"},
            ("a", "b"),
            ("p", "fetched"),
            TWO_REGIONS,
            id="before_and_after_a_value",
        ),
        # The Session of TensorFlow 1 may feed what it also runs; a function's values never are.
        pytest.param(
            {"a": "Conv2D x f", "fetched": "Conv2D a f"},
            ("a fetched",),
            ("a",),
            "a Session may feed",
            id="a_step_that_reads_another",
        ),
    ],
)
def test_rejects_what_may_be_fed(
    nodes: dict[str, str], lanes: tuple[str, ...], preserved: tuple[str, ...], match: str
) -> None:
    of_session = graph_of(SOURCES | nodes).graph_def
    view = GraphView(of_session)
    after = GraphView(_staged(of_session, *lanes, preserved=preserved))
    with pytest.raises(GraphError, match=match):
        check_rewrite(view, after, preserved, fetches=["a", "fetched:0"])
    of_function = graph_of(SOURCES | {"argument": "_Arg"} | nodes).graph_def
    view = GraphView(of_function)
    check_rewrite(view, GraphView(_staged(of_function, *lanes, preserved=preserved)), preserved)


def test_rejects_a_stage_that_makes_a_cycle() -> None:
    before = graph_of({"a": "Conv2D x x", "b": "Conv2D y x"}).graph_def
    after = _staged(before, "a", "b")
    # As if b had read a all along.
    for graph_def in (before, after):
        _remove(graph_def, "y")
    _set_input(before, "b", 0, "a")
    _set_input(after, _STAGE, 1, _STAGE)
    with pytest.raises(GraphError, match="cycle"):
        check_rewrite(GraphView(before), GraphView(after), ())


@pytest.mark.parametrize(
    ("changes", "preserved"),
    [
        pytest.param({"op": "_Arg"}, [], id="no_constant"),
        pytest.param({"device": CPU}, [], id="on_another_device"),
        pytest.param({}, ["f"], id="may_be_fed"),
    ],
)
def test_rejects_what_is_taken_as_constant(changes: dict[str, str], preserved: list[str]) -> None:
    before = graph_of({"f": "Const", "a": "Conv2D x f", "b": "Conv2D x f"}).graph_def
    after = _staged(before, "a", "b")
    check_rewrite(GraphView(before), GraphView(after), [])
    for graph_def in (before, after):
        for field, value in changes.items():
            setattr(node_of(graph_def, "f"), field, value)
    with pytest.raises(GraphError, match=r"constant inputs.*'f'"):
        check_rewrite(GraphView(before), GraphView(after), preserved)
