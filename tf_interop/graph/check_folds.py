"""Checks that folding left the rest of a graph as it was; changes nothing.

It does not know how folds were found. Whether the arithmetic is right is a matter of tests.
"""

from __future__ import annotations

from collections.abc import Collection

from tf_interop.errors import GraphError
from tf_interop.graph.control_flow import is_function
from tf_interop.graph.program import KEPT_OP
from tf_interop.graph.view import GraphView, parse_input


def check_folds(
    before: GraphView, after: GraphView, nodes_to_preserve: Collection[str] = ()
) -> None:
    """Checks a graph with folds and Kept nodes. Its view has checked names and inputs.

    1. It has no cycle.
    2. Its nodes are Kept nodes and nodes of `before`, with their devices; preserved ones and those
       with effects are there.
    3. Whatever is gone is read by nothing else: control dependencies stay. Only a wait for a read
       may become one for a Kept node that reads the variable.
    4. No variable is read that `before` does not read.

    Raises:
        GraphError: one of these is violated. The message names the node.
    """
    after.topological_order()
    made = {index for index, op in enumerate(after.ops) if op == KEPT_OP}
    for index, name in enumerate(after.names):
        if index in made:
            continue
        old = before.index_of.get(name)
        if old is None or before.nodes[old].device != after.nodes[index].device:
            raise GraphError(
                f"Expected Kept nodes and nodes of the graph on their devices, got '{name}'."
            )
        if not _has_its_waits(before, after, old, index):
            raise GraphError(f"Expected the control dependencies of '{name}' to stay.")
    gone = before.index_of.keys() - after.index_of.keys()
    stay = {parse_input(name)[0] for name in nodes_to_preserve}
    is_called = is_function(before)
    lost = sorted(
        name
        for name in gone
        if (
            name in stay
            and not (is_called and before.ops[before.index_of[name]] == "ReadVariableOp")
        )
        or not before.readers[before.index_of[name]]
        or before.ops[before.index_of[name]] in ("_Arg", "_Retval", "VarHandleOp")
    )
    if lost:
        raise GraphError(f"Expected preserved nodes and results to stay, got {lost[:5]} missing.")
    read = {
        before.fanins[index][0][0] for index, op in enumerate(before.ops) if op == "ReadVariableOp"
    }
    for index in made:
        count = after.nodes[index].attr["N"].i
        for source, _ in after.fanins[index][:count]:
            if before.index_of.get(after.names[source]) not in read:
                raise GraphError(
                    "Expected Kept nodes to read variables that the graph reads, got "
                    f"'{after.names[source]}' at node '{after.names[index]}'."
                )


def _has_its_waits(before: GraphView, after: GraphView, old: int, new: int) -> bool:
    """Whether a node waits for what it waited for."""
    waits = {after.names[source] for source in after.control_fanins[new]}
    kept = {source for source in after.control_fanins[new] if after.ops[source] == KEPT_OP}
    kept_handles = {after.names[handle] for source in kept for handle, _ in after.fanins[source]}
    gone = {source for source in before.control_fanins[old] if before.names[source] not in waits}
    added = waits - {before.names[source] for source in before.control_fanins[old]}
    return added <= {after.names[source] for source in kept} and all(
        before.ops[source] == "ReadVariableOp"
        and before.names[before.fanins[source][0][0]] in kept_handles
        for source in gone
    )
