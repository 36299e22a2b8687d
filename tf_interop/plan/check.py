"""Checks, without a word from those who made them, that stages are legal for a graph.

It takes nothing from the planner or from the ancestors that the planner works with: it plays the
graph through. A node runs once everything it reads has run, a stage once all its convolutions
could run:

    a --> x --> b      stage {a, b}: b waits for x, x for a, and a for the stage. Not legal.

    a --> d            stages {a, b} and {c, d}: the first waits for c, the second for a. Each
    c --> b            holds independent convolutions; the two together are not legal.

    a reads x          lane (a, b), merged: one wider convolution reads one image. Not legal, like
    b reads y          one of convolutions that differ in more than their filters.

If everything has run, contracting each stage to one node leaves no cycle, and so, too, the
convolutions of a stage are independent. The work is linear in nodes and edges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tf_interop.algorithm import check_algorithm
from tf_interop.convolution import (
    ConvolutionConfiguration,
    ConvolutionKind,
    ConvolutionNode,
)
from tf_interop.errors import PlanError
from tf_interop.graph.view import MERGE_OPS, NEXT_ITERATION_OPS, GraphView
from tf_interop.plan.types import BatchSchedule, PinnedConvolution, PlannedStage

_Edge = tuple[int, int]

_NO_STAGE = -1


def check_stages(
    stages: Sequence[PlannedStage], view: GraphView, convolutions: Sequence[ConvolutionNode]
) -> None:
    """Checks that stages may be built into a graph, all of them together.

    Args:
        stages: the stages; messages number them from 0.
        view: the graph.
        convolutions: its convolutions that may be part of a stage.

    Raises:
        PlanError: a stage has no lane, a lane no convolution, options are not those of its lanes,
            or a schedule is not of its convolutions; a node is not one of `convolutions` or is
            named twice; an algorithm is unknown for the kind of convolution; the nodes of a stage
            differ in device or region, or depend on each other; those of a merged lane are less
            than two, do not read one image, or differ in more than their filters; or stages wait
            for each other.
        GraphError: the graph itself has a cycle.
    """
    node_of = {node.name: node for node in convolutions}
    stage_at = [_NO_STAGE] * len(view)
    members: list[list[int]] = []
    for number, stage in enumerate(stages):
        nodes = _stage_nodes(number, stage, node_of)
        for node in nodes:
            if stage_at[node.index] != _NO_STAGE:
                raise PlanError(
                    f"Expected each convolution once, got '{node.name}' in stage "
                    f"{stage_at[node.index]} and in stage {number}. Take it out of one."
                )
            stage_at[node.index] = number
        members.append([node.index for node in nodes])
        _check_merged_lanes(number, stage, view, node_of)
        for schedule in stage.schedules:
            _check_merged_lanes(number, schedule, view, node_of)
    has_run = _play(view, stage_at, members)
    if not all(has_run):
        view.topological_order()  # Raises where the stages are not to blame.
        raise PlanError(_describe_cycle(view, stage_at, _find_cycle(view, stage_at, has_run)))


def _stage_nodes(
    number: int, stage: PlannedStage, node_of: dict[str, ConvolutionNode]
) -> list[ConvolutionNode]:
    """The nodes of a stage, once all that can be said of it alone has been checked."""
    if not stage.lanes:
        raise PlanError(f"Expected a lane in stage {number}, got none. Leave the stage out.")
    if not all(stage.lanes):
        raise PlanError(
            f"Expected a convolution in every lane of stage {number}, got none in lane "
            f"{stage.lanes.index(())}. Leave the lane out."
        )
    try:
        stage.check_lane_options()
    except ValueError as error:
        raise PlanError(f"{error} in stage {number}. Correct the options of its lanes.") from error
    try:
        stage.check_schedules()
    except ValueError as error:
        raise PlanError(f"{error} in stage {number}. Correct its schedules.") from error
    nodes: list[ConvolutionNode] = []
    for pinned in stage.convolutions:
        node = node_of.get(pinned.node)
        if node is None:
            raise PlanError(
                f"Expected the names of convolutions that can be part of a stage, got "
                f"'{pinned.node}' in stage {number}. Plan this graph anew."
            )
        _check_pin(number, pinned, node)
        nodes.append(node)
    for schedule in stage.schedules:
        for pinned in (pinned for lane in schedule.lanes for pinned in lane):
            _check_pin(number, pinned, node_of[pinned.node])
    first = nodes[0]
    for node in nodes[1:]:
        if node.device != first.device:
            raise PlanError(
                f"Expected one device in stage {number}, got '{first.device}' for '{first.name}' "
                f"and '{node.device}' for '{node.name}'. Split the stage."
            )
        if node.region != first.region:
            raise PlanError(
                f"Expected one control-flow region in stage {number}, got '{first.region}' for "
                f"'{first.name}' and '{node.region}' for '{node.name}': one may run where the "
                "other does not. Split the stage."
            )
    return nodes


def _check_merged_lanes(
    number: int,
    run: PlannedStage | BatchSchedule,
    view: GraphView,
    node_of: dict[str, ConvolutionNode],
) -> None:
    """Checks that each merged lane can be one convolution of one image."""
    for lane, options in zip(run.lanes, run.lane_options, strict=False):
        if not options.merged:
            continue
        if len(lane) < 2:
            raise PlanError(
                f"Expected two or more convolutions in a merged lane, got '{lane[0].node}' alone "
                f"in stage {number}. Do not merge it."
            )
        first, first_node = lane[0], node_of[lane[0].node]
        for pinned in lane:
            node = node_of[pinned.node]
            difference = _difference(view, first_node, node)
            if difference is None and pinned.algorithm != first.algorithm:
                difference = f"pin algorithms {first.algorithm} and {pinned.algorithm}"
            if difference is not None:
                raise PlanError(
                    f"Expected forward convolutions of one image that differ in their filters only "
                    f"in a merged lane of stage {number}, got '{first.node}' and '{pinned.node}', "
                    f"which {difference}. Do not merge them."
                )


def _difference(view: GraphView, a: ConvolutionNode, b: ConvolutionNode) -> str | None:
    """What keeps two convolutions from being one wider convolution, or None."""
    if view.fanins[a.index][:1] != view.fanins[b.index][:1]:
        return "read different images"
    for each in (a.configuration, b.configuration):
        if each.kind is not ConvolutionKind.FORWARD or each.depthwise or each.group_count != 1:
            return "are not both forward convolutions without groups"
    a_filter, b_filter = a.configuration.filter_shape, b.configuration.filter_shape
    # A filter is HWIO: all of it has to agree but the output channels.
    if a_filter is None or b_filter is None or a_filter[:-1] != b_filter[:-1]:
        return f"have filters of shape {a_filter} and {b_filter}"
    if _without_filter(a.configuration) != _without_filter(b.configuration):
        return "differ in more than their filters"
    return None


def _without_filter(configuration: ConvolutionConfiguration) -> ConvolutionConfiguration:
    """The configuration but for what follows from the filter's output channels."""
    return dataclasses.replace(configuration, filter_shape=None, output_shape=None)


