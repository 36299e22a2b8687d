"""Replaces the steps of each stage by one ConvStage node.

    x --> a: Conv2D --> f             x --+--> stage: ConvStage --:0--> f
    x --> b: Conv2D --> g     ==>         |    lane 0: a        --:1--> g
    c --^ b                           c --^    lane 1: b

That the stages are legal is for the caller to know: `planning.check` says before, and `graph.check`
afterwards, whether they are. What is guaranteed beside is in `graph.replace`. Only what is read
from outside of a stage is an output of it. The rewritten graph holds fewer convolution nodes and
nothing here looks inside a ConvStage, so a second run finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from tf_interop.graph.ops import FILTER_POSITIONS, HELD_FILTER_OPS
from tf_interop.graph.program import (
    StageNode,
    encode_stage,
    input_operand,
    sizes_operand,
    step_operand,
)
from tf_interop.graph.replace import NewNode, Replacement
from tf_interop.graph.view import GraphView
from tf_interop.stage import Schedule

STAGE_NAME_PREFIX = "tf_interop/stage_"


def rewrite_stages(
    view: GraphView,
    stages: Sequence[Sequence[Schedule[str]]],
    nodes_to_preserve: Collection[str],
) -> graph_pb2.GraphDef:
    """Replaces the steps of each stage, of which all schedules are given, by one ConvStage node.

    Stage `k` becomes the node `tf_interop/stage_<k>`, with a number after it where that name is
    taken. `nodes_to_preserve` are names that must live on, because they are fed or fetched. The
    same arguments give the same graph.
    """
    new_nodes = []
    for number, schedules in enumerate(stages):
        members = tuple(view.index_of[name] for name in schedules[0].stage.operations)
        name = _free_name(view, f"{STAGE_NAME_PREFIX}{number}")
        new_nodes.append(NewNode(name, members, _results(view, members, nodes_to_preserve)))
    replacement = Replacement(view, new_nodes, nodes_to_preserve)
    return replacement.graph(
        [
            _make_stage_def(view, replacement, new, schedules)
            for new, schedules in zip(new_nodes, stages, strict=True)
        ]
    )


def _results(
    view: GraphView, members: Sequence[int], preserved: Collection[str]
) -> tuple[tuple[int, int], ...]:
    """The results of members that are read from outside of their stage, or by nobody."""
    inside = set(members)

    def is_output(index: int) -> bool:
        readers = [
            reader
            for reader in view.fanouts[index]
            if any(source == index for source, _ in view.fanins[reader])
        ]
        return not readers or not inside.issuperset(readers) or view.names[index] in preserved

    return tuple((index, 0) for index in members if is_output(index))


def _make_stage_def(
    view: GraphView, replacement: Replacement, new: NewNode, schedules: Sequence[Schedule[str]]
) -> node_def_pb2.NodeDef:
    place_of = {index: place for place, index in enumerate(new.members)}
    read = replacement.inputs(new)
    # Of what convolutions read, vectors of sizes alone are whole numbers.
    sizes = [tensor for tensor, (_, dtype) in read.items() if dtype == types_pb2.DT_INT32]
    inputs = [tensor for tensor in read if tensor not in sizes]
    position_of = {tensor: position for position, tensor in enumerate(inputs)}
    operands = {tensor: input_operand(position) for tensor, position in position_of.items()}
    operands |= {tensor: sizes_operand(position) for position, tensor in enumerate(sizes)}
    operands |= {(index, 0): step_operand(place) for index, place in place_of.items()}
    return encode_stage(
        StageNode(
            name=new.name,
            inputs=tuple(read[tensor][0] for tensor in inputs),
            sizes=tuple(read[tensor][0] for tensor in sizes),
            control_inputs=replacement.control_inputs(new, [text for text, _ in read.values()]),
            input_dtypes=tuple(read[tensor][1] for tensor in inputs),
            operations=replacement.steps(new, operands.__getitem__),
            outputs=tuple(place_of[index] for index, _ in new.results),
            schedules=tuple(
                Schedule(
                    each.batch_size, each.stage.map(lambda name: place_of[view.index_of[name]])
                )
                for each in schedules
            ),
            held_inputs=replacement.filters_from(
                HELD_FILTER_OPS, new, position_of, FILTER_POSITIONS
            ),
        )
    )


def _free_name(view: GraphView, base: str) -> str:
    name, suffix = base, 0
    while name in view.index_of:
        suffix += 1
        name = f"{base}_{suffix}"
    return name
