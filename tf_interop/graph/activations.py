"""Puts the activations of a stage's convolutions into their lanes, on a CPU.

    x --> a: Conv2D --> r: Relu -->          stage, lane 0: a, r -->
    x --> b: Conv2D -->             ==>             lane 1: b    -->

An activation is taken along where it reads nothing but the convolution, waits for nothing else, is
on the same CPU, and neither of the two need be preserved: a Session may feed another value in the
place of the convolution, which the activation then has to read. Whatever waits for it waits for the
convolution anyway, so what was legal for the stages stays legal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from tf_interop.graph.convolution_ops import ACTIVATION_OPS, SUPPORTED_DTYPES
from tf_interop.graph.device_names import device_type_of
from tf_interop.graph.program import Schedule
from tf_interop.graph.view import GraphView
from tf_interop.stage import Stage, Step


def add_activations(
    view: GraphView,
    schedules: Sequence[Schedule[str]],
    nodes_to_preserve: Collection[str],
) -> tuple[Schedule[str], ...]:
    """The schedules of a stage, with the activations of its convolutions.

    Args:
        view: the graph.
        schedules: of one stage, of names of its convolutions. Those of a lane that one of them
            merges stay as they are.
        nodes_to_preserve: names that must live on, because they are fed or fetched.
    """
    merged = {
        name
        for schedule in schedules
        for lane in schedule.stage.lanes
        if lane.merged
        for name in lane.operations
    }
    activations = {
        name: tuple(
            view.names[reader]
            for reader in view.fanouts[view.index_of[name]]
            if view.names[reader] not in nodes_to_preserve
            and _can_follow(view, view.index_of[name], reader)
        )
        for name in schedules[0].stage.operations
        if name not in merged and name not in nodes_to_preserve
    }
    return tuple(
        dataclasses.replace(schedule, stage=_with_followers(schedule.stage, activations))
        for schedule in schedules
    )


def _can_follow(view: GraphView, convolution: int, reader: int) -> bool:
    node, before = view.nodes[reader], view.nodes[convolution]
    return (
        node.op in ACTIVATION_OPS
        and view.fanins[reader] == ((convolution, 0),)
        and not view.control_fanins[reader]
        and device_type_of(node.device) == "CPU"
        and node.device == before.device
        and "T" in node.attr  # to read it where it is not there would add it to the graph
        and node.attr["T"].type == before.attr["T"].type
        and node.attr["T"].type in SUPPORTED_DTYPES
        and not any(key.lower().startswith("_xla") for key in node.attr)
    )


def _with_followers(stage: Stage[str], followers: Mapping[str, Sequence[str]]) -> Stage[str]:
    """The stage with some steps right after others of their lane."""
    return Stage(
        tuple(
            dataclasses.replace(
                lane,
                steps=tuple(
                    each
                    for step in lane.steps
                    for each in (step, *map(Step, followers.get(step.operation, ())))
                ),
            )
            for lane in stage.lanes
        )
    )
