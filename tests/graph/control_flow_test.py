"""Regions: what is alive together, and behind the same loops and hidden waits."""

from __future__ import annotations

import pytest
from graph_builder import GraphBuilder

from tf_interop.errors import TimeLimitError
from tf_interop.graph.control_flow import ROOT_REGION, ControlFlow
from tf_interop.graph.time_limit import time_limit
from tf_interop.graph.view import GraphView


def _regions(graph: GraphBuilder) -> dict[str, str | None]:
    view = GraphView(graph.graph_def)
    control_flow = ControlFlow(view)
    return {name: control_flow.region(index) for index, name in enumerate(view.names)}


def _add_cond(graph: GraphBuilder, prefix: str, data: str, predicate: str) -> str:
    """Adds  switch -> else, then -> merge  and returns the merge."""
    graph.add(f"{prefix}/switch", "Switch", data, predicate)
    graph.add(f"{prefix}/else", "Neg", f"{prefix}/switch")
    graph.add(f"{prefix}/then", "Abs", f"{prefix}/switch:1")
    return graph.add(f"{prefix}/merge", "Merge", f"{prefix}/else", f"{prefix}/then")


def _add_loop(graph: GraphBuilder, prefix: str, data: str) -> str:
    """Adds a loop with nodes `condition` and `body`, and returns its exit."""
    graph.add(f"{prefix}/enter", "Enter", data, frame_name=f"{prefix}/frame")
    graph.add(f"{prefix}/merge", "Merge", f"{prefix}/enter", f"{prefix}/next")
    graph.add(f"{prefix}/condition", "Less", f"{prefix}/merge", f"{prefix}/merge")
    graph.add(f"{prefix}/loop_cond", "LoopCond", f"{prefix}/condition")
    graph.add(f"{prefix}/switch", "Switch", f"{prefix}/merge", f"{prefix}/loop_cond")
    graph.add(f"{prefix}/body", "Neg", f"{prefix}/switch:1")
    graph.add(f"{prefix}/next", "NextIteration", f"{prefix}/body")
    return graph.add(f"{prefix}/exit", "Exit", f"{prefix}/switch")


def _graph() -> GraphBuilder:
    graph = GraphBuilder()
    graph.source("x")
    graph.source("p")
    graph.source("q")
    return graph


def test_graph_without_control_flow_is_one_region() -> None:
    graph = _graph()
    graph.add("y", "Neg", "x")
    assert set(_regions(graph).values()) == {ROOT_REGION}


def test_branches_are_regions_and_merge_leaves_them() -> None:
    graph = _graph()
    merge = _add_cond(graph, "c", "x", "p")
    graph.add("after", "Neg", merge)
    regions = _regions(graph)
    assert regions["x"] == regions["after"] == ROOT_REGION
    assert len({ROOT_REGION, regions["c/else"], regions["c/then"]}) == 3


def test_switches_of_one_predicate_are_one_region() -> None:
    graph = _graph()
    _add_cond(graph, "c", "x", "p")
    _add_cond(graph, "d", "x", "p:0")
    _add_cond(graph, "e", "x", "q")
    regions = _regions(graph)
    assert regions["c/then"] == regions["d/then"]
    assert regions["c/then"] != regions["e/then"]


def test_outputs_of_one_predicate_node_are_different() -> None:
    graph = _graph()
    _add_cond(graph, "c", "x", "p")
    _add_cond(graph, "d", "x", "p:1")
    regions = _regions(graph)
    assert regions["c/then"] != regions["d/then"]


def test_control_dependency_carries_the_gate() -> None:
    graph = _graph()
    _add_cond(graph, "c", "x", "p")
    graph.add("by_control", "Neg", "x", "^c/then")
    graph.add("on_switch", "Neg", "x", "^c/switch")
    regions = _regions(graph)
    assert regions["by_control"] == regions["c/then"]
    # A Switch itself is alive whichever of its outputs is.
    assert regions["on_switch"] == ROOT_REGION


def test_nested_branches() -> None:
    graph = _graph()
    graph.add("outer", "Switch", "x", "p")
    graph.add("inner_predicate", "Less", "outer:1", "outer:1")
    merge = _add_cond(graph, "c", "outer:1", "inner_predicate")
    graph.add("then", "Neg", merge)
    graph.add("else", "Neg", "outer")
    graph.add("merge", "Merge", "else", "then")
    graph.add("after", "Neg", "merge")
    regions = _regions(graph)
    assert regions["after"] == ROOT_REGION
    names = ("x", "then", "else", "c/then", "c/else")
    assert len({regions[name] for name in names}) == len(names)


