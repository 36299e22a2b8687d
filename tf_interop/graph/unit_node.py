"""The Unit node: one op that runs the steps of a unit back to back, on one core or in parts.

Its attributes beside the dtypes `Tin` and `Tout`:

    steps             serialized NodeDefs, in running order, each with all that TensorFlow needs to
                      make the kernel of the node that it stands for
    results           the operand that each output is
    constant_inputs   positions of inputs that no call changes: filters
    split_inputs      positions of inputs of which each part of the batch has a part, by the first
                      dimension; each part runs on one core; empty: the whole batch does
    batch_sizes       those for which it runs like that, by the first dimension of the first input;
                      for others each step runs on all cores; empty: always
    output_shapes     what is known of the outputs' shapes; empty: nothing

An operand is `inputs:<i>`, an input of the node, or `steps:<j>:<port>`, an output of step j, which
is an earlier one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from google.protobuf.message import DecodeError
from tensorflow.core.framework import node_def_pb2

from tf_interop.convolution import Shape
from tf_interop.errors import GraphError
from tf_interop.graph.program import input_operand

UNIT_OP = "TfInterop>Unit"

_LISTS = ("Tin", "Tout", "constant_inputs", "batch_sizes", "split_inputs")

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
        split_inputs: positions in `inputs` of what each part of the batch has a part of, ascending;
            empty where the unit is narrow.
        output_shapes: of each output; empty where nothing is known.
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
    for name in (*_LISTS, "output_shapes"):
        attributes[name].list.SetInParent()
    attributes["Tin"].list.type.extend(unit.input_dtypes)
    attributes["Tout"].list.type.extend(unit.output_dtypes)
    attributes["steps"].list.s.extend(
        [step.SerializeToString(deterministic=True) for step in unit.steps]
    )
    attributes["results"].list.s.extend(
        [result_operand(result).encode() for result in unit.results]
    )
    attributes["constant_inputs"].list.i.extend(unit.constant_inputs)
    attributes["batch_sizes"].list.i.extend(unit.batch_sizes)
    attributes["split_inputs"].list.i.extend(unit.split_inputs)
    shapes = attributes["output_shapes"].list.shape
    for shape in unit.output_shapes:
        proto = shapes.add()
        if shape is None:
            proto.unknown_rank = True
        else:
            for size in shape:
                proto.dim.add(size=-1 if size is None else size)
    return node


def decode_unit(node: node_def_pb2.NodeDef) -> UnitNode:
    """Reads a Unit node.

    Raises:
        GraphError: it is not a Unit node, an attribute is missing, or they do not agree with each
            other or with the node's inputs.
    """
    if node.op != UNIT_OP:
        raise GraphError(f"Expected op {UNIT_OP}, got {node.op} at node '{node.name}'.")
    try:
        return _decode(node)
    except (ValueError, DecodeError) as error:
        raise GraphError(f"{error} at the Unit node '{node.name}'.") from error


def _decode(node: node_def_pb2.NodeDef) -> UnitNode:
    attributes = node.attr
    for attribute in (*_LISTS, "steps", "results"):
        # To read an attribute that is not there would add it to the node.
        if attribute not in attributes:
            raise ValueError(f"Expected an attribute '{attribute}', got none")
    inputs = list(node.input)
    tensors = [text for text in inputs if not text.startswith("^")]
    shapes = attributes["output_shapes"].list.shape if "output_shapes" in attributes else ()
    unit = UnitNode(
        name=node.name,
        inputs=tuple(tensors),
        control_inputs=tuple(inputs[len(tensors) :]),
        input_dtypes=tuple(attributes["Tin"].list.type),
        output_dtypes=tuple(attributes["Tout"].list.type),
        steps=tuple(map(node_def_pb2.NodeDef.FromString, attributes["steps"].list.s)),
        results=tuple(_result(text.decode()) for text in attributes["results"].list.s),
        constant_inputs=tuple(attributes["constant_inputs"].list.i),
        batch_sizes=tuple(attributes["batch_sizes"].list.i),
        split_inputs=tuple(attributes["split_inputs"].list.i),
        output_shapes=tuple(map(_shape, shapes)),
    )
    _check_operands(unit)
    if len(unit.input_dtypes) != len(unit.inputs) or not (
        len(unit.output_dtypes) == len(unit.results) == len(set(unit.results))
    ):
        raise ValueError(
            f"Expected a dtype for each input and each result, got {len(unit.input_dtypes)} for "
            f"{len(unit.inputs)} and {len(unit.output_dtypes)} for {len(unit.results)}"
        )
    if len(unit.output_shapes) not in (0, len(unit.results)):
        raise ValueError(
            f"Expected a shape for each of {len(unit.results)} results or none, got "
            f"{len(unit.output_shapes)}"
        )
    for what, values, limit in (
        ("constant inputs", unit.constant_inputs, len(unit.inputs)),
        ("split inputs", unit.split_inputs, len(unit.inputs)),
        ("batch sizes", unit.batch_sizes, None),
    ):
        is_in_range = not values or (
            values[0] >= (0 if limit else 1) and (limit is None or values[-1] < limit)
        )
        if list(values) != sorted(set(values)) or not is_in_range:
            raise ValueError(f"Expected ascending {what}, got {list(values)}")
    return unit


def _check_operands(unit: UnitNode) -> None:
    """Checks that steps read inputs and earlier steps, and results are outputs of steps."""
    unused = set(map(input_operand, range(len(unit.inputs))))
    inputs = frozenset(unused)
    names: set[str] = set()
    for place, step in enumerate(unit.steps):
        if step.name in names:
            raise ValueError(f"Expected steps of different names, got '{step.name}' twice")
        names.add(step.name)
        for operand in step.input:
            if operand not in inputs and _result(operand)[0] >= place:
                raise ValueError(
                    f"Expected operands that are inputs or earlier steps, got '{operand}' at "
                    f"'{step.name}'"
                )
        unused.difference_update(step.input)
    if unused:
        raise ValueError(f"Expected every input to be an operand, got {sorted(unused)} unused")
    if not unit.results or max(place for place, _ in unit.results) >= len(unit.steps):
        raise ValueError(f"Expected results of {len(unit.steps)} steps, got {unit.results}")


def _result(operand: str) -> Result:
    words = operand.split(":")
    if len(words) != 3 or words[0] != "steps" or not _are_digits(words[1:]):
        raise ValueError(f"Expected an operand 'steps:<place>:<port>', got '{operand}'")
    return int(words[1]), int(words[2])


def _are_digits(words: Iterable[str]) -> bool:
    return all(word.isascii() and word.isdigit() for word in words)


def _shape(proto: object) -> Shape | None:
    if proto.unknown_rank:  # type: ignore[attr-defined]
        return None
    sizes: Sequence[int] = [dim.size for dim in proto.dim]  # type: ignore[attr-defined]
    return tuple(None if size < 0 else size for size in sizes)
