"""Turns a graph and a profile into a planning problem."""

from __future__ import annotations

from collections.abc import Sequence

from tf_interop.convolution import (
    ConvolutionConfiguration,
    ConvolutionNode,
    batch_size_of,
    output_bytes,
)
from tf_interop.graph.independence import Independence, find_follows, find_merge_keys
from tf_interop.graph.landmarks import find_structure
from tf_interop.graph.view import GraphView
from tf_interop.planning.problem import (
    Candidate,
    ConvolutionCosts,
    MeasuredStage,
    PlanningProblem,
    ProblemNode,
)
from tf_interop.planning.sm_model import Device
from tf_interop.planning.stage_search import bits_of, mask_of
from tf_interop.profile.entries import StageMeasurement
from tf_interop.profile.types import Profile, is_measured_as_it_runs

_Costs = dict[ConvolutionConfiguration, ConvolutionCosts]


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
    costs = _costs_of(convolutions, profile, allow_tf32)
    device, limits = profile.device, profile.device.sm_limits
    return PlanningProblem(
        costs=tuple(costs.values()),
        nodes=_nodes(view, convolutions, independence, costs),
        stages=tuple(
            stage
            for measured in profile.stages
            if is_measured_as_it_runs(measured, device, allow_tf32=allow_tf32)
            and (stage := _measured_stage(measured, costs))
        ),
        memory_budget_bytes=memory_budget_bytes,
        # A CPU's device counts cores, which are not SMs.
        device=None if limits is None else Device(limits, device.sm_count),
        structure=find_structure(view, convolutions),
        batch_size=batch_size_of([node.configuration for node in convolutions]),
    )


def _costs_of(
    convolutions: Sequence[ConvolutionNode], profile: Profile, allow_tf32: bool
) -> _Costs:
    """The costs of measured configurations, each named after its first node."""
    costs: _Costs = {}
    for node in convolutions:
        configuration = node.configuration
        measured = profile.find_algorithms(configuration, allow_tf32=allow_tf32)
        if measured and configuration not in costs:
            candidates = tuple(
                Candidate(
                    each.algorithm,
                    each.latency_us,
                    each.workspace_bytes,
                    each.spread_us,
                    each.kernels,
                )
                for each in measured
            )
            size = output_bytes(configuration)
            costs[configuration] = ConvolutionCosts(node.name, size, candidates)
    return costs


def _measured_stage(measured: StageMeasurement, costs: _Costs) -> MeasuredStage | None:
    """A measured stage; None if the planner cannot make such a stage."""
    lanes = measured.stage.lanes
    if len(lanes) == 1 and not lanes[0].merged:
        return None
    for lane in lanes:
        for step in lane.steps:
            if step.operation not in costs:
                return None
            # A merged lane runs with an algorithm of the wider convolution.
            if not lane.merged and costs[step.operation].candidate(step.algorithm) is None:
                return None
    return MeasuredStage(
        stage=measured.stage.map(lambda configuration: costs[configuration].name),
        latency_us=measured.latency_us,
        sequential_us=measured.sequential_us,
        spread_us=measured.spread_us,
        workspace_bytes=measured.workspace_bytes,
    )


def _nodes(
    view: GraphView,
    convolutions: Sequence[ConvolutionNode],
    independence: Independence,
    costs: _Costs,
) -> tuple[ProblemNode, ...]:
    place = {index: number for number, index in enumerate(view.topological_order())}
    planned = sorted(
        (position for position, node in enumerate(convolutions) if node.configuration in costs),
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
                costs=costs[node.configuration].name,
                predecessors=tuple(names[each] for each in (*bits_of(barred), *nearest)),
                follows=tuple(names[each] for each in read),
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
