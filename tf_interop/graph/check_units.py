"""Checks that a graph with new units computes what it did without them; it changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable

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
from tf_interop.graph.program import input_operand, make_operation
from tf_interop.graph.session_feeds import find_fed
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.unit_node import UNIT_OP, UnitNode, decode_unit, result_operand
from tf_interop.graph.unit_ops import STEP_OPS, input_dtypes, output_dtypes
from tf_interop.graph.view import GraphView
from tf_interop.stage import Stage, Step


def check_units(
    before: GraphView,
    after: GraphView,
    nodes_to_preserve: Collection[str],
    *,
    fetches: Collection[str] = (),
    readers_only: bool = False,
) -> None:
    """Checks that a graph with new units computes what it did without them.

    It knows nothing of how units are found or built in: what the new Unit nodes say about
    themselves is held against the nodes that are gone. Checks that `after` is well-formed: there is
    no cycle, the nodes to preserve are there, Unit nodes are well-formed, and who reads one reads
    an output that it has. And:

    1. Nodes are those of `before`, without those that are steps of new units, and with those units.
       No step is a node to preserve.
    2. A step is its node: op, attributes, operands, dtypes, device. The steps of a unit are in one
       control-flow region, and one that depends on another comes after it. What a unit takes as
       constant is a Const that cannot be fed.
    3. Who read a step's output reads the same output of its unit; every control dependency is still
       there, and there are no new ones.
    4. All else is as it was, except that who was placed with a step is placed with its unit.

    Args:
        before: the graph without the new units.
        after: the graph with them.
        nodes_to_preserve: names of nodes that must live on. Those that `before` lacks are not
            asked for.
        fetches: what the graph is run for, names of nodes or tensors; none where that is not known.
        readers_only: leaves out of 4 the nodes that read no step, and the other parts of the graph.

    Raises:
        GraphError: one of these does not hold. It names the node.
    """
    after.topological_order()
    preserved = {name for name in nodes_to_preserve if name in before.index_of}
    units = _new_units(before, after)
    moves = _find_moves(before, after, units, preserved)
    expected = {name for index, name in enumerate(before.names) if index not in moves}
    expected.update(unit.name for unit in units)
    if expected != after.index_of.keys():
        lost = sorted(expected - after.index_of.keys())[:5]
        new = sorted(after.index_of.keys() - expected)[:5]
        raise GraphError(
            "Expected the nodes of the graph, and units instead of their steps, got "
            f"{lost} missing and {new} too many."
        )
    correspondence = Correspondence(before, after, moves)
    control_flow = ControlFlow(before, find_fed(before, nodes_to_preserve, fetches))
    for unit in units:
        check_time_limit()
        _check_unit(unit, correspondence, control_flow)
        check_constant_inputs(after, after.index_of[unit.name], unit.constant_inputs, preserved)
    readers = {reader for index in moves for reader in before.fanouts[index]}
    for index in sorted(readers - moves.keys()):
        check_reader(index, after.index_of[before.names[index]], correspondence)
    if not readers_only:
        check_others(readers | moves.keys(), correspondence)


def _new_units(before: GraphView, after: GraphView) -> list[UnitNode]:
    """The units of `after` that `before` lacks; checks that who reads one reads what it has."""
    units = []
    for index, op in enumerate(after.ops):
        if op != UNIT_OP:
            continue
        unit = decode_unit(after.nodes[index])
        for reader in after.fanouts[index]:
            for source, port in after.fanins[reader]:
                if source == index and port >= len(unit.results):
                    raise GraphError(
                        f"Expected an output of '{unit.name}' below {len(unit.results)}, got "
                        f"{port} at node '{after.names[reader]}'."
                    )
        same = before.index_of.get(unit.name)
        if same is None or before.ops[same] != UNIT_OP:
            units.append(unit)
    return units


def _find_moves(
    before: GraphView, after: GraphView, units: Iterable[UnitNode], preserved: Collection[str]
) -> dict[int, Move]:
    """By node of `before`; a step has the name of the node that it stands for."""
    moves: dict[int, Move] = {}
    for unit in units:
        ports: list[dict[int, int]] = [{} for _ in unit.steps]
        for output, (place, port) in enumerate(unit.results):
            ports[place][port] = output
        for place, step in enumerate(unit.steps):
            index = before.index_of.get(step.name)
            if index is None or index in moves or step.name in preserved:
                raise GraphError(
                    f"Expected the steps of '{unit.name}' to be nodes of the graph that need not "
                    f"be preserved, each in one unit, got '{step.name}'."
                )
            moves[index] = Move(after.index_of[unit.name], ports[place])
    return moves


def _check_unit(unit: UnitNode, correspondence: Correspondence, control_flow: ControlFlow) -> None:
    """Checks that `unit` has the operands, dependencies, device and region of its steps."""
    before, after = correspondence.before, correspondence.after
    index_after = after.index_of[unit.name]
    indices = [before.index_of[step.name] for step in unit.steps]
    place_of = {index: place for place, index in enumerate(indices)}
    positions = {input_operand(position): position for position in range(len(unit.inputs))}
    region = control_flow.region(indices[0])
    controls: set[int] = set()
    for step, index in zip(unit.steps, indices, strict=True):
        node = before.nodes[index]
        name = node.name
        if node.op not in STEP_OPS:
            raise GraphError(
                f"Expected ops that may be steps of a unit, got {node.op} at '{name}' in "
                f"'{unit.name}'."
            )
        expect_same(node.device, after.nodes[index_after].device, "device", name, unit.name)
        if region is None or control_flow.region(index) != region:
            raise GraphError(
                f"Expected the steps of '{unit.name}' in one control-flow region, got "
                f"'{before.names[indices[0]]}' and '{name}' in different or unclear ones."
            )
        operands = list(step.input)
        tensors = before.fanins[index]
        expect_same(len(tensors), len(operands), "operands", name, unit.name)
        dtypes = input_dtypes(node)
        for tensor, operand, dtype in zip(tensors, operands, dtypes, strict=True):
            source, port = tensor
            if source in place_of:
                expected = result_operand((place_of[source], port))
                expect_same(expected, operand, "operand", name, unit.name)
                continue
            position = positions.get(operand)
            if position is None:
                raise GraphError(
                    f"Expected an input of '{unit.name}' as operand of '{name}', which reads no "
                    f"step of it there, got '{operand}'."
                )
            got = after.fanins[index_after][position]
            expect_same(correspondence.tensor(*tensor), got, "operand", name, unit.name)
            expect_same(dtype, unit.input_dtypes[position], "dtype", name, unit.name)
        expect_same(make_operation(node, operands), step, "op and attributes", name, unit.name)
        controls |= correspondence.controls(index, inside=place_of)
    for (place, port), dtype in zip(unit.results, unit.output_dtypes, strict=True):
        node = before.nodes[indices[place]]
        of_node = output_dtypes(node)
        expect_same(
            of_node[port] if port < len(of_node) else None, dtype, "dtype", node.name, unit.name
        )
    check_controls(after, index_after, controls)
    edge = misplaced_step(before.readers, Stage.in_sequence(map(Step, indices)))
    if edge is not None:
        source_name, reader_name = (before.names[each] for each in edge)
        raise GraphError(
            f"Expected '{source_name}' before '{reader_name}' in '{unit.name}', which depends on "
            "it, got another order."
        )
