"""Finds the stages of a plan for a graph, under the node names of its trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from absl import logging

from tf_interop.convolution import (
    ConvolutionKind,
    ConvolutionNode,
    batch_size_of,
    canonical_names,
    fingerprint_convolutions,
)
from tf_interop.errors import PlanError
from tf_interop.planning.types import GraphMode, GraphPlan, Plan, PlannedStage
from tf_interop.stage import Schedule, Stage, Step

OTHER_MODEL_REMEDY = (
    "Plan this model, or use the plan with its own model. If it is the plan's model, other "
    "models were built before it, so Keras numbered its layers differently: name the layers, "
    "or call keras.backend.clear_session() before you build it."
)
"""The advice for a plan of another model."""

STAGES_NEED_GPUS = "stages run on GPUs only; tf-interop tune makes plans for this CPU"
"""Why a plan of stages changes nothing on a CPU."""


def stages_from_plan(
    plan: Plan, convolutions: Sequence[ConvolutionNode]
) -> tuple[PlannedStage, ...]:
    """The plan's stages for a graph.

    If there are entries for several batch sizes, it uses the first of these that exists:

    1. the entry for the graph's batch size;
    2. the entry without a batch size;
    3. the entry whose batch size is nearest by ratio, and the larger of two that are equally near.

    If the graph's batch size is unknown, as under Keras' `fit`, it uses the entry without a batch
    size, or else all entries; the stages then depend on the batch size of each call (see
    `stages_for_batch_sizes`).

    Predictions and explanations do not apply to another batch size, so there `why` names the
    planned batch size instead.

    Raises:
        PlanError: the plan has no entry for this graph.
    """
    entries = [_with_names_of(each, convolutions) for each in entries_to_run(plan, convolutions)]
    taken = entries[0]
    batch_size = batch_size_of(node.configuration for node in convolutions)
    if taken.batch_size in (None, batch_size):
        return taken.stages
    if batch_size is None:
        return stages_for_batch_sizes(entries)
    logging.warning("%s", _as_for(taken, batch_size))
    why = f"from the plan for batch size {taken.batch_size}, the nearest to {batch_size}"
    return tuple(
        dataclasses.replace(stage, why=why, prediction=None, explanation=None)
        for stage in taken.stages
    )


def entries_to_run(plan: Plan, convolutions: Sequence[ConvolutionNode]) -> tuple[GraphPlan, ...]:
    """The plan's entry for a graph, or entries if the batch size is unknown.

    `stages_from_plan` has the rules.

    Raises:
        PlanError: there is none. The message compares the graph with the most similar entry.
    """
    fingerprint = fingerprint_convolutions(convolutions)
    entries = tuple(graph for graph in plan.graphs if graph.fingerprint == fingerprint)
    if not entries:
        _check_mode(plan, mode_of(convolutions))
        raise PlanError(_why_not_for(plan, convolutions))
    size = batch_size_of(node.configuration for node in convolutions)
    if size is None:
        return tuple(each for each in entries if each.batch_size is None) or entries
    return (min(entries, key=lambda graph: _distance(graph.batch_size, size)),)


def is_unfolded(plan: Plan, convolutions: Sequence[ConvolutionNode]) -> bool:
    """Whether a plan leaves a graph, as it is before folding, without folding.

    If the batch size is unknown, folding must lose at each planned one.
    """
    size = batch_size_of(node.configuration for node in convolutions)
    fingerprint = fingerprint_convolutions(convolutions)
    entries = [
        graph.unfolded
        for graph in plan.graphs
        if graph.fingerprint == fingerprint and (size is None or graph.batch_size in (None, size))
    ]
    return bool(entries) and all(entries)


def check_plan_holds(plan: Plan, convolutions: Sequence[ConvolutionNode]) -> str:
    """Refuses a plan for another model, after this model was traced.

    Returns:
        A note if the plan is for another batch size than the graph; else empty.

    Raises:
        PlanError: the plan has no entry for the graph, or was tuned at other batch sizes.
    """
    batch_size = batch_size_of(node.configuration for node in convolutions)
    taken = entries_to_run(plan, convolutions)[0]
    if batch_size is None:
        return ""
    if taken.measured is not None:
        check_batch_size([taken], batch_size)
    return "" if taken.batch_size in (None, batch_size) else _as_for(taken, batch_size)


def mode_of(convolutions: Sequence[ConvolutionNode]) -> GraphMode:
    """The mode of a graph: only training computes gradients of filters."""
    kinds = {node.configuration.kind for node in convolutions}
    return "training" if ConvolutionKind.BACKWARD_FILTER in kinds else "inference"


def check_batch_size(entries: Iterable[GraphPlan], batch_size: int) -> None:
    """Refuses a plan that was tuned at other batch sizes."""
    sizes = {each.batch_size for each in entries}
    if sizes.isdisjoint({None, batch_size}):
        known = ", ".join(map(str, sorted(size for size in sizes if size)))
        raise PlanError(
            f"The plan was tuned at batch size {known}, but the graph has {batch_size}. Tune "
            f"with batch_sizes=({batch_size},) (on the command line: --batch {batch_size})."
        )


def stages_for_batch_sizes(entries: Sequence[GraphPlan]) -> tuple[PlannedStage, ...]:
    """The stages for a graph of unknown batch size, with a schedule for each planned batch size.

    A convolution can be in only one stage. So the entry that saves the largest share of its time
    decides the stages; among equals, the entry for the largest batch size does. At another batch
    size, a stage runs as in the entry for that size. If that entry has no stage of the same
    convolutions, they run in sequence, each with the entry's algorithm for it alone.
    """
    by_size = {each.batch_size or 0: each for each in entries}
    sizes = sorted(by_size)
    taken = max(sizes, key=lambda size: (_saved_share(by_size[size]), size))
    why = f"from the plan for batch size {taken}"
    if len(sizes) > 1:
        why = f"from the plan for batch sizes {', '.join(map(str, sizes))}, grouped as for {taken}"

    def schedule(size: int, stage: PlannedStage) -> Schedule[str]:
        for own in by_size[size].stages:
            if set(own.nodes) == set(stage.nodes):
                return Schedule(size, own.stage)
        algorithms = {each.node: each.algorithm for each in by_size[size].unstaged}
        steps = (Step(node, algorithms.get(node)) for node in stage.nodes)
        return Schedule(size, Stage.in_sequence(steps))

    return tuple(
        PlannedStage(stage.stage, why, schedules=tuple(schedule(size, stage) for size in sizes))
        for stage in by_size[taken].stages
    )


def _saved_share(graph: GraphPlan) -> float:
    prediction = graph.prediction
    if prediction is None or not prediction.sequential_us:
        return 0.0
    return 1 - prediction.latency_us / prediction.sequential_us


def _distance(planned: int | None, batch_size: int) -> tuple[int, float, int]:
    """Ranks an entry by the distance of its batch size from a graph's; the least wins."""
    if planned is None:
        return 1, 0.0, 0
    ratio = max(planned, batch_size) / min(planned, batch_size)
    return (0 if planned == batch_size else 2), ratio, -planned


