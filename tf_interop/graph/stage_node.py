"""The ConvStage node: one op that runs the convolutions of a stage.

Its data inputs are the tensors on the device that the convolutions read (`Tin`), then the vectors
of sizes that gradients read (`num_sizes`, int32, in host memory), each distinct tensor once. It has
one output for each step. What a step computes is in attribute `steps`: the serialized NodeDef of
the convolution, whose inputs are written `inputs:<i>` or `sizes:<i>`. What lanes ask of the device
is in `lane_priorities` and `lane_sm_counts`, and which lanes run as one wider convolution in
`merged_lanes`; a node whose lanes ask for nothing may lack all three.
`batch_sizes` says that there are several schedules, one for each batch size: `step_lanes` and
`algorithms` then hold one run of as many entries as there are steps for each, and the attributes of
lanes the lanes of each, one schedule behind another. `constant_inputs` are the positions in
`inputs` of filters that are Const nodes; the op may transform them once for all calls.
"""

from __future__ import annotations

import dataclasses

from google.protobuf.message import DecodeError
from tensorflow.core.framework import node_def_pb2, types_pb2

from tf_interop.errors import GraphError
from tf_interop.graph.convolution_ops import (
    CONVOLUTION_KINDS,
    FILTER_POSITIONS,
    FUSED_CONVOLUTIONS,
    SIZES_POSITIONS,
)
from tf_interop.plan.types import LaneOptions

CONV_STAGE_OP = "TfInterop>ConvStage"

_INPUTS = "inputs"
_SIZES = "sizes"
_ATTRIBUTES = ("Tin", "num_sizes", "Tout", "steps", "step_lanes", "algorithms")


