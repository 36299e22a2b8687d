"""Makes the ConvStage node that takes the place of the convolutions of a planned stage.

A filter that is a Const on the stage's own device is marked in the stage as the same in every call.
One whose name must be preserved is not: a Session may feed another value in its place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tensorflow.core.framework import node_def_pb2

from tf_interop.convolution import ConvolutionNode
from tf_interop.graph.convolution_ops import FILTER_POSITIONS, SIZES_POSITIONS
from tf_interop.graph.stage_node import (
    StageNode,
    StageStep,
    StepSchedule,
    encode_stage,
    input_operand,
    make_step_def,
    sizes_operand,
)
from tf_interop.graph.view import GraphView
from tf_interop.plan.types import Lane, LaneOptions, PlannedStage

COLOCATION = "_class"
"""The attribute of a node that says what it is placed with."""

_COLOCATED_WITH = b"loc:@"


def make_stage_def(
    view: GraphView,
    stage_name: str,
    stage: PlannedStage,
    members: Sequence[ConvolutionNode],
    redirected: dict[str, str],
    preserved: Collection[str],
) -> node_def_pb2.NodeDef:
    """The ConvStage node that takes the place of some convolutions.

    Args:
        view: the graph.
        stage_name: the node's name.
        stage: what it runs.
        members: the convolutions, in the order of `stage.convolutions`.
        redirected: how a node that read an input of the old graph reads it in the new one.
        preserved: names that must live on, because they are fed or fetched.
    """
    inputs = _DistinctTensors()
    sizes = _DistinctTensors()
    input_dtypes: list[int] = []
    output_dtypes: list[int] = []
    controls: dict[str, None] = {}
    classes: set[bytes] = set()
    steps: list[StageStep] = []
    constants: set[int] = set()
    first, *later = _step_schedules(stage)
    for member, lane, algorithm in zip(members, first.lanes, first.algorithms, strict=True):
        node = view.nodes[member.index]
        fanins = view.fanins[member.index]
        texts = list(node.input)
        dtype = node.attr["T"].type
        output_dtypes.append(dtype)
        sizes_position = SIZES_POSITIONS.get(node.op)
        operands = []
        for position, tensor in enumerate(fanins):
            text = redirected.get(texts[position], texts[position])
            if position == sizes_position:
                operands.append(sizes_operand(sizes.add(tensor, text)))
            else:
                input_position = inputs.add(tensor, text)
                operands.append(input_operand(input_position))
                if position == FILTER_POSITIONS.get(node.op) and _is_constant(
                    view, tensor, member.device, preserved
                ):
                    constants.add(input_position)
                if len(inputs.texts) > len(input_dtypes):
                    input_dtypes.append(dtype)
        for text in texts[len(fanins) :]:
            controls[redirected.get(text, text)] = None
        if COLOCATION in node.attr:
            classes.update(node.attr[COLOCATION].list.s)
        steps.append(StageStep(make_step_def(node, operands), lane, algorithm))

    producers = {text.partition(":")[0] for text in inputs.texts + sizes.texts}
    stage_def = node_def_pb2.NodeDef()
    encode_stage(
        StageNode(
            name=stage_name,
            inputs=tuple(inputs.texts),
            sizes=tuple(sizes.texts),
            control_inputs=tuple(text for text in controls if text[1:] not in producers),
            input_dtypes=tuple(input_dtypes),
            output_dtypes=tuple(output_dtypes),
            steps=tuple(steps),
            lane_options=first.lane_options,
            constant_inputs=tuple(sorted(constants)),
            batch_sizes=tuple(schedule.batch_size for schedule in stage.schedules),
            later_schedules=tuple(later),
        ),
        stage_def,
    )
    stage_def.device = members[0].device
    stage_def.experimental_debug_info.original_node_names.extend(
        [member.name for member in members]
    )
    own = {stage_name, *(member.name for member in members)}
    colocations = sorted(
        entry
        for entry in redirect_classes(sorted(classes), redirected)
        if entry.removeprefix(_COLOCATED_WITH).decode("utf-8", "replace") not in own
    )
    if colocations:
        stage_def.attr[COLOCATION].list.s.extend(colocations)
    return stage_def


def redirect_classes(classes: Sequence[bytes], redirected: dict[str, str]) -> list[bytes]:
    """Rewrites `_class`; a stage comes up once, however many of its members did.

    Args:
        classes: the values of the attribute.
        redirected: as of `make_stage_def`.
    """
    targets = [
        redirected.get(f"^{entry.removeprefix(_COLOCATED_WITH).decode('utf-8', 'replace')}")
        if entry.startswith(_COLOCATED_WITH)
        else None
        for entry in classes
    ]
    if not any(targets):
        return list(classes)
    return list(
        dict.fromkeys(
            entry if target is None else _COLOCATED_WITH + target.removeprefix("^").encode()
            for entry, target in zip(classes, targets, strict=True)
        )
    )


class _DistinctTensors:
    """A list of inputs of a node that holds every tensor once.

    Attributes:
        texts: the inputs, as a NodeDef has them.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._positions: dict[tuple[int, int], int] = {}

    def add(self, tensor: tuple[int, int], text: str) -> int:
        """Returns the position of `tensor`, written `text`; appends it where it is new."""
        position = self._positions.setdefault(tensor, len(self.texts))
        if position == len(self.texts):
            self.texts.append(text)
        return position


def _step_schedules(stage: PlannedStage) -> list[StepSchedule]:
    """The schedule for every batch size, or one for each, of steps in the order of the stage."""
    if not stage.schedules:
        return [_step_schedule(stage, stage.lanes, stage.lane_options)]
    return [_step_schedule(stage, each.lanes, each.lane_options) for each in stage.schedules]


def _step_schedule(
    stage: PlannedStage, lanes: tuple[Lane, ...], lane_options: tuple[LaneOptions, ...]
) -> StepSchedule:
    """Numbers lanes in the order in which the stage's convolutions come to them."""
    placed = {pinned.node: (lane, pinned) for lane, held in enumerate(lanes) for pinned in held}
    steps = [placed[pinned.node] for pinned in stage.convolutions]
    number_of = {
        lane: number for number, lane in enumerate(dict.fromkeys(lane for lane, _ in steps))
    }
    return StepSchedule(
        lanes=tuple(number_of[lane] for lane, _ in steps),
        algorithms=tuple(pinned.algorithm or "" for _, pinned in steps),
        lane_options=tuple(lane_options[lane] for lane in number_of) if lane_options else (),
    )


def _is_constant(
    view: GraphView, tensor: tuple[int, int], device: str, preserved: Collection[str]
) -> bool:
    """Whether every call finds the same value in the same memory of `device` at `tensor`."""
    index, port = tensor
    return (
        view.ops[index] == "Const"
        and port == 0
        and view.nodes[index].device == device
        and view.names[index] not in preserved
    )