def test_switch_n() -> None:
    graph = _graph()
    graph.add("switch", "_SwitchN", "x", "p", num_outs=3)
    for branch in range(3):
        graph.add(f"branch{branch}", "Neg", f"switch:{branch}")
    graph.add("all", "Merge", "branch0", "branch1", "branch2")
    graph.add("after_all", "Neg", "all")
    graph.add("two", "Merge", "branch0", "branch1")
    graph.add("after_two", "Neg", "two")
    regions = _regions(graph)
    assert regions["after_all"] == ROOT_REGION
    assert len({ROOT_REGION, *(regions[f"branch{branch}"] for branch in range(3))}) == 4
    assert regions["after_two"] not in (ROOT_REGION, None)


def test_merge_of_unpaired_branches_may_be_dead() -> None:
    graph = _graph()
    _add_cond(graph, "c", "x", "p")
    _add_cond(graph, "d", "x", "q")
    graph.add("merge", "Merge", "c/then", "d/else")
    graph.add("after", "Neg", "merge")
    regions = _regions(graph)
    assert regions["after"] not in (ROOT_REGION, regions["c/then"], regions["d/else"], None)


def test_merge_of_a_branch_that_is_never_alive() -> None:
    graph = _graph()
    graph.add("switch", "_SwitchN", "x", "p", num_outs=3)
    graph.add("never", "Add", "switch:0", "switch:1")
    graph.add("merge", "Merge", "never", "switch:2")
    graph.add("after", "Neg", "merge")
    assert _regions(graph)["after"] not in (ROOT_REGION, None)


def test_merge_with_an_input_that_is_alive_is_alive() -> None:
    graph = _graph()
    _add_cond(graph, "c", "x", "p")
    graph.add("merge", "Merge", "c/then", "x")
    graph.add("after", "Neg", "merge")
    assert _regions(graph)["after"] == ROOT_REGION


def test_loop_condition_and_body_are_regions_and_exit_leaves_them() -> None:
    graph = _graph()
    leave = _add_loop(graph, "l", "x")
    for name in ("after", "also_after"):
        graph.add(name, "Neg", leave)
    regions = _regions(graph)
    assert regions["after"] == regions["also_after"]
    names = ("x", "l/condition", "l/body", "after")
    assert len({regions[name] for name in names}) == len(names)


def test_late_depends_on_early_through_the_next_iteration_alone() -> None:
    graph = _graph()
    graph.add("early", "Neg", "x")
    leave = _add_loop(graph, "l", "x")
    # Read in the loop's body, and by what it hands on to the next iteration only.
    graph.add("constant", "Enter", "early", frame_name="l/frame")
    graph.node("l/body").input.append("constant")
    graph.add("late", "Neg", leave)
    graph.add("between", "Neg", "late")
    # Loop m comes after l, though no path without a back edge leads from m's exit to l's.
    graph.add("m/invariant", "Enter", "between", frame_name="m/frame")
    last = _add_loop(graph, "m", "x")
    graph.node("m/body").input.append("m/invariant")
    graph.add("last", "Neg", last)
    regions = _regions(graph)
    assert regions["early"] == ROOT_REGION
    assert regions["late"] == regions["between"]
    assert len({regions[name] for name in ("early", "late", "last")}) == 3
    # Who waits for m waits for l, too: the same as if it read both.
    graph.add("both", "Add", "late", "last")
    assert _regions(graph)["both"] == regions["last"]


def test_two_loops_are_different_regions() -> None:
    graph = _graph()
    _add_loop(graph, "l", "x")
    _add_loop(graph, "m", "x")
    regions = _regions(graph)
    assert regions["l/condition"] != regions["m/condition"]


def test_loop_inside_branch() -> None:
    graph = _graph()
    graph.add("switch", "Switch", "x", "p")
    leave = _add_loop(graph, "l", "switch:1")
    graph.add("then", "Neg", leave)
    graph.add("also_then", "Neg", "switch:1")
    graph.add("then_too", "Add", leave, "switch:1")
    regions = _regions(graph)
    assert regions["then"] == regions["then_too"]
    assert len({ROOT_REGION, regions["then"], regions["also_then"]}) == 3


