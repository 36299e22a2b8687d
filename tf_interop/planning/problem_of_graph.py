"""Turns a graph and a profile into a planning problem."""

from __future__ import annotations

from collections.abc import Sequence

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionNode, batch_size_of
from tf_interop.graph.independence import Independence, find_follows, find_merge_keys
from tf_interop.graph.landmarks import find_structure
from tf_interop.graph.view import GraphView
from tf_interop.planning.problem import Algorithms, PlanningProblem, ProblemNode
from tf_interop.planning.sm_model import Device
from tf_interop.planning.stage_search import bits_of, mask_of
from tf_interop.profile.types import Profile, is_measured_as_it_runs
from tf_interop.stage import Stage


def make_planning_problem(
    view: GraphView,
    convolutions: Sequence[ConvolutionNode],
    independence: Independence,
    profile: Profile,
    *,
    allow_tf32: bool = True,
    deterministic: bool = False,
    memory_budget_bytes: int | None = None,
) -> PlanningProblem:
    """Makes the planning problem of a graph.

    A convolution that the profile has no algorithm for cannot be planned and becomes no node.
    Dependencies through it stay.

    Raises:
        GraphError: the graph has a cycle.
    """
    if deterministic:
        profile = profile.deterministic_part
    first_names = {node.configuration: node.name for node in reversed(convolutions)}
    algorithms = {
        each: found
        # The order breaks ties.
        for each in sorted(first_names, key=first_names.__getitem__)
        if (found := profile.find_algorithms(each, allow_tf32=allow_tf32))
    }
    device, limits = profile.device, profile.device.sm_limits
    return PlanningProblem(
        nodes=_nodes(view, convolutions, independence, algorithms),
        algorithms=algorithms,
        structure=find_structure(view, convolutions),
        stages=tuple(
            each
            for each in profile.stages
            if is_measured_as_it_runs(each, device, allow_tf32=allow_tf32)
            and _can_plan(each.stage, algorithms)
        ),
        memory_budget_bytes=memory_budget_bytes,
        # A CPU's device counts cores, which are not SMs.
        device=None if limits is None else Device(limits, device.sm_count),
        batch_size=batch_size_of([node.configuration for node in convolutions]),
    )


def _can_plan(stage: Stage[ConvolutionConfiguration], algorithms: Algorithms) -> bool:
    """Whether the planner can make such a stage."""
    if len(stage.lanes) == 1 and not stage.is_merged:
        return False
    return all(
        # A merged lane runs with an algorithm of the wider convolution.
        any(
            lane.merged or each.algorithm == step.algorithm
            for each in algorithms.get(step.operation, ())
        )
        for lane in stage.lanes
        for step in lane.steps
    )


def _nodes(
    view: GraphView,
    convolutions: Sequence[ConvolutionNode],
    independence: Independence,
    algorithms: Algorithms,
) -> tuple[ProblemNode, ...]:
    place = {index: number for number, index in enumerate(view.topological_order())}
    planned = sorted(
        (
            position
            for position, node in enumerate(convolutions)
            if node.configuration in algorithms
        ),
        key=lambda position: place[convolutions[position].index],
    )
    chosen = [convolutions[position] for position in planned]
    names = [node.name for node in chosen]
    merge_keys = find_merge_keys(view, chosen)
    follows = find_follows(view, convolutions)
    indirect = _read_indirectly(view, [node.index for node in chosen])
    ancestors: list[int] = []
    nodes = []
    for number, nearest in enumerate(independence.direct_predecessors(planned)):
        node = chosen[number]
        ancestors.append(mask_of(nearest))
        for each in nearest:
            ancestors[number] |= ancestors[each]
        read = [each for each in nearest if names[each] in follows.get(node.name, ())]
        # It may not follow a lane with a node that it also waits for through other operations.
        barred = 0
        for each in read:
            barred |= ancestors[each] & indirect[number]
        nodes.append(
            ProblemNode(
                name=node.name,
                configuration=node.configuration,
                predecessors=(*bits_of(barred), *nearest),
                follows=tuple(read),
                group=f"{node.device}\n{node.region}",
                merge_key=merge_keys.get(node.name),
            )
        )
    return tuple(nodes)


def _read_indirectly(view: GraphView, indices: Sequence[int]) -> list[int]:
    """The nodes of `indices` that each one reads through other nodes, as bits."""
    place_of = {index: place for place, index in enumerate(indices)}
    reaching = [0] * len(view)
    for index in view.topological_order():
        for source in view.sources(index):
            place = place_of.get(source)
            if place is None:
                reaching[index] |= reaching[source]
            elif index not in place_of:
                reaching[index] |= 1 << place
    return [reaching[index] for index in indices]
