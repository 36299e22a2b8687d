"""Finds what a plan has for a graph, whatever the graph's nodes are called."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from absl import logging

from tf_interop.convolution import ConvolutionKind, ConvolutionNode, batch_size_of
from tf_interop.errors import PlanError
from tf_interop.planning.types import GraphMode, GraphPlan, Plan, PlannedStage
from tf_interop.stage import Schedule, Stage, Step
from tf_interop.structure import Landmark, Structure, describe_difference, likeness

OTHER_MODEL_REMEDY = "Plan this model, or use the plan with its own model."
"""The advice for a plan of another model."""

STAGES_NEED_GPUS = "stages run on GPUs only; tf-interop tune makes plans for this CPU"
"""Why a plan of stages changes nothing on a CPU."""


def stages_from_plan(
    plan: Plan,
    convolutions: Sequence[ConvolutionNode],
    structure: Structure,
    alone: Iterable[ConvolutionNode] = (),
) -> tuple[PlannedStage, ...]:
    """The plan's stages for a graph, with the graph's names.

    Each convolution of `alone` that is in none of them gets a stage of its own, with the algorithm
    that the plan expects for it if its batch size is planned.

    If there are entries for several batch sizes, it uses the first of these that exists:

    1. the entry for the graph's batch size;
    2. the entry without a batch size;
    3. the entry whose batch size is nearest by ratio, and the larger of two that are equally near.

    If the graph's batch size is unknown, as under Keras' `fit`, it uses the entry without a batch
    size, or else all entries; the stages then depend on the batch size of each call (see
    `stages_for_batch_sizes`).

    Predictions and alternatives do not apply to another batch size, so there `why` names the
    planned batch size instead.

    Raises:
        PlanError: the plan has no entry for this graph.
    """
    entries = entries_to_run(plan, convolutions, structure)
    batch_size = batch_size_of(node.configuration for node in convolutions)
    stages = _stages_of(entries, batch_size)
    staged = {name for stage in stages for name in stage.nodes}
    algorithms = {
        each.node: each.algorithm
        for entry in entries
        if entry.batch_size in (None, batch_size)
        for each in entry.unstaged
    }
    return stages + tuple(
        PlannedStage(Stage.in_sequence([Step(node.name, algorithms.get(node.name))]), "alone")
        for node in alone
        if node.name not in staged
    )


def _stages_of(entries: Sequence[GraphPlan], batch_size: int | None) -> tuple[PlannedStage, ...]:
    taken = entries[0]
    if taken.batch_size in (None, batch_size):
        return taken.stages
    if batch_size is None:
        return stages_for_batch_sizes(entries)
    logging.warning("%s", _as_for(taken, batch_size))
    why = f"from the plan for batch size {taken.batch_size}, the nearest to {batch_size}"
    return tuple(PlannedStage(each.stage, why, schedules=each.schedules) for each in taken.stages)


def entries_to_run(
    plan: Plan, convolutions: Sequence[ConvolutionNode], structure: Structure
) -> tuple[GraphPlan, ...]:
    """The plan's entry for a graph, or entries if the batch size is unknown; with its names.

    `stages_from_plan` has the rules.

    Raises:
        PlanError: there is none. The message compares the graph with the most similar entry.
    """
    entries = _exact_entries(plan, structure) or _partial_entries(plan, convolutions, structure)
    if not entries:
        raise PlanError(_why_not_for(plan, convolutions, structure))
    size = batch_size_of(node.configuration for node in convolutions)
    if size is None:
        return tuple(each for each in entries if each.batch_size is None) or entries
    return (min(entries, key=lambda graph: _distance(graph.batch_size, size)),)


def measured_entry(
    plan: Plan, convolutions: Sequence[ConvolutionNode], structure: Structure
) -> GraphPlan:
    """The entry of what was measured for a graph and its batch size, on a CPU.

    If the batch size is unknown, and there are entries for several, it has no times, and leaves the
    graph as it is only if all do.

    Raises:
        PlanError: there is none.
    """
    size = batch_size_of(node.configuration for node in convolutions)
    entries = [each for each in _exact_entries(plan, structure) if not each.stages]
    if not entries:
        raise PlanError(_why_not_for(plan, convolutions, structure))
    of_size = [each for each in entries if size is None or each.batch_size in (None, size)]
    if not of_size:
        known = ", ".join(sorted(str(each.batch_size) for each in entries))
        raise PlanError(f"The plan is for batch size {known}, and this graph has {size}.")
    if len(of_size) == 1:
        return of_size[0]
    taken = min(of_size, key=lambda each: each.as_stock)
    return dataclasses.replace(taken, batch_size=None, measured=None)


def check_plan_holds(
    plan: Plan, convolutions: Sequence[ConvolutionNode], structure: Structure
) -> str:
    """Refuses a plan for another model, after this model was traced.

    Returns:
        A note if the plan is for another batch size than the graph; else empty.

    Raises:
        PlanError: the plan has no entry for the graph.
    """
    batch_size = batch_size_of(node.configuration for node in convolutions)
    taken = entries_to_run(plan, convolutions, structure)[0]
    if not taken.stages or batch_size is None or taken.batch_size in (None, batch_size):
        return ""
    return _as_for(taken, batch_size)


def mode_of(convolutions: Sequence[ConvolutionNode]) -> GraphMode:
    """The mode of a graph: only training computes gradients of filters."""
    kinds = {node.configuration.kind for node in convolutions}
    return "training" if ConvolutionKind.BACKWARD_FILTER in kinds else "inference"


def stages_for_batch_sizes(entries: Sequence[GraphPlan]) -> tuple[PlannedStage, ...]:
    """The stages for a graph of unknown batch size, with a schedule for each planned batch size.

    The entry that saves the largest share of its time decides the stages; among equals, the one for
    the largest batch size. If the entry for another size lacks a stage, its convolutions run in
    sequence there, each with the entry's algorithm for it alone.
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


