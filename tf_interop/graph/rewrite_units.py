"""Replaces each unit by one Unit node, and checks that the graph computes what it did.

    x --> c: Conv2D --> r: Relu --+--> f              x --+--> r: Unit --:0--> f
    w ----^                       +--> g       ==>    w --+    c, r      --:0--> g

Preconditions, of which a failed one raises and leaves everything as it was:

1. Every step is a node of this graph that may be a step, need not be preserved, and is in no other
   unit.
2. The steps of a unit are on one device.
3. A step depends on no other of its unit but earlier ones, and with all units in place the graph
   has no cycle.

That the steps of a unit are in one control-flow region is for the caller to know.

Guaranteed: the graph that was given is not altered; nodes that do not depend on a step directly
keep their bytes, and so do the function library and the versions; no dependency is lost; devices
stay. A unit has the name of the step that its first outputs are of, so that whoever reads these
mostly keeps its inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.convolution import Shape
from tf_interop.errors import GraphError
from tf_interop.graph.legality import why_illegal
from tf_interop.graph.program import input_operand, make_operation
from tf_interop.graph.redirect import (
    COLOCATED_WITH,
    COLOCATION,
    is_constant,
    redirect_classes,
    redirect_inputs,
)
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.unit_node import Result, UnitNode, encode_unit, result_operand
from tf_interop.graph.unit_ops import (
    COMPANION_OPS,
    STEP_OPS,
    UNIT_FILTER_POSITIONS,
    batch_position,
    input_dtypes,
    output_dtypes,
)
from tf_interop.graph.units import Unit, unit_results
from tf_interop.graph.view import GraphView
from tf_interop.stage import Stage, Step

OutputShapes = Callable[[int, int], Shape | None]
"""Gives the shape of an output of a node, by the node's place and the port."""


@dataclasses.dataclass(frozen=True, slots=True)
class _NewUnit:
    """A unit that takes the place of nodes.

    Attributes:
        name: of the node in the new graph.
        steps: the nodes, in running order.
        head: that of them whose images say what the batch size is.
        results: what its outputs are.
        split: as in `Unit`.
        batch_sizes: those for which it is narrow or split; empty for all.
    """

    name: str
    steps: tuple[int, ...]
    head: int
    results: tuple[Result, ...]
    split: frozenset[tuple[int, int]]
    batch_sizes: tuple[int, ...]

    def output(self, result: Result) -> str:
        """The input of a NodeDef that reads a result."""
        position = self.results.index(result)
        return f"{self.name}:{position}" if position else self.name


def rewrite_units(
    view: GraphView,
    units: Sequence[Unit],
    nodes_to_preserve: Collection[str],
    *,
    batch_sizes: Sequence[Collection[int]] = (),
    output_shapes: OutputShapes | None = None,
) -> graph_pb2.GraphDef:
    """Replaces each unit by one Unit node.

    Args:
        view: the graph.
        units: any of those that `find_units` found in it, or `find_split_units`.
        nodes_to_preserve: names that must live on, because they are fed or fetched.
        batch_sizes: for each unit those for which it is narrow or split, none for all; or nothing,
            where all units always are.
        output_shapes: gives shapes that the new nodes are to state; None to state none.

    Returns:
        The rewritten graph. A unit stands where the first of its steps stood. The same arguments
        give the same graph.

    Raises:
        ValueError: a precondition does not hold. It names the nodes.
        GraphError: the graph has a cycle, or a node reads an output that a step does not have.
    """
    preserved = frozenset(nodes_to_preserve)
    new_units = _new_units(view, units, preserved, batch_sizes or [()] * len(units))
    redirected = _redirected(view, new_units)
    unit_at: dict[int, _NewUnit] = {min(unit.steps): unit for unit in new_units}
    steps = {index for unit in new_units for index in unit.steps}
    readers = {reader for index in steps for reader in view.fanouts[index]} - steps

    graph_def = graph_pb2.GraphDef()
    for index, node in enumerate(view.nodes):
        if index not in steps:
            new = graph_def.node.add()
            new.CopyFrom(node)
            if index in readers:
                new.input[:] = redirect_inputs(node.input, redirected)
            if COLOCATION in node.attr:
                classes = new.attr[COLOCATION].list.s
                classes[:] = redirect_classes(classes, redirected)
        elif index in unit_at:
            check_time_limit()
            graph_def.node.append(
                _make_unit_def(view, unit_at[index], redirected, preserved, output_shapes)
            )
    without_nodes = graph_pb2.GraphDef()
    for field, value in view.graph_def.ListFields():
        if field.name == "node":
            continue
        if field.message_type is None:
            setattr(without_nodes, field.name, value)
        else:
            getattr(without_nodes, field.name).CopyFrom(value)
    graph_def.MergeFrom(without_nodes)
    return graph_def


