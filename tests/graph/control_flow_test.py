"""Regions: nodes that are alive together, after the same loops and the same hidden waits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from graph_builder import graph_of, nodes_of

from tf_interop.graph.control_flow import ROOT_REGION, ControlFlow
from tf_interop.graph.view import GraphView


def _graph(nodes: dict[str, str], *preserved: str, fetches: Sequence[str] = ()) -> GraphView:
    graph = graph_of(dict.fromkeys("xpq", "_Arg") | nodes).graph_def
    for node in graph.node:
        if node.op == "_SwitchN":
            node.attr["num_outs"].i = 3
    return GraphView(graph, preserved, fetches)


def _regions(nodes: dict[str, str]) -> dict[str, str | None]:
    view = _graph(nodes)
    control_flow = ControlFlow(view)
    return {name: control_flow.region(index) for index, name in enumerate(view.names)}


def _cond(name: str, data: str, predicate: str) -> str:
    return (
        f"{name}/switch = Switch {data} {predicate}; {name}/else = Neg {name}/switch; "
        f"{name}/then = Abs {name}/switch:1; {name}/merge = Merge {name}/else {name}/then"
    )


def _loop(name: str, data: str, body: str = "") -> str:
    """A loop with nodes `condition`, `body` and `exit`; `body` holds further inputs of `body`."""
    return (
        f"{name}/enter = Enter {data}; {name}/merge = Merge {name}/enter {name}/next; "
        f"{name}/condition = Less {name}/merge {name}/merge; "
        f"{name}/loop_cond = LoopCond {name}/condition; "
        f"{name}/switch = Switch {name}/merge {name}/loop_cond; "
        f"{name}/body = AddN {name}/switch:1 {body}; "
        f"{name}/next = NextIteration {name}/body; {name}/exit = Exit {name}/switch"
    )


C, D, L = _cond("c", "x", "p"), _cond("d", "x", "q"), _loop("l", "x")
SWITCH_N = "s = _SwitchN x p; branch0 = Neg s:0; branch1 = Neg s:1; branch2 = Neg s:2"
# Graphs, and groups of names. Each group is a region; the first is the root.
REGIONS = {
    "switches_of_one_predicate": (
        f"{C}; {D}; {_cond('e', 'x', 'p:0')}",
        "x, c/then e/then, d/then",
    ),
    # A Switch itself is always alive.
    "control_dependency_carries_the_gate": (
        f"{C}; a = Neg x ^c/then; b = Neg x ^c/switch",
        "x b, c/then a",
    ),
    "nested_branches": (
        "outer = Switch x p; predicate = Less outer:1 outer:1; "
        f"{_cond('c', 'outer:1', 'predicate')}; "
        "then = Neg c/merge; else = Neg outer; merge = Merge else then; after = Neg merge",
        "x after, then, else, c/then, c/else",
    ),
    "switch_n": (
        f"{SWITCH_N}; all = Merge branch0 branch1 branch2; after_all = Neg all; "
        "two = Merge branch0 branch1; after_two = Neg two",
        "x after_all, branch0, branch1, branch2, after_two",
    ),
    "merge_of_unpaired_branches_may_be_dead": (
        f"{C}; {D}; m = Merge c/then d/else; a = Neg m",
        "x, a, c/then, d/else",
    ),
    "merge_of_a_branch_that_is_never_alive": (
        f"{SWITCH_N}; never = Add s:0 s:1; m = Merge never s:2; a = Neg m",
        "x, a",
    ),
    "loop": (f"{L}; a = Neg l/exit; b = Neg l/exit", "x, l/condition, l/body, a b"),
    # `early` reaches the exit only through the next iteration. Loop m comes after loop l, although
    # every path from l's exit to m's has a back edge.
    "through_the_next_iteration_alone": (
        f"early = Neg x; l/constant = Enter early; {_loop('l', 'x', 'l/constant')}; "
        "late = Neg l/exit; between = Neg late; "
        f"m/invariant = Enter between; {_loop('m', 'x', 'm/invariant')}; last = Neg m/exit; "
        "both = Add late last; l/other_exit = Exit l/switch; with_late = Neg l/other_exit",
        "x early, late between with_late, last, both",
    ),
    "loop_inside_branch": (
        f"switch = Switch x p; {_loop('l', 'switch:1')}; then = Neg l/exit; "
        "also_then = Neg switch:1; then_too = Add l/exit switch:1",
        "x, then then_too, also_then",
    ),
    "loop_inside_loop": (
        f"{L}; {_loop('m', 'l/switch:1')}; a = Neg m/exit; b = Add m/exit l/switch:1",
        "x, l/body, m/body, a b",
    ),
    "after_a_dequeue": (
        "before = Neg x; enqueue = QueueEnqueueV2 p before; dequeue = QueueDequeueV2 p; "
        "after = Neg dequeue; both = Add after before",
        "x before, after both",
    ),
}


@pytest.mark.parametrize(("text", "groups"), REGIONS.values(), ids=REGIONS)
def test_regions(text: str, groups: str) -> None:
    nodes = nodes_of(text)
    regions = _regions(nodes)
    found = [{regions[name] for name in group.split()} for group in groups.split(", ")]
    assert found[0] == {ROOT_REGION}
    assert all(len(each) == 1 for each in found)
    assert None not in set.union(*found)
    assert len(set.union(*found)) == len(found)
    # The order of the nodes does not matter.
    assert _regions(dict(reversed(nodes.items()))) == regions


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{L}; m = Neg l/merge x; a = Neg m", id="inputs_of_two_frames"),
        pytest.param(f"{L}; m = Merge l/merge x; a = Neg m", id="merge_of_two_frames"),
        pytest.param(f"{L}; a = Neg x ^l/body", id="control_dependency_on_another_frame"),
        pytest.param("e = Exit x; a = Neg e", id="exit_without_loop"),
        pytest.param(f"{L}; e = Exit l/body; a = Neg e", id="exit_from_the_middle"),
    ],
)
def test_refuses(text: str) -> None:
    assert _regions(nodes_of(text))["a"] is None


@pytest.mark.parametrize(
    ("op", "may_wait"),
    [
        ("a_function_called_by_its_name", True),
        ("ReadFromPeer", True),
        ("ReaderRead", True),
        ("BatchFunction", True),
        ("ReadVariableOp", False),
        ("ResourceApplyAdam", False),
    ],
)
def test_what_may_wait(op: str, may_wait: bool) -> None:
    regions = _regions({"op": f"{op} x", "after": "Neg op"})
    assert (regions["after"] != ROOT_REGION) == may_wait


def test_after_what_is_fed_is_another_region() -> None:
    nodes = dict.fromkeys("xpq", "Placeholder") | {"after": "Neg p"}
    view = _graph(nodes, "p", "after", fetches=["after"])
    control_flow = ControlFlow(view)
    assert control_flow.region(view.index_of["x"]) == ROOT_REGION
    assert control_flow.region(view.index_of["after"]) != ROOT_REGION
