"""The ConvStage, Unit and Kept nodes, and how they are written and read.

All three run steps: operations of the original graph. An operand of a step is `inputs:<i>`, an
input of the node, or `steps:<j>:<port>`, an output of an earlier step; `cc_kernels/tf/program.h`
describes this. They differ in how they run the steps. A ConvStage runs them in lanes on a GPU, a
Unit on few cores or in parts of the batch. A Kept computes values that depend only on variables and
constants, and keeps them until a variable changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import attr_value_pb2, node_def_pb2, types_pb2

from tf_interop.convolution import Shape
from tf_interop.errors import GraphError
from tf_interop.graph.properties import shape_of
from tf_interop.stage import Schedule

CONV_STAGE_OP = "TfInterop>ConvStage"
UNIT_OP = "TfInterop>Unit"
KEPT_OP = "TfInterop>Kept"
NEW_OPS = frozenset({CONV_STAGE_OP, UNIT_OP, KEPT_OP})
"""The ops that only the pass makes."""

RESCALES = "_tf_interop_rescales"
"""The attribute of a depthwise convolution of one pixel that rescales channels, by which a unit
knows it (`cc_kernels/tf/rescaled_concatenation.cc`)."""

Result = tuple[int, int]
"""An output of a step: the step's place in its node, and the port."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramNode:
    """What ConvStage and Unit nodes have in common; `inputs` and `control_inputs` as in a NodeDef.

    Attributes:
        input_dtypes: TensorFlow's number of the dtype of each of `inputs`.
        output_dtypes: TensorFlow's number of the dtype of each output.
        steps: in running order: name, op and attributes of the original nodes, with operands as
            inputs and no device.
        results: the step output behind each output of the node.
        kept_inputs: positions in `inputs` of filters that seldom or never change, and that nobody
            writes while they are held, ascending.
    """

    name: str
    inputs: tuple[str, ...]
    control_inputs: tuple[str, ...]
    input_dtypes: tuple[int, ...]
    output_dtypes: tuple[int, ...]
    steps: tuple[node_def_pb2.NodeDef, ...]
    results: tuple[Result, ...]
    kept_inputs: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageNode(ProgramNode):
    """The contents of a ConvStage node.

    Attributes:
        size_count: the last inputs, which are size vectors that gradients read (int32, in host
            memory).
        schedules: one for all batch sizes, or one for each of several, ascending. Their stages name
            steps by their places.
        is_timed: whether it compares the plan with TensorFlow's own kernels while it runs.
    """

    size_count: int = 0
    schedules: tuple[Schedule[int], ...]
    is_timed: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitNode(ProgramNode):
    """The contents of a Unit node.

    Attributes:
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


_Schedules = Annotated[tuple[Schedule[int], ...], msgspec.Meta(min_length=1)]
# Made while only one thread imports this. msgspec 0.22 crashes if several threads at once make the
# decoder of a dataclass for the first time, and several may trace functions.
_SCHEDULES = msgspec.json.Decoder(_Schedules)


def result_operand(result: Result) -> str:
    """The operand that is an output of a step."""
    place, port = result
    return f"steps:{place}:{port}"


def make_operation(original: node_def_pb2.NodeDef, operands: Iterable[str]) -> node_def_pb2.NodeDef:
    """Copies a node with these operands as inputs.

    The copy has no device, no debug information and none of TensorFlow's notes about the original
    (attributes that start with `_`, but for `RESCALES`).
    """
    operation = node_def_pb2.NodeDef()
    operation.CopyFrom(original)
    for field in ("device", "experimental_debug_info", "experimental_type"):
        operation.ClearField(field)
    operation.input[:] = operands
    notes = [name for name in operation.attr if name.startswith("_") and name != RESCALES]
    for attribute in notes:
        del operation.attr[attribute]
    return operation


def encode_node(node: StageNode | UnitNode) -> node_def_pb2.NodeDef:
    """Writes the node; the same contents always give the same bytes."""
    made = node_def_pb2.NodeDef(name=node.name)
    made.input.extend((*node.inputs, *node.control_inputs))
    _set_types(made, "Tout", node.output_dtypes)
    _set_steps(made, "steps", node.steps)
    made.attr["results"].list.s[:] = [result_operand(each).encode() for each in node.results]
    _set_integers(made, "kept_inputs", node.kept_inputs)
    if isinstance(node, StageNode):
        made.op = CONV_STAGE_OP
        _set_types(made, "Tin", node.input_dtypes[: len(node.inputs) - node.size_count])
        made.attr["num_sizes"].i = node.size_count
        made.attr["schedules"].s = msgspec.json.encode(node.schedules)
        made.attr["timed"].b = node.is_timed
    else:
        made.op = UNIT_OP
        _set_types(made, "Tin", node.input_dtypes)
        _set_integers(made, "split_inputs", node.split_inputs)
        _set_shapes(made, "output_shapes", node.output_shapes)
        _set_types(made, "kept_types", node.kept_types)
        made.attr["cores"].i = node.cores
        made.attr["timed_graph"].s = node.timed_graph.encode()
        made.attr["timed_unit"].i = node.timed_unit
        made.attr["timed_units"].i = node.timed_units
    return made


def encode_kept(kept: KeptNode) -> node_def_pb2.NodeDef:
    """Writes the node; the same contents always give the same bytes."""
    node = node_def_pb2.NodeDef(name=kept.name, op=KEPT_OP, device=kept.device)
    node.input.extend((*kept.variables, *kept.constants))
    node.attr["P"].i = 0
    node.attr["N"].i = len(kept.variables)
    _set_integers(node, "handles", range(len(kept.variables)))
    _set_types(node, "Tin", kept.constant_dtypes)
    _set_types(node, "Tout", kept.output_dtypes)
    _set_steps(node, "reads", kept.reads)
    _set_steps(node, "steps", kept.steps)
    node.attr["results"].list.s[:] = [operand.encode() for operand in kept.results]
    for name in ("output_shapes", "_output_shapes"):  # TensorFlow reads one, the pass the other
        _set_shapes(node, name, kept.output_shapes)
    return node


def _list_of(node: node_def_pb2.NodeDef, name: str) -> attr_value_pb2.AttrValue.ListValue:
    """An attribute that is a list, which is written even if it stays empty."""
    node.attr[name].list.SetInParent()
    return node.attr[name].list


def _set_integers(node: node_def_pb2.NodeDef, name: str, values: Iterable[int]) -> None:
    _list_of(node, name).i.extend(values)


def _set_types(node: node_def_pb2.NodeDef, name: str, values: Iterable[int]) -> None:
    _list_of(node, name).type.extend(values)


def _set_shapes(node: node_def_pb2.NodeDef, name: str, shapes: Iterable[Shape | None]) -> None:
    _list_of(node, name).shape.extend(tf.TensorShape(shape).as_proto() for shape in shapes)


def _set_steps(
    node: node_def_pb2.NodeDef, name: str, steps: Iterable[node_def_pb2.NodeDef]
) -> None:
    _list_of(node, name).s.extend(step.SerializeToString(deterministic=True) for step in steps)


def decode_node(node: node_def_pb2.NodeDef) -> StageNode | UnitNode:
    """Reads a ConvStage or a Unit node.

    Raises:
        GraphError: an attribute is missing or cannot be read. The op checks the rest.
    """
    try:
        return _decode(node)
    except (KeyError, ValueError, DecodeError, RecursionError) as error:
        raise GraphError(
            f"Expected the attributes of a {node.op}, got {error!r} at node '{node.name}'."
        ) from error


def _decode(node: node_def_pb2.NodeDef) -> StageNode | UnitNode:
    values = dict(node.attr)  # indexing the node's own map would add missing attributes
    tensors = tuple(text for text in node.input if not text.startswith("^"))
    results = [text.decode().split(":") for text in values["results"].list.s]
    size_count = 0 if node.op == UNIT_OP else values["num_sizes"].i
    input_dtypes = (*values["Tin"].list.type, *(types_pb2.DT_INT32,) * size_count)
    if len(input_dtypes) != len(tensors) or len(values["Tout"].list.type) != len(results):
        raise ValueError("Expected a dtype for each input and result, got another number")
    common: dict[str, Any] = {
        "name": node.name,
        "inputs": tensors,
        "control_inputs": tuple(node.input[len(tensors) :]),
        "input_dtypes": input_dtypes,
        "output_dtypes": tuple(values["Tout"].list.type),
        "steps": tuple(map(node_def_pb2.NodeDef.FromString, values["steps"].list.s)),
        "results": tuple((int(place), int(port)) for _, place, port in results),
        "kept_inputs": tuple(values["kept_inputs"].list.i),
    }
    if node.op == UNIT_OP:
        return UnitNode(
            **common,
            cores=values["cores"].i,
            split_inputs=tuple(values["split_inputs"].list.i),
            output_shapes=tuple(map(shape_of, values["output_shapes"].list.shape)),
            kept_types=tuple(values["kept_types"].list.type),
            timed_graph=values["timed_graph"].s.decode(),
            timed_unit=values["timed_unit"].i,
            timed_units=values["timed_units"].i,
        )
    schedules = _SCHEDULES.decode(values["schedules"].s)
    for schedule in schedules:
        schedule.stage.validate()
        if sorted(schedule.stage.operations) != list(range(len(common["steps"]))):
            raise ValueError(
                f"Expected every step once in a schedule, got {schedule.stage.operations}"
            )
    return StageNode(
        **common, size_count=size_count, schedules=schedules, is_timed=values["timed"].b
    )