def _new_units(
    view: GraphView,
    units: Sequence[Unit],
    preserved: Collection[str],
    batch_sizes: Sequence[Collection[int]],
) -> list[_NewUnit]:
    """The units with what becomes of them; checks the preconditions."""
    unit_of: dict[int, int] = {}
    new_units = []
    for number, (unit, sizes) in enumerate(zip(units, batch_sizes, strict=True)):
        first = view.nodes[unit.steps[0]]
        for index in unit.steps:
            node = view.nodes[index]
            if node.op not in STEP_OPS | COMPANION_OPS or node.name in preserved:
                raise ValueError(
                    f"Expected nodes that may be steps, got '{node.name}' of op {node.op} in unit "
                    f"{number}. Give units that find_units found in the graph that is rewritten."
                )
            if index in unit_of:
                raise ValueError(
                    f"Expected every node in one unit at most, and once, got '{node.name}' in unit "
                    f"{unit_of[index]} and again in unit {number}."
                )
            unit_of[index] = number
            if node.device != first.device:
                raise ValueError(
                    f"Expected one device in unit {number}, got '{first.device}' at node "
                    f"'{first.name}' and '{node.device}' at node '{node.name}'."
                )
        results = unit_results(view, unit)
        name = view.names[unit.steps[results[0][0]]]
        new_units.append(
            _NewUnit(name, unit.steps, unit.head, results, unit.split, tuple(sorted(set(sizes))))
        )
    why = why_illegal(view, [(Stage.in_sequence(map(Step, unit.steps)),) for unit in new_units])
    if why is not None:
        raise ValueError(f"{why}. Each of these stages is the unit of that number.")
    return new_units


def _redirected(view: GraphView, units: Sequence[_NewUnit]) -> dict[str, str]:
    """How a node that read an input of the old graph reads it in the new one."""
    redirected: dict[str, str] = {}
    for unit in units:
        for index in unit.steps:
            redirected[f"^{view.names[index]}"] = f"^{unit.name}"
        for place, port in unit.results:
            name = view.names[unit.steps[place]]
            redirected[f"{name}:{port}"] = unit.output((place, port))
            if port == 0:
                redirected[name] = unit.output((place, port))
    return redirected


def _make_unit_def(
    view: GraphView,
    unit: _NewUnit,
    redirected: Mapping[str, str],
    preserved: Collection[str],
    output_shapes: OutputShapes | None,
) -> node_def_pb2.NodeDef:
    place_of = {index: place for place, index in enumerate(unit.steps)}
    inputs = _inputs(view, unit, redirected)
    position_of = {tensor: position for position, tensor in enumerate(inputs)}
    controls: dict[str, None] = {}
    classes: set[bytes] = set()
    constants: set[int] = set()
    steps = []
    for index in unit.steps:
        node = view.nodes[index]
        tensors = view.fanins[index]
        operands = []
        for position, tensor in enumerate(tensors):
            source, port = tensor
            if source in place_of:
                operands.append(result_operand((place_of[source], port)))
                continue
            operands.append(input_operand(position_of[tensor]))
            if position == UNIT_FILTER_POSITIONS.get(node.op) and is_constant(
                view, tensor, node.device, preserved
            ):
                constants.add(position_of[tensor])
        steps.append(make_operation(node, operands))
        texts = node.input[len(tensors) :]
        for source, text in zip(view.control_fanins[index], texts, strict=True):
            if source not in place_of:
                controls[redirected.get(text, text)] = None
        if COLOCATION in node.attr:
            classes.update(node.attr[COLOCATION].list.s)

    producers = {text.partition(":")[0] for text, _ in inputs.values()}
    dtypes = {place: output_dtypes(view.nodes[unit.steps[place]]) for place, _ in unit.results}
    for place, port in unit.results:
        if port >= len(dtypes[place]):
            raise GraphError(
                f"Expected a reader of one of the {len(dtypes[place])} outputs of "
                f"'{view.names[unit.steps[place]]}', got one of output {port}."
            )
    shapes: tuple[Shape | None, ...] = ()
    if output_shapes is not None:
        shapes = tuple(output_shapes(unit.steps[place], port) for place, port in unit.results)
    unit_def = encode_unit(
        UnitNode(
            name=unit.name,
            inputs=tuple(text for text, _ in inputs.values()),
            control_inputs=tuple(text for text in controls if text[1:] not in producers),
            input_dtypes=tuple(dtype for _, dtype in inputs.values()),
            output_dtypes=tuple(dtypes[place][port] for place, port in unit.results),
            steps=tuple(steps),
            results=unit.results,
            constant_inputs=tuple(sorted(constants)),
            batch_sizes=unit.batch_sizes,
            split_inputs=tuple(sorted(position_of[tensor] for tensor in unit.split)),
            output_shapes=shapes if any(shape is not None for shape in shapes) else (),
        )
    )
    names = [view.names[index] for index in unit.steps]
    unit_def.device = view.nodes[unit.steps[0]].device
    unit_def.experimental_debug_info.original_node_names.extend(names)
    own = {COLOCATED_WITH + name.encode() for name in names}
    colocations = sorted(set(redirect_classes(sorted(classes), redirected)) - own)
    if colocations:
        unit_def.attr[COLOCATION].list.s.extend(colocations)
    return unit_def


def _inputs(
    view: GraphView, unit: _NewUnit, redirected: Mapping[str, str]
) -> dict[tuple[int, int], tuple[str, int]]:
    """Of each distinct tensor that a unit reads how it is read, and its dtype, in order.

    The first is the one whose first dimension is the batch: `batch_sizes` goes by it.
    """
    inside = set(unit.steps)
    inputs: dict[tuple[int, int], tuple[str, int]] = {}
    for index in unit.steps:
        node = view.nodes[index]
        texts = node.input[: len(view.fanins[index])]
        for tensor, text, dtype in zip(view.fanins[index], texts, input_dtypes(node), strict=True):
            if tensor[0] not in inside:
                inputs.setdefault(tensor, (redirected.get(text, text), dtype))
    tensors = view.fanins[unit.head]
    usual = batch_position(view.ops[unit.head])
    for tensor in (*tensors[usual:], *tensors):
        if tensor in inputs and view.ops[tensor[0]] not in ("Const", "ReadVariableOp"):
            return {tensor: inputs.pop(tensor)} | inputs
    return inputs
