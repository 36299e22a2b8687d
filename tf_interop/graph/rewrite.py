"""Replaces the steps of each stage by one ConvStage node.

    x --> a: Conv2D --> f             x --+--> stage: ConvStage --:0--> f
    x --> b: Conv2D --> g     ==>         |    lane 0: a        --:1--> g
    c --^ b                           c --^    lane 1: b

That the stages are legal is for the caller to know: `planning.check` says before, and `graph.check`
afterwards, whether they are.

Guaranteed: the graph that was given is not altered; nodes that do not depend on a step directly
keep their bytes, and so do the function library and the versions; a step whose name must be
preserved stays, as an Identity of the stage's output, and whoever read it goes on reading it, so
that it can still be fed; no dependency is lost; devices stay. Only what is read from outside of a
stage is an output of it. The rewritten graph holds fewer convolution nodes and nothing here looks
inside a ConvStage, so a second run finds nothing to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.graph.convolution_ops import FILTER_POSITIONS, SIZES_POSITIONS
from tf_interop.graph.program import (
    Schedule,
    StageNode,
    encode_stage,
    input_operand,
    make_operation,
    sizes_operand,
    step_operand,
)
from tf_interop.graph.redirect import (
    COLOCATED_WITH,
    COLOCATION,
    is_constant,
    redirect_classes,
    redirect_inputs,
)
from tf_interop.graph.view import GraphView

STAGE_NAME_PREFIX = "tf_interop/stage_"


@dataclasses.dataclass(frozen=True, slots=True)
class _NewStage:
    """A stage that takes the place of nodes.

    Attributes:
        name: of the node in the new graph.
        members: the nodes, in the order of the stage's operations.
        outputs: the places in `members` of those that are outputs of the stage.
        schedules: of nodes.
    """

    name: str
    members: tuple[int, ...]
    outputs: tuple[int, ...]
    schedules: tuple[Schedule[int], ...]

    def output(self, place: int) -> str:
        """The input of a NodeDef that reads the result of a member."""
        port = self.outputs.index(place)
        return f"{self.name}:{port}" if port else self.name


def rewrite_stages(
    view: GraphView,
    stages: Sequence[Sequence[Schedule[str]]],
    nodes_to_preserve: Collection[str],
) -> graph_pb2.GraphDef:
    """Replaces the steps of each stage by one ConvStage node.

    Args:
        view: the graph.
        stages: of names of its nodes; of each stage all schedules. Stage `k` becomes the node
            `tf_interop/stage_<k>`, with a number after it where that name is taken.
        nodes_to_preserve: names that must live on, because they are fed or fetched.

    Returns:
        The rewritten graph. The stage stands where the first of its steps that goes away stood, or
        at the end. The same arguments give the same graph.
    """
    preserved = frozenset(nodes_to_preserve)
    new_stages = [
        _new_stage(view, number, schedules, preserved) for number, schedules in enumerate(stages)
    ]
    redirected = _redirected(view, new_stages, preserved)
    members = {index for stage in new_stages for index in stage.members}
    graph_def = graph_pb2.GraphDef()
    graph_def.CopyFrom(view.graph_def)
    readers = {reader for index in members for reader in view.fanouts[index]} - members
    for index in readers:
        inputs = graph_def.node[index].input
        inputs[:] = redirect_inputs(inputs, redirected)
    for index, node in enumerate(view.nodes):
        if COLOCATION in node.attr and index not in members:
            classes = graph_def.node[index].attr[COLOCATION].list.s
            classes[:] = redirect_classes(classes, redirected)
    unused: list[int] = []
    for stage in new_stages:
        stage_def = _make_stage_def(view, stage, redirected, preserved)
        free = sorted(index for index in stage.members if view.names[index] not in preserved)
        if free:
            graph_def.node[free[0]].CopyFrom(stage_def)
            unused += free[1:]
        else:
            graph_def.node.append(stage_def)
        for place, index in enumerate(stage.members):
            if view.names[index] in preserved:
                identity = _make_identity(view.nodes[index], stage.output(place))
                graph_def.node[index].CopyFrom(identity)
    for index in sorted(unused, reverse=True):
        del graph_def.node[index]
    return graph_def


def _new_stage(
    view: GraphView,
    number: int,
    schedules: Sequence[Schedule[str]],
    preserved: Collection[str],
) -> _NewStage:
    members = tuple(view.index_of[name] for name in schedules[0].stage.operations)
    return _NewStage(
        name=_free_name(view, f"{STAGE_NAME_PREFIX}{number}"),
        members=members,
        outputs=_outputs(view, members, preserved),
        schedules=tuple(
            Schedule(each.batch_size, each.stage.map(view.index_of.__getitem__))
            for each in schedules
        ),
    )


def _outputs(
    view: GraphView, members: Sequence[int], preserved: Collection[str]
) -> tuple[int, ...]:
    """The places of members that are read from outside of their stage, or by nobody."""
    inside = set(members)

    def is_output(index: int) -> bool:
        readers = [
            reader
            for reader in view.fanouts[index]
            if any(source == index for source, _ in view.fanins[reader])
        ]
        return not readers or not inside.issuperset(readers) or view.names[index] in preserved

    return tuple(place for place, index in enumerate(members) if is_output(index))


def _redirected(
    view: GraphView, stages: Sequence[_NewStage], preserved: Collection[str]
) -> dict[str, str]:
    """How a node that read an input of the old graph reads it in the new one."""
    redirected: dict[str, str] = {}
    for stage in stages:
        for place, index in enumerate(stage.members):
            name = view.names[index]
            if name in preserved:
                continue
            redirected[f"^{name}"] = f"^{stage.name}"
            if place in stage.outputs:
                redirected[name] = redirected[f"{name}:0"] = stage.output(place)
    return redirected


def _make_stage_def(
    view: GraphView,
    stage: _NewStage,
    redirected: Mapping[str, str],
    preserved: Collection[str],
) -> node_def_pb2.NodeDef:
    place_of = {index: place for place, index in enumerate(stage.members)}
    # Of each distinct tensor its position among the inputs or the sizes, how it is read, its dtype.
    inputs: dict[tuple[int, int], tuple[int, str, int]] = {}
    sizes: dict[tuple[int, int], tuple[int, str]] = {}
    controls: dict[str, None] = {}
    classes: set[bytes] = set()
    constants: set[int] = set()
    operations = []
    for index in stage.members:
        node = view.nodes[index]
        texts = [redirected.get(text, text) for text in node.input]
        tensors = view.fanins[index]
        operands = []
        for position, (tensor, text) in enumerate(zip(tensors, texts, strict=False)):
            if tensor[0] in place_of:
                operands.append(step_operand(place_of[tensor[0]]))
            elif position == SIZES_POSITIONS.get(node.op):
                operands.append(sizes_operand(sizes.setdefault(tensor, (len(sizes), text))[0]))
            else:
                place, _, _ = inputs.setdefault(tensor, (len(inputs), text, node.attr["T"].type))
                operands.append(input_operand(place))
                if position == FILTER_POSITIONS.get(node.op) and is_constant(
                    view, tensor, node.device, preserved
                ):
                    constants.add(place)
        operations.append(make_operation(node, operands))
        for source, text in zip(view.control_fanins[index], texts[len(tensors) :], strict=True):
            if source not in place_of:
                controls[text] = None
        if COLOCATION in node.attr:
            classes.update(node.attr[COLOCATION].list.s)

    read = [text for _, text, _ in inputs.values()], [text for _, text in sizes.values()]
    producers = {text.partition(":")[0] for texts in read for text in texts}
    stage_def = encode_stage(
        StageNode(
            name=stage.name,
            inputs=tuple(read[0]),
            sizes=tuple(read[1]),
            control_inputs=tuple(text for text in controls if text[1:] not in producers),
            input_dtypes=tuple(dtype for _, _, dtype in inputs.values()),
            operations=tuple(operations),
            outputs=stage.outputs,
            schedules=tuple(
                Schedule(each.batch_size, each.stage.map(place_of.__getitem__))
                for each in stage.schedules
            ),
            constant_inputs=tuple(sorted(constants)),
        )
    )
    names = [view.names[index] for index in stage.members]
    stage_def.device = view.nodes[stage.members[0]].device
    stage_def.experimental_debug_info.original_node_names.extend(names)
    own = {COLOCATED_WITH + name.encode() for name in (stage.name, *names)}
    colocations = sorted(set(redirect_classes(sorted(classes), redirected)) - own)
    if colocations:
        stage_def.attr[COLOCATION].list.s.extend(colocations)
    return stage_def


def _free_name(view: GraphView, base: str) -> str:
    name, suffix = base, 0
    while name in view.index_of:
        suffix += 1
        name = f"{base}_{suffix}"
    return name


def _make_identity(step: node_def_pb2.NodeDef, output: str) -> node_def_pb2.NodeDef:
    identity = node_def_pb2.NodeDef(
        name=step.name, op="Identity", input=[output], device=step.device
    )
    identity.attr["T"].type = step.attr["T"].type
    return identity