@dataclasses.dataclass(frozen=True, slots=True)
class StageStep:
    """One convolution of a stage.

    Attributes:
        node_def: the convolution: name, op type and attributes of the original node; as inputs its
            operands in the order of the op, each `inputs:<i>` or `sizes:<i>`; no device.
        lane: the lane that runs it.
        algorithm: the algorithm pinned for it; empty leaves the choice to the runner.
    """

    node_def: node_def_pb2.NodeDef
    lane: int
    algorithm: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class StepSchedule:
    """How the steps of a stage run at one batch size.

    Attributes:
        lanes: the lane of each step, numbered in the order in which they come up.
        algorithms: the algorithm pinned for each step; empty leaves the choice to the runner.
        lane_options: what each lane asks of the device; empty where none asks for anything.
    """

    lanes: tuple[int, ...]
    algorithms: tuple[str, ...]
    lane_options: tuple[LaneOptions, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class StageNode:
    """What a ConvStage node says.

    Attributes:
        name: the node's name.
        inputs: the tensors on the device that its steps read, as inputs of a NodeDef.
        sizes: the vectors of sizes that its steps read, as inputs of a NodeDef.
        control_inputs: its control dependencies, `^name` each.
        input_dtypes: TensorFlow's number of the dtype of each of `inputs`.
        output_dtypes: the same of each step's result.
        steps: the convolutions, lane after lane where one schedule holds for every batch size; step
            `i` computes output `i`.
        lane_options: what each lane asks of the device; empty where none asks for anything.
        constant_inputs: positions in `inputs` of filters that no call changes, ascending.
        batch_sizes: that the stage has a schedule for, ascending; empty where the lanes and
            algorithms of `steps` hold for every batch size.
        later_schedules: those for `batch_sizes[1:]`; that for the first is in `steps` and
            `lane_options`.
    """

    name: str
    inputs: tuple[str, ...]
    sizes: tuple[str, ...]
    control_inputs: tuple[str, ...]
    input_dtypes: tuple[int, ...]
    output_dtypes: tuple[int, ...]
    steps: tuple[StageStep, ...]
    lane_options: tuple[LaneOptions, ...] = ()
    constant_inputs: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    later_schedules: tuple[StepSchedule, ...] = ()

    @property
    def schedules(self) -> tuple[StepSchedule, ...]:
        """The schedule for every batch size, or one for each of `batch_sizes`."""
        first = StepSchedule(
            tuple(step.lane for step in self.steps),
            tuple(step.algorithm for step in self.steps),
            self.lane_options,
        )
        return (first, *self.later_schedules)


def make_step_def(convolution: node_def_pb2.NodeDef, operands: list[str]) -> node_def_pb2.NodeDef:
    """Takes what a step keeps of the node it stands for.

    Args:
        convolution: the original node.
        operands: `inputs:<i>` or `sizes:<i>` for each of its data inputs.

    Returns:
        A new NodeDef without device, control dependencies, debug information and the attributes
        that are TensorFlow's notes about the original node (`_...`).
    """
    step_def = node_def_pb2.NodeDef()
    step_def.CopyFrom(convolution)
    step_def.ClearField("device")
    step_def.ClearField("experimental_debug_info")
    step_def.ClearField("experimental_type")
    del step_def.input[:]
    step_def.input.extend(operands)
    for attribute in [name for name in step_def.attr if name.startswith("_")]:
        del step_def.attr[attribute]
    return step_def


def input_operand(position: int) -> str:
    """The operand of a step that is the stage's input `position`."""
    return f"{_INPUTS}:{position}"


def sizes_operand(position: int) -> str:
    """The operand of a step that is the stage's vector of sizes `position`."""
    return f"{_SIZES}:{position}"


def encode_stage(stage: StageNode, node_def: node_def_pb2.NodeDef) -> None:
    """Writes `stage` into an empty `node_def`; the same stage always gives the same bytes."""
    node_def.name = stage.name
    node_def.op = CONV_STAGE_OP
    node_def.input.extend([*stage.inputs, *stage.sizes, *stage.control_inputs])
    attributes = node_def.attr
    attributes["Tin"].list.type.extend(stage.input_dtypes)
    attributes["num_sizes"].i = len(stage.sizes)
    attributes["constant_inputs"].list.i.extend(stage.constant_inputs)
    attributes["Tout"].list.type.extend(stage.output_dtypes)
    attributes["steps"].list.s.extend(
        [step.node_def.SerializeToString(deterministic=True) for step in stage.steps]
    )
    if stage.batch_sizes:
        attributes["batch_sizes"].list.i.extend(stage.batch_sizes)
    for schedule in stage.schedules:
        attributes["step_lanes"].list.i.extend(schedule.lanes)
        attributes["algorithms"].list.s.extend([each.encode() for each in schedule.algorithms])
    options = _encoded_lane_options(stage.schedules)
    if options:
        attributes["lane_priorities"].list.i.extend([each.priority for each in options])
        attributes["lane_sm_counts"].list.i.extend([each.sm_count for each in options])
    if any(each.merged for each in options):
        attributes["merged_lanes"].list.i.extend([int(each.merged) for each in options])


def decode_stage(node_def: node_def_pb2.NodeDef) -> StageNode:
    """Reads a ConvStage node.

    Args:
        node_def: the node.

    Returns:
        What it says.

    Raises:
        GraphError: it is not a ConvStage node, an attribute is missing, the lengths of its
            attributes or the number of its inputs do not agree, or a step is not a convolution on
            the stage's own inputs.
    """
    name = node_def.name
    if node_def.op != CONV_STAGE_OP:
        raise GraphError(f"Expected op {CONV_STAGE_OP}, got {node_def.op} at node '{name}'.")
    attributes = node_def.attr
    for attribute in _ATTRIBUTES:
        if attribute not in attributes:
            raise _malformed(name, f"an attribute '{attribute}'", "none")
    step_defs = list(attributes["steps"].list.s)
    input_dtypes = tuple(attributes["Tin"].list.type)
    output_dtypes = tuple(attributes["Tout"].list.type)
    if not step_defs or len(step_defs) != len(output_dtypes):
        raise _malformed(
            name, "as many of steps and Tout, one or more", (len(step_defs), len(output_dtypes))
        )
    batch_sizes = _batch_sizes(node_def)
    first, *later = _decode_schedules(node_def, len(step_defs), max(len(batch_sizes), 1))

    inputs = list(node_def.input)
    tensors = [text for text in inputs if not text.startswith("^")]
    sizes_count = attributes["num_sizes"].i
    if sizes_count < 0 or len(tensors) != len(input_dtypes) + sizes_count:
        raise _malformed(
            name, f"{len(input_dtypes)} inputs and {sizes_count} sizes", f"{len(tensors)} tensors"
        )
    stage = StageNode(
        name=name,
        inputs=tuple(tensors[: len(input_dtypes)]),
        sizes=tuple(tensors[len(input_dtypes) :]),
        control_inputs=tuple(inputs[len(tensors) :]),
        input_dtypes=input_dtypes,
        output_dtypes=output_dtypes,
        steps=tuple(
            StageStep(_parse_step(name, step_def), lane, algorithm)
            for step_def, lane, algorithm in zip(
                step_defs, first.lanes, first.algorithms, strict=True
            )
        ),
        lane_options=first.lane_options,
        constant_inputs=_constant_inputs(node_def),
        batch_sizes=batch_sizes,
        later_schedules=tuple(later),
    )
    _check_operands(stage)
    _check_constant_inputs(stage)
    return stage


def operand_positions(stage: StageNode) -> dict[str, int]:
    """All operands that a step of `stage` can have, with their places among its data inputs."""
    positions = {input_operand(i): i for i in range(len(stage.inputs))}
    first_sizes = len(stage.inputs)
    positions.update({sizes_operand(i): first_sizes + i for i in range(len(stage.sizes))})
    return positions


def _encoded_lane_options(schedules: tuple[StepSchedule, ...]) -> list[LaneOptions]:
    """Those of the lanes of all schedules, or none where no lane asks for anything."""
    if not any(schedule.lane_options for schedule in schedules):
        return []
    options: list[LaneOptions] = []
    for schedule in schedules:
        nothing = (LaneOptions(),) * (max(schedule.lanes) + 1)
        options.extend(schedule.lane_options or nothing)
    return options


def _decode_schedules(
    node_def: node_def_pb2.NodeDef, step_count: int, schedule_count: int
) -> list[StepSchedule]:
    lanes = list(node_def.attr["step_lanes"].list.i)
    algorithms = list(node_def.attr["algorithms"].list.s)
    lengths = (len(lanes), len(algorithms))
    if lengths != (schedule_count * step_count,) * 2:
        raise _malformed(
            node_def.name,
            f"step_lanes and algorithms for {step_count} steps in {schedule_count} schedules",
            lengths,
        )
    starts = range(0, len(lanes), step_count)
    step_lanes = [tuple(lanes[start : start + step_count]) for start in starts]
    for each in step_lanes:
        is_lane_after_lane = schedule_count > 1 or list(each) == sorted(each)
        if list(dict.fromkeys(each)) != list(range(len(set(each)))) or not is_lane_after_lane:
            raise _malformed(node_def.name, "step_lanes 0, 1, ... as they come up", list(each))
    lane_counts = [len(set(each)) for each in step_lanes]
    options = _decode_lane_options(node_def, sum(lane_counts))
    schedules = []
    for start, each, lane_count in zip(starts, step_lanes, lane_counts, strict=True):
        own, options = options[:lane_count], options[lane_count:]
        asks = any(option != LaneOptions() for option in own)
        schedules.append(
            StepSchedule(
                each,
                tuple(
                    algorithm.decode("utf-8", "replace")
                    for algorithm in algorithms[start : start + step_count]
                ),
                own if asks or schedule_count == 1 else (),
            )
        )
    return schedules


def _batch_sizes(node_def: node_def_pb2.NodeDef) -> tuple[int, ...]:
    # To read an attribute that is not there would add it to the node.
    if "batch_sizes" not in node_def.attr:
        return ()
    sizes = list(node_def.attr["batch_sizes"].list.i)
    if sizes != sorted(set(sizes)) or min(sizes, default=1) < 1:
        raise _malformed(node_def.name, "batch_sizes of at least 1, ascending", sizes)
    return tuple(sizes)


def _decode_lane_options(
    node_def: node_def_pb2.NodeDef, lane_count: int
) -> tuple[LaneOptions, ...]:
    lists: list[list[int]] = []
    for attribute in ("lane_priorities", "lane_sm_counts", "merged_lanes"):
        # To read an attribute that is not there would add it to the node.
        is_there = attribute in node_def.attr
        values = list(node_def.attr[attribute].list.i) if is_there else []
        if values and len(values) != lane_count:
            raise _malformed(
                node_def.name, f"{attribute} for none or all of {lane_count} lanes", values
            )
        lists.append(values)
    priorities, sm_counts, merged = lists
    if min(sm_counts, default=0) < 0:
        raise _malformed(node_def.name, "lane_sm_counts of at least 0", sm_counts)
    if not {0, 1}.issuperset(merged):
        raise _malformed(node_def.name, "merged_lanes of 0 or 1", merged)
    if not any(lists):
        return ()
    none = [0] * lane_count
    return tuple(map(LaneOptions, priorities or none, sm_counts or none, map(bool, merged or none)))


def _parse_step(stage_name: str, serialized: bytes) -> node_def_pb2.NodeDef:
    try:
        return node_def_pb2.NodeDef.FromString(serialized)
    except DecodeError as error:
        raise _malformed(stage_name, "steps that are serialized NodeDefs", error) from None


def _check_operands(stage: StageNode) -> None:
    """Checks that every step is a convolution, and that the stage has the inputs its steps read."""
    positions = operand_positions(stage)
    used: set[str] = set()
    names: set[str] = set()
    for step, output_dtype in zip(stage.steps, stage.output_dtypes, strict=True):
        step_def = step.node_def
        name, op = step_def.name, step_def.op
        if op not in CONVOLUTION_KINDS:
            raise _malformed(stage.name, "steps that are convolutions", f"'{name}' of op {op}")
        if name in names:
            raise _malformed(stage.name, "steps of different names", f"'{name}' twice")
        names.add(name)
        dtype = step_def.attr["T"].type if "T" in step_def.attr else types_pb2.DT_INVALID
        if dtype != output_dtype:
            raise _malformed(stage.name, f"Tout of {dtype} for step '{name}'", output_dtype)
        operands = list(step_def.input)
        if len(operands) != _operand_count(op):
            raise _malformed(
                stage.name, f"{_operand_count(op)} operands of {op} '{name}'", len(operands)
            )
        sizes_position = SIZES_POSITIONS.get(op)
        for position, operand in enumerate(operands):
            place = positions.get(operand)
            if place is None or (place >= len(stage.inputs)) != (position == sizes_position):
                raise _malformed(
                    stage.name,
                    f"operand {position} of {op} '{name}' among {len(stage.inputs)} inputs and "
                    f"{len(stage.sizes)} sizes",
                    f"'{operand}'",
                )
            if position != sizes_position and stage.input_dtypes[place] != dtype:
                raise _malformed(
                    stage.name, f"Tin of {dtype} for '{operand}'", stage.input_dtypes[place]
                )
        used.update(operands)
    if len(used) != len(positions):
        unused = sorted(positions.keys() - used)
        raise _malformed(stage.name, "every input to be an operand of a step", f"{unused} unused")


def _constant_inputs(node_def: node_def_pb2.NodeDef) -> tuple[int, ...]:
    # TensorFlow may strip attributes that have their default value. Reading a missing key of a
    # protobuf map would add it.
    if "constant_inputs" not in node_def.attr:
        return ()
    return tuple(node_def.attr["constant_inputs"].list.i)


def _check_constant_inputs(stage: StageNode) -> None:
    filters = {
        step.node_def.input[FILTER_POSITIONS[step.node_def.op]]
        for step in stage.steps
        if step.node_def.op in FILTER_POSITIONS
    }
    allowed = [i for i in range(len(stage.inputs)) if input_operand(i) in filters]
    constants = list(stage.constant_inputs)
    if constants != sorted(set(constants)) or not set(constants) <= set(allowed):
        raise _malformed(stage.name, f"ascending constant_inputs among {allowed}", constants)


def _operand_count(op: str) -> int:
    """How many inputs a convolution has; a fused one has the bias as its one argument."""
    return 3 if op in FUSED_CONVOLUTIONS or op in SIZES_POSITIONS else 2


def _malformed(name: str, expected: str, got: object) -> GraphError:
    return GraphError(f"Expected {expected}, got {got} at the ConvStage node '{name}'.")