def _check_pin(number: int, pinned: PinnedConvolution, node: ConvolutionNode) -> None:
    if pinned.algorithm is None:
        return
    try:
        check_algorithm(pinned.algorithm, node.configuration.kind)
    except ValueError as error:
        raise PlanError(f"{error} for '{node.name}' in stage {number}. Pin another.") from error


def _play(view: GraphView, stage_at: list[int], members: list[list[int]]) -> list[bool]:
    """Which nodes run, if each stage waits until all its members could."""
    fanouts = view.fanouts
    if not NEXT_ITERATION_OPS.isdisjoint(view.op_types):
        # What enters the next iteration does not hold up this one.
        fanouts = [
            [reader for reader in readers if view.ops[reader] not in MERGE_OPS]
            if view.ops[source] in NEXT_ITERATION_OPS
            else readers
            for source, readers in enumerate(fanouts)
        ]
    waits_for = [0] * len(view)
    for readers in fanouts:
        for reader in readers:
            waits_for[reader] += 1
    stage_waits_for = [len(each) for each in members]
    has_run = [False] * len(view)
    ready = [index for index, count in enumerate(waits_for) if not count]
    while ready:
        index = ready.pop()
        stage = stage_at[index]
        running = [index]
        if stage != _NO_STAGE:
            stage_waits_for[stage] -= 1
            if stage_waits_for[stage]:
                continue
            running = members[stage]
        for source in running:
            has_run[source] = True
            for reader in fanouts[source]:
                waits_for[reader] -= 1
                if not waits_for[reader]:
                    ready.append(reader)
    return has_run


def _find_cycle(view: GraphView, stage_at: list[int], has_run: list[bool]) -> list[_Edge]:
    """A cycle of the contracted graph, as the edges of the graph that it is made of.

    Each edge begins where the last one ended, or at another member of that stage.
    """
    stuck_members: dict[int, list[int]] = {}
    for index, stage in enumerate(stage_at):
        if stage != _NO_STAGE and not has_run[index]:
            stuck_members.setdefault(stage, []).append(index)
    edges_back: list[_Edge] = []
    visited: dict[int, int] = {}
    index = has_run.index(False)
    while True:
        stage = stage_at[index]
        # Members stand for their stage, which no node has the place of.
        unit = index if stage == _NO_STAGE else len(view) + stage
        if unit in visited:
            return edges_back[visited[unit] :][::-1]
        visited[unit] = len(edges_back)
        index, reader = next(
            (source, member)
            for member in ([index] if stage == _NO_STAGE else stuck_members[stage])
            for source in view.sources(member)
            if not has_run[source]
        )
        edges_back.append((index, reader))


def _describe_cycle(view: GraphView, stage_at: list[int], cycle: list[_Edge]) -> str:
    start = next(place for place, (source, _) in enumerate(cycle) if stage_at[source] != _NO_STAGE)
    paths: list[list[int]] = []
    for source, reader in cycle[start:] + cycle[:start]:
        if stage_at[source] != _NO_STAGE:
            paths.append([source])
        paths[-1].append(reader)
    if len(paths) == 1:
        (path,) = paths
        return (
            f"Expected independent convolutions in stage {stage_at[path[0]]}, got "
            f"'{view.names[path[-1]]}' that depends on '{view.names[path[0]]}': "
            f"{_join(view, path)}. Put them into different stages."
        )
    waits = "; ".join(
        f"stage {stage_at[path[-1]]} for stage {stage_at[path[0]]} ({_join(view, path)})"
        for path in paths
    )
    return (
        "Expected stages that can run one after another, got some that wait for each other: "
        f"{waits}. Split one of them."
    )


def _join(view: GraphView, path: list[int], at_most: int = 6) -> str:
    names = [f"'{view.names[index]}'" for index in path]
    if len(names) > at_most:
        half = at_most // 2
        names[half:-half] = [f"{len(names) - 2 * half} more"]
    return " -> ".join(names)
