"""Checks that a graph with new stages computes what it did without them; it changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tensorflow.core.framework import node_def_pb2

from tf_interop.contraction import misplaced_step
from tf_interop.errors import GraphError
from tf_interop.graph.control_flow import ControlFlow
from tf_interop.graph.correspondence import (
    Correspondence,
    Move,
    check_constant_inputs,
    check_controls,
    check_others,
    check_reader,
    expect_same,
)
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
    correspondence = Correspondence(
        before,
        after,
        {index: move for index, move in moves.items() if before.names[index] not in preserved},
    )
    control_flow = ControlFlow(before, find_fed(before, nodes_to_preserve, fetches))
    feeds = find_preserved_feeds(before, nodes_to_preserve)
    for stage in stages:
        check_time_limit()
        _check_stage(stage, correspondence, control_flow, feeds)
        check_constant_inputs(after, after.index_of[stage.name], stage.constant_inputs, preserved)
    for index, move in moves.items():
        if before.names[index] in preserved:
            _check_identity(before, after, index, move)

    readers = {reader for index in correspondence.moved for reader in before.fanouts[index]}
    for index in sorted(readers - moves.keys()):
        check_reader(index, after.index_of[before.names[index]], correspondence)
    if not readers_only:
        check_others(readers | moves.keys(), correspondence)


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
) -> dict[int, Move]:
    """By node of `before`; an operation has the name of the node that it stands for."""
    moves: dict[int, Move] = {}
    for stage in stages:
        ports = {operation: port for port, operation in enumerate(stage.outputs)}
        for place, operation in enumerate(stage.operations):
            index = before.index_of.get(operation.name)
            if index is None or index in moves:
                raise GraphError(
                    f"Expected the operations of '{stage.name}' to be nodes of the graph, each in "
                    f"one stage, got '{operation.name}'."
                )
            moves[index] = Move(
                after.index_of[stage.name], {0: ports[place]} if place in ports else {}
            )
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
    correspondence: Correspondence,
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
        expect_same(node.device, after.nodes[index_after].device, "device", name, stage.name)
        if region is None or control_flow.region(index) != region:
            raise GraphError(
                f"Expected the steps of '{stage.name}' in one control-flow region, got "
                f"'{before.names[indices[0]]}' and '{name}' in different or unclear ones."
            )
        operands = operation.input[:]
        expect_same(len(before.fanins[index]), len(operands), "operands", name, stage.name)
        for tensor, operand in zip(before.fanins[index], operands, strict=True):
            if operand in results:
                expect_same(tensor, results[operand], "operand", name, stage.name)
                if tensor[0] in feeds:
                    raise GraphError(
                        f"Expected steps of '{stage.name}' to read no other that a Session may "
                        f"feed, got '{name}' that reads '{before.names[tensor[0]]}'."
                    )
            else:
                got = after.fanins[index_after][positions[operand]]
                expect_same(correspondence.tensor(*tensor), got, "operand", name, stage.name)
        expected = make_operation(node, operands)
        expect_same(expected, operation, "op and attributes", name, stage.name)
        controls |= correspondence.controls(index, inside=indices)
    check_controls(after, index_after, controls)
    for schedule in stage.schedules:
        edge = misplaced_step(before.readers, schedule.stage.map(indices.__getitem__))
        if edge is not None:
            source, reader = (before.names[each] for each in edge)
            raise GraphError(
                f"Expected '{source}' before '{reader}' in one lane of '{stage.name}', which "
                "depends on it, got another order or lane."
            )


def _check_identity(before: GraphView, after: GraphView, index: int, move: Move) -> None:
    old, stage = before.nodes[index], after.names[move.node]
    port = move.ports.get(0)
    source = f"{stage}:{port}" if port else stage
    expected = node_def_pb2.NodeDef(
        name=old.name, op="Identity", input=[source], device=old.device, attr={"T": old.attr["T"]}
    )
    new = after.nodes[after.index_of[old.name]]
    expect_same(expected, new, "stage's output", old.name, old.name)
