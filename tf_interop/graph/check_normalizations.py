"""Checks that fusing normalizations left the rest of a graph as it was; changes nothing.

It does not know how normalizations were found. Whether the arithmetic is right is a matter of
tests.
"""

from __future__ import annotations

from collections.abc import Sequence

from tf_interop.errors import GraphError
from tf_interop.graph.find_normalizations import TrainingNormalization
from tf_interop.graph.sampled_values import EVALUATED_OPS
from tf_interop.graph.view import GraphView

_PURE_OPS = EVALUATED_OPS | {"Const"}
_SUM_OPS = frozenset({"Add", "AddV2", "AddN"})


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
    after.topological_order()
    results = {tensor for match in matches for tensor in match.results}
    members = {index for match in matches for index in match.members}
    # Tensors of the graph before, by their place there; None for those of new nodes.
    old_index = [before.index_of.get(name) for name in after.names]
    for index, old in enumerate(before.nodes):
        place = after.index_of.get(old.name)
        if place is None:
            is_free = (
                old.op in _PURE_OPS and old.name not in before.preserved and before.fanouts[index]
            )
            if not is_free:
                raise GraphError(f"Expected node '{old.name}' to stay, got a graph without it.")
            continue
        new = after.nodes[place]
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
