"""A read-only, indexed view of a GraphDef: readers, order and devices of its nodes."""

from __future__ import annotations

import functools
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop import tensorflow_internals
from tf_interop.contraction import contract
from tf_interop.convolution import Refusal, RefusalReason
from tf_interop.errors import GraphError

Tensor = tuple[int, int]
"""A tensor of a graph: the place of its node in the view, and the output port."""

CONTROL_PORT = -1
"""The output port of a control dependency, as TensorFlow numbers it."""

COLOCATION = "_class"
"""The attribute that names the nodes a node is placed with."""

_COLOCATED_WITH = b"loc:@"

MERGE_OPS = frozenset({"Merge", "RefMerge"})
NEXT_ITERATION_OPS = frozenset({"NextIteration", "RefNextIteration"})


def parse_input(text: str) -> tuple[str, int]:
    """Splits an input of a NodeDef into the node's name and the output port.

    The port of `^name`, a control dependency, is `CONTROL_PORT`. Text of another form is returned
    as a name, which no node has.
    """
    if text.startswith("^"):
        return text[1:], CONTROL_PORT
    name, _, port = text.partition(":")
    return (name, int(port)) if port.isdecimal() else (text, 0)


def tensor_text(name: str, port: int) -> str:
    """The input of a NodeDef that reads an output of a node."""
    return f"{name}:{port}" if port else name


class GraphView:
    """An indexed GraphDef. Its nodes are numbered by their place in it.

    A back edge, from NextIteration to Merge, is in `fanins` and `fanouts`, but not in `readers`,
    `topological_order` and `by_rank`. The GraphDef must not change while the view is in use.

    Attributes:
        graph_def: the graph.
        preserved: names that must stay, because they are fed or fetched.
        fetches: the nodes or tensors that the graph is run for; empty if unknown.
        nodes: its nodes; `names` and `ops` are theirs.
        index_of: the place of each name.
        fanins: for each node, the tensors that it reads, in order, as (node, output port).
        control_fanins: for each node, its control dependencies, in order.
        fanouts: for each node, the nodes that read it or have a control dependency on it,
            ascending, each once.
        readers: the same without back edges.
        op_types: the set of `ops`.
        has_back_edges: whether the graph has a loop.
        is_function: whether it is a function's, which receives all values with the call.
    """

    def __init__(
        self,
        graph_def: graph_pb2.GraphDef,
        nodes_to_preserve: Iterable[str] = (),
        fetches: Collection[str] = (),
    ) -> None:
        """Indexes `graph_def`.

        Raises:
            GraphError: two nodes have one name, an input names no node, or a tensor comes after a
                control dependency.
        """
        nodes: list[node_def_pb2.NodeDef] = list(graph_def.node)
        names: list[str] = [node.name for node in nodes]
        index_of = dict(zip(names, range(len(names)), strict=True))
        if len(index_of) != len(names):
            duplicate = next(name for index, name in enumerate(names) if index_of[name] != index)
            raise GraphError(f"Expected node names to be unique, got two nodes '{duplicate}'.")

        # Nearly every input is a node's bare name. A slice of a repeated field is a list, which is
        # twice as fast to iterate as the field.
        first_output_of = {name: (index, 0) for name, index in index_of.items()}.get
        fanins: list[Any] = [tuple(map(first_output_of, node.input[:])) for node in nodes]
        control_fanins: list[tuple[int, ...]] = [()] * len(nodes)
        fanouts: list[list[int]] = [[] for _ in nodes]
        for index, tensors in enumerate(fanins):
            if None in tensors:
                tensors, controls = _resolve_inputs(nodes[index], index_of)
                fanins[index] = tensors
                control_fanins[index] = controls
                for source in dict.fromkeys(controls):
                    fanouts[source].append(index)
            for source, _ in tensors:
                readers = fanouts[source]
                if not readers or readers[-1] != index:
                    readers.append(index)

        self.graph_def = graph_def
        self.preserved = frozenset(parse_input(name)[0] for name in nodes_to_preserve)
        self.fetches = fetches
        self.nodes = nodes
        self.names = names
        self.ops: list[str] = [node.op for node in nodes]
        self.index_of = index_of
        self.fanins: list[tuple[tuple[int, int], ...]] = fanins
        self.control_fanins = control_fanins
        self.fanouts = fanouts
        self.op_types = frozenset(self.ops)
        self.has_back_edges = not NEXT_ITERATION_OPS.isdisjoint(self.op_types)
        self.is_function = not self.op_types.isdisjoint({"_Arg", "_Retval"})
        self.readers = fanouts
        if self.has_back_edges:
            self.readers = [
                [reader for reader in readers if not self.is_back_edge(source, reader)]
                for source, readers in enumerate(fanouts)
            ]

    def __len__(self) -> int:
        return len(self.nodes)

    def text(self, tensor: Tensor) -> str:
        """The input of a NodeDef that reads a tensor."""
        index, port = tensor
        return tensor_text(self.names[index], port)

    def refusal(self, index: int, reason: RefusalReason, detail: str) -> Refusal:
        """Node `index`, which stays unchanged for this reason."""
        return Refusal(self.names[index], self.ops[index], reason, detail)

    def data_readers(self, index: int) -> list[int]:
        """The nodes that read an output of node `index`, ascending."""
        return [
            reader
            for reader in self.fanouts[index]
            if any(source == index for source, _ in self.fanins[reader])
        ]

    def reads_other_outputs(self, index: int) -> bool:
        """Whether a node reads another output of node `index` than the first."""
        return any(
            source == index and port > 0
            for reader in self.fanouts[index]
            for source, port in self.fanins[reader]
        )

    def with_nodes(self, nodes: Iterable[node_def_pb2.NodeDef]) -> graph_pb2.GraphDef:
        """A graph of other nodes, with the versions and the function library of this one."""
        old = self.graph_def
        return graph_pb2.GraphDef(node=nodes, versions=old.versions, library=old.library)

    def is_back_edge(self, source: int, reader: int) -> bool:
        """Whether an edge from `source` to `reader` closes a loop."""
        return (
            self.has_back_edges
            and self.ops[source] in NEXT_ITERATION_OPS
            and self.ops[reader] in MERGE_OPS
        )

    def sources(self, index: int) -> list[int]:
        """The nodes that must run before node `index`: its fanins without back edges."""
        sources = [source for source, _ in self.fanins[index]]
        sources += self.control_fanins[index]
        if self.has_back_edges and self.ops[index] in MERGE_OPS:
            return [source for source in sources if self.ops[source] not in NEXT_ITERATION_OPS]
        return sources

    def topological_order(self) -> list[int]:
        """All nodes, each after its dependencies; by level, then in the graph's order.

        Raises:
            GraphError: the graph has a cycle that no NextIteration closes. The message names the
                nodes.
        """
        return self._order_and_levels[0]

    def by_rank(self, indices: Iterable[int]) -> list[int]:
        """Sorts nodes by level, then by name, so that the order of the GraphDef does not matter.

        A node's level is the length of the longest path that ends at it. Raises like
        `topological_order`.
        """
        levels = self._order_and_levels[1]
        return sorted(indices, key=lambda index: (levels[index], self.names[index]))

    @functools.cached_property
    def _order_and_levels(self) -> tuple[list[int], list[int]]:
        waits = [0] * len(self)
        for readers in self.readers:
            for reader in readers:
                waits[reader] += 1
        order: list[int] = []
        levels = [0] * len(self)
        level = 0
        wave = [index for index, count in enumerate(waits) if not count]
        while wave:
            order += wave
            level += 1
            ready: list[int] = []
            for source in wave:
                for reader in self.readers[source]:
                    waits[reader] -= 1
                    if not waits[reader]:
                        levels[reader] = level
                        ready.append(reader)
            ready.sort()
            wave = ready
        if len(order) != len(self):
            names = [f"'{self.names[node]}'" for node in contract(self.readers, ()).cycle]
            raise GraphError(
                f"Expected a graph without cycles, got one through the nodes {join_names(names)}."
            )
        return order, levels


