"""Units of small graphs: where they end, what they include, and why nodes are not steps."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection

import pytest
from graph_builder import (
    BFLOAT16,
    CPU,
    DOUBLE,
    GPU,
    HALF,
    add_shapes,
    graph_of,
    nodes_of,
    set_attributes,
)
from tensorflow.core.framework import graph_pb2, types_pb2

from tf_interop.contraction import contract, misplaced_step
from tf_interop.convolution import Refusal, RefusalReason
from tf_interop.errors import TimeLimitError
from tf_interop.graph.check import check_rewrite
from tf_interop.graph.ops import STEP_OPS, TRIVIAL_OPS
from tf_interop.graph.program import UNIT_OP
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.rewrite import rewrite_units
from tf_interop.graph.time_limit import time_limit
from tf_interop.graph.units import MOST_ANCHORS, Unit, find_units
from tf_interop.graph.view import GraphView
from tf_interop.stage import Stage, Step
from tf_interop.tensorflow_internals import cpu_kernel_types, op_def

OTHER_CPU = CPU.replace("CPU:0", "CPU:1")


def found(view: GraphView) -> tuple[tuple[Unit, ...], tuple[Refusal, ...]]:
    return find_units(view, GraphProperties(view))


def units_of(
    graph_def: graph_pb2.GraphDef, preserve: Collection[str] = (), fetches: Collection[str] = ()
) -> list[str]:
    """The names of the steps of each unit, `a b`."""
    for node in graph_def.node:
        if node.op == "ConcatV2":
            node.attr["N"].i = len(node.input) - 1
    view = GraphView(graph_def, preserve, fetches)
    units, _ = found(view)
    assert not contract(view.readers, [unit.steps for unit in units]).cycle
    return [" ".join(view.names[step] for step in unit.steps) for unit in units]


CHAIN = "a = Conv2D x w; b = BiasAdd a bias; c = Relu b; d = MaxPool c"
# Graphs, and the steps of their units.
UNITS = {
    "a_chain": (CHAIN, "a b c d"),
    "a_result_on_the_way": (f"{CHAIN}; out = _Retval c", "a b c d"),
    "a_branch_ends_it": (f"{CHAIN}; e = Conv2D b w; f = Relu e", "a b, c d, e f"),
    # The addition comes after the second convolution anyway.
    "a_shortcut_does_not": (
        "a = Conv2D x w; b = Relu a; c = Conv2D b w; d = AddV2 c b; e = Relu d",
        "a b c d e",
    ),
    # A gradient that reads the forward pass comes after it, too.
    "gradients": (
        "a = Conv2D x w; b = Relu a; c = Conv2D b v; d = L2Loss c; e = Mul c d; "
        "f = Conv2DBackpropInput s v e; g = ReluGrad f b; h = Conv2DBackpropFilter b s e; "
        "i = Conv2DBackpropFilter x s g; dv = _Retval h; dw = _Retval i",
        "a b c d e, f g i, h",
    ),
    # An Inception block: the concatenation waits for all branches, and starts a new unit.
    "a_block_of_branches": (
        "a1 = Conv2D x w; a2 = Relu a1; b1 = Conv2D x w; b2 = Relu b1; b3 = Conv2D b2 w; "
        "b4 = Relu b3; c1 = MaxPool x; c2 = Conv2D c1 w; all = ConcatV2 a2 b4 c2 axis; "
        "next = Relu all",
        "a1 a2, b1 b2 b3 b4, c1 c2, all next",
    ),
    # At the head's level the name decides, so two units never wait for each other.
    "what_ranks_before_the_head_may_be_read": (
        "a = Conv2D x w; b = Conv2D x w; c = Relu b; d = AddV2 c a",
        "a, b c d",
    ),
    "what_computes_nothing_is_no_unit": ("r = Reshape x s; i = Identity r", ""),
    "a_reshape_on_the_way": ("r = Reshape x s; m = MatMul r w", "r m"),
    # A control dependency delays a step as a tensor does.
    "a_late_control_dependency_of_a_later_step": (
        "a = Conv2D x w; late = Foo x; b = Relu a ^late; c = Relu b",
        "a, b c",
    ),
    "who_waits_for_a_step_ends_a_unit": (
        "a = Conv2D x w; n = Foo ^a; b = Relu a; c = Foo b ^n",
        "a, b",
    ),
    "one_device": (f"a = Conv2D x w; b = Relu a @{OTHER_CPU}; c = Relu b @{OTHER_CPU}", "a, b c"),
    # `b` is dead if the branch is not taken, and `a` is not.
    "what_only_a_branch_runs": ("a = Conv2D x w; s = Switch x p; b = AddV2 a s:1", "a, b"),
}


@pytest.mark.parametrize(("text", "expected"), UNITS.values(), ids=UNITS)
def test_units(text: str, expected: str) -> None:
    nodes = list(nodes_of(text).items())
    # The order of the nodes in the GraphDef does not matter.
    for ordered in (nodes, reversed(nodes), [*nodes[1:], nodes[0]]):
        steps = units_of(graph_of(dict(ordered), CPU).graph_def)
        assert sorted(steps) == sorted(filter(None, expected.split(", ")))


# CheckNumerics is not a step, and waits for nothing.
DEEP = "x = CheckNumerics i; y = CheckNumerics x; z = CheckNumerics y"
CHAINED = [f"c{number}" for number in range(1, MOST_ANCHORS + 1)]
# Graphs, their nodes with small results, the units' steps in order, and the input with the batch.
SMALL = {
    # The scale ranks before the convolution, and others read the mean beside the result.
    "a_scale_and_a_mean": (
        f"k = Const; e = Const; scale = Rsqrt k; shifted = Add scale e; {DEEP}; a = Conv2D z w; "
        "scaled = Mul a shifted; mean = Mean scaled; r = Relu scaled; f = Foo mean r",
        "k e mean",
        ["scale shifted a scaled mean r"],
        "z",
    ),
    "a_scale_of_two_units_is_in_neither": (
        f"k = Const; e = Const; s = Rsqrt k; scale = Add s e; {DEEP}; a = AvgPool z; "
        "left = Mul a scale; b = AvgPool z; right = Mul b scale",
        "k e",
        ["s scale", "a left", "b right"],
        None,
    ),
    "a_small_product_is_none_of_the_few_convolutions": (
        "; ".join(f"{name} = Conv2D c{number} w" for number, name in enumerate(CHAINED))
        + f"; mean = Mean {CHAINED[-1]}; k = Const; gate = MatMul mean k; "
        f"r = Mul {CHAINED[-1]} gate",
        "k mean gate",
        [" ".join([*CHAINED, "mean gate r"])],
        "c0",
    ),
}


@pytest.mark.parametrize(("nodes", "vectors", "expected", "batch"), SMALL.values(), ids=SMALL)
def test_small_results(nodes: str, vectors: str, expected: list[str], batch: str | None) -> None:
    graph = graph_of(nodes, CPU)
    for name in vectors.split():
        add_shapes(graph.node(name), "_output_shapes", [(4,)])
    assert units_of(graph.graph_def) == expected
    if batch is not None:
        view = GraphView(graph.graph_def)
        rewritten = rewrite_units(view, found(view)[0])
        [unit] = [node for node in rewritten.node if node.op == UNIT_OP]
        assert unit.input[0] == batch


R = RefusalReason
FOREIGN_DTYPES = {types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT, types_pb2.DT_STRING}


@pytest.mark.parametrize(
    ("node", "attributes", "reasons"),
    [
        *((f"{op} x", {}, [R.NOT_LISTED]) for op in ("ReadVariableOp", "SomebodysOp")),
        ("Relu v", {}, [R.REFERENCE]),
        (f"Relu x @{GPU}", {}, [R.DEVICE]),
        ("Relu x @/job:localhost", {}, [R.DEVICE]),
        # Another process, which may lack the plugin.
        ("Relu x @/job:worker/replica:0/task:0/device:CPU:0", {}, [R.DEVICE]),
        ("Relu x", {"_XlaMustCompile": True}, [R.XLA]),
        ("Relu x", {"_XlaMustCompile": False}, []),
        ("Relu x", {"_kernel": "SomeLabel"}, [R.KERNEL]),
        *(("Relu x", {"T": t}, [R.DTYPE]) for t in (types_pb2.DT_STRING, types_pb2.DT_INT32)),
        *(("Relu x", {"T": t}, []) for t in (BFLOAT16, HALF, DOUBLE)),
    ],
)
def test_nodes_that_are_no_steps(
    node: str, attributes: dict[str, object], reasons: list[RefusalReason]
) -> None:
    graph = graph_of({"v": "VariableV2", "a": node, "r": "Relu x"}, CPU)
    set_attributes(graph.node("a"), **attributes)
    units, refusals = found(GraphView(graph.graph_def))
    assert len(units) == 2 - len(reasons)
    assert [each.reason for each in refusals if each.node == "a"] == reasons


def test_a_pooling_that_onednn_joins_with_its_gradient_stays_with_it() -> None:
    nodes = "r = Relu x; p = MaxPool r; alone = MaxPool r; g = MaxPoolGrad r p y"
    units, refusals = found(GraphView(graph_of(nodes, CPU).graph_def))
    assert {each.node for each in refusals if each.reason is R.PAIRED} == {"p", "g"}
    assert sum(len(unit.steps) for unit in units) == 2


def test_a_unit_holds_a_few_convolutions() -> None:
    nodes = {"c0": "Conv2D x y"}
    for number in range(2 * MOST_ANCHORS):
        nodes[f"r{number}"] = f"Relu c{number}"
        nodes[f"c{number + 1}"] = f"Conv2D r{number} y"
    view = GraphView(graph_of(nodes, CPU).graph_def)
    units, _ = found(view)
    assert [sum(view.ops[step] == "Conv2D" for step in unit.steps) for unit in units] == [
        MOST_ANCHORS,
        MOST_ANCHORS,
        1,
    ]


def test_a_session_may_feed_what_is_preserved() -> None:
    graph = graph_of(CHAIN, CPU)
    for node in graph.graph_def.node:
        if node.op == "_Arg":
            node.op = "Placeholder"
    assert units_of(graph.graph_def, ["c"], ["d"]) == ["d"]  # a and b do not run if c is fed
    assert units_of(graph.graph_def, ["d"], ["d"]) == ["a b c"]
    assert units_of(graph.graph_def, ["x", "c"], ["c", "d"]) == ["a b", "d"]
    _, refusals = found(GraphView(graph.graph_def, ["c"], ["d"]))
    reasons = {each.node: each.reason for each in refusals}
    assert (reasons["a"], reasons["c"]) == (R.NOT_RUN, R.PRESERVED)


def test_the_time_limit_holds() -> None:
    with time_limit(0.0), pytest.raises(TimeLimitError):
        found(GraphView(graph_of(CHAIN, CPU).graph_def))


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


def random_nodes(seed: int, count: int = 60) -> dict[str, str]:
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
    units, refusals = found(view)
    steps = list(itertools.chain.from_iterable(unit.steps for unit in units))
    assert len(set(steps)) == len(steps) > len(units)
    # Every node is in one unit or refused.
    assert {view.names[step] for step in steps} == view.index_of.keys() - {
        each.node for each in refusals
    }
    chance = random.Random(seed)
    for chosen in (units, *([u for u in units if chance.random() < 0.5] for _ in range(5))):
        assert not contract(view.readers, [unit.steps for unit in chosen]).cycle
        check_rewrite(view, GraphView(rewrite_units(view, chosen)))
    for unit in units:
        assert misplaced_step(view.readers, Stage.in_sequence(map(Step, unit.steps))) is None
