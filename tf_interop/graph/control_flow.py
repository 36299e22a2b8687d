"""Finds the nodes that run together: in one loop frame and branch, and after the same waits.

TensorFlow runs conditionals and loops in one graph with Switch, Merge, Enter, Exit and
NextIteration. A Switch's output that is not taken is *dead*, and so is every node with a dead
input, tensor or control dependency, up to a Merge:

    pred --> Switch --:0--> else branch --> Merge --> alive again
                    --:1--> then branch -->

A node with inputs from both branches would always be dead. So nodes may only become one node if
they are in one *region*: in the same loop frame and behind the same gates. A gate is one output of
all Switches with one predicate.

*Hidden waits.* Some nodes wait for others without an edge between them. A dequeue waits for an
enqueue, a collective for its partners, a Python function for anything, and in a partial run of a
Session a fed value for a fetched one. Here `b` needs `a`, but no path shows it:

    x --> a: Conv2D --> QueueEnqueueV2        QueueDequeueV2 --> b: Conv2D -->

One node for `a` and `b` would wait forever. So the nodes of a region also come *after* the same
nodes that may wait. That is enough: suppose that stages wait for each other in a ring, and one of
them waits for a dequeue. Then all its members wait for it, and so do all later stages, so the graph
would have waited forever without stages, too.

Nor may one node join nodes before a loop and nodes after it. The order of nodes leaves out back
edges, and with them everything that one iteration passes to the next: here `late` waits for
`early`, but only through a back edge. So the end of a loop counts as a node that may wait.

    early --> Enter --> body --> NextIteration - - > Merge --> Switch --> Exit --> late

*Feeds.* A Session may feed the value of any tensor. Nodes that only this tensor needs do not run:

    p: Placeholder --> a: Conv2D --> f (fed) --+
    q: Placeholder --> b: Conv2D --------------+--> fetched

Here `a` does not run, and `p` has no value. A stage of `a` and `b` would need `p`.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from tf_interop import tensorflow_internals
from tf_interop.graph.view import MERGE_OPS, NEXT_ITERATION_OPS, GraphView, parse_input

ROOT_REGION = ""
"""The region of nodes that are in no loop, always alive, and after no node that may wait."""

_SWITCH_OPS = frozenset({"Switch", "RefSwitch", "_SwitchN"})
_ENTER_OPS = frozenset({"Enter", "RefEnter"})
_EXIT_OPS = frozenset({"Exit", "RefExit"})
_CONTROL_FLOW_OPS = _SWITCH_OPS | MERGE_OPS | _ENTER_OPS | _EXIT_OPS | NEXT_ITERATION_OPS


class _Gate(NamedTuple):
    """A condition on being alive."""

    predicate: str  # the tensor that chooses; the Merge if its own condition is unknown
    branch: int  # the value of the predicate; -1 for a Merge
    branch_count: int  # how many values it has; 0 for a Merge


class _Place(NamedTuple):
    """Where a node's outputs are: the frames around them, outermost first, and the gates."""

    frame: tuple[str, ...]
    gates: frozenset[_Gate]


_ROOT = _Place((), frozenset())


