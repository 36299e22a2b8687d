"""Regions: what is alive together, and after the same loops and hidden waits."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from graph_builder import graph_of

from tf_interop.graph.control_flow import ROOT_REGION, ControlFlow
from tf_interop.graph.view import GraphView

Nodes = Mapping[str, str]


def _graph(nodes: Nodes) -> GraphView:
    graph = graph_of(dict.fromkeys("xpq", "_Arg") | dict(nodes)).graph_def
    for node in graph.node:
        if node.op == "_SwitchN":
            node.attr["num_outs"].i = 3
    return GraphView(graph)


def _regions(nodes: Nodes) -> dict[str, str | None]:
    view = _graph(nodes)
    control_flow = ControlFlow(view)
    return {name: control_flow.region(index) for index, name in enumerate(view.names)}


def _cond(prefix: str, data: str, predicate: str) -> Nodes:
    """switch -> else, then -> merge"""
    return {
        f"{prefix}/switch": f"Switch {data} {predicate}",
        f"{prefix}/else": f"Neg {prefix}/switch",
        f"{prefix}/then": f"Abs {prefix}/switch:1",
        f"{prefix}/merge": f"Merge {prefix}/else {prefix}/then",
    }


def _loop(prefix: str, data: str, body: str = "") -> Nodes:
    """A loop with nodes `condition` and `body`, which reads more if that is given, and an exit."""
    return {
        f"{prefix}/enter": f"Enter {data}",
        f"{prefix}/merge": f"Merge {prefix}/enter {prefix}/next",
        f"{prefix}/condition": f"Less {prefix}/merge {prefix}/merge",
        f"{prefix}/loop_cond": f"LoopCond {prefix}/condition",
        f"{prefix}/switch": f"Switch {prefix}/merge {prefix}/loop_cond",
        f"{prefix}/body": f"AddN {prefix}/switch:1 {body}",
        f"{prefix}/next": f"NextIteration {prefix}/body",
        f"{prefix}/exit": f"Exit {prefix}/switch",
    }


C, L = _cond("c", "x", "p"), _loop("l", "x")
SWITCH_N = {"switch": "_SwitchN x p"} | {f"branch{i}": f"Neg switch:{i}" for i in range(3)}
LATE = {
    "early": "Neg x",
    # Read in the loop's body, and by what it hands on to the next iteration only.
    "l/constant": "Enter early",
    **_loop("l", "x", "l/constant"),
    "late": "Neg l/exit",
    "between": "Neg late",
    # Loop m comes after l, though no path without a back edge leads from m's exit to l's.
    "m/invariant": "Enter between",
    **_loop("m", "x", "m/invariant"),
    "last": "Neg m/exit",
    "both": "Add late last",
    "l/other_exit": "Exit l/switch",
    "with_late": "Neg l/other_exit",
}


# Groups of names, by a space: each of one region, the first one that of `x`, all different.
@pytest.mark.parametrize(
    ("nodes", "groups"),
    [
        pytest.param({"y": "Neg x"}, ["x y p q"], id="no_control_flow"),
        pytest.param(C | {"a": "Neg c/merge"}, ["x a", "c/else", "c/then"], id="branches"),
        pytest.param(
            {**C, **_cond("d", "x", "p:0"), **_cond("e", "x", "q")},
            ["x", "c/then d/then", "e/then"],
            id="switches_of_one_predicate",
        ),
        # A Switch itself is alive whichever of its outputs is.
        pytest.param(
            C | {"a": "Neg x ^c/then", "b": "Neg x ^c/switch"},
            ["x b", "c/then a"],
            id="control_dependency_carries_the_gate",
        ),
        pytest.param(
            {
                "outer": "Switch x p",
                "predicate": "Less outer:1 outer:1",
                **_cond("c", "outer:1", "predicate"),
                "then": "Neg c/merge",
                "else": "Neg outer",
                "merge": "Merge else then",
                "after": "Neg merge",
            },
            ["x after", "then", "else", "c/then", "c/else"],
            id="nested_branches",
        ),
        pytest.param(
            SWITCH_N
            | {"all": "Merge branch0 branch1 branch2", "after_all": "Neg all"}
            | {"two": "Merge branch0 branch1", "after_two": "Neg two"},
            ["x after_all", "branch0", "branch1", "branch2", "after_two"],
            id="switch_n",
        ),
        pytest.param(
            {**C, **_cond("d", "x", "q"), "m": "Merge c/then d/else", "a": "Neg m"},
            ["x", "a", "c/then", "d/else"],
            id="merge_of_unpaired_branches_may_be_dead",
        ),
        pytest.param(
            SWITCH_N
            | {"never": "Add switch:0 switch:1", "m": "Merge never switch:2", "a": "Neg m"},
            ["x", "a"],
            id="merge_of_a_branch_that_is_never_alive",
        ),
        pytest.param(
            L | {"a": "Neg l/exit", "b": "Neg l/exit"},
            ["x", "l/condition", "l/body", "a b"],
            id="loop",
        ),
        pytest.param(
            LATE,
            ["x early", "late between with_late", "last", "both"],
            id="through_the_next_iteration_alone",
        ),
        pytest.param(
            {
                "switch": "Switch x p",
                **_loop("l", "switch:1"),
                "then": "Neg l/exit",
                "also_then": "Neg switch:1",
                "then_too": "Add l/exit switch:1",
            },
            ["x", "then then_too", "also_then"],
            id="loop_inside_branch",
        ),
        pytest.param(
            {**L, **_loop("m", "l/switch:1"), "a": "Neg m/exit", "b": "Add m/exit l/switch:1"},
            ["x", "l/body", "m/body", "a b"],
            id="loop_inside_loop",
        ),
        pytest.param(
            {
                "before": "Neg x",
                "enqueue": "QueueEnqueueV2 p before",
                "dequeue": "QueueDequeueV2 p",
                "after": "Neg dequeue",
                "both": "Add after before",
            },
            ["x before", "after both"],
            id="after_a_dequeue",
        ),
    ],
)
def test_regions(nodes: Nodes, groups: list[str]) -> None:
    regions = _regions(nodes)
    found = [{regions[name] for name in group.split()} for group in groups]
    assert found[0] == {ROOT_REGION}
    assert all(len(each) == 1 for each in found)
    assert None not in set.union(*found)
    assert len(set.union(*found)) == len(groups)
    # They do not depend on the order of the nodes.
    assert _regions(dict(reversed(nodes.items()))) == regions


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(L | {"m": "Neg l/merge x", "a": "Neg m"}, id="inputs_of_two_frames"),
        pytest.param(L | {"m": "Merge l/merge x", "a": "Neg m"}, id="merge_of_two_frames"),
        pytest.param(L | {"a": "Neg x ^l/body"}, id="control_dependency_on_another_frame"),
        pytest.param({"e": "Exit x", "a": "Neg e"}, id="exit_without_loop"),
        pytest.param(L | {"e": "Exit l/body", "a": "Neg e"}, id="exit_from_the_middle"),
    ],
)
def test_refuses(nodes: Nodes) -> None:
    assert _regions(nodes)["a"] is None


@pytest.mark.parametrize(
    ("op", "may_wait"),
    [
        ("PyFunc", True),
        ("StatefulPartitionedCall", True),
        ("a_function_called_by_its_name", True),
        ("ReadFromPeer", True),
        ("ReaderRead", True),
        ("BatchFunction", True),
        ("ReadVariableOp", False),
        ("ResourceApplyAdam", False),
        ("RandomUniform", False),
        ("Relu", False),
    ],
)
def test_what_may_wait(op: str, may_wait: bool) -> None:
    regions = _regions({"op": f"{op} x", "after": "Neg op"})
    assert (regions["after"] != ROOT_REGION) == may_wait


def test_after_what_is_fed_is_another_region() -> None:
    view = _graph({"after": "Neg p"})
    control_flow = ControlFlow(view, fed=[view.index_of["p"]])
    assert control_flow.region(view.index_of["x"]) == ROOT_REGION
    assert control_flow.region(view.index_of["after"]) != ROOT_REGION
