"""The stages that a plan holds for a graph, whatever its trace calls the nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from tf_interop.convolution import ConvolutionNode, batch_size_of
from tf_interop.errors import PlanError
from tf_interop.graph.fingerprint import canonical_names, fingerprint_convolutions
from tf_interop.planning.batch_schedules import stages_for_batch_sizes
from tf_interop.planning.types import Alternative, BatchSchedule, GraphPlan, Plan, PlannedStage

_HasStage = TypeVar("_HasStage", Alternative, BatchSchedule, PlannedStage)


def stages_from_plan(
    plan: Plan, convolutions: Sequence[ConvolutionNode]
) -> tuple[PlannedStage, ...]:
    """The stages that a plan holds for a graph.

    Of entries for several batch sizes it takes, in this order:

    1. that of the graph's batch size;
    2. one that is for no batch size in particular;
    3. the nearest by ratio, of two that are equally near the larger;
    4. all of them, where the graph's batch size is not known, as under Keras' `fit`: the stages
       then pick by the batch size of each call (see batch_schedules).

    What was expected of a stage is not expected of it at another batch size: there it comes without
    prediction and explanation, and `why` says what it was planned for.

    Args:
        plan: a plan, possibly of several graphs.
        convolutions: the convolutions of the graph.

    Raises:
        PlanError: the plan holds nothing for this graph. It compares the graph with the entry
            that shares the most nodes.
    """
    entries = find_entries(plan, convolutions)
    batch_size = batch_size_of(node.configuration for node in convolutions)
    if batch_size is None:
        of_every_size = next((graph for graph in entries if graph.batch_size is None), None)
        if of_every_size is not None:
            return _with_names_of(of_every_size, convolutions).stages
        return stages_for_batch_sizes([_with_names_of(graph, convolutions) for graph in entries])
    taken = nearest_entry(entries, batch_size)
    stages = _with_names_of(taken, convolutions).stages
    if taken.batch_size in (None, batch_size):
        return stages
    return tuple(_for_other_batch_size(stage, taken.batch_size, batch_size) for stage in stages)


def find_entries(plan: Plan, convolutions: Sequence[ConvolutionNode]) -> tuple[GraphPlan, ...]:
    """What a plan holds for a graph: one entry, or one for each of several batch sizes.

    Args:
        plan: a plan, possibly of several graphs.
        convolutions: the convolutions of the graph.

    Raises:
        PlanError: the plan holds nothing for this graph. It compares the graph with the entry
            that shares the most nodes.
    """
    fingerprint = fingerprint_convolutions(convolutions)
    entries = tuple(graph for graph in plan.graphs if graph.fingerprint == fingerprint)
    if not entries:
        raise PlanError(
            f"Expected a plan for this graph (fingerprint {fingerprint}), got one "
            f"{_describe_difference(plan, convolutions)}. Plan this graph anew, or use the plan "
            "with the model it was made for."
        )
    return entries


def nearest_entry(entries: Iterable[GraphPlan], batch_size: int) -> GraphPlan:
    """Of entries for one graph that which goes for a batch size, as in `stages_from_plan`."""
    return min(entries, key=lambda graph: _distance(graph.batch_size, batch_size))


def _distance(planned: int | None, batch_size: int) -> tuple[int, float, int]:
    """How far an entry's batch size is from a graph's; the least is taken."""
    if planned is None:
        return 1, 0.0, 0
    ratio = max(planned, batch_size) / min(planned, batch_size)
    return (0 if planned == batch_size else 2), ratio, -planned


def _for_other_batch_size(
    stage: PlannedStage, planned: int | None, batch_size: int
) -> PlannedStage:
    why = f"of the plan for batch size {planned}, the nearest to {batch_size}"
    return dataclasses.replace(stage, why=why, prediction=None, explanation=None)


def _with_names_of(graph: GraphPlan, convolutions: Sequence[ConvolutionNode]) -> GraphPlan:
    """The entry with each node named as in this trace of the model."""
    found = {node.name for node in convolutions}
    planned = _planned_names(graph)
    if found.issuperset(planned):
        return graph
    name_of = {canonical: name for name, canonical in canonical_names(found).items()}
    names = {
        node: name_of.get(canonical, node)
        for node, canonical in canonical_names(sorted(planned)).items()
    }
    return dataclasses.replace(
        graph,
        stages=tuple(_renamed(stage, names) for stage in graph.stages),
        unstaged=tuple(dataclasses.replace(each, node=names[each.node]) for each in graph.unstaged),
    )


def _renamed(stage: PlannedStage, names: Mapping[str, str]) -> PlannedStage:
    def renamed(value: _HasStage) -> _HasStage:
        return dataclasses.replace(value, stage=value.stage.map(names.__getitem__))

    explanation = stage.explanation
    if explanation is not None:
        alternatives = tuple(map(renamed, explanation.alternatives))
        explanation = dataclasses.replace(explanation, alternatives=alternatives)
    schedules = tuple(map(renamed, stage.schedules))
    return dataclasses.replace(renamed(stage), explanation=explanation, schedules=schedules)


def _describe_difference(plan: Plan, convolutions: Sequence[ConvolutionNode]) -> str:
    """How the closest graph of a plan differs from these convolutions."""
    if not plan.graphs:
        return "that holds no graph"
    found = set(canonical_names(node.name for node in convolutions).values())
    planned_by = [
        (set(canonical_names(sorted(_planned_names(graph))).values()), graph)
        for graph in plan.graphs
    ]
    planned, closest = max(planned_by, key=lambda each: len(found & each[0]))
    difference = (
        f"whose closest entry (fingerprint {closest.fingerprint}) is for "
        f"{closest.convolution_count} convolutions where this graph has {len(convolutions)}; "
        f"the graph has {len(planned & found)} of the {len(planned)} names that the plan has"
    )
    if planned - found:
        return f"{difference}, and lacks {_some(sorted(planned - found))}"
    if planned and closest.convolution_count == len(convolutions):
        difference += (
            ", so an op type, dtype, layout, filter shape, stride, dilation, padding or fused "
            "operation differs"
        )
    return difference


def _planned_names(graph: GraphPlan) -> set[str]:
    in_stages = {node for stage in graph.stages for node in stage.nodes}
    return in_stages | {each.node for each in graph.unstaged}


def _some(names: Sequence[str], at_most: int = 3) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:at_most])
    return f"{shown} and {len(names) - at_most} more" if len(names) > at_most else shown
