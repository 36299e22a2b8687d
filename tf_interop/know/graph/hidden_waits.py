"""Nodes that may wait for other nodes of the graph although no edge says so.

A dequeue waits for an enqueue, a collective for its partners, a Python function for whatever it
likes, and in a partial run of a Session a value that is fed waits for one that was fetched. Here
`b` needs `a`, and no path shows it:

    x --> a: Conv2D --> QueueEnqueueV2        QueueDequeueV2 --> b: Conv2D -->

One node for `a` and `b` would wait for ever. So what becomes one node must be *behind* the same
nodes that may wait. That is enough: if, in a ring of stages that wait for each other, one waited
for a dequeue, all of its members would, and so would all stages behind it; the graph would have
waited for ever without stages, too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection

from tf_interop.know.graph.graph_view import GraphView
from tf_interop.know.installed import tensorflow_internals

# Stateful ops that come up in most graphs and wait for nothing.
_NEVER_WAITS = re.compile(
    r"_Arg|_Retval|_DeviceArg|_DeviceRetval"
    r"|.*Variable.*|_?VarHandles?Op|VarIsInitializedOp|DestroyResourceOp"
    r"|Resource(Apply|CountUpTo|Gather|Scatter|SparseApply|StridedSlice).*"
    r"|(CudnnRNN|Multinomial|NonDeterministicInts|ParameterizedTruncated|Random|Rng|Truncated).*"
    r"|(SampleDistorted|Stateful(Random|Standard|Truncated|Uniform)|StatelessRandom).*"
    r"|(TensorArray|Stack).*"
    r"|(Assert|CheckNumerics|Debug|Print|Timestamp).*"
    r"|.*(Summary|Table).*|(Merge|Read|Restore|Save|Write).*"
)
# These wait, but TensorFlow does not call them stateful.
_WAITS = re.compile(r"Queue(De|En)queue.*|Barrier.*|.*TakeGradient|PyFuncStateless")


def find_hidden_waits(view: GraphView, fed: Collection[int] = ()) -> list[int]:
    """The nodes that may wait for others that they have no path from.

    Args:
        view: the graph.
        fed: nodes whose values the caller gives, possibly in several steps.

    Returns:
        The nodes, ordered by name. An op that TensorFlow does not know may wait.
    """
    waiting = {op for op in view.op_types if _may_wait(op)}
    indices = set(fed)
    if waiting:
        indices.update(index for index, op in enumerate(view.ops) if op in waiting)
    return sorted(indices, key=view.names.__getitem__)


def find_waits_before(view: GraphView, waits: Collection[int]) -> list[int]:
    """For each node those of `waits` that must be done before its readers run, as a bit set."""
    bit_of = {index: 1 << number for number, index in enumerate(waits)}
    before = [0] * len(view)
    for index in view.topological_order():
        reached = bit_of.get(index, 0)
        for source in view.sources(index):
            reached |= before[source]
        before[index] = reached
    return before


@functools.lru_cache(maxsize=4096)
def _may_wait(op: str) -> bool:
    if _NEVER_WAITS.fullmatch(op):
        return False
    # None where nobody knows the op: a function that is called by its name.
    return _WAITS.fullmatch(op) is not None or tensorflow_internals.is_stateful(op) is not False
