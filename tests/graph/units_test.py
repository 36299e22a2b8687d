"""Units of small graphs: where they end, what they take in, and why nodes are no steps."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Mapping, Sequence

import pytest
from graph_builder import CPU, GPU, graph_of, set_attributes
from tensorflow.core.framework import graph_pb2, types_pb2

from tf_interop.contraction import contract, misplaced_step
from tf_interop.convolution import RefusalReason
from tf_interop.errors import TimeLimitError
from tf_interop.graph.check import check_rewrite
from tf_interop.graph.ops import STEP_OPS, TRIVIAL_OPS
from tf_interop.graph.rewrite_units import rewrite_units
from tf_interop.graph.time_limit import time_limit
from tf_interop.graph.units import MOST_ANCHORS, find_units, planned_name
from tf_interop.graph.view import GraphView
from tf_interop.stage import Stage, Step
from tf_interop.tensorflow_internals import cpu_kernel_types, op_def

Nodes = Mapping[str, str]


def units_of(
    graph_def: graph_pb2.GraphDef, preserve: Collection[str] = (), fetches: Collection[str] = ()
) -> list[str]:
    """The names of the steps of each unit, `a b`."""
    for node in graph_def.node:
        if node.op == "ConcatV2":
            node.attr["N"].i = len(node.input) - 1
    view = GraphView(graph_def)
    units, _ = find_units(view, nodes_to_preserve=preserve, fetches=fetches)
    assert not contract(view.readers, [unit.steps for unit in units]).cycle
    return [" ".join(view.names[step] for step in unit.steps) for unit in units]


CHAIN = {"a": "Conv2D x w", "b": "BiasAdd a bias", "c": "Relu b", "d": "MaxPool c"}


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param(CHAIN, ["a b c d"], id="a_chain"),
        pytest.param(CHAIN | {"out": "_Retval c"}, ["a b c d"], id="a_result_on_the_way"),
        pytest.param(
            CHAIN | {"e": "Conv2D b w", "f": "Relu e"}, ["a b", "c d", "e f"], id="a_branch_ends_it"
        ),
        # The addition comes after the second convolution anyway.
        pytest.param(
            {"a": "Conv2D x w", "b": "Relu a", "c": "Conv2D b w", "d": "AddV2 c b", "e": "Relu d"},
            ["a b c d e"],
            id="a_shortcut_does_not",
        ),
        # So does what a gradient reads of the way forward.
        pytest.param(
            {
                **{"a": "Conv2D x w", "b": "Relu a", "c": "Conv2D b v", "d": "L2Loss c"},
                **{"e": "Mul c d", "f": "Conv2DBackpropInput s v e", "g": "ReluGrad f b"},
                **{"h": "Conv2DBackpropFilter b s e", "i": "Conv2DBackpropFilter x s g"},
                **{"dv": "_Retval h", "dw": "_Retval i"},
            },
            ["a b c d e", "f g i", "h"],
            id="gradients",
        ),
        # An Inception block: the concatenation waits for all branches, and goes on by itself.
        pytest.param(
            {
                **{"a1": "Conv2D x w", "a2": "Relu a1", "b1": "Conv2D x w", "b2": "Relu b1"},
                **{"b3": "Conv2D b2 w", "b4": "Relu b3", "c1": "MaxPool x", "c2": "Conv2D c1 w"},
                **{"all": "ConcatV2 a2 b4 c2 axis", "next": "Relu all"},
            },
            ["a1 a2", "b1 b2 b3 b4", "c1 c2", "all next"],
            id="a_block_of_branches",
        ),
        # At the head's level the name decides, so that two units never wait for each other.
        pytest.param(
            {"a": "Conv2D x w", "b": "Conv2D x w", "c": "Relu b", "d": "AddV2 c a"},
            ["a", "b c d"],
            id="what_ranks_before_the_head_may_be_read",
        ),
        pytest.param(
            {"b": "Conv2D x w", "a": "Conv2D x w", "c": "Relu a", "d": "AddV2 c b"},
            ["a c", "b", "d"],
            id="what_ranks_after_the_head_may_not",
        ),
        pytest.param(
            {"a": "Conv2D x w", "c": "Relu a", "b": "Conv2D y w", "y": "Relu x", "d": "AddV2 c b"},
            ["a c", "y b", "d"],
            id="nor_what_is_at_a_higher_level",
        ),
        pytest.param(
            {"r": "Reshape x s", "i": "Identity r"}, [], id="what_computes_nothing_is_no_unit"
        ),
        pytest.param({"r": "Reshape x s", "m": "MatMul r w"}, ["r m"], id="a_reshape_on_the_way"),
        # A control dependency holds up as a tensor does.
        pytest.param(
            {"a": "Conv2D x w", "late": "Foo a", "b": "Relu y ^late", "c": "Relu b"},
            ["a", "b c"],
            id="a_control_dependency_of_the_head",
        ),
        pytest.param(
            {"a": "Conv2D x w", "late": "Foo x", "b": "Relu a ^late", "c": "Relu b"},
            ["a", "b c"],
            id="a_late_control_dependency_of_a_later_step",
        ),
        pytest.param(
            {"a": "Conv2D x w", "n": "Foo ^a", "b": "Relu a", "c": "Foo b ^n"},
            ["a", "b"],
            id="who_waits_for_a_step_ends_a_unit",
        ),
        pytest.param(
            {"a": "Conv2D x w", "b": f"Relu a @{CPU[:-1]}1", "c": f"Relu b @{CPU[:-1]}1"},
            ["a", "b c"],
            id="one_device",
        ),
        pytest.param(
            {
                **{"a": "Conv2D x w", "s": "Switch a p", "b": "Relu s", "c": "Relu b"},
                **{"d": "Relu s:1", "m": "Merge c d", "e": "Relu m"},
            },
            ["a", "b c", "d", "e"],
            id="branches_of_a_conditional",
        ),
        # `b` is dead wherever the branch is not taken, and `a` is not.
        pytest.param(
            {"a": "Conv2D x w", "s": "Switch x p", "b": "AddV2 a s:1"},
            ["a", "b"],
            id="what_only_a_branch_runs",
        ),
        pytest.param(
            {
                **{"a": "Conv2D x w", "l/enter": "Enter a", "l/merge": "Merge l/enter l/next"},
                **{"l/less": "Foo l/merge", "l/cond": "LoopCond l/less"},
                **{"l/switch": "Switch l/merge l/cond", "b": "Relu l/switch:1", "c": "Relu b"},
                **{"l/next": "NextIteration c", "l/exit": "Exit l/switch", "d": "Relu l/exit"},
            },
            ["a", "b c", "d"],
            id="a_loop",
        ),
    ],
)
def test_units(nodes: Nodes, expected: Sequence[str]) -> None:
    # Whatever the order of the nodes in the GraphDef.
    rotated = [*list(nodes.items())[1:], *list(nodes.items())[:1]]
    for items in (nodes.items(), reversed(nodes.items()), rotated):
        assert sorted(units_of(graph_of(dict(items), CPU).graph_def)) == sorted(expected)


R = RefusalReason
FOREIGN_DTYPES = {types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT, types_pb2.DT_STRING}


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        *(
            (f"{op} x", R.NOT_LISTED)
            for op in ("Assert", "ReadVariableOp", "Switch", "SomebodysOp")
        ),
        ("Relu v", R.REFERENCE),
        (f"Relu x @{GPU}", R.DEVICE),
        ("Relu x @/job:localhost", R.DEVICE),
    ],
)
def test_nodes_that_are_no_steps(node: str, reason: RefusalReason) -> None:
    graph = graph_of({"v": "VariableV2", "a": node, "r": "Relu x"}, CPU)
    units, refusals = find_units(GraphView(graph.graph_def))
    assert len(units) == 1
    [refusal] = [each for each in refusals if each.node == "a"]
    assert refusal.reason is reason


@pytest.mark.parametrize(
    ("attributes", "reasons"),
    [
        ({"_XlaMustCompile": True}, [R.XLA]),
        ({"_XlaMustCompile": False}, []),
        ({"_kernel": "SomeLabel"}, [R.KERNEL]),
        ({"T": types_pb2.DT_STRING}, [R.DTYPE]),
        ({"T": types_pb2.DT_INT32}, [R.DTYPE]),
        *(({"T": t}, []) for t in (types_pb2.DT_BFLOAT16, types_pb2.DT_HALF, types_pb2.DT_DOUBLE)),
    ],
)
def test_attributes_that_make_a_node_no_step(
    attributes: dict[str, object], reasons: list[RefusalReason]
) -> None:
    graph = graph_of({"a": "Relu x"}, CPU)
    set_attributes(graph.node("a"), **attributes)
    _, refusals = find_units(GraphView(graph.graph_def))
    assert [each.reason for each in refusals if each.node == "a"] == reasons


def test_a_pooling_that_onednn_joins_with_its_gradient_stays_with_it() -> None:
    nodes = {"r": "Relu x", "p": "MaxPool r", "alone": "MaxPool r", "g": "MaxPoolGrad r p y"}
    units, refusals = find_units(GraphView(graph_of(nodes, CPU).graph_def))
    assert {each.node: each.reason for each in refusals if each.node in nodes} == {
        "p": R.PAIRED,
        "g": R.PAIRED,
    }
    assert sum(len(unit.steps) for unit in units) == 2


def test_a_unit_holds_a_few_convolutions() -> None:
    nodes = {"c0": "Conv2D x y"}
    for number in range(2 * MOST_ANCHORS):
        nodes[f"r{number}"] = f"Relu c{number}"
        nodes[f"c{number + 1}"] = f"Conv2D r{number} y"
    view = GraphView(graph_of(nodes, CPU).graph_def)
    units, _ = find_units(view)
    assert [sum(view.ops[step] == "Conv2D" for step in unit.steps) for unit in units] == [
        MOST_ANCHORS,
        MOST_ANCHORS,
        1,
    ]


def test_a_plan_knows_a_unit_by_its_first_convolution() -> None:
    nodes = {
        **{"a": "MaxPool x", "b": "Conv2D a w", "c": "MatMul b w", "d": "Relu c"},
        **{"late": "Foo d", "e": "Relu late", "f": "Relu6 e"},
    }
    view = GraphView(graph_of(nodes, CPU).graph_def)
    units, _ = find_units(view)
    assert [planned_name(view, unit) for unit in units] == ["b", "f"]


def test_a_session_may_feed_what_is_preserved() -> None:
    graph = graph_of(CHAIN, CPU)
    for node in graph.graph_def.node:
        if node.op == "_Arg":
            node.op = "Placeholder"
    assert units_of(graph.graph_def, ["c"], ["d"]) == ["d"]  # a and b do not run if c is fed
    assert units_of(graph.graph_def, ["d"], ["d"]) == ["a b c"]
    assert units_of(graph.graph_def, ["x", "c"], ["c", "d"]) == ["a b", "d"]
    _, refusals = find_units(GraphView(graph.graph_def), nodes_to_preserve=["c"], fetches=["d"])
    reasons = {each.node: each.reason for each in refusals}
    assert (reasons["a"], reasons["c"]) == (R.NOT_RUN, R.PRESERVED)


def test_the_time_limit_holds() -> None:
    with time_limit(0.0), pytest.raises(TimeLimitError):
        find_units(GraphView(graph_of(CHAIN, CPU).graph_def))


def test_listed_ops_are_pure_and_have_kernels_for_cpus() -> None:
    assert TRIVIAL_OPS <= STEP_OPS
    for op in STEP_OPS:
        definition = op_def(op)
        assert definition is not None, op
        assert not definition.is_stateful, op
        for argument in (*definition.input_arg, *definition.output_arg):
            assert not argument.is_ref, op
            assert argument.type not in FOREIGN_DTYPES, op
        assert cpu_kernel_types(op), op


def random_nodes(seed: int, count: int = 60) -> Nodes:
    """A graph of ops with one to three inputs, some of which may be steps."""
    chance = random.Random(seed)
    names = ["x", "w"]
    nodes: dict[str, str] = {}
    for _ in range(count):
        name = f"{chance.choice('abcdef')}{len(names)}"
        op = chance.choice(["Conv2D", "AddV2", "Relu", "Relu", "BiasAdd", "Foo"])
        recent = names[-chance.choice([2, 5, 20]) :]
        reads = [chance.choice(recent) for _ in range(1 if op in ("Relu", "Foo") else 2)]
        control = f" ^{chance.choice(names)}" if chance.random() < 0.1 else ""
        nodes[name] = f"{op} {' '.join(reads)}{control}"
        names.append(name)
    return nodes


@pytest.mark.parametrize("seed", range(40))
def test_units_of_random_graphs_are_legal(seed: int) -> None:
    nodes = random_nodes(seed)
    view = GraphView(graph_of(nodes, CPU).graph_def)
    units, refusals = find_units(view)
    steps = list(itertools.chain.from_iterable(unit.steps for unit in units))
    assert len(set(steps)) == len(steps) > len(units)
    # Every node is in one unit or refused.
    assert {view.names[step] for step in steps} == view.index_of.keys() - {
        each.node for each in refusals
    }
    chance = random.Random(seed)
    for chosen in (units, *([u for u in units if chance.random() < 0.5] for _ in range(5))):
        assert not contract(view.readers, [unit.steps for unit in chosen]).cycle
        check_rewrite(view, GraphView(rewrite_units(view, chosen, ())), ())
    for unit in units:
        assert misplaced_step(view.readers, Stage.in_sequence(map(Step, unit.steps))) is None