def _with_names_of(graph: GraphPlan, convolutions: Sequence[ConvolutionNode]) -> GraphPlan:
    """Renames an entry's nodes to those of this trace of the model."""
    found = {node.name for node in convolutions}
    if found.issuperset(graph.planned_nodes):
        return graph
    name_of = {canonical: name for name, canonical in canonical_names(found).items()}
    names = {
        node: name_of.get(canonical, node)
        for node, canonical in canonical_names(graph.planned_nodes).items()
    }
    return dataclasses.replace(
        graph,
        stages=tuple(each.map(lambda stage: stage.map(names.__getitem__)) for each in graph.stages),
        unstaged=tuple(dataclasses.replace(each, node=names[each.node]) for each in graph.unstaged),
    )


def _check_mode(plan: Plan, mode: GraphMode) -> None:
    modes = {each.mode for each in plan.graphs}
    if modes and modes.isdisjoint({None, mode}):
        argument, flag = {
            "training": ("training=True", "with --training"),
            "inference": ("training=False", "without --training"),
        }[mode]
        raise PlanError(
            f"This plan was made for {' and '.join(sorted(filter(None, modes)))}, but the graph is "
            f"for {mode}. Tune or plan again with {argument} (on the command line {flag})."
        )


def _as_for(taken: GraphPlan, batch_size: int) -> str:
    return (
        f"The plan has no entry for batch size {batch_size}: its stages run as planned for "
        f"{taken.batch_size}. Plan with --batch {taken.batch_size},{batch_size} to have both."
    )


def _why_not_for(plan: Plan, convolutions: Sequence[ConvolutionNode]) -> str:
    """Compares these convolutions with the closest graph of a plan; adds the remedy."""
    refused = f"The plan{made_for(plan)}"
    if not plan.graphs:
        return f"{refused} contains no graph. Plan the model again."
    found = set(canonical_names(node.name for node in convolutions).values())
    planned, closest = max(
        ((set(canonical_names(graph.planned_nodes).values()), graph) for graph in plan.graphs),
        key=lambda each: len(found & each[0]),
    )
    lacking = sorted(planned - found)
    # A plan of units names no convolutions.
    is_as_large = closest.convolution_count == len(convolutions)
    words = " with the same names but other attributes" if planned and is_as_large else ""
    if lacking:
        words = f", some not in this graph, such as {', '.join(map(repr, lacking[:3]))}"
    return (
        f"{refused} is for another model: it has {closest.convolution_count} convolutions{words}, "
        f"and this graph has {len(convolutions)}. {OTHER_MODEL_REMEDY}"
    )


def made_for(plan: Plan) -> str:
    """Names the plan's model, such as ` for 'ResNet50'`; empty if it is unknown."""
    model = plan.made_with.get("model")
    return f" for '{model}'" if model else ""
