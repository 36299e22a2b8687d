"""The ConvStage, Unit and Kept nodes, and how they are written and read.

A ConvStage runs the steps of a stage. Its data inputs are the device tensors that its steps read
(`Tin`), then the size vectors that gradients read (`num_sizes`, int32, in host memory), each tensor
once. The attribute `program`, a JSON document, contains the rest; `cc_kernels/tf/stage_program.h`
describes it.

A Unit runs the steps of a unit back to back, on few cores or in parts. Its attributes are the
fields of `UnitNode` and the dtypes `Tin` and `Tout`.

A Kept computes values that depend only on variables and constants, and keeps them until a variable
changes. Its attributes are the fields of `KeptNode`.

An operand of a step is `inputs:<i>`, `sizes:<i>`, or an output of an earlier step: `steps:<j>` in a
stage, `steps:<j>:<port>` in a unit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import attr_value_pb2, node_def_pb2

from tf_interop.convolution import Shape
from tf_interop.errors import GraphError
from tf_interop.graph.properties import shape_of
from tf_interop.stage import Schedule

CONV_STAGE_OP = "TfInterop>ConvStage"
UNIT_OP = "TfInterop>Unit"
KEPT_OP = "TfInterop>Kept"
NEW_OPS = frozenset({CONV_STAGE_OP, UNIT_OP, KEPT_OP})
"""The ops that only the pass makes."""

Result = tuple[int, int]
"""An output of a step: the step's place in its unit, and the port."""


@dataclasses.dataclass(frozen=True, slots=True)
class StageNode:
    """The contents of a ConvStage node; `inputs`, `sizes` and `control_inputs` as in a NodeDef.

    Attributes:
        input_dtypes: TensorFlow's number of the dtype of each of `inputs`.
        operations: name, op and attributes of the original nodes, with operands as inputs and no
            device.
        outputs: the operation of each output of the node.
        schedules: one for all batch sizes, or one for each of several, ascending.
        held_inputs: positions in `inputs` of filters that nobody writes while they are held,
            ascending.
    """

    name: str
    inputs: tuple[str, ...]
    sizes: tuple[str, ...]
    control_inputs: tuple[str, ...]
    input_dtypes: tuple[int, ...]
    operations: tuple[node_def_pb2.NodeDef, ...]
    outputs: tuple[int, ...]
    schedules: tuple[Schedule[int], ...]
    held_inputs: tuple[int, ...] = ()
    is_timed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class UnitNode:
    """The contents of a Unit node; `inputs` and `control_inputs` as in a NodeDef.

    Attributes:
        input_dtypes: TensorFlow's number of the dtype of each of `inputs`.
        output_dtypes: TensorFlow's number of the dtype of each output.
        steps: in running order; like the operations of a StageNode.
        results: the step output behind each output of the node.
        constant_inputs: positions in `inputs` of filters that no call changes, ascending.
        kept_inputs: positions in `inputs` of filters that seldom change, ascending.
        cores: the number of cores that it runs on, if it does not time itself; 0 as in stock
            TensorFlow.
        split_inputs: positions in `inputs` of the tensors that may be divided with the batch,
            ascending; empty if it is never divided.
        output_shapes: shape of each output; empty if nothing is known.
        kept_types: TensorFlow's number of the dtype of each value in the last input, if that has
            all values of a Kept node; operands name them in place of it, and beyond the inputs.
        timed_graph: if the units of the graph time themselves, a name for it, else empty.
        timed_unit: the number of this unit among `timed_units`.
    """

    name: str
    inputs: tuple[str, ...]
    control_inputs: tuple[str, ...]
    input_dtypes: tuple[int, ...]
    output_dtypes: tuple[int, ...]
    steps: tuple[node_def_pb2.NodeDef, ...]
    results: tuple[Result, ...]
    constant_inputs: tuple[int, ...] = ()
    kept_inputs: tuple[int, ...] = ()
    cores: int = 1
    split_inputs: tuple[int, ...] = ()
    output_shapes: tuple[Shape | None, ...] = ()
    kept_types: tuple[int, ...] = ()
    timed_graph: str = ""
    timed_unit: int = 0
    timed_units: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class KeptNode:
    """The contents of a Kept node; `variables`, `constants` and `device` as in a NodeDef.

    Attributes:
        constant_dtypes: TensorFlow's number of the dtype of each of `constants`.
        reads: the ReadVariableOp of each variable.
        steps: in running order; their operands are `inputs:<i>`, a variable's value or, after
            those, a constant, or an output of an earlier step.
        results: the operand of each output; `output_dtypes` and `output_shapes` are theirs.
    """

    name: str
    device: str
    variables: tuple[str, ...]
    constants: tuple[str, ...]
    constant_dtypes: tuple[int, ...]
    reads: tuple[node_def_pb2.NodeDef, ...]
    steps: tuple[node_def_pb2.NodeDef, ...]
    results: tuple[str, ...]
    output_dtypes: tuple[int, ...]
    output_shapes: tuple[Shape | None, ...]