def test_loop_inside_loop() -> None:
    graph = _graph()
    _add_loop(graph, "l", "x")
    leave = _add_loop(graph, "m", "l/switch:1")
    graph.add("after_inner", "Neg", leave)
    graph.add("also_after_inner", "Add", leave, "l/switch:1")
    regions = _regions(graph)
    assert regions["after_inner"] == regions["also_after_inner"]
    names = ("x", "l/body", "m/body", "after_inner")
    assert len({regions[name] for name in names}) == len(names)


def test_branch_inside_loop() -> None:
    graph = _graph()
    _add_loop(graph, "l", "x")
    graph.add("predicate", "Less", "l/switch:1", "l/switch:1")
    merge = _add_cond(graph, "c", "l/switch:1", "predicate")
    graph.add("after_branch", "Neg", merge)
    regions = _regions(graph)
    assert regions["after_branch"] == regions["l/body"]
    assert regions["c/then"] != regions["l/body"]


@pytest.mark.parametrize("reader", ["Neg", "Merge"])
def test_refuses_inputs_of_two_frames(reader: str) -> None:
    graph = _graph()
    _add_loop(graph, "l", "x")
    graph.add("mixed", reader, "l/merge", "x")
    graph.add("after", "Neg", "mixed")
    assert _regions(graph)["after"] is None


def test_refuses_control_dependency_on_another_frame() -> None:
    graph = _graph()
    _add_loop(graph, "l", "x")
    graph.add("mixed", "Neg", "x", "^l/body")
    assert _regions(graph)["mixed"] is None


def test_refuses_exit_without_loop() -> None:
    graph = _graph()
    graph.add("exit", "Exit", "x")
    graph.add("after", "Neg", "exit")
    assert _regions(graph)["after"] is None


def test_refuses_exit_from_the_middle_of_a_loop() -> None:
    graph = _graph()
    _add_loop(graph, "l", "x")
    graph.add("exit_of_body", "Exit", "l/body")
    graph.add("after", "Neg", "exit_of_body")
    assert _regions(graph)["after"] is None


def test_looks_at_the_time() -> None:
    graph = _graph()
    _add_loop(graph, "l", "x")
    view = GraphView(graph.graph_def)
    view.topological_order()  # which looks at the time as well, once
    with time_limit(-1), pytest.raises(TimeLimitError):
        ControlFlow(view)


def test_regions_do_not_depend_on_node_order() -> None:
    graph = _graph()
    _add_cond(graph, "c", "x", "p")
    _add_loop(graph, "l", "x")
    expected = _regions(graph)
    reversed_graph = GraphBuilder()
    reversed_graph.graph_def.node.extend(reversed(graph.graph_def.node))
    assert _regions(reversed_graph) == expected


def test_behind_a_dequeue_is_another_region() -> None:
    graph = _graph()
    graph.add("before", "Neg", "x")
    graph.add("enqueue", "QueueEnqueueV2", "p", "before")
    graph.add("dequeue", "QueueDequeueV2", "p")
    graph.add("after", "Neg", "dequeue")
    graph.add("both", "Add", "after", "before")
    regions = _regions(graph)
    assert regions["before"] == ROOT_REGION
    assert regions["after"] == regions["both"] not in (None, ROOT_REGION)


@pytest.mark.parametrize(
    ("op", "may_wait"),
    [
        ("PyFunc", True),
        ("CollectiveReduceV2", True),
        ("StatefulPartitionedCall", True),
        ("a_function_called_by_its_name", True),
        ("ReadFromPeer", True),
        ("ReaderRead", True),
        ("ReaderReadUpToV2", True),
        ("InitializeTableFromDataset", True),
        ("SaveDatasetV2", True),
        ("BatchFunction", True),
        ("Unbatch", True),
        ("ReadVariableOp", False),
        ("AssignAddVariableOp", False),
        ("ResourceApplyAdam", False),
        ("LookupTableFindV2", False),
        ("WriteScalarSummary", False),
        ("SaveV2", False),
        ("RandomUniform", False),
        ("Relu", False),
    ],
)
def test_what_may_wait(op: str, may_wait: bool) -> None:
    graph = _graph()
    graph.add("op", op, "x")
    graph.add("after", "Neg", "op")
    assert (_regions(graph)["after"] != ROOT_REGION) == may_wait


def test_behind_what_is_fed_is_another_region() -> None:
    graph = _graph()
    graph.add("after", "Neg", "p")
    view = GraphView(graph.graph_def)
    control_flow = ControlFlow(view, fed=[view.index_of["p"]])
    assert control_flow.region(view.index_of["x"]) == ROOT_REGION
    assert control_flow.region(view.index_of["after"]) != ROOT_REGION
