"""Nodes that may wait for other nodes of the graph although no edge says so.

A dequeue waits for an enqueue, a collective for its partners, a Python function for whatever it
likes, and in a partial run of a Session a value that is fed waits for one that was fetched. Here
`b` needs `a`, and no path shows it:

    x --> a: Conv2D --> QueueEnqueueV2        QueueDequeueV2 --> b: Conv2D -->

One node for `a` and `b` would wait for ever. So what becomes one node must be *after* the same
nodes that may wait. That is enough: if, in a ring of stages that wait for each other, one waited
for a dequeue, all of its members would, and so would all stages after it; the graph would have
waited for ever without stages, too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping

from tf_interop import tensorflow_internals
from tf_interop.graph.view import GraphView

# TensorFlow's stateful ops that come up in most graphs and wait for nothing. Families are spelled
# out: a custom op may be called ReadFromPeer, and ReaderRead of TensorFlow 1 waits for a queue.
_NEVER_WAITS = re.compile(
    r"_Arg|_Retval|_DeviceArg|_DeviceRetval"
    r"|(Assign|AssignAdd|AssignSub)VariableOp|_?VarHandles?Op|_?ReadVariables?Op|VarIsInitializedOp"
    r"|Variable(V2)?|VariableShape|TemporaryVariable|DestroyResourceOp"
    r"|Resource(Apply|CountUpTo|Gather|Scatter|SparseApply|StridedSlice).*"
    r"|CudnnRNN(Backprop)?(V[23])?|Multinomial|NonDeterministicInts|ParameterizedTruncatedNormal"
    r"|Random(Crop|Gamma|Poisson(V2)?|Shuffle|StandardNormal|Uniform(Int)?)|Rng(ReadAnd)?Skip"
    r"|SampleDistortedBoundingBox(V2)?|TruncatedNormal|StatelessRandomGetAlg"
    r"|Stateful(RandomBinomial|(Standard|Truncated)Normal(V2)?|Uniform((Full)?Int)?)"
    r"|TensorArray(Close|Concat|Gather|Grad|GradWithShape|Read|Scatter|Size|Split|Write)?(V[23])?"
    r"|Stack(Close|Pop|Push)?(V2)?"
    r"|Assert|CheckNumerics(V2)?|DebugIdentity(V[23])?|Print(V2)?|Timestamp"
    r"|(Anonymous)?(Mutable)?(Dense)?HashTable(OfTensors)?(V2)?"
    r"|(InitializeTable|LookupTable(Export|Find|Import|Insert|Remove|Size))(V2)?"
    r"|InitializeTableFromTextFile(V2)?"
    r"|SummaryWriter|(CloseSummary|CreateSummary(Db|File)|FlushSummary)Writer"
    r"|Write((Audio|Graph|Histogram|Image|RawProto|Scalar)?Summary|File)"
    r"|MergeV2Checkpoints|Restore(Slice|V2)?|Save(Slices|V2)?"
)
# These wait, but TensorFlow does not call them stateful.
_WAITS = re.compile(
    r"Queue(De|En)queue.*|ReaderRead.*|Barrier.*|.*TakeGradient|PyFuncStateless"
    r"|Batch(Function)?|Unbatch(Grad)?"
)


def find_hidden_waits(view: GraphView, fed: Collection[int] = ()) -> set[int]:
    """The nodes that may wait for others that they have no path from.

    So may `fed` nodes, whose values the caller gives, and ops that TensorFlow does not know.
    """
    waiting = {op for op in view.op_types if _may_wait(op)}
    return {index for index, op in enumerate(view.ops) if op in waiting} | set(fed)


def find_waits_before(view: GraphView, waits: Mapping[int, str]) -> list[int]:
    """For each node what must be done before its readers run, as a bit set.

    `waits` has nodes that may wait, and what each stands for; two may stand for the same. The sets
    do not depend on the order of the nodes in the GraphDef.
    """
    numbers = {what: number for number, what in enumerate(sorted(set(waits.values())))}
    bit_of = {index: 1 << numbers[what] for index, what in waits.items()}
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