def _exact_entries(plan: Plan, structure: Structure) -> tuple[GraphPlan, ...]:
    """The entries for a graph, with its names."""
    entries = []
    for graph in plan.graphs:
        is_whole = len(graph.landmarks) == len(structure.landmarks)
        if graph.fingerprint == structure.fingerprint and is_whole:
            names = dict(zip(graph.structure.names, structure.names, strict=True))
            renamed = _renamed(graph, names)
            entries.append(dataclasses.replace(renamed, landmarks=structure.landmarks))
    return tuple(entries)


def _partial_entries(
    plan: Plan, convolutions: Sequence[ConvolutionNode], structure: Structure
) -> tuple[GraphPlan, ...]:
    """The entries of the most similar network, with those of its stages that the graph has too.

    At least half of its stages are of convolutions that compute the same from the inputs on, as in
    a network with another head.
    """
    mode = mode_of(convolutions)
    found: dict[str, list[GraphPlan]] = {}
    counts: dict[str, tuple[int, int]] = {}  # of stages here and in the plan, by fingerprint
    for graph in plan.graphs:
        if not graph.stages or graph.mode not in (None, mode):
            continue
        names = _common_names(graph.landmarks, structure.landmarks)
        stages = tuple(each for each in graph.stages if names.keys() >= set(each.nodes))
        if 2 * len(stages) < len(graph.stages):
            continue
        why = f"{len(names)} of the plan's {len(graph.landmarks)} convolutions are here"
        part = dataclasses.replace(
            graph,
            stages=tuple(dataclasses.replace(each, why=why) for each in stages),
            unstaged=tuple(each for each in graph.unstaged if each.node in names),
            prediction=None,
        )
        found.setdefault(graph.fingerprint, []).append(_renamed(part, names))
        counts.setdefault(graph.fingerprint, (len(stages), len(graph.stages)))
    if not found:
        return ()
    closest = max(found, key=lambda fingerprint: counts[fingerprint][0] / counts[fingerprint][1])
    why = _why_not_for(plan, convolutions, structure)
    logging.warning("%s Of its stages, %d of %d are used.", why, *counts[closest])
    return tuple(found[closest])


def _common_names(planned: Sequence[Landmark], here: Sequence[Landmark]) -> dict[str, str]:
    """The names here of the planned landmarks that compute the same from the inputs on."""
    names: dict[str, list[str]] = {}
    for each in reversed(here):
        names.setdefault(each.origin, []).append(each.name)
    return {each.name: names[each.origin].pop() for each in planned if names.get(each.origin)}


def _renamed(graph: GraphPlan, names: Mapping[str, str]) -> GraphPlan:
    """An entry with other names for its convolutions."""
    if all(name == here for name, here in names.items()):
        return graph
    return dataclasses.replace(
        graph,
        stages=tuple(each.map(lambda stage: stage.map(names.__getitem__)) for each in graph.stages),
        unstaged=tuple(dataclasses.replace(each, node=names[each.node]) for each in graph.unstaged),
    )


def _as_for(taken: GraphPlan, batch_size: int) -> str:
    return (
        f"The plan has no entry for batch size {batch_size}: its stages run as planned for "
        f"{taken.batch_size}. Plan with --batch {taken.batch_size},{batch_size} to have both."
    )


def _why_not_for(plan: Plan, convolutions: Sequence[ConvolutionNode], structure: Structure) -> str:
    """Compares a graph with the closest entry of a plan; adds the remedy."""
    the_plan = f"The plan{made_for(plan)}"
    if not plan.graphs:
        return f"{the_plan} contains no graph. Plan the model again."
    mode = mode_of(convolutions)
    if of_mode := [each for each in plan.graphs if each.mode in (None, mode)]:
        closest = max(of_mode, key=lambda each: likeness(each.landmarks, structure.landmarks))
        difference = describe_difference(closest.landmarks, structure.landmarks, "convolutions")
        return f"{the_plan} is for another network: {difference}. {OTHER_MODEL_REMEDY}"
    modes = " and ".join(sorted({each.mode for each in plan.graphs if each.mode}))
    argument, flag = {
        "training": ("training=True", "with --training"),
        "inference": ("training=False", "without --training"),
    }[mode]
    return (
        f"{the_plan} is for {modes}, but this graph is for {mode}. Tune or plan again with "
        f"{argument} (on the command line {flag}), or use the plan with its own model."
    )


def made_for(plan: Plan) -> str:
    """Names the plan's model, such as ` for 'ResNet50'`; empty if it is unknown."""
    model = plan.made_with.get("model")
    return f" for '{model}'" if model else ""
