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
from typing import Any

import msgspec
from tensorflow.core.framework import attr_value_pb2, node_def_pb2, types_pb2

from tf_interop.convolution import Shape
from tf_interop.errors import GraphError
from tf_interop.graph.ops import attribute_of, make_node
from tf_interop.graph.properties import shape_of, shape_protos
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
        schedules: one for all batch sizes, or one for each of several, ascending. Their stages name
            steps by their places.
        is_timed: whether it compares the plan with TensorFlow's own kernels while it runs.
    """

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


# Made while only one thread imports this. msgspec 0.22 crashes if several threads at once make the
# decoder of a dataclass for the first time, and several may trace functions.
_SCHEDULES = msgspec.json.Decoder(tuple[Schedule[int], ...])


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


def serialized(steps: Iterable[node_def_pb2.NodeDef]) -> list[bytes]:
    """Steps as an attribute of a node; the same steps always give the same bytes."""
    return [step.SerializeToString(deterministic=True) for step in steps]


def encode_node(node: StageNode | UnitNode) -> node_def_pb2.NodeDef:
    """Writes the node; the same contents always give the same bytes."""
    inputs = (*node.inputs, *node.control_inputs)
    common: dict[str, Any] = {
        "Tout": node.output_dtypes,
        "steps": serialized(node.steps),
        "results": [result_operand(each).encode() for each in node.results],
        "kept_inputs": node.kept_inputs,
    }
    if isinstance(node, StageNode):
        # Size vectors, the last inputs, are the only integers that convolutions read.
        size_count = node.input_dtypes.count(types_pb2.DT_INT32)
        return make_node(
            CONV_STAGE_OP,
            node.name,
            inputs,
            Tin=node.input_dtypes[: len(node.inputs) - size_count],
            num_sizes=size_count,
            schedules=msgspec.json.encode(node.schedules),
            timed=node.is_timed,
            **common,
        )
    return make_node(
        UNIT_OP,
        node.name,
        inputs,
        Tin=node.input_dtypes,
        split_inputs=node.split_inputs,
        output_shapes=shape_protos(node.output_shapes),
        kept_types=node.kept_types,
        cores=node.cores,
        timed_graph=node.timed_graph.encode(),
        timed_unit=node.timed_unit,
        timed_units=node.timed_units,
        **common,
    )


def decode_node(node: node_def_pb2.NodeDef) -> StageNode | UnitNode:
    """Reads a ConvStage or a Unit node.

    Raises:
        GraphError: the attributes do not fit together. The op checks the rest.
    """

    def value(name: str) -> attr_value_pb2.AttrValue:
        return attribute_of(node, name)

    tensors = tuple(text for text in node.input if not text.startswith("^"))
    results = [text.decode().split(":") for text in value("results").list.s]
    sizes = (types_pb2.DT_INT32,) * value("num_sizes").i
    input_dtypes = (*value("Tin").list.type, *sizes)
    if len(input_dtypes) != len(tensors) or len(value("Tout").list.type) != len(results):
        raise GraphError(
            f"Expected a dtype for each input and result, got another number at '{node.name}'."
        )
    common: dict[str, Any] = {
        "name": node.name,
        "inputs": tensors,
        "control_inputs": tuple(node.input[len(tensors) :]),
        "input_dtypes": input_dtypes,
        "output_dtypes": tuple(value("Tout").list.type),
        "steps": tuple(map(node_def_pb2.NodeDef.FromString, value("steps").list.s)),
        "results": tuple((int(place), int(port)) for _, place, port in results),
        "kept_inputs": tuple(value("kept_inputs").list.i),
    }
    if node.op == UNIT_OP:
        return UnitNode(
            **common,
            cores=value("cores").i,
            split_inputs=tuple(value("split_inputs").list.i),
            output_shapes=tuple(map(shape_of, value("output_shapes").list.shape)),
            kept_types=tuple(value("kept_types").list.type),
            timed_graph=value("timed_graph").s.decode(),
            timed_unit=value("timed_unit").i,
            timed_units=value("timed_units").i,
        )
    schedules = _SCHEDULES.decode(value("schedules").s)
    for schedule in schedules:
        if sorted(schedule.stage.operations) != list(range(len(common["steps"]))):
            raise GraphError(
                f"Expected every step once in a schedule, got {schedule.stage.operations} at "
                f"'{node.name}'."
            )
    return StageNode(**common, schedules=schedules, is_timed=value("timed").b)
