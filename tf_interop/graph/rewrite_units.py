"""Replaces each unit by one Unit node.

    x --> c: Conv2D --> r: Relu --+--> f              x --+--> r: Unit --:0--> f
    w ----^                       +--> g       ==>    w --+    c, r      --:0--> g

That the units are legal is for the caller to know: those that were found in the graph are, and
`graph.check` judges the result. What is guaranteed beside is in `graph.replace`. A unit has the
name of the step that its first outputs are of, so that whoever reads these mostly keeps its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.convolution import Shape
from tf_interop.graph.ops import UNIT_FILTER_POSITIONS, batch_position, output_dtypes
from tf_interop.graph.program import input_operand
from tf_interop.graph.properties import PARAMETER_OPS
from tf_interop.graph.replace import NewNode, Replacement, Tensor
from tf_interop.graph.unit_node import UnitNode, encode_unit, result_operand
from tf_interop.graph.units import Unit, unit_name, unit_results
from tf_interop.graph.view import GraphView

OutputShapes = Callable[[int, int], Shape | None]
"""Gives the shape of an output of a node, by the node's place and the port."""

Cores = Mapping[int | None, int]
"""On how many cores a unit runs at each batch size; None stands for all of them."""

ON_ONE_CORE: Cores = {None: 1}
"""Of a split unit too: its parts share the cores when it runs."""


def rewrite_units(
    view: GraphView,
    units: Sequence[Unit],
    nodes_to_preserve: Collection[str],
    *,
    cores: Sequence[Cores] = (),
    output_shapes: OutputShapes | None = None,
) -> graph_pb2.GraphDef:
    """Replaces each unit by one Unit node.

    Args:
        view: the graph.
        units: any of those that `find_units` found in it, or `find_split_units`.
        nodes_to_preserve: names that must live on, because they are fed or fetched.
        cores: of each unit; at other batch sizes it runs as in stock TensorFlow. Nothing: of one
            core each, always.
        output_shapes: gives shapes that the new nodes are to state; None to state none.
    """
    new_nodes = [
        NewNode(
            unit_name(view, unit),
            unit.steps,
            tuple((unit.steps[place], port) for place, port in unit_results(view, unit)),
        )
        for unit in units
    ]
    replacement = Replacement(view, new_nodes, nodes_to_preserve)
    return replacement.graph(
        [
            _make_unit_def(view, replacement, new, unit, each, output_shapes)
            for new, unit, each in zip(
                new_nodes, units, cores or [ON_ONE_CORE] * len(units), strict=True
            )
        ]
    )


def _make_unit_def(
    view: GraphView,
    replacement: Replacement,
    new: NewNode,
    unit: Unit,
    cores: Cores,
    output_shapes: OutputShapes | None,
) -> node_def_pb2.NodeDef:
    place_of = {index: place for place, index in enumerate(unit.steps)}
    inputs = _batch_first(view, unit, replacement.inputs(new))
    position_of = {tensor: position for position, tensor in enumerate(inputs)}

    def operand_of(tensor: Tensor) -> str:
        index, port = tensor
        if index in place_of:
            return result_operand((place_of[index], port))
        return input_operand(position_of[tensor])

    shapes: list[Shape | None] = []
    if output_shapes is not None:
        shapes = [output_shapes(index, port) for index, port in new.results]
    texts = tuple(text for text, _ in inputs.values())
    by_size = dict(sorted(cores.items(), key=lambda each: each[0] or 0))
    return encode_unit(
        UnitNode(
            name=new.name,
            inputs=texts,
            control_inputs=replacement.control_inputs(new, texts),
            input_dtypes=tuple(dtype for _, dtype in inputs.values()),
            output_dtypes=tuple(
                output_dtypes(view.nodes[index])[port] for index, port in new.results
            ),
            steps=replacement.steps(new, operand_of),
            results=tuple((place_of[index], port) for index, port in new.results),
            constant_inputs=replacement.filters_from(
                ["Const"], new, position_of, UNIT_FILTER_POSITIONS
            ),
            batch_sizes=tuple(size for size in by_size if size is not None),
            cores=tuple(by_size.values()) if max(by_size.values()) > 1 else (),
            split_inputs=tuple(sorted(position_of[tensor] for tensor in unit.split)),
            output_shapes=tuple(shapes) if any(shape is not None for shape in shapes) else (),
        )
    )


def _batch_first(
    view: GraphView, unit: Unit, inputs: dict[Tensor, tuple[str, int]]
) -> dict[Tensor, tuple[str, int]]:
    """The inputs, first the one whose first dimension is the batch: `batch_sizes` goes by it."""
    tensors = view.fanins[unit.head]
    usual = batch_position(view.ops[unit.head])
    for tensor in (*tensors[usual:], *tensors):
        if tensor in inputs and view.ops[tensor[0]] not in PARAMETER_OPS:
            return {tensor: inputs.pop(tensor)} | inputs
    return inputs
