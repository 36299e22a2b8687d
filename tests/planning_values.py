"""Made-up planning problems for tests, and what is the best plan of a small one."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from hypothesis import strategies as st
from profile_values import HOPPER_SM

from tf_interop.plan.problem import (
    Candidate,
    ConvolutionCosts,
    KnownStage,
    PlanningProblem,
    ProblemNode,
)
from tf_interop.profile.entries import KernelMeasurement

ALGORITHMS = ("GEMM", "FFT", "DIRECT")


def make_problem(
    nodes: Mapping[str, str],
    latencies_us: Mapping[str, float],
    stages: Mapping[str, float] | None = None,
    *,
    merged: Mapping[str, float] | None = None,
    merge_keys: Mapping[str, str] | None = None,
    spread_us: float = 0.0,
    memory_budget_bytes: int | None = None,
) -> PlanningProblem:
    """A problem in which each convolution has GEMM and each node costs of its own.

    Args:
        nodes: the predecessors of each node, such as `{"c": "a b"}`.
        latencies_us: of each node.
        stages: latency of the stages that were measured, such as `{"a b": 12.0}`.
        merged: of those that were measured merged into one lane, with WINOGRAD and 7 bytes.
        merge_keys: of the nodes that have one.
        spread_us: of the stages.
        memory_budget_bytes: of the problem. Each output takes 10 bytes, each workspace 5.
    """
    return PlanningProblem(
        costs=tuple(
            ConvolutionCosts(name, 10, (Candidate("GEMM", latencies_us[name], 5),))
            for name in nodes
        ),
        nodes=tuple(
            ProblemNode(name, name, tuple(p.split()), merge_key=(merge_keys or {}).get(name))
            for name, p in nodes.items()
        ),
        stages=(
            *(
                KnownStage(
                    tuple(names.split()),
                    ("GEMM",) * len(names.split()),
                    latency_us,
                    spread_us=spread_us,
                    workspace_bytes=5 * len(names.split()),
                )
                for names, latency_us in (stages or {}).items()
            ),
            *(
                KnownStage(
                    tuple(names.split()),
                    ("WINOGRAD",) * len(names.split()),
                    latency_us,
                    spread_us=spread_us,
                    workspace_bytes=7,
                    lanes=(0,) * len(names.split()),
                    merged=(True,),
                )
                for names, latency_us in (merged or {}).items()
            ),
        ),
        memory_budget_bytes=memory_budget_bytes,
    )


@st.composite
def problems(draw: st.DrawFn) -> PlanningProblem:
    """Small problems with measured stages, several algorithms, groups and memory budgets."""
    kinds = draw(st.integers(1, 4))
    costs = []
    for kind in range(kinds):
        algorithms = ALGORITHMS[: draw(st.integers(1, 3))]
        costs.append(
            ConvolutionCosts(
                f"c{kind}",
                draw(st.integers(0, 4)),
                tuple(
                    Candidate(each, draw(st.integers(5, 40)), draw(st.integers(0, 8)))
                    for each in algorithms
                ),
            )
        )
    count = draw(st.integers(1, 5))
    nodes = [
        ProblemNode(
            f"n{node}",
            f"c{draw(st.integers(0, kinds - 1))}",
            tuple(f"n{p}" for p in range(node) if draw(st.integers(0, 2)) == 0),
            group=draw(st.sampled_from(["", "", "b"])),
            merge_key=draw(st.sampled_from([None, "x", "x", "y"])),
        )
        for node in range(count)
    ]
    used = [node.costs for node in nodes]
    stages = []
    for size in range(2, min(4, count) + 1):
        for places in itertools.combinations(range(count), size):
            if draw(st.booleans()):
                stages.append(_draw_stage(draw, [used[p] for p in places], costs))
    return PlanningProblem(
        costs=tuple(costs),
        nodes=tuple(nodes),
        stages=tuple(stages),
        memory_budget_bytes=draw(st.none() | st.integers(1, 40)),
    )


def _draw_stage(
    draw: st.DrawFn, names: Sequence[str], costs: Sequence[ConvolutionCosts]
) -> KnownStage:
    candidates_of = {each.name: each.candidates for each in costs}
    order = draw(st.permutations(list(names)))
    chosen = [draw(st.sampled_from(candidates_of[name])) for name in order]
    alone = sum(each.latency_us for each in chosen)
    # Neighbours may share a lane, which is merged then.
    joins = [draw(st.booleans()) for _ in order[1:]] if draw(st.booleans()) else []
    lanes = tuple(itertools.accumulate((not join for join in joins), initial=0))
    sizes = [lanes.count(lane) for lane in sorted(set(lanes))]
    is_merged = any(joins)
    lane_count = len(sizes) if is_merged else len(order)
    return KnownStage(
        tuple(order),
        tuple(
            "WINOGRAD" if is_merged and sizes[lanes[place]] > 1 else each.algorithm
            for place, each in enumerate(chosen)
        ),
        latency_us=draw(st.integers(3, max(4, int(alone)))),
        sequential_us=draw(st.none() | st.integers(5, 60)),
        spread_us=draw(st.integers(0, 5)),
        workspace_bytes=sum(each.workspace_bytes for each in chosen),
        priorities=draw(st.sampled_from([(), tuple(range(-lane_count, 0))])),
        lanes=lanes if is_merged else (),
        merged=tuple(size > 1 for size in sizes) if is_merged else (),
    )


@st.composite
def problems_to_model(draw: st.DrawFn) -> PlanningProblem:
    """Small problems of which the kernels are known, for the model to be asked."""
    problem = draw(problems())
    kernels = st.builds(
        KernelMeasurement,
        name=st.just("kernel"),
        grid=st.tuples(st.sampled_from([1, 60, 132, 500, 3000]), st.just(1), st.just(1)),
        block=st.tuples(st.sampled_from([32, 128, 256, 1024]), st.just(1), st.just(1)),
        registers_per_thread=st.sampled_from([16, 64, 168]),
        shared_memory_bytes=st.sampled_from([0, 16384, 100_000]),
        time_share=st.sampled_from([0.25, 0.5, 1.0]),
        alu_utilization=st.none() | st.floats(0, 1),
        dram_utilization=st.none() | st.floats(0, 1),
    )
    costs = tuple(
        dataclasses.replace(
            each,
            candidates=tuple(
                dataclasses.replace(candidate, kernels=tuple(draw(st.lists(kernels, max_size=2))))
                for candidate in each.candidates
            ),
        )
        for each in problem.costs
    )
    return dataclasses.replace(problem, costs=costs, sm_count=132, sm_limits=HOPPER_SM)


def least_latency_us(problem: PlanningProblem, max_lanes: int) -> float:
    """The least time of all schedules and algorithms, by trying each; infinite where none fits.

    Takes nothing from the planner.
    """
    costs_of = {costs.name: costs for costs in problem.costs}
    node_of = {node.name: node for node in problem.nodes}
    readers = {
        name: {node.name for node in problem.nodes if name in node.predecessors} for name in node_of
    }
    budget = math.inf if problem.memory_budget_bytes is None else problem.memory_budget_bytes

    def output_bytes(names: frozenset[str]) -> int:
        return sum(costs_of[node_of[name].costs].output_bytes for name in names)

    def can_be_made(stage: KnownStage, names: frozenset[str]) -> bool:
        """Whether some order of the nodes has what each place wants, and a key for each lane."""
        if not stage.merged:
            return True
        for nodes in itertools.permutations(node_of[name] for name in sorted(names)):
            if all(node.costs == wanted for node, wanted in zip(nodes, stage.costs, strict=True)):
                keys = [
                    {n.merge_key for n, of in zip(nodes, stage.lanes, strict=True) if of == lane}
                    for lane, is_merged in enumerate(stage.merged)
                    if is_merged
                ]
                if all(len(each) == 1 and None not in each for each in keys):
                    return True
        return False

    def ways(names: frozenset[str]) -> Iterator[tuple[float, int]]:
        """Time and workspace of every way to run a stage."""
        costs = sorted(node_of[name].costs for name in names)
        if len(costs) == 1:
            for candidate in costs_of[costs[0]].candidates:
                yield candidate.latency_us, candidate.workspace_bytes
            return
        alone_us = sum(min(c.latency_us for c in costs_of[name].candidates) for name in costs)
        for stage in problem.stages:
            if sorted(stage.costs) == costs and can_be_made(stage, names):
                whole_us = alone_us if stage.sequential_us is None else stage.sequential_us
                if stage.latency_us + stage.spread_us < whole_us:
                    yield stage.latency_us / whole_us * alone_us, stage.workspace_bytes

    def least(done: frozenset[str]) -> float:
        ready = [
            name
            for name, node in node_of.items()
            if name not in done and done.issuperset(node.predecessors)
        ]
        if not ready:
            return 0.0
        alive = frozenset(name for name in done if not readers[name] or readers[name] - done)
        best = math.inf
        for size in range(1, max_lanes + 1):
            for chosen in map(frozenset, itertools.combinations(ready, size)):
                if len({node_of[name].group for name in chosen}) > 1:
                    continue
                for latency_us, workspace_bytes in ways(chosen):
                    if output_bytes(alive | chosen) + workspace_bytes <= budget:
                        best = min(best, latency_us + least(done | chosen))
        return best

    return least(frozenset())
