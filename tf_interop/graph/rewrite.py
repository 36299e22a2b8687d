"""Replaces the steps of each stage by one ConvStage node, and those of each unit by one Unit node.

    x --> a: Conv2D --> f             x --+--> stage: ConvStage --:0--> f
    x --> b: Conv2D --> g     ==>         |    lane 0: a        --:1--> g
    c --^ b                           c --^    lane 1: b

    x --> c: Conv2D --> r: Relu --+--> f              x --+--> r: Unit --:0--> f
    w ----^                       +--> g       ==>    w --+    c, r    --:0--> g

Guaranteed: the given graph is not altered; nodes that neither depend directly on a step nor are
placed with one keep their bytes, and so do the function library and the versions; no dependency is
lost; devices stay. A step whose name must be preserved stays, as an Identity of the new node's
output, and its readers still read it, so that it can still be fed.

The caller must ensure that the stages and units are legal. `planning.check` checks stages before,
and `graph.check` checks both afterwards.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from tf_interop.convolution import Shape
from tf_interop.graph.ops import (
    FILTER_POSITIONS,
    STAGE_KEPT_FILTER_OPS,
    UNIT_FILTER_POSITIONS,
    UNIT_KEPT_FILTER_OPS,
    batch_position,
    input_dtypes,
    make_node,
    output_dtypes,
)
from tf_interop.graph.program import (
    KEPT_OP,
    StageNode,
    UnitNode,
    encode_node,
    make_operation,
    result_operand,
)
from tf_interop.graph.properties import PARAMETER_OPS
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.units import Unit, unit_name, unit_results
from tf_interop.graph.view import (
    COLOCATION,
    GraphView,
    Tensor,
    free_name,
    recolocate,
    tensor_text,
)
from tf_interop.stage import Schedule

OutputShapes = Callable[[int, int], Shape | None]
"""Returns the shape of a node's output at a port."""

AS_STOCK = 0
"""The cores of a unit that runs as stock TensorFlow does."""


def rewrite_stages(
    view: GraphView,
    stages: Sequence[Sequence[Schedule[str]]],
    *,
    are_timed: bool = False,
) -> graph_pb2.GraphDef:
    """Replaces the steps of each stage, given by all its schedules, by one ConvStage node.

    Stage `k` becomes the node `tf_interop/stage_<k>`, with a number appended if that name is taken.
    If `are_timed`, each stage compares its plan with TensorFlow's own kernels while it runs. The
    same arguments give the same graph.
    """
    new_nodes = []
    for number, schedules in enumerate(stages):
        members = tuple(view.index_of[name] for name in schedules[0].stage.operations)
        name = free_name(f"tf_interop/stage_{number}", view.index_of)
        new_nodes.append(_NewNode(name, members, _stage_results(view, members)))
    replacement = _Replacement(view, new_nodes)
    return replacement.graph(
        [
            _stage_node(view, replacement, new, schedules, are_timed)
            for new, schedules in zip(new_nodes, stages, strict=True)
        ]
    )