_UNIT_LISTS = ("constant_inputs", "kept_inputs", "split_inputs")
_Place = Annotated[int, msgspec.Meta(ge=0)]


@dataclasses.dataclass(frozen=True)
class _Document:
    """The attribute `program`."""

    version: Literal[1]
    operations: Annotated[tuple[bytes, ...], msgspec.Meta(min_length=1)]
    outputs: Annotated[tuple[_Place, ...], msgspec.Meta(min_length=1)]
    held_inputs: tuple[_Place, ...]
    schedules: Annotated[tuple[Schedule[int], ...], msgspec.Meta(min_length=1)]


# Made while only one thread imports this. msgspec 0.22 crashes if several threads at once make the
# decoder of a dataclass for the first time, and several may trace functions.
_DECODER = msgspec.json.Decoder(_Document)


def result_operand(result: Result) -> str:
    """The operand that is an output of a unit's step."""
    place, port = result
    return f"steps:{place}:{port}"


def make_operation(original: node_def_pb2.NodeDef, operands: Iterable[str]) -> node_def_pb2.NodeDef:
    """Copies a node with these operands as inputs.

    The copy has no device, no debug information and none of TensorFlow's notes about the original
    (attributes that start with `_`).
    """
    operation = node_def_pb2.NodeDef()
    operation.CopyFrom(original)
    for field in ("device", "experimental_debug_info", "experimental_type"):
        operation.ClearField(field)
    operation.input[:] = operands
    for attribute in [name for name in operation.attr if name.startswith("_")]:
        del operation.attr[attribute]
    return operation


def encode_stage(stage: StageNode) -> node_def_pb2.NodeDef:
    """Writes the node; the same stage always gives the same bytes."""
    document = _Document(
        version=1,
        operations=tuple(each.SerializeToString(deterministic=True) for each in stage.operations),
        outputs=stage.outputs,
        held_inputs=stage.held_inputs,
        schedules=stage.schedules,
    )
    node_def = node_def_pb2.NodeDef(name=stage.name, op=CONV_STAGE_OP)
    node_def.input.extend([*stage.inputs, *stage.sizes, *stage.control_inputs])
    attributes = node_def.attr
    attributes["Tin"].list.type.extend(stage.input_dtypes)
    attributes["num_sizes"].i = len(stage.sizes)
    attributes["Tout"].list.type.extend(
        [stage.operations[operation].attr["T"].type for operation in stage.outputs]
    )
    attributes["program"].s = msgspec.json.encode(document)
    if stage.is_timed:
        attributes["timed"].b = True
    return node_def


def encode_unit(unit: UnitNode) -> node_def_pb2.NodeDef:
    """Writes the node; the same unit always gives the same bytes."""
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
    for name in _UNIT_LISTS:
        attributes[name].list.SetInParent()
        attributes[name].list.i.extend(getattr(unit, name))
    shapes = [tf.TensorShape(shape).as_proto() for shape in unit.output_shapes]
    attributes["output_shapes"].list.SetInParent()
    attributes["output_shapes"].list.shape.extend(shapes)
    if unit.kept_types:
        attributes["kept_types"].list.type[:] = unit.kept_types
    attributes["cores"].i = unit.cores
    if unit.timed_graph:
        attributes["timed_graph"].s = unit.timed_graph.encode()
        attributes["timed_unit"].i = unit.timed_unit
        attributes["timed_units"].i = unit.timed_units
    return node