class ControlFlow:
    """The region of every node of a graph. Graphs without control flow cost little."""

    def __init__(self, view: GraphView) -> None:
        """Finds frames, gates and hidden waits; raises GraphError if the graph has a cycle.

        A Session's run for the view's `fetches` may feed the other `preserved` nodes, possibly in
        several steps.
        """
        self._view = view
        fed: set[int] = set()
        self._runs: bytearray | None = None
        if view.fetches and not view.is_function:
            fetched = {parse_input(text)[0] for text in view.fetches}
            names = view.preserved - fetched
            fed = {view.index_of[name] for name in names & view.index_of.keys()}
            self._runs = _find_run(view, fed, fetched)
        self._keys: dict[tuple[_Place, int], str] = {(_ROOT, 0): ROOT_REGION}
        self._places: list[_Place | None] | None = None
        waits = {index: view.names[index] for index in _find_hidden_waits(view)}
        waits |= {index: view.names[index] for index in fed}
        if not _CONTROL_FLOW_OPS.isdisjoint(view.op_types):
            self._places = [None] * len(view)
            for index in view.topological_order():
                self._places[index] = self._place_outputs(index, self._places)
                if view.ops[index] in _EXIT_OPS and view.sources(index):
                    # A loop may have several exits.
                    place = self._places[view.sources(index)[0]]
                    waits[index] = f"the end of {() if place is None else place.frame}"
        self._waits_before = _find_waits_before(view, waits) if waits else None

    def region(self, index: int) -> str | None:
        """A key for the region of node `index`, which is neither Enter nor Exit nor Switch.

        Nodes of one region have the same key, in every process. It is None if the node's inputs
        contradict each other or the region is not understood.
        """
        place = _ROOT if self._places is None else self._places[index]
        if place is None:
            return None
        waits = 0 if self._waits_before is None else self._waits_before[index]
        key = self._keys.get((place, waits))
        if key is None:
            text = repr((place.frame, sorted(place.gates), waits))
            key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
            self._keys[place, waits] = key
        return key

    def may_not_run(self, index: int) -> bool:
        """Whether node `index` does not run if everything that may be fed is fed.

        In a function every node runs: TensorFlow has already removed unneeded nodes.
        """
        return self._runs is not None and not self._runs[index]

    def always_runs_once(self, index: int) -> bool:
        """Whether node `index` is in no loop and in no branch of a conditional."""
        return self._places is None or self._places[index] == _ROOT

    def waits_for_no_more(self, index: int, other: int) -> bool:
        """Whether all waits that end before node `index` has run end before `other` has, too."""
        waits = self._waits_before
        return waits is None or not waits[index] & ~waits[other]

    def _place_outputs(self, index: int, places: list[_Place | None]) -> _Place | None:
        """Places the outputs of node `index`; the nodes before it are already in `places`."""
        op = self._view.ops[index]
        if op in MERGE_OPS:
            return self._merge(index, places)
        place = self._join(index, places)
        if place is None:
            return None
        if op in _ENTER_OPS:
            frame = self._view.nodes[index].attr["frame_name"].s
            return _Place((*place.frame, frame.decode("utf-8", "backslashreplace")), place.gates)
        if op in _EXIT_OPS:
            return self._leave(place, places)
        return place

    def _join(self, index: int, places: list[_Place | None]) -> _Place | None:
        """Places a node that needs all its inputs alive."""
        view = self._view
        # A control dependency on a Switch is alive whichever output is taken.
        inputs = [self._edge_place(source, port, places) for source, port in view.fanins[index]]
        inputs += [places[source] for source in view.control_fanins[index]]
        joined: _Place | None = inputs[0] if inputs else _ROOT
        for place in inputs:
            if joined is None or place is None:
                return None
            joined = _both(joined, place)
        return joined

    def _edge_place(self, source: int, port: int, places: list[_Place | None]) -> _Place | None:
        place, view = places[source], self._view
        if place is None or view.ops[source] not in _SWITCH_OPS:
            return place
        predicate, predicate_port = view.fanins[source][1]
        is_wide = view.ops[source] == "_SwitchN"
        branch_count = view.nodes[source].attr["num_outs"].i if is_wide else 2
        gate = _Gate(f"{view.names[predicate]}:{predicate_port}", port, branch_count)
        return _Place(place.frame, place.gates | {gate})

    def _merge(self, index: int, places: list[_Place | None]) -> _Place | None:
        """Places a Merge, which is alive as soon as one of its inputs is.

        Control dependencies do not count: TensorFlow waits for them, dead or alive.
        """
        view = self._view
        entering: list[_Place] = []
        for source, port in view.fanins[index]:
            if view.is_back_edge(source, index):
                continue
            place = self._edge_place(source, port, places)
            if place is None or (entering and place.frame != entering[0].frame):
                return None
            entering.append(place)
        common = frozenset.intersection(*(place.gates for place in entering))
        if not _always_one_alive([place.gates - common for place in entering]):
            common |= {_Gate(view.names[index], -1, 0)}
        return _Place(entering[0].frame, common)

    def _leave(self, place: _Place, places: list[_Place | None]) -> _Place | None:
        """Places the output of an Exit whose input is at `place`: outside its loop."""
        if not place.frame:
            return None
        outer_gates = []
        for gate in place.gates:
            source = self._view.index_of[parse_input(gate.predicate)[0]]
            source_place = places[source]
            if source_place is None:
                return None
            if source_place.frame[: len(place.frame)] != place.frame:
                outer_gates.append(gate)
            elif self._view.ops[source] != "LoopCond" or gate.branch != 0:
                # Only the end of the loop is known to happen exactly once.
                return None
        return _Place(place.frame[:-1], frozenset(outer_gates))


def _both(first: _Place, second: _Place) -> _Place | None:
    """Places a node with an input in each of two places; None if it cannot have both."""
    if first is second:
        return first
    if first.frame != second.frame:
        return None
    if first.gates <= second.gates:
        return second
    if second.gates <= first.gates:
        return first
    return _Place(first.frame, first.gates | second.gates)


def _always_one_alive(alternatives: list[frozenset[_Gate]]) -> bool:
    """Whether one of the alternatives has all its gates open, whatever the predicates are."""
    if any(not gates for gates in alternatives):
        return True
    if any(len(gates) > 1 for gates in alternatives):
        return False
    gates = frozenset.union(*alternatives)
    branch_count = next(iter(gates)).branch_count
    predicates = {gate.predicate for gate in gates}
    return len(predicates) == 1 and branch_count > 0 and len(gates) == branch_count


# Common stateful ops that wait for nothing. Families are spelled out: a custom op may be called
# ReadFromPeer, and TensorFlow 1's ReaderRead waits for a queue.
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
# These wait, but TensorFlow does not declare them stateful.
_WAITS = re.compile(
    r"Queue(De|En)queue.*|ReaderRead.*|Barrier.*|.*TakeGradient|PyFuncStateless"
    r"|Batch(Function)?|Unbatch(Grad)?"
)


def _find_hidden_waits(view: GraphView) -> list[int]:
    """The nodes that may wait for others without a path from them, unknown ops included."""
    waiting = {op for op in view.op_types if _may_wait(op)}
    return [index for index, op in enumerate(view.ops) if op in waiting]


def _find_waits_before(view: GraphView, waits: Mapping[int, str]) -> list[int]:
    """For each node, the waits that end before its readers run, as a bit set.

    `waits` has a name for each node that may wait; two nodes may share one. The sets do not depend
    on the order of the nodes in the GraphDef.
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
    # An unknown op may be a function that is called by its name.
    return _WAITS.fullmatch(op) is not None or tensorflow_internals.may_be_stateful(op)


def _find_run(view: GraphView, fed: Collection[int], fetched: Iterable[str]) -> bytearray:
    """For each node, 1 if the fetches need it even with all of `fed` fed, else 0."""
    runs = bytearray(len(view))
    pending = [view.index_of[name] for name in fetched if name in view.index_of]
    while pending:
        index = pending.pop()
        if runs[index] or index in fed:
            continue
        runs[index] = 1
        pending += [source for source, _ in view.fanins[index]]
        pending += view.control_fanins[index]
    return runs
