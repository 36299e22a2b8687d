"""Puts a new node in the place of others, its members: what stages and units have in common.

Guaranteed: the graph that was given is not altered; nodes that do not depend on a member directly
keep their bytes, and so do the function library and the versions; no dependency is lost; devices
stay. A member whose name must be preserved stays, as an Identity of the new node's output, and
whoever read it goes on reading it, so that it can still be fed.

That members may run as one node is for the caller to know; `graph.check` judges the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.graph.control_flow import is_function
from tf_interop.graph.ops import input_dtypes
from tf_interop.graph.program import make_operation
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import GraphView

COLOCATION = "_class"
"""The attribute of a node that says what it is placed with."""

COLOCATED_WITH = b"loc:@"
"""What an entry of it starts with, if it names a node."""

Tensor = tuple[int, int]
"""A tensor of the graph: the node and the port."""


@dataclasses.dataclass(frozen=True, slots=True)
class NewNode:
    """A node that takes the place of others.

    Attributes:
        name: of the node in the new graph.
        members: the nodes, in the order of its steps.
        results: of each of its outputs the member's output that it is.
    """

    name: str
    members: tuple[int, ...]
    results: tuple[Tensor, ...]

    def output(self, result: Tensor) -> str:
        """The input of a NodeDef that reads a result."""
        port = self.results.index(result)
        return f"{self.name}:{port}" if port else self.name


class Replacement:
    """A graph whose members give way to new nodes."""

    def __init__(
        self, view: GraphView, new_nodes: Sequence[NewNode], nodes_to_preserve: Collection[str]
    ) -> None:
        """Prepares to replace the members of `new_nodes`, of which no two share one."""
        self._view, self._new_nodes = view, new_nodes
        self._preserved = frozenset(nodes_to_preserve)
        # How a node that read an input of the old graph reads it in the new one.
        self._redirected: dict[str, str] = {}
        for new in new_nodes:
            free = [index for index in new.members if view.names[index] not in self._preserved]
            self._redirected |= {f"^{view.names[index]}": f"^{new.name}" for index in free}
            for index, port in new.results:
                if index in free:
                    name = view.names[index]
                    texts = [f"{name}:{port}"] if port else [name, f"{name}:0"]
                    self._redirected |= dict.fromkeys(texts, new.output((index, port)))

    def inputs(self, new: NewNode) -> dict[Tensor, tuple[str, int]]:
        """Of each distinct tensor that members read of others how it is read, and its dtype."""
        view, inside = self._view, set(new.members)
        inputs: dict[Tensor, tuple[str, int]] = {}
        for index in new.members:
            node, tensors = view.nodes[index], view.fanins[index]
            for tensor, text, dtype in zip(tensors, node.input, input_dtypes(node), strict=False):
                if tensor[0] not in inside:
                    inputs.setdefault(tensor, (self._redirected.get(text, text), dtype))
        return inputs

    def control_inputs(self, new: NewNode, read: Collection[str]) -> tuple[str, ...]:
        """The control dependencies of a new node, without those on what it reads anyway."""
        view, inside = self._view, set(new.members)
        producers = {text.partition(":")[0] for text in read}
        controls: dict[str, None] = {}
        for index in new.members:
            texts = view.nodes[index].input[len(view.fanins[index]) :]
            for source, text in zip(view.control_fanins[index], texts, strict=True):
                target = self._redirected.get(text, text)
                if source not in inside and target[1:] not in producers:
                    controls[target] = None
        return tuple(controls)

    def steps(
        self, new: NewNode, operand_of: Callable[[Tensor], str]
    ) -> tuple[node_def_pb2.NodeDef, ...]:
        """What a new node keeps of its members."""
        check_time_limit()
        view = self._view
        return tuple(
            make_operation(view.nodes[index], map(operand_of, view.fanins[index]))
            for index in new.members
        )

    def filters_from(
        self,
        ops: Collection[str],
        new: NewNode,
        position_of: Mapping[Tensor, int],
        filter_positions: Mapping[str, int],
    ) -> tuple[int, ...]:
        """Where among the inputs of a new node are filters that nodes of `ops` give, ascending.

        Only nodes on its device count. A Session may feed another value in the place of a node
        whose name must be preserved.
        """
        view = self._view
        may_be_fed = frozenset() if is_function(view) else self._preserved
        device = view.nodes[new.members[0]].device
        positions = set()
        for index in new.members:
            filter_position = filter_positions.get(view.ops[index], len(view.fanins[index]))
            for tensor in view.fanins[index][filter_position : filter_position + 1]:
                source, port = tensor
                if (
                    tensor in position_of
                    and view.ops[source] in ops
                    and port == 0
                    and view.nodes[source].device == device
                    and view.names[source] not in may_be_fed
                ):
                    positions.add(position_of[tensor])
        return tuple(sorted(positions))

    def graph(self, node_defs: Sequence[node_def_pb2.NodeDef]) -> graph_pb2.GraphDef:
        """The new graph, given the NodeDef of each new node, without device, notes and colocation.

        A new node stands where the first of its members that goes away stood, or at the end.
        """
        view = self._view
        members = {index for new in self._new_nodes for index in new.members}
        graph_def = graph_pb2.GraphDef()
        graph_def.CopyFrom(view.graph_def)  # faster than node by node
        copies = graph_def.node
        for index in {reader for member in members for reader in view.fanouts[member]} - members:
            copies[index].input[:] = self._redirect_inputs(view.nodes[index].input)
        for index, node in enumerate(view.nodes):
            if COLOCATION in node.attr and index not in members:
                classes = copies[index].attr[COLOCATION].list.s
                classes[:] = self._redirect_classes(classes)
        unused: list[int] = []
        for new, node_def in zip(self._new_nodes, node_defs, strict=True):
            self._describe(new, node_def)
            stay = {index for index in new.members if view.names[index] in self._preserved}
            for index in stay:
                identity = node_def_pb2.NodeDef(
                    name=view.names[index], op="Identity", device=node_def.device
                )
                identity.input.append(new.output((index, 0)))
                identity.attr["T"].type = view.nodes[index].attr["T"].type
                copies[index].CopyFrom(identity)
            free = sorted(set(new.members) - stay)
            if free:
                copies[free[0]].CopyFrom(node_def)
                unused += free[1:]
            else:
                copies.append(node_def)
        for index in sorted(unused, reverse=True):
            del copies[index]
        return graph_def

    def _describe(self, new: NewNode, node_def: node_def_pb2.NodeDef) -> None:
        """Sets the device of a new node, what it stands for, and what it is placed with."""
        nodes = [self._view.nodes[index] for index in new.members]
        names = [node.name for node in nodes]
        node_def.device = nodes[0].device
        node_def.experimental_debug_info.original_node_names.extend(names)
        classes: set[bytes] = set()
        for node in nodes:
            if COLOCATION in node.attr:
                classes.update(node.attr[COLOCATION].list.s)
        own = {COLOCATED_WITH + name.encode() for name in (new.name, *names)}
        colocations = sorted(set(self._redirect_classes(sorted(classes))) - own)
        if colocations:
            node_def.attr[COLOCATION].list.s.extend(colocations)

    def _redirect_inputs(self, texts: Sequence[str]) -> list[str]:
        """The inputs of a node; no new node comes up twice because of a control dependency."""
        rewritten: list[str] = []
        read: set[str] = set()
        for text in texts:
            target = self._redirected.get(text)
            if target is None:
                rewritten.append(text)
                continue
            name = target.removeprefix("^").partition(":")[0]
            if not target.startswith("^") or name not in read:
                rewritten.append(target)
            read.add(name)
        return rewritten

    def _redirect_classes(self, classes: Sequence[bytes]) -> list[bytes]:
        """The entries of `_class`; a new node comes up once, however many of its members did."""
        targets = []
        for entry in classes:
            name = entry.removeprefix(COLOCATED_WITH).decode("utf-8", "replace")
            target = self._redirected.get(f"^{name}") if entry.startswith(COLOCATED_WITH) else None
            targets.append(entry if target is None else COLOCATED_WITH + target[1:].encode())
        return list(classes) if targets == list(classes) else list(dict.fromkeys(targets))
