"""Checks that stages are legal for a graph, without sharing code with the planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tf_interop.contraction import contract, misplaced_step
from tf_interop.convolution import ConvolutionNode
from tf_interop.errors import PlanError
from tf_interop.graph.independence import find_merge_keys
from tf_interop.graph.view import GraphView, join_names
from tf_interop.planning.types import PlannedStage
from tf_interop.profile.entries import check_algorithm
from tf_interop.stage import Stage


def check_stages(
    stages: Sequence[PlannedStage], view: GraphView, convolutions: Sequence[ConvolutionNode]
) -> None:
    """Checks that a graph may have these stages together.

    Raises:
        PlanError: a stage is invalid by itself; a node is not one of `convolutions` or is named
            twice; an algorithm is unknown for its kind of convolution; the nodes of a stage differ
            in device or region; those of a merged lane do not read one image or differ in more than
            their filters; a step depends on one that is not before it in its lane; or stages wait
            for each other.
        GraphError: the graph itself has a cycle.
    """
    node_of = {node.name: node for node in convolutions}
    merge_keys = find_merge_keys(view, convolutions)
    stage_of: dict[str, int] = {}
    for number, stage in enumerate(stages):
        try:
            stage.validate()
        except ValueError as error:
            raise PlanError(f"{error} of stage {number}. Correct the stage.") from error
        for name in stage.nodes:
            if name not in node_of:
                raise PlanError(
                    f"Stage {number} names '{name}', but this graph has no such convolution that "
                    "can be in a stage. Plan this graph again."
                )
            if name in stage_of:
                raise PlanError(
                    f"'{name}' is in stage {stage_of[name]} and in stage {number}. Remove it from "
                    "one of them."
                )
            stage_of[name] = number
        _check_together(number, [node_of[name] for name in stage.nodes])
        for way in stage.ways:
            _check_algorithms(number, way.stage, node_of)
            _check_merged_lanes(number, way.stage, merge_keys)
            _check_order(number, way.stage.map(lambda name: node_of[name].index), view)
    sets = [[node_of[name].index for name in stage.nodes] for stage in stages]
    cycle = contract(view.readers, sets).cycle
    if cycle:
        view.topological_order()  # Raises if the graph itself has the cycle.
        staged = set().union(*sets)
        names = [f"stage {number}" for number in range(len(stages))]
        names += [f"'{name}'" for node, name in enumerate(view.names) if node not in staged]
        raise PlanError(
            "Stages wait for each other in a cycle: "
            f"{join_names([names[unit] for unit in cycle])}. Remove a convolution from one of them."
        )


def _check_together(number: int, nodes: Sequence[ConvolutionNode]) -> None:
    """Checks for one device and one region; otherwise one node may run without another."""
    first = nodes[0]
    for node in nodes:
        for what, expected, got in (
            ("device", first.device, node.device),
            ("control-flow region", first.region, node.region),
        ):
            if expected != got:
                raise PlanError(
                    f"The members of stage {number} need one {what}, but '{first.name}' has "
                    f"'{expected}' and '{node.name}' has '{got}'. Split the stage."
                )


def _check_algorithms(
    number: int, stage: Stage[str], node_of: Mapping[str, ConvolutionNode]
) -> None:
    for step in stage.steps:
        if step.algorithm is None:
            continue
        try:
            check_algorithm(step.algorithm, node_of[step.operation].configuration.kind)
        except ValueError as error:
            raise PlanError(
                f"{error} for '{step.operation}' in stage {number}. Pin another algorithm."
            ) from error


def _check_merged_lanes(number: int, stage: Stage[str], merge_keys: Mapping[str, str]) -> None:
    for lane in stage.lanes:
        if lane.merged:
            keys = {merge_keys.get(name) for name in lane.operations}
            if len(keys) > 1 or None in keys:
                raise PlanError(
                    f"A merged lane of stage {number} needs forward convolutions of one image "
                    f"that differ only in their filters, got {', '.join(lane.operations)}. Do "
                    "not merge them."
                )


def _check_order(number: int, stage: Stage[int], view: GraphView) -> None:
    edge = misplaced_step(view.readers, stage)
    if edge is not None:
        source, reader = (view.names[node] for node in edge)
        raise PlanError(
            f"Stage {number} needs independent lanes, and steps in running order, but '{reader}' "
            f"depends on '{source}'. Put them into different stages."
        )
