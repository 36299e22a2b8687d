"""Checks that a graph with new stages computes what it did without them; it changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.contraction import misplaced_step
from tf_interop.errors import GraphError
from tf_interop.graph.control_flow import ControlFlow
from tf_interop.graph.program import (
    CONV_STAGE_OP,
    StageNode,
    decode_stage,
    make_operation,
    operand_positions,
    step_operand,
)
from tf_interop.graph.session_feeds import find_fed, find_preserved_feeds
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import GraphView

_COLOCATION = "_class"
_COLOCATED_WITH = b"loc:@"

_Output = tuple[int, int]


def check_rewrite(
    before: GraphView,
    after: GraphView,
    nodes_to_preserve: Collection[str],
    *,
    fetches: Collection[str] = (),
    readers_only: bool = False,
) -> None:
    """Checks that a graph with new stages computes what it did without them.

    It knows nothing of the plan: what the new ConvStage nodes say about themselves is held against
    the nodes that are gone. Checks that `after` is well-formed: there is no cycle, the nodes to
    preserve are there, ConvStage nodes are well-formed, and who reads one reads an output that it
    has. Names and inputs were checked when its view was made. And:

    1. Nodes are those of `before`, without those that are steps of new stages, and with those
       stages; a step that is to be preserved is an Identity of its output.
    2. A step is its node: op, attributes, operands, device. The steps of a stage are in one
       control-flow region, and one that depends on another comes after it in its lane. What a stage
       takes as constant is a Const that cannot be fed, and what a step reads of another cannot be
       fed either.
    3. Who read a node reads the stage that has it as a step, at that step's output; every control
       dependency is still there, and there are no new ones.
    4. All else in the nodes is as it was, except that who was placed with a step is placed with its
       stage. So are the functions, versions and all other parts of the graph.

    Work is linear in the nodes and edges of both graphs.

    Args:
        before: the graph without the new stages.
        after: the graph with them.
        nodes_to_preserve: names of nodes that must live on. Those that `before` lacks are not
            asked for.
        fetches: what the graph is run for, names of nodes or tensors; none where that is not known.
        readers_only: leaves out of 4 the nodes that read no step, and the other parts of the graph;
            comparing them takes longer than all the rest.

    Raises:
        GraphError: one of these does not hold. It names the node.
    """
    preserved = {name for name in nodes_to_preserve if name in before.index_of}
    stages = [
        stage for stage in _check_structure(after, preserved) if stage.name not in before.index_of
    ]
    moves = _find_moves(before, after, stages)
    _check_names(before, after, stages, moves, preserved)
    correspondence = _Correspondence(
        before,
        after,
        {index: move for index, move in moves.items() if before.names[index] not in preserved},
    )
    control_flow = ControlFlow(before, find_fed(before, nodes_to_preserve, fetches))
    feeds = find_preserved_feeds(before, nodes_to_preserve)
    for stage in stages:
        check_time_limit()
        _check_stage(stage, correspondence, control_flow, feeds)
        _check_constant_inputs(after, stage, preserved)
    for index, move in moves.items():
        if before.names[index] in preserved:
            _check_identity(before, after, index, move)

    readers = {reader for index in correspondence.moved for reader in before.fanouts[index]}
    for index in sorted(readers - moves.keys()):
        _check_reader(index, after.index_of[before.names[index]], correspondence)
    if not readers_only:
        _check_others(readers | moves.keys(), correspondence)


@dataclasses.dataclass(frozen=True, slots=True)
class _Move:
    """The stage that a node is a step of now, and the port of its result, if that is an output."""

    stage: int
    port: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Correspondence:
    """What stands for tensors and dependencies of `before`, of which `moved` are gone."""

    before: GraphView
    after: GraphView
    moved: dict[int, _Move]

    def tensor(self, source: int, port: int) -> _Output:
        """What stands for an output of node `source`.

        Raises:
            GraphError: it is an output that a step lacks, or no output of its stage.
        """
        name = self.before.names[source]
        move = self.moved.get(source)
        if move is None:
            return self.after.index_of[name], port
        if port or move.port is None:
            raise GraphError(
                f"Expected a reader of an output of stage '{self.after.names[move.stage]}', got "
                f"one of output {port} of '{name}'."
            )
        return move.stage, move.port

    def tensors(self, index: int) -> tuple[_Output, ...]:
        """What stands for the tensors that node `index` reads."""
        return tuple([self.tensor(*tensor) for tensor in self.before.fanins[index]])

    def controls(self, index: int, *, inside: Collection[int] = ()) -> set[int]:
        """What stands for the nodes that node `index` waits for, without those `inside`."""
        return {
            self.moved[source].stage
            if source in self.moved
            else self.after.index_of[self.before.names[source]]
            for source in self.before.control_fanins[index]
            if source not in inside
        }


def _check_structure(view: GraphView, nodes_to_preserve: Iterable[str]) -> list[StageNode]:
    """Checks that a graph is well-formed; returns its stages."""
    view.topological_order()
    for name in nodes_to_preserve:
        if name not in view.index_of:
            raise GraphError(f"Expected the graph to keep node '{name}', got none of that name.")
    stages = []
    for index, op in enumerate(view.ops):
        if op != CONV_STAGE_OP:
            continue
        stage = decode_stage(view.nodes[index])
        for reader in view.fanouts[index]:
            for source, port in view.fanins[reader]:
                if source == index and port >= len(stage.outputs):
                    raise GraphError(
                        f"Expected an output of '{stage.name}' below {len(stage.outputs)}, got "
                        f"{port} at node '{view.names[reader]}'."
                    )
        stages.append(stage)
    return stages


def _find_moves(
    before: GraphView, after: GraphView, stages: Iterable[StageNode]
) -> dict[int, _Move]:
    """By node of `before`; an operation has the name of the node that it stands for."""
    moves: dict[int, _Move] = {}
    for stage in stages:
        ports = {operation: port for port, operation in enumerate(stage.outputs)}
        for place, operation in enumerate(stage.operations):
            index = before.index_of.get(operation.name)
            if index is None or index in moves:
                raise GraphError(
                    f"Expected the operations of '{stage.name}' to be nodes of the graph, each in "
                    f"one stage, got '{operation.name}'."
                )
            moves[index] = _Move(after.index_of[stage.name], ports.get(place))
    return moves


def _check_names(
    before: GraphView,
    after: GraphView,
    stages: Iterable[StageNode],
    moves: Collection[int],
    preserved: Collection[str],
) -> None:
    expected = {
        name for index, name in enumerate(before.names) if index not in moves or name in preserved
    }
    expected.update(stage.name for stage in stages)
    if expected != after.index_of.keys():
        lost = sorted(expected - after.index_of.keys())[:5]
        new = sorted(after.index_of.keys() - expected)[:5]
        raise GraphError(
            "Expected the nodes of the graph, and stages instead of their steps, got "
            f"{lost} missing and {new} too many."
        )


def _check_stage(
    stage: StageNode,
    correspondence: _Correspondence,
    control_flow: ControlFlow,
    feeds: Collection[int],
) -> None:
    """Checks that `stage` has the operands, dependencies, device and region of its steps."""
    before, after = correspondence.before, correspondence.after
    index_after = after.index_of[stage.name]
    indices = [before.index_of[operation.name] for operation in stage.operations]
    results = {step_operand(place): (index, 0) for place, index in enumerate(indices)}
    positions = operand_positions(stage)
    region = control_flow.region(indices[0])
    controls: set[int] = set()
    for operation, index in zip(stage.operations, indices, strict=True):
        node = before.nodes[index]
        name = node.name
        _expect(node.device, after.nodes[index_after].device, "device", name, stage.name)
        if region is None or control_flow.region(index) != region:
            raise GraphError(
                f"Expected the steps of '{stage.name}' in one control-flow region, got "
                f"'{before.names[indices[0]]}' and '{name}' in different or unclear ones."
            )
        operands = operation.input[:]
        _expect(len(before.fanins[index]), len(operands), "operands", name, stage.name)
        for tensor, operand in zip(before.fanins[index], operands, strict=True):
            if operand in results:
                _expect(tensor, results[operand], "operand", name, stage.name)
                if tensor[0] in feeds:
                    raise GraphError(
                        f"Expected steps of '{stage.name}' to read no other that a Session may "
                        f"feed, got '{name}' that reads '{before.names[tensor[0]]}'."
                    )
            else:
                got = after.fanins[index_after][positions[operand]]
                _expect(correspondence.tensor(*tensor), got, "operand", name, stage.name)
        expected = make_operation(node, operands)
        _expect(expected, operation, "op and attributes", name, stage.name)
        controls |= correspondence.controls(index, inside=indices)
    _check_controls(after, index_after, controls)
    for schedule in stage.schedules:
        edge = misplaced_step(before.readers, schedule.stage.map(indices.__getitem__))
        if edge is not None:
            source, reader = (before.names[each] for each in edge)
            raise GraphError(
                f"Expected '{source}' before '{reader}' in one lane of '{stage.name}', which "
                "depends on it, got another order or lane."
            )


def _check_constant_inputs(after: GraphView, stage: StageNode, preserved: Collection[str]) -> None:
    """Checks that what a stage takes as constant is, and cannot be fed."""
    index = after.index_of[stage.name]
    for position in stage.constant_inputs:
        source, _ = after.fanins[index][position]
        node = after.nodes[source]
        is_on_device = node.device == after.nodes[index].device
        if node.op != "Const" or not is_on_device or node.name in preserved:
            raise GraphError(
                f"Expected constant inputs of '{stage.name}' to be Const nodes on its device that "
                f"cannot be fed, got input {position}, '{node.name}' of op {node.op}."
            )


def _check_identity(before: GraphView, after: GraphView, index: int, move: _Move) -> None:
    old, stage = before.nodes[index], after.names[move.stage]
    source = f"{stage}:{move.port}" if move.port else stage
    expected = node_def_pb2.NodeDef(
        name=old.name, op="Identity", input=[source], device=old.device, attr={"T": old.attr["T"]}
    )
    new = after.nodes[after.index_of[old.name]]
    _expect(expected, new, "stage's output", old.name, old.name)


def _check_reader(index: int, index_after: int, correspondence: _Correspondence) -> None:
    """Checks a node that reads a step, or was placed with it."""
    before, after = correspondence.before, correspondence.after
    old, new = before.nodes[index], after.nodes[index_after]
    name = before.names[index]
    _expect(correspondence.tensors(index), after.fanins[index_after], "inputs", name, name)
    _check_controls(after, index_after, correspondence.controls(index))
    expected = node_def_pb2.NodeDef()
    expected.CopyFrom(old)
    expected.input[:] = new.input
    if _COLOCATION in old.attr:
        classes = {_redirect_class(entry, correspondence) for entry in old.attr[_COLOCATION].list.s}
        got = set(new.attr[_COLOCATION].list.s) if _COLOCATION in new.attr else set()
        _expect(classes, got, _COLOCATION, name, name)
        expected.attr[_COLOCATION].CopyFrom(new.attr[_COLOCATION])
    _expect(expected, new, "op, device and attributes", name, name)


def _check_controls(view: GraphView, index: int, expected: set[int]) -> None:
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


def _redirect_class(entry: bytes, correspondence: _Correspondence) -> bytes:
    if not entry.startswith(_COLOCATED_WITH):
        return entry
    name = entry.removeprefix(_COLOCATED_WITH).decode("utf-8", "replace")
    index = correspondence.before.index_of.get(name)
    move = None if index is None else correspondence.moved.get(index)
    return (
        entry if move is None else _COLOCATED_WITH + correspondence.after.names[move.stage].encode()
    )


def _check_others(checked: Collection[int], correspondence: _Correspondence) -> None:
    """Checks all but the nodes of `before` in `checked`; some may be placed with a stage."""
    before, after = correspondence.before, correspondence.after
    for index_after, (name, node) in enumerate(zip(after.names, after.nodes, strict=True)):
        index = before.index_of.get(name)
        if index is None or index in checked:
            continue
        if before.nodes[index] != node or _COLOCATION in node.attr:
            _check_reader(index, index_after, correspondence)
    for field in graph_pb2.GraphDef.DESCRIPTOR.fields:
        if field.name == "node":
            continue
        if getattr(before.graph_def, field.name) != getattr(after.graph_def, field.name):
            raise GraphError(f"Expected the graph's {field.name} as before, got another.")


def _expect(expected: object, got: object, what: str, old: str, new: str) -> None:
    if expected != got:
        raise GraphError(
            f"Expected the {what} of '{old}' as before the rewrite, {_short(expected)}, got "
            f"{_short(got)} at node '{new}'."
        )


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
