"""The ConvStage node: one op that runs the steps of a stage.

Its data inputs are the tensors on the device that its steps read (`Tin`), then the vectors of sizes
that gradients read (`num_sizes`, int32, in host memory), each distinct tensor once. Everything else
is in the attribute `program`, a JSON document that `cc_kernels/tf/stage_program.h` describes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from google.protobuf.message import DecodeError
from tensorflow.core.framework import node_def_pb2

from tf_interop.errors import GraphError
from tf_interop.stage import Schedule

CONV_STAGE_OP = "TfInterop>ConvStage"


@dataclasses.dataclass(frozen=True, slots=True)
class StageNode:
    """What a ConvStage node says.

    Attributes:
        name: the node's name.
        inputs: the tensors on the device that its steps read, as inputs of a NodeDef.
        sizes: the vectors of sizes that its steps read, as inputs of a NodeDef.
        control_inputs: its control dependencies, `^name` each.
        input_dtypes: TensorFlow's number of the dtype of each of `inputs`.
        operations: what its steps compute: name, op and attributes of the original nodes, no
            device; as inputs their operands.
        outputs: the operation of each output of the node.
        schedules: one for every batch size, or one for each of several, ascending.
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


_Place = Annotated[int, msgspec.Meta(ge=0)]


@dataclasses.dataclass(frozen=True)
class _Document:
    """The attribute `program`."""

    version: Literal[1]
    operations: Annotated[tuple[bytes, ...], msgspec.Meta(min_length=1)]
    outputs: Annotated[tuple[_Place, ...], msgspec.Meta(min_length=1)]
    held_inputs: tuple[_Place, ...]
    schedules: Annotated[tuple[Schedule[int], ...], msgspec.Meta(min_length=1)]


def input_operand(position: int) -> str:
    """The operand that is the stage's input `position`."""
    return f"inputs:{position}"


def sizes_operand(position: int) -> str:
    """The operand that is the stage's vector of sizes `position`."""
    return f"sizes:{position}"


def step_operand(operation: int) -> str:
    """The operand that is the result of an operation of the stage."""
    return f"steps:{operation}"


def make_operation(original: node_def_pb2.NodeDef, operands: Iterable[str]) -> node_def_pb2.NodeDef:
    """What a stage keeps of a node.

    A new NodeDef with these operands, without device, control dependencies, debug information and
    the attributes that are TensorFlow's notes about the original node (`_...`).
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
    """The node; the same stage always gives the same bytes."""
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
    return node_def


def decode_stage(node_def: node_def_pb2.NodeDef) -> StageNode:
    """Reads a ConvStage node.

    Raises:
        GraphError: an attribute is missing, or the program is not of this form. The op checks the
            rest.
    """
    try:
        return _decode(node_def)
    except (KeyError, ValueError, DecodeError, RecursionError) as error:
        raise GraphError(
            f"Expected the attributes of a ConvStage, got {error!r} at node '{node_def.name}'."
        ) from error


def _decode(node_def: node_def_pb2.NodeDef) -> StageNode:
    # To read an attribute that is not there would add it to the node.
    attributes = dict(node_def.attr)
    document = msgspec.json.decode(attributes["program"].s, type=_Document)
    for schedule in document.schedules:
        schedule.stage.validate()
        if sorted(schedule.stage.operations) != list(range(len(document.operations))):
            raise ValueError(
                f"Expected every operation to be one step, got {schedule.stage.operations}"
            )
    input_dtypes = tuple(attributes["Tin"].list.type)
    controls_at = len(input_dtypes) + attributes["num_sizes"].i
    return StageNode(
        name=node_def.name,
        inputs=tuple(node_def.input[: len(input_dtypes)]),
        sizes=tuple(node_def.input[len(input_dtypes) : controls_at]),
        control_inputs=tuple(node_def.input[controls_at:]),
        input_dtypes=input_dtypes,
        operations=tuple(map(node_def_pb2.NodeDef.FromString, document.operations)),
        outputs=document.outputs,
        schedules=document.schedules,
        held_inputs=document.held_inputs,
    )