def rewrite_units(
    view: GraphView,
    units: Sequence[Unit],
    *,
    cores: int = 1,
    output_shapes: OutputShapes | None = None,
    timed_graph: str = "",
) -> graph_pb2.GraphDef:
    """Replaces each unit by one Unit node.

    A node takes the name of the step behind its first outputs, so most of their readers keep their
    inputs.

    Args:
        view: the graph.
        units: any that `find_units` or `find_whole_unit` found in it.
        cores: of each unit, if they do not time themselves.
        output_shapes: shapes for the new nodes to state; None to state none.
        timed_graph: a name for the graph if its units are to time themselves.
    """
    new_nodes = [
        _NewNode(
            unit_name(view, unit),
            unit.steps,
            tuple((unit.steps[place], port) for place, port in unit_results(view, unit)),
        )
        for unit in units
    ]
    replacement = _Replacement(view, new_nodes)
    return replacement.graph(
        [
            dataclasses.replace(
                _unit_node(view, replacement, new, unit, output_shapes),
                cores=cores,
                timed_graph=timed_graph,
                timed_unit=number,
                timed_units=len(units),
            )
            for number, (new, unit) in enumerate(zip(new_nodes, units, strict=True))
        ]
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _NewNode:
    name: str
    members: tuple[int, ...]  # the nodes, in the order of its steps
    results: tuple[Tensor, ...]  # the member's output behind each of its outputs

    def output(self, result: Tensor) -> str:
        return tensor_text(self.name, self.results.index(result))


class _Replacement:
    """A graph in which new nodes replace their members."""

    def __init__(self, view: GraphView, new_nodes: Sequence[_NewNode]) -> None:
        """Prepares to replace the members of `new_nodes`, which share none."""
        self._view, self._new_nodes = view, new_nodes
        # Inputs of the old graph, as they are written in the new one.
        self._redirected: dict[str, str] = {}
        self._moved: dict[str, str | None] = {}  # the new node's name for each node that is gone
        for new in new_nodes:
            free = {view.names[index] for index in new.members} - view.preserved
            self._moved |= dict.fromkeys(free, new.name)
            self._redirected |= {f"^{name}": f"^{new.name}" for name in free}
            for index, port in new.results:
                name = view.names[index]
                if name in free:
                    for text in (f"{name}:{port}", tensor_text(name, port)):
                        self._redirected[text] = new.output((index, port))

    def inputs(self, new: _NewNode) -> dict[Tensor, tuple[str, int]]:
        """Each tensor that members read from outside: its text as an input, and its dtype."""
        view, inside = self._view, set(new.members)
        inputs: dict[Tensor, tuple[str, int]] = {}
        for index in new.members:
            node, tensors = view.nodes[index], view.fanins[index]
            for tensor, text, dtype in zip(tensors, node.input, input_dtypes(node), strict=False):
                if tensor[0] not in inside:
                    inputs.setdefault(tensor, (self._redirected.get(text, text), dtype))
        return inputs

    def _control_inputs(self, new: _NewNode, read: Collection[str]) -> tuple[str, ...]:
        """The control dependencies of a new node, except those on nodes that it reads."""
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

    def program(
        self,
        new: _NewNode,
        inputs: Mapping[Tensor, tuple[str, int]],
        filter_positions: Mapping[str, int],
        kept_filter_ops: Collection[str],
    ) -> dict[str, Any]:
        """The fields of `ProgramNode` for a new node with these inputs, in this order."""
        check_time_limit()
        view = self._view
        place_of = {index: place for place, index in enumerate(new.members)}
        position_of = {tensor: position for position, tensor in enumerate(inputs)}

        def operand_of(tensor: Tensor) -> str:
            index, port = tensor
            if index in place_of:
                return result_operand((place_of[index], port))
            return f"inputs:{position_of[tensor]}"

        texts = tuple(text for text, _ in inputs.values())
        return {
            "name": new.name,
            "inputs": texts,
            "control_inputs": self._control_inputs(new, texts),
            "input_dtypes": tuple(dtype for _, dtype in inputs.values()),
            "output_dtypes": tuple(
                output_dtypes(view.nodes[index])[port] for index, port in new.results
            ),
            "steps": tuple(
                make_operation(view.nodes[index], map(operand_of, view.fanins[index]))
                for index in new.members
            ),
            "results": tuple((place_of[index], port) for index, port in new.results),
            "kept_inputs": self._filters_from(kept_filter_ops, new, position_of, filter_positions),
        }

    def _filters_from(
        self,
        ops: Collection[str],
        new: _NewNode,
        position_of: Mapping[Tensor, int],
        filter_positions: Mapping[str, int],
    ) -> tuple[int, ...]:
        """The positions of a new node's inputs that are filters from nodes of `ops`, ascending.

        Only nodes on its device count, and none that a Session may feed.
        """
        view = self._view
        may_be_fed = frozenset() if view.is_function else view.preserved
        device = view.nodes[new.members[0]].device
        positions = set()
        for index in new.members:
            filter_position = filter_positions.get(view.ops[index], len(view.fanins[index]))
            for tensor in view.fanins[index][filter_position : filter_position + 1]:
                source, port = tensor
                if (
                    tensor in position_of
                    and view.ops[source] in ops
                    and (port == 0 or view.ops[source] == KEPT_OP)
                    and view.nodes[source].device == device
                    and view.names[source] not in may_be_fed
                ):
                    positions.add(position_of[tensor])
        return tuple(sorted(positions))

    def graph(self, contents: Sequence[StageNode | UnitNode]) -> graph_pb2.GraphDef:
        """The new graph, with these contents of the new nodes.

        A new node takes the place of the first member that is removed, or comes last.
        """
        view = self._view
        members = {index for new in self._new_nodes for index in new.members}
        graph_def = graph_pb2.GraphDef()
        graph_def.CopyFrom(view.graph_def)  # faster than node by node
        copies = graph_def.node
        for index in {reader for member in members for reader in view.fanouts[member]} - members:
            copies[index].input[:] = self._redirect_inputs(view.nodes[index].input)
        unused: list[int] = []
        for new, its in zip(self._new_nodes, contents, strict=True):
            node_def = encode_node(its)
            self._describe(new, node_def)
            stay = {index for index in new.members if view.names[index] in view.preserved}
            for index in stay:
                name, source = view.names[index], new.output((index, 0))
                dtype = view.nodes[index].attr["T"].type
                identity = make_node("Identity", name, [source], node_def.device, T=dtype)
                copies[index].CopyFrom(identity)
            free = sorted(set(new.members) - stay)
            if free:
                copies[free[0]].CopyFrom(node_def)
                unused += free[1:]
            else:
                copies.append(node_def)
        for index in sorted(unused, reverse=True):
            del copies[index]
        recolocate(copies, self._moved)
        return graph_def

    def _describe(self, new: _NewNode, node_def: node_def_pb2.NodeDef) -> None:
        """Sets the device of a new node, its original nodes, and its colocation."""
        nodes = [self._view.nodes[index] for index in new.members]
        names = [node.name for node in nodes]
        node_def.device = nodes[0].device
        node_def.experimental_debug_info.original_node_names.extend(names)
        classes: set[bytes] = set()
        for node in nodes:
            if COLOCATION in node.attr:
                classes.update(node.attr[COLOCATION].list.s)
        node_def.attr[COLOCATION].list.s.extend(sorted(classes))
        recolocate([node_def], dict.fromkeys(names))

    def _redirect_inputs(self, texts: Sequence[str]) -> list[str]:
        """A reader's inputs, without control dependencies on new nodes that it reads anyway."""
        tensors = [self._redirected.get(text, text) for text in texts if text[0] != "^"]
        read = {f"^{text.partition(':')[0]}" for text in tensors}
        controls = {text: self._redirected.get(text) for text in texts[len(tensors) :]}
        kept = (target or text for text, target in controls.items() if target not in read)
        return [*tensors, *dict.fromkeys(kept)]


def _stage_results(view: GraphView, members: Sequence[int]) -> tuple[Tensor, ...]:
    """The results that are preserved, read outside the stage, or read by nobody."""
    inside = set(members)

    def is_output(index: int) -> bool:
        readers = view.data_readers(index)
        return not readers or not inside.issuperset(readers) or view.names[index] in view.preserved

    return tuple((index, 0) for index in members if is_output(index))


def _stage_node(
    view: GraphView,
    replacement: _Replacement,
    new: _NewNode,
    schedules: Sequence[Schedule[str]],
    is_timed: bool,
) -> StageNode:
    inputs = replacement.inputs(new).items()
    sizes_last = sorted(inputs, key=lambda item: item[1][1] == int(types_pb2.DT_INT32))
    place_of = {view.names[index]: place for place, index in enumerate(new.members)}
    return StageNode(
        **replacement.program(new, dict(sizes_last), FILTER_POSITIONS, STAGE_KEPT_FILTER_OPS),
        schedules=tuple(
            Schedule(each.batch_size, each.stage.map(place_of.__getitem__)) for each in schedules
        ),
        is_timed=is_timed,
    )


def _unit_node(
    view: GraphView,
    replacement: _Replacement,
    new: _NewNode,
    unit: Unit,
    output_shapes: OutputShapes | None,
) -> UnitNode:
    inputs = _batch_first(view, unit, replacement.inputs(new), output_shapes)
    shapes: list[Shape | None] = []
    if output_shapes is not None:
        shapes = [output_shapes(index, port) for index, port in new.results]
    return UnitNode(
        **replacement.program(new, inputs, UNIT_FILTER_POSITIONS, UNIT_KEPT_FILTER_OPS),
        split_inputs=tuple(place for place, each in enumerate(inputs) if each in unit.split),
        output_shapes=tuple(shapes) if any(shape is not None for shape in shapes) else (),
    )


def _batch_first(
    view: GraphView,
    unit: Unit,
    inputs: dict[Tensor, tuple[str, int]],
    output_shapes: OutputShapes | None,
) -> dict[Tensor, tuple[str, int]]:
    """Moves the input whose first dimension is the batch to the front, where the op expects it.

    It is what the head reads, or the largest of what the steps before the head read.
    """
    tensors = view.fanins[unit.head]
    pending = [*reversed((*tensors[batch_position(view.ops[unit.head]) :], *tensors))]
    inside, seen = set(unit.steps), set[Tensor]()
    found: list[Tensor] = []
    while pending:
        tensor = pending.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        if tensor[0] in inside:
            pending.extend(reversed(view.fanins[tensor[0]]))
        elif (
            tensor in inputs
            and view.ops[tensor[0]] not in (*PARAMETER_OPS, KEPT_OP)
            and (not unit.split or tensor in unit.split)
        ):
            found.append(tensor)

    def size(tensor: Tensor) -> tuple[bool, int]:
        shape = None if output_shapes is None else output_shapes(*tensor)
        if shape is None:
            return False, 0
        return None in shape, math.prod(each for each in shape if each is not None)

    if not found:
        return inputs
    first = found[0] if found[0] in tensors else max(found, key=size)
    return {first: inputs.pop(first)} | inputs
