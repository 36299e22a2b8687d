"""What stands for the nodes of a graph after a rewrite that made some steps of new nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.errors import GraphError
from tf_interop.graph.redirect import COLOCATED_WITH, COLOCATION
from tf_interop.graph.view import GraphView

Output = tuple[int, int]
"""A tensor: the node and the port."""


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """Where the outputs of a node are that is a step now.

    Attributes:
        node: the new node that it is a step of.
        ports: by port of the old node that of the new one, for those that are outputs of it.
    """

    node: int
    ports: Mapping[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Correspondence:
    """What stands for tensors and dependencies of `before`, of which `moved` are gone."""

    before: GraphView
    after: GraphView
    moved: dict[int, Move]

    def tensor(self, source: int, port: int) -> Output:
        """What stands for an output of node `source`.

        Raises:
            GraphError: it is no output of the new node that it is a step of.
        """
        name = self.before.names[source]
        move = self.moved.get(source)
        if move is None:
            return self.after.index_of[name], port
        if port not in move.ports:
            raise GraphError(
                f"Expected a reader of an output of '{self.after.names[move.node]}', got one of "
                f"output {port} of '{name}'."
            )
        return move.node, move.ports[port]

    def tensors(self, index: int) -> tuple[Output, ...]:
        """What stands for the tensors that node `index` reads."""
        return tuple([self.tensor(*tensor) for tensor in self.before.fanins[index]])

    def controls(self, index: int, *, inside: Collection[int] = ()) -> set[int]:
        """What stands for the nodes that node `index` waits for, without those `inside`."""
        return {
            self.moved[source].node
            if source in self.moved
            else self.after.index_of[self.before.names[source]]
            for source in self.before.control_fanins[index]
            if source not in inside
        }


def check_constant_inputs(
    after: GraphView, index: int, positions: Iterable[int], preserved: Collection[str]
) -> None:
    """Checks that what node `index` takes as constant is, and cannot be fed."""
    for position in positions:
        source, _ = after.fanins[index][position]
        node = after.nodes[source]
        is_on_device = node.device == after.nodes[index].device
        if node.op != "Const" or not is_on_device or node.name in preserved:
            raise GraphError(
                f"Expected constant inputs of '{after.names[index]}' to be Const nodes on its "
                f"device that cannot be fed, got input {position}, '{node.name}' of op {node.op}."
            )


def check_reader(index: int, index_after: int, correspondence: Correspondence) -> None:
    """Checks a node that reads a step, or was placed with it."""
    before, after = correspondence.before, correspondence.after
    old, new = before.nodes[index], after.nodes[index_after]
    name = before.names[index]
    expect_same(correspondence.tensors(index), after.fanins[index_after], "inputs", name, name)
    check_controls(after, index_after, correspondence.controls(index))
    expected = node_def_pb2.NodeDef()
    expected.CopyFrom(old)
    expected.input[:] = new.input
    if COLOCATION in old.attr:
        classes = {_redirect_class(entry, correspondence) for entry in old.attr[COLOCATION].list.s}
        got = set(new.attr[COLOCATION].list.s) if COLOCATION in new.attr else set()
        expect_same(classes, got, COLOCATION, name, name)
        expected.attr[COLOCATION].CopyFrom(new.attr[COLOCATION])
    expect_same(expected, new, "op, device and attributes", name, name)


def check_controls(view: GraphView, index: int, expected: set[int]) -> None:
    """Checks that a node waits for `expected`, where it does not read them, and for no others."""
    controls = set(view.control_fanins[index])
    missing = expected - controls
    if missing:
        missing.difference_update(source for source, _ in view.fanins[index])
    if missing or not controls <= expected:
        raise GraphError(
            "Expected control dependencies on "
            f"{sorted(view.names[source] for source in expected)}, got "
            f"{sorted(view.names[source] for source in controls)} at node '{view.names[index]}'."
        )


def _redirect_class(entry: bytes, correspondence: Correspondence) -> bytes:
    if not entry.startswith(COLOCATED_WITH):
        return entry
    name = entry.removeprefix(COLOCATED_WITH).decode("utf-8", "replace")
    index = correspondence.before.index_of.get(name)
    move = None if index is None else correspondence.moved.get(index)
    return (
        entry if move is None else COLOCATED_WITH + correspondence.after.names[move.node].encode()
    )


def check_others(checked: Collection[int], correspondence: Correspondence) -> None:
    """Checks all but the nodes of `before` in `checked`; some may be placed with a stage."""
    before, after = correspondence.before, correspondence.after
    for index_after, (name, node) in enumerate(zip(after.names, after.nodes, strict=True)):
        index = before.index_of.get(name)
        if index is None or index in checked:
            continue
        if before.nodes[index] != node or COLOCATION in node.attr:
            check_reader(index, index_after, correspondence)
    for field in graph_pb2.GraphDef.DESCRIPTOR.fields:
        if field.name == "node":
            continue
        if getattr(before.graph_def, field.name) != getattr(after.graph_def, field.name):
            raise GraphError(f"Expected the graph's {field.name} as before, got another.")


def expect_same(expected: object, got: object, what: str, old: str, new: str) -> None:
    """Checks that something about a node is as it was.

    Args:
        expected: of the node in the graph before.
        got: of what stands for it.
        what: it is, for the message.
        old: name of the node.
        new: name of what stands for it.

    Raises:
        GraphError: it is not.
    """
    if expected != got:
        raise GraphError(
            f"Expected the {what} of '{old}' as before the rewrite, {_short(expected)}, got "
            f"{_short(got)} at node '{new}'."
        )


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
