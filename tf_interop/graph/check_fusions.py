"""Checks that folds and fused normalizations left the rest of a graph as it was; changes nothing.

It does not know how they were found. Whether the arithmetic is right is a matter of tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tf_interop.errors import GraphError
from tf_interop.graph.find_normalizations import TrainingNormalization
from tf_interop.graph.program import KEPT_OP
from tf_interop.graph.sampled_values import EVALUATED_OPS
from tf_interop.graph.view import GraphView, Tensor

_PURE_OPS = EVALUATED_OPS | {"Const"}
_SUM_OPS = frozenset({"Add", "AddV2", "AddN"})


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

    def may_go(index: int) -> bool:
        op = before.ops[index]
        is_read_in_function = before.is_function and op == "ReadVariableOp"
        return op not in ("_Arg", "_Retval", "VarHandleOp") and (
            is_read_in_function or before.names[index] not in before.preserved
        )

    _check_order_and_what_is_gone(before, after, may_go)
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
    read = {_handle(before, index) for index, op in enumerate(before.ops) if op == "ReadVariableOp"}
    for index in made:
        for source, port in _variables(after, index):
            if (after.names[source], port) not in read:
                raise GraphError(
                    "Expected Kept nodes to read variables that the graph reads, got "
                    f"'{after.names[source]}' at node '{after.names[index]}'."
                )


def check_normalizations(
    before: GraphView, after: GraphView, matches: Sequence[TrainingNormalization]
) -> None:
    """Checks a graph with fused normalizations. Its view has checked names and inputs.

    1. It has no cycle.
    2. Only nodes without effects are gone. They were read, and need not be preserved.
    3. Each other node has its device and its op, and waits for the same nodes or for new ones.
    4. It reads what it read before, or new nodes in place of results. A sum may read less: nodes of
       a normalization and nodes that are gone; and it is an Identity if it reads only one.

    Raises:
        GraphError: one of these is violated. The message names the node.
    """
    _check_order_and_what_is_gone(
        before,
        after,
        lambda index: (
            before.ops[index] in _PURE_OPS and before.names[index] not in before.preserved
        ),
    )
    results = {tensor for match in matches for tensor in match.results}
    members = {index for match in matches for index in match.members}
    # Tensors of the graph before, by their place there; None for those of new nodes.
    old_index = [before.index_of.get(name) for name in after.names]
    for place, (index, new) in enumerate(zip(old_index, after.nodes, strict=True)):
        if index is None:
            continue
        old = before.nodes[index]
        reads = [(old_index[source], port) for source, port in after.fanins[place]]
        left = list(before.fanins[index])
        if old.op in _SUM_OPS and len(reads) < len(left):
            kept = {tensor for tensor in reads if tensor[0] is not None}
            is_lost = [
                tensor not in kept
                and (tensor[0] in members or before.names[tensor[0]] not in after.index_of)
                and tensor not in results
                for tensor in left
            ]
            left = [tensor for tensor, lost in zip(left, is_lost, strict=True) if not lost]
        is_same_op = new.op == old.op or (old.op in _SUM_OPS and new.op == "Identity")
        waits = {old_index[source] for source in after.control_fanins[place]}
        is_right = (
            is_same_op
            and new.device == old.device
            and waits - {None} <= set(before.control_fanins[index])
            and bool(set(before.control_fanins[index]) - waits) == (None in waits)
            and len(reads) == len(left)
            and all(
                got == tensor or (got[0] is None and tensor in results)
                for got, tensor in zip(reads, left, strict=True)
            )
        )
        if not is_right:
            raise GraphError(
                f"Expected node '{old.name}' to keep all but its reads of results, got another."
            )


def _check_order_and_what_is_gone(
    before: GraphView, after: GraphView, may_go: Callable[[int], bool]
) -> None:
    after.topological_order()
    missing = sorted(
        name
        for name in before.index_of.keys() - after.index_of.keys()
        if not may_go(before.index_of[name]) or not before.fanouts[before.index_of[name]]
    )
    if missing:
        raise GraphError(
            f"Expected preserved nodes, effects and results to stay, got {missing[:5]} missing."
        )


def _handle(view: GraphView, read: int) -> tuple[str, int]:
    """The handle of the variable that a ReadVariableOp reads."""
    source, port = view.fanins[read][0]
    return view.names[source], port


def _variables(view: GraphView, kept: int) -> Sequence[Tensor]:
    return view.fanins[kept][: view.nodes[kept].attr["N"].i]
