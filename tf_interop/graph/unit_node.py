"""The Unit node: one op that runs the steps of a unit back to back, on few cores or in parts.

Its attributes are those of `UnitNode`, and the dtypes `Tin` and `Tout`. An operand is `inputs:<i>`,
an input of the node, or `steps:<j>:<port>`, an output of step j, which is an earlier one.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import node_def_pb2

from tf_interop.convolution import Shape
from tf_interop.errors import GraphError
from tf_interop.graph.properties import shape_of

UNIT_OP = "TfInterop>Unit"
_LISTS = ("constant_inputs", "batch_sizes", "cores", "split_inputs")

Result = tuple[int, int]
"""An output of a step: the step's place in its unit, and the port."""


@dataclasses.dataclass(frozen=True, slots=True)
class UnitNode:
    """What a Unit node says.

    Attributes:
        name: the node's name.
        inputs: the tensors that its steps read, as inputs of a NodeDef.
        control_inputs: its control dependencies, `^name` each.
        input_dtypes: TensorFlow's number of the dtype of each of `inputs`.
        output_dtypes: likewise of each output.
        steps: what it runs, in order: name, op and attributes of the original nodes, no device; as
            inputs their operands.
        results: the output of a step that each output is.
        constant_inputs: positions in `inputs` of filters that no call changes, ascending.
        batch_sizes: those for which it is narrow or split, ascending; empty for all.
        cores: how many it runs on at each of these, or the one number for all; empty for one core.
        split_inputs: positions in `inputs` of what each part of the batch has a part of, ascending;
            empty if the unit is narrow.
        output_shapes: of each output; empty if nothing is known.
    """

    name: str
    inputs: tuple[str, ...]
    control_inputs: tuple[str, ...]
    input_dtypes: tuple[int, ...]
    output_dtypes: tuple[int, ...]
    steps: tuple[node_def_pb2.NodeDef, ...]
    results: tuple[Result, ...]
    constant_inputs: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    cores: tuple[int, ...] = ()
    split_inputs: tuple[int, ...] = ()
    output_shapes: tuple[Shape | None, ...] = ()


def result_operand(result: Result) -> str:
    """The operand that is an output of a step."""
    place, port = result
    return f"steps:{place}:{port}"


def encode_unit(unit: UnitNode) -> node_def_pb2.NodeDef:
    """The node; the same unit always gives the same bytes."""
    node = node_def_pb2.NodeDef(name=unit.name, op=UNIT_OP)
    node.input.extend((*unit.inputs, *unit.control_inputs))
    attributes = node.attr
    attributes["Tin"].list.type[:] = unit.input_dtypes
    attributes["Tout"].list.type[:] = unit.output_dtypes
    attributes["steps"].list.s.extend(
        [step.SerializeToString(deterministic=True) for step in unit.steps]
    )
    attributes["results"].list.s.extend(
        [result_operand(result).encode() for result in unit.results]
    )
    for name in _LISTS:
        attributes[name].list.SetInParent()
        attributes[name].list.i.extend(getattr(unit, name))
    shapes = [tf.TensorShape(shape).as_proto() for shape in unit.output_shapes]
    attributes["output_shapes"].list.SetInParent()
    attributes["output_shapes"].list.shape.extend(shapes)
    return node


def decode_unit(node: node_def_pb2.NodeDef) -> UnitNode:
    """Reads a Unit node.

    Raises:
        GraphError: an attribute is missing or cannot be read. The op checks the rest.
    """
    attributes = {name: value.list for name, value in node.attr.items()}
    tensors = [text for text in node.input if not text.startswith("^")]
    try:
        results = [text.decode().split(":") for text in attributes["results"].s]
        return UnitNode(
            name=node.name,
            inputs=tuple(tensors),
            control_inputs=tuple(node.input[len(tensors) :]),
            input_dtypes=tuple(attributes["Tin"].type),
            output_dtypes=tuple(attributes["Tout"].type),
            steps=tuple(map(node_def_pb2.NodeDef.FromString, attributes["steps"].s)),
            results=tuple((int(place), int(port)) for _, place, port in results),
            output_shapes=tuple(map(shape_of, attributes["output_shapes"].shape)),
            **{name: tuple(attributes[name].i) for name in _LISTS},
        )
    except (KeyError, ValueError, DecodeError) as error:
        raise GraphError(
            f"Expected the attributes of a Unit, got {error!r} at node '{node.name}'."
        ) from error
