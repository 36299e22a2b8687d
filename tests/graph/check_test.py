"""The check of a rewritten graph accepts correct graphs and finds each fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from graph_builder import CPU, FLOAT, GPU, HALF, graph_of, node_of, set_attributes
from planning_graphs import make_lanes
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.errors import GraphError
from tf_interop.graph.check import check_rewrite
from tf_interop.graph.program import decode_node, encode_node
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.rewrite import rewrite_stages, rewrite_units
from tf_interop.graph.units import Unit, find_units
from tf_interop.graph.view import GraphView
from tf_interop.stage import Schedule

STAGE, UNIT = "tf_interop/stage_0", "c"
PRESERVED = ("d",)
Damage = Callable[[graph_pb2.GraphDef], object]


def before_stage() -> graph_pb2.GraphDef:
    graph = graph_of(
        "a = Conv2D x f ^c; b = Conv2D x g; d = Conv2D f g; inner = Conv2D x f; "
        "after_inner = Conv2D inner f ^inner; alone = Conv2D x f; "
        "reads = AddN a b d alone after_inner; waits = NoOp ^b ^c; apart = Neg x"
    )
    set_attributes(graph.node("reads"), _class=["loc:@a"])
    return graph.graph_def


def staged(
    graph_def: graph_pb2.GraphDef, *lanes: str, preserved: Sequence[str] = ()
) -> graph_pb2.GraphDef:
    stage = (Schedule(None, make_lanes(*lanes)),)
    return rewrite_stages(GraphView(graph_def, preserved), [stage])


def with_stage(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    return staged(graph_def, "a", "b", "d", "inner after_inner", preserved=PRESERVED)


def before_unit() -> graph_pb2.GraphDef:
    nodes = "k = Const; a = Conv2D x k ^e; b = Relu a; c = AddV2 b y; f = Foo c a ^b; g = Foo y"
    return graph_of(nodes, CPU).graph_def


def with_unit(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    view = GraphView(graph_def)
    return rewrite_units(view, find_units(view, GraphProperties(view))[0])


def check(
    before: graph_pb2.GraphDef,
    after: graph_pb2.GraphDef,
    preserved: Sequence[str] = (),
    fetches: Sequence[str] = (),
) -> None:
    check_rewrite(GraphView(before, preserved, fetches), GraphView(after))


def remove(name: str) -> Damage:
    return lambda graph_def: graph_def.node.remove(node_of(graph_def, name))


def edit(name: str, change: Callable[[node_def_pb2.NodeDef], object]) -> Damage:
    return lambda graph_def: change(node_of(graph_def, name))


def put(name: str, /, **fields: Any) -> Damage:
    """Sets fields of a node."""
    return edit(name, lambda node: [setattr(node, *field) for field in fields.items()])


def read(name: str, position: int, *texts: str) -> Damage:
    """Replaces the input at a position by these."""

    def change(node: node_def_pb2.NodeDef) -> None:
        inputs = [*node.input]
        node.input[:] = [*inputs[:position], *texts, *inputs[position + 1 :]]

    return edit(name, change)


def edit_new_node(name: str, **changes: object) -> Damage:
    """Changes the fields of a stage or a unit."""

    def change(node: node_def_pb2.NodeDef) -> None:
        changed: Any = dataclasses.replace(decode_node(node), **changes)
        made = encode_node(changed)
        node.attr.clear()
        for key, value in made.attr.items():
            node.attr[key].CopyFrom(value)

    return edit(name, change)


def edit_step(name: str, place: int, change: Callable[[node_def_pb2.NodeDef], object]) -> Damage:
    def damage(graph_def: graph_pb2.GraphDef) -> None:
        node = node_of(graph_def, name)
        steps = decode_node(node).steps
        change(steps[place])
        edit_new_node(name, steps=steps)(graph_def)

    return damage


def test_accepts_a_rewrite_and_none() -> None:
    before, after = before_stage(), with_stage(before_stage())
    check(before, after, PRESERVED)
    check(before, before, ["not there"])
    check(after, after, PRESERVED)
    check(before_unit(), with_unit(before_unit()))


# Steps of the stage: a, b, d, inner, after_inner. Outputs: all but inner. Of the unit: a, b, c.
OF_STAGES: list[tuple[Damage, str]] = [
    (remove("apart"), "'apart'"),
    (lambda g: g.node.add(name="new", op="NoOp"), "'new'"),
    (read("reads", 0, f"{STAGE}:1"), "inputs of 'reads'"),
    (read("reads", 5, "^apart"), "control dependencies.*node 'reads'"),
    (edit("reads", lambda node: set_attributes(node, _class=["loc:@a"])), "attributes of 'reads'"),
    (put("reads", op="Other"), "'reads'"),
    (read("waits", 0), "control dependencies.*node 'waits'"),
    # The Identity that remains of a preserved step.
    (read("d", 0, STAGE), "'d'"),
    (read(STAGE, 3), f"control dependencies.*node '{STAGE}'"),
    (read(STAGE, 0, "apart"), "operand of 'a'"),
    (edit_step(STAGE, 1, lambda step: step.input.reverse()), "operand of 'b'"),
    (edit_step(STAGE, 4, lambda step: step.input.__setitem__(0, "steps:2:0")), "operand"),
    (edit_step(STAGE, 4, lambda step: step.input.pop()), "operands of 'after_inner'"),
    (edit_step(STAGE, 1, lambda step: set_attributes(step, padding="VALID")), "attributes of 'b'"),
    (edit_step(STAGE, 1, lambda step: setattr(step, "name", "a")), "each in one.*'a'"),
    (
        edit_new_node(STAGE, results=((0, 0), (1, 0), (4, 0)), output_dtypes=(FLOAT,) * 3),
        "output of 'd'",
    ),
    (edit_new_node(STAGE, output_dtypes=(FLOAT,)), "a dtype for each input and result"),
    (edit_new_node(STAGE, input_dtypes=(FLOAT, FLOAT, HALF)), "operand of 'b'"),
    (
        edit_new_node(STAGE, schedules=(Schedule(None, make_lanes("a").map(lambda _: 0)),)),
        "every step once",
    ),
]


OF_UNITS: list[tuple[Damage, str]] = [
    (edit_new_node(UNIT, results=((2, 0), (1, 0))), "'c' to return every output"),
    (edit_new_node(UNIT, results=((0, 0), (2, 0))), "inputs of 'f'"),
    (edit_new_node(UNIT, output_dtypes=(FLOAT, HALF)), "an output of 'a' with its dtype"),
    (edit_new_node(UNIT, kept_inputs=(0,)), "filters that 'c' keeps"),
    (edit_step(UNIT, 1, lambda step: setattr(step, "name", "nobody")), "nodes of the graph"),
]


@pytest.mark.parametrize(
    ("make", "rewritten", "damage", "match"),
    [
        *((before_stage, with_stage, *each) for each in OF_STAGES),
        *((before_unit, with_unit, *each) for each in OF_UNITS),
    ],
)
def test_rejects(make: Any, rewritten: Any, damage: Damage, match: str) -> None:
    before = make()
    after = rewritten(before)
    damage(after)
    with pytest.raises(GraphError, match=match):
        check(before, after, PRESERVED)


TWO_REGIONS = r"one control-flow region.*'a'.*'b'"
Rewrite = Callable[[graph_pb2.GraphDef], graph_pb2.GraphDef]


def stage(*lanes: str) -> Rewrite:
    return lambda graph_def: staged(graph_def, *lanes)


def units(*texts: str) -> Rewrite:
    """Units of these steps, such as `a b`."""

    def rewrite(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
        view = GraphView(graph_def)
        steps = [tuple(map(view.index_of.__getitem__, text.split())) for text in texts]
        return rewrite_units(view, [Unit(each, head=each[0]) for each in steps])

    return rewrite


@pytest.mark.parametrize(
    ("nodes", "rewrite", "match"),
    [
        (f"a = Conv2D x f; b = Conv2D x f @{GPU}", stage("a", "b"), "device of 'b'"),
        ("a = Conv2D x f; r = Neg a; b = Conv2D r f", stage("a", "b"), "cycle"),
        ("a = Conv2D x f; r = Neg a", stage("a r"), "Neg at 'r'"),
        ("a = Conv2D x f; b = Conv2D a f", stage("b a"), "'a' before 'b'"),
        ("a = Conv2D x f; b = Conv2D x f ^a", stage("a", "b"), "'a' before 'b'"),
        ("s = Switch x c; a = Conv2D s f; b = Conv2D s:1 f", stage("a", "b"), TWO_REGIONS),
        ("a = Rank x", units("a"), "ops that may be steps of 'a', got Rank"),
        ("a = Relu x; b = Relu y; c = AddV2 a b; d = AddV2 b a", units("a c", "b d"), "cycle"),
        ("a = Relu x; b = AddV2 a s; s = Switch y p", units("a b"), TWO_REGIONS),
    ],
)
def test_rejects_what_is_not_legal(nodes: str, rewrite: Rewrite, match: str) -> None:
    before = graph_of(nodes, CPU).graph_def
    with pytest.raises(GraphError, match=match):
        check(before, rewrite(before))


def test_rejects_a_preserved_name_that_is_gone() -> None:
    with pytest.raises(GraphError, match=r"\['a'\] missing"):
        check(before_stage(), with_stage(before_stage()), ["a", "d"])
    with pytest.raises(GraphError, match="'c'"):
        check(before_unit(), with_unit(before_unit()), ["c"])


SOURCES = "x = Placeholder; p = Placeholder; f = Placeholder"


@pytest.mark.parametrize(
    ("nodes", "lanes", "preserved", "match"),
    [
        # The Session of TensorFlow 1 may feed p after it has run a.
        (
            "a = Conv2D x f; b = Conv2D p f; fetched = AddN a b",
            ["a", "b"],
            ["p", "fetched"],
            TWO_REGIONS,
        ),
        # It may also feed what it runs; a function's values are never fed.
        ("a = Conv2D x f; fetched = Conv2D a f", ["a fetched"], ["a"], "a Session may feed"),
    ],
)
def test_rejects_what_may_be_fed(
    nodes: str, lanes: list[str], preserved: list[str], match: str
) -> None:
    of_session = graph_of(f"{SOURCES}; {nodes}").graph_def
    after = staged(of_session, *lanes, preserved=preserved)
    with pytest.raises(GraphError, match=match):
        check(of_session, after, preserved, fetches=["a", "fetched:0"])
    of_function = graph_of(f"{SOURCES}; argument = _Arg; {nodes}").graph_def
    check(of_function, staged(of_function, *lanes, preserved=preserved), preserved)


@pytest.mark.parametrize(
    ("changes", "preserved"),
    [({"op": "VariableV2"}, []), ({"device": CPU}, []), ({}, ["f"])],
    ids=["reference_variable", "on_another_device", "may_be_fed"],
)
def test_rejects_a_filter_that_may_not_be_held(
    changes: dict[str, str], preserved: list[str]
) -> None:
    nodes = "x = Placeholder; f = ReadVariableOp; a = Conv2D x f; b = Conv2D x f"
    before = graph_of(nodes).graph_def
    after = staged(before, "a", "b")
    check(before, after)
    for graph_def in (before, after):
        put("f", **changes)(graph_def)
    with pytest.raises(GraphError, match=r"filters that .* keeps.*'f'"):
        check(before, after, preserved)
