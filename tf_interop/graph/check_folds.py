"""Checks that folding left the rest of a graph as it was; changes nothing.

It does not know how folds were found. Whether the arithmetic is right is a matter of tests.
"""

from __future__ import annotations

from collections.abc import Sequence

from tf_interop.errors import GraphError
from tf_interop.graph.program import KEPT_OP
from tf_interop.graph.view import GraphView, Tensor


def check_folds(before: GraphView, after: GraphView) -> None:
    """Checks a graph with folds and Kept nodes. Its view has checked names and inputs.

    1. It has no cycle.
    2. Its nodes are Kept nodes and nodes of `before`, with their devices; preserved ones and those
       with effects are there.
    3. Whatever is gone is read by nothing else: control dependencies stay, but what waited for a
       read may wait for a Kept node that reads the variable.
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
        waits = set(after.control_fanins[index])
        handles = {
            (after.names[source], port)
            for each in waits & made
            for source, port in _variables(after, each)
        }
        lost = [
            source
            for source in before.control_fanins[old]
            if after.index_of.get(before.names[source]) not in waits
            and not (before.ops[source] == "ReadVariableOp" and _handle(before, source) in handles)
        ]
        new = {after.names[source] for source in waits - made}
        if lost or new - {before.names[source] for source in before.control_fanins[old]}:
            raise GraphError(f"Expected the control dependencies of '{name}' to stay.")
    missing = []
    for name in sorted(before.index_of.keys() - after.index_of.keys()):
        index = before.index_of[name]
        op = before.ops[index]
        is_read_in_function = before.is_function and op == "ReadVariableOp"
        if (
            (name in before.preserved and not is_read_in_function)
            or not before.readers[index]
            or op in ("_Arg", "_Retval", "VarHandleOp")
        ):
            missing.append(name)
    if missing:
        raise GraphError(
            f"Expected preserved nodes and results to stay, got {missing[:5]} missing."
        )
    read = {_handle(before, index) for index, op in enumerate(before.ops) if op == "ReadVariableOp"}
    for index in made:
        for source, port in _variables(after, index):
            if (after.names[source], port) not in read:
                raise GraphError(
                    "Expected Kept nodes to read variables that the graph reads, got "
                    f"'{after.names[source]}' at node '{after.names[index]}'."
                )


def _handle(view: GraphView, read: int) -> tuple[str, int]:
    """The handle of the variable that a ReadVariableOp reads."""
    source, port = view.fanins[read][0]
    return view.names[source], port


def _variables(view: GraphView, kept: int) -> Sequence[Tensor]:
    return view.fanins[kept][: view.nodes[kept].attr["N"].i]