def join_names(names: Sequence[str]) -> str:
    """Joins the names along a path; shows only both ends of a long one."""
    if len(names) > 20:
        names = [*names[:10], f"{len(names) - 20} more", *names[-10:]]
    return " -> ".join(names)


def recolocate(nodes: Iterable[node_def_pb2.NodeDef], moved: Mapping[str, str | None]) -> None:
    """Changes the names of the nodes that others are placed with; None if there is none now."""
    for node in nodes:
        if COLOCATION not in node.attr:
            continue
        left: dict[bytes, None] = {}
        for entry in node.attr[COLOCATION].list.s:
            name = entry.removeprefix(_COLOCATED_WITH).decode("utf-8", "replace")
            if not entry.startswith(_COLOCATED_WITH) or name not in moved:
                left[entry] = None
            elif (new := moved[name]) is not None:
                left[_COLOCATED_WITH + new.encode()] = None
        if left:
            node.attr[COLOCATION].list.s[:] = left
        else:
            del node.attr[COLOCATION]


def free_name(base: str, taken: Container[str]) -> str:
    """`base`, with a number if a node has that name."""
    name, suffix = base, 0
    while name in taken:
        suffix += 1
        name = f"{base}_{suffix}"
    return name


def _resolve_inputs(
    node: node_def_pb2.NodeDef, index_of: dict[str, int]
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """The tensors that `node` reads, and its control dependencies."""
    tensors: list[tuple[int, int]] = []
    controls: list[int] = []
    for text in node.input:
        name, port = parse_input(text)
        source = index_of.get(name)
        if source is None:
            raise GraphError(
                f"Expected every input to name a node of the graph, got '{text}' at node "
                f"'{node.name}'."
            )
        if port == CONTROL_PORT:
            controls.append(source)
        elif controls:
            raise GraphError(
                f"Expected control dependencies after all other inputs, got '{text}' after one "
                f"at node '{node.name}'."
            )
        else:
            tensors.append((source, port))
    return tuple(tensors), tuple(controls)


@functools.lru_cache(maxsize=256)
def device_type_of(device: str) -> str:
    """The type in a full or partial device name, in capitals; empty if it has none."""
    for part in device.upper().split("/"):
        key, *rest = part.removeprefix("DEVICE:").split(":")
        if key not in ("", "JOB", "REPLICA", "TASK") and (rest or part.startswith("DEVICE:")):
            return key
    return ""


def is_placed(graph_def: graph_pb2.GraphDef) -> bool:
    """Whether TensorFlow has given the nodes full device names, as it does before it runs them."""
    return any("/job:" in node.device for node in graph_def.node)


def is_local(device: str) -> bool:
    """Whether a full or partial device name may belong to this process.

    TensorFlow also optimizes parts of a graph for other processes, which may lack our ops.
    """
    return _is_of_task(device, *tensorflow_internals.local_task())


@functools.lru_cache(maxsize=256)
def _is_of_task(device: str, job: str, task: int) -> bool:
    parts = dict(part.split(":", 1) for part in device.lower().split("/") if ":" in part)
    is_job = parts.get("job", job.lower()) == job.lower()
    is_task = parts.get("task", str(task)) == str(task)
    # Replicas after the first exist only in names.
    return is_job and is_task and parts.get("replica", "0") == "0"