def encode_kept(kept: KeptNode) -> node_def_pb2.NodeDef:
    """Writes the node; the same contents always give the same bytes."""
    node = node_def_pb2.NodeDef(name=kept.name, op=KEPT_OP, device=kept.device)
    node.input.extend((*kept.variables, *kept.constants))
    attributes = node.attr
    attributes["P"].i = 0
    attributes["N"].i = len(kept.variables)
    attributes["handles"].list.i[:] = range(len(kept.variables))
    for name, types in (("Tin", kept.constant_dtypes), ("Tout", kept.output_dtypes)):
        attributes[name].list.SetInParent()
        attributes[name].list.type.extend(types)
    for name, nodes in (("reads", kept.reads), ("steps", kept.steps)):
        attributes[name].list.SetInParent()
        attributes[name].list.s.extend(
            [each.SerializeToString(deterministic=True) for each in nodes]
        )
    attributes["results"].list.s.extend([operand.encode() for operand in kept.results])
    shapes = [tf.TensorShape(shape).as_proto() for shape in kept.output_shapes]
    for name in ("output_shapes", "_output_shapes"):  # TensorFlow reads one, the pass the other
        attributes[name].list.shape.extend(shapes)
    return node


def decode_node(node: node_def_pb2.NodeDef) -> StageNode | UnitNode:
    """Reads a ConvStage or a Unit node.

    Raises:
        GraphError: an attribute is missing or cannot be read. The op checks the rest.
    """
    try:
        return decode_unit(node) if node.op == UNIT_OP else decode_stage(node)
    except (KeyError, ValueError, DecodeError, RecursionError) as error:
        raise GraphError(
            f"Expected the attributes of a {node.op}, got {error!r} at node '{node.name}'."
        ) from error


def decode_stage(node: node_def_pb2.NodeDef) -> StageNode:
    """Reads a ConvStage node; raises as its parser does."""
    # Indexing the node's own map would add missing attributes.
    attributes = dict(node.attr)
    document = _DECODER.decode(attributes["program"].s)
    for schedule in document.schedules:
        schedule.stage.validate()
        if sorted(schedule.stage.operations) != list(range(len(document.operations))):
            raise ValueError(
                f"Expected every operation to be one step, got {schedule.stage.operations}"
            )
    input_dtypes = tuple(attributes["Tin"].list.type)
    controls_at = len(input_dtypes) + attributes["num_sizes"].i
    return StageNode(
        name=node.name,
        inputs=tuple(node.input[: len(input_dtypes)]),
        sizes=tuple(node.input[len(input_dtypes) : controls_at]),
        control_inputs=tuple(node.input[controls_at:]),
        input_dtypes=input_dtypes,
        operations=tuple(map(node_def_pb2.NodeDef.FromString, document.operations)),
        outputs=document.outputs,
        schedules=document.schedules,
        held_inputs=document.held_inputs,
        is_timed="timed" in attributes and attributes["timed"].b,
    )


def decode_unit(node: node_def_pb2.NodeDef) -> UnitNode:
    """Reads a Unit node; raises as its parser does."""
    values = dict(node.attr)  # indexing the node's own map would add missing attributes
    attributes = {name: value.list for name, value in values.items()}
    constant, kept, split = (tuple(attributes[name].i) for name in _UNIT_LISTS)
    absent = attr_value_pb2.AttrValue()
    tensors = [text for text in node.input if not text.startswith("^")]
    results = [text.decode().split(":") for text in attributes["results"].s]
    return UnitNode(
        name=node.name,
        inputs=tuple(tensors),
        control_inputs=tuple(node.input[len(tensors) :]),
        input_dtypes=tuple(attributes["Tin"].type),
        output_dtypes=tuple(attributes["Tout"].type),
        steps=tuple(map(node_def_pb2.NodeDef.FromString, attributes["steps"].s)),
        results=tuple((int(place), int(port)) for _, place, port in results),
        constant_inputs=constant,
        kept_inputs=kept,
        cores=values["cores"].i,
        split_inputs=split,
        output_shapes=tuple(map(shape_of, attributes["output_shapes"].shape)),
        kept_types=tuple(values.get("kept_types", absent).list.type),
        timed_graph=values.get("timed_graph", absent).s.decode(),
        timed_unit=values.get("timed_unit", absent).i,
        timed_units=values.get("timed_units", absent).i,
    )
