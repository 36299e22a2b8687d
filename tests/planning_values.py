"""Made-up planning problems for tests, and the best plan of a small one by brute force."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from convolution_values import CONFIGURATION
from hypothesis import strategies as st
from plan_values import landmarks_of, make_lanes
from profile_values import HOPPER_SM, make_algorithm, make_profile

from tf_interop.convolution import ConvolutionConfiguration, output_bytes
from tf_interop.planning.problem import PlanningProblem, ProblemNode
from tf_interop.planning.sm_model import Device
from tf_interop.profile.entries import AlgorithmMeasurement, KernelMeasurement, StageMeasurement
from tf_interop.stage import Lane, Stage, Step
from tf_interop.structure import Structure

H200 = Device(HOPPER_SM, sm_count=132)
ALGORITHMS = ("GEMM", "FFT", "DIRECT")
KERNELS = st.builds(
    KernelMeasurement,
    name=st.just("kernel"),
    grid=st.tuples(st.sampled_from([1, 60, 132, 500, 3000]), st.just(1), st.just(1)),
    block=st.tuples(st.sampled_from([32, 128, 256, 1024]), st.just(1), st.just(1)),
    registers_per_thread=st.sampled_from([16, 40, 64]),
    shared_memory_bytes=st.sampled_from([0, 16384, 100_000]),
    time_share=st.sampled_from([0.25, 0.5, 1.0]),
    alu_utilization=st.none() | st.floats(0, 1),
    dram_utilization=st.none() | st.floats(0, 1),
)


def named(name: str, result_bytes: int = 0) -> ConvolutionConfiguration:
    """A configuration of its own for each name; `result_bytes` is even."""
    shape = (1, 1, 1, result_bytes // 2)
    return dataclasses.replace(CONFIGURATION, op=name, dtype="bfloat16", output_shape=shape)


def timed(
    configuration: ConvolutionConfiguration,
    algorithm: str,
    latency_us: float,
    workspace_bytes: int = 0,
    *kernels: KernelMeasurement,
) -> AlgorithmMeasurement:
    """A measured algorithm without an error."""
    changes = {"latency_us": latency_us, "workspace_bytes": workspace_bytes, "kernels": kernels}
    return make_algorithm(configuration, algorithm, spread_us=0.0, **changes)


def timed_stage(
    stage: Stage[ConvolutionConfiguration],
    latency_us: float,
    sequential_us: float,
    spread_us: float = 0.0,
    workspace_bytes: int = 0,
) -> StageMeasurement:
    """A measured stage."""
    times = (latency_us, sequential_us, sequential_us, spread_us)
    return StageMeasurement(stage, True, *times, workspace_bytes, "by hand")


def problem_of(
    nodes: Iterable[ProblemNode],
    algorithms: Iterable[AlgorithmMeasurement],
    stages: Iterable[StageMeasurement] = (),
    **others: Any,
) -> PlanningProblem:
    """A problem with these measurements, in any order."""
    nodes = tuple(nodes)
    profile = make_profile(*algorithms)
    configurations = dict.fromkeys(each.configuration for each in profile.algorithms)
    its = {each: profile.find_algorithms(each) for each in configurations}
    structure = others.pop("structure", None) or Structure(
        "f", landmarks_of(*(node.name for node in nodes))
    )
    return PlanningProblem(nodes, its, structure, tuple(stages), **others)


def places_of(names: str, nodes: Iterable[str]) -> tuple[int, ...]:
    """The places of some nodes, such as `a b`, among the names of all."""
    return tuple(map(list(nodes).index, names.split()))


def make_problem(
    nodes: Mapping[str, str],
    latencies_us: Mapping[str, float],
    stages: Mapping[str, float] = {},
    *,
    merged: Mapping[str, float] = {},
    merge_keys: Mapping[str, str] = {},
    spread_us: float = 0.0,
    memory_budget_bytes: int | None = None,
) -> PlanningProblem:
    """Makes a problem in which each node has a configuration of its own, and one algorithm, GEMM.

    Each output takes 10 bytes, each workspace 5.

    Args:
        nodes: the predecessors of each node, such as `{"c": "a b"}`; a node may follow all of them.
        latencies_us: latency of each node.
        stages: latencies of measured stages, such as `{"a b>c": 12.0}` with c after b in one lane.
        merged: latencies of measured stages with one merged lane, by WINOGRAD with 7 bytes.
        merge_keys: keys of some nodes.
        spread_us: error of the stages.
        memory_budget_bytes: as in the problem.
    """
    configuration_of = {name: named(name, 10) for name in nodes}

    def measured(stage: Stage[str], us: float, workspace_bytes: int) -> StageMeasurement:
        alone_us = sum(latencies_us[name] for name in stage.operations)
        its = stage.map(configuration_of.__getitem__)
        return timed_stage(its, us, alone_us, spread_us, workspace_bytes)

    return problem_of(
        [
            ProblemNode(name, configuration_of[name], its, its, merge_key=merge_keys.get(name))
            for name, its in ((name, places_of(text, nodes)) for name, text in nodes.items())
        ],
        [timed(configuration_of[name], "GEMM", latencies_us[name], 5) for name in nodes],
        [
            *(
                measured(make_lanes(*lanes.split(), algorithm="GEMM"), us, 5 * len(lanes.split()))
                for lanes, us in stages.items()
            ),
            *(
                measured(make_lanes(f"+{names}", algorithm="WINOGRAD"), us, 7)
                for names, us in merged.items()
            ),
        ],
        memory_budget_bytes=memory_budget_bytes,
    )


@st.composite
def problems(draw: st.DrawFn, most: int = 5) -> PlanningProblem:
    """Problems with measured stages, several algorithms, groups and memory budgets."""
    algorithms_of = {}
    for number in range(draw(st.integers(1, 4))):
        configuration = named(f"c{number}", 2 * draw(st.integers(0, 2)))
        algorithms_of[configuration] = [
            timed(configuration, each, draw(st.integers(5, 40)), draw(st.integers(0, 8)))
            for each in ALGORITHMS[: draw(st.integers(1, 3))]
        ]
    count = draw(st.integers(1, most))
    nodes = []
    for node in range(count):
        predecessors = tuple(p for p in range(node) if draw(st.integers(0, 2)) == 0)
        nodes.append(
            ProblemNode(
                f"n{node}",
                draw(st.sampled_from(list(algorithms_of))),
                predecessors,
                follows=tuple(each for each in predecessors if draw(st.integers(0, 3))),
                group=draw(st.sampled_from(["", "", "", "b"])),
                merge_key=draw(st.sampled_from([None, "x", "x", "y"])),
            )
        )
    used = [node.configuration for node in nodes]
    sets = [each for size in (2, 3, 4) for each in itertools.combinations(used, size)]
    chosen = draw(st.lists(st.sampled_from(sets), max_size=16)) if sets else []
    return problem_of(
        nodes,
        itertools.chain(*algorithms_of.values()),
        [_draw_stage(draw, each, algorithms_of) for each in chosen],
        memory_budget_bytes=draw(st.none() | st.integers(1, 40)),
    )


def _draw_stage(
    draw: st.DrawFn,
    operations: Sequence[ConvolutionConfiguration],
    algorithms_of: Mapping[ConvolutionConfiguration, Sequence[AlgorithmMeasurement]],
) -> StageMeasurement:
    # Neighbours may share a lane, which may be a merged one.
    lanes: list[list[ConvolutionConfiguration]] = []
    may_share = draw(st.booleans())
    for each in operations if draw(st.booleans()) else draw(st.permutations(operations)):
        if lanes and may_share and draw(st.booleans()):
            lanes[-1].append(each)
        else:
            lanes.append([each])
    distinct = dict.fromkeys(operations)
    chosen = {each: draw(st.sampled_from(algorithms_of[each])) for each in distinct}
    has_priorities = draw(st.booleans())
    made = []
    for number, lane in enumerate(lanes):
        # A single lane is only a stage if it is merged.
        is_merged = len(lane) > 1 and (len(lanes) == 1 or draw(st.booleans()))
        algorithms = ["WINOGRAD" if is_merged else chosen[each].algorithm for each in lane]
        steps = tuple(map(Step, lane, algorithms))
        made.append(Lane(steps, priority=-number if has_priorities else 0, merged=is_merged))
    alone_us = sum(chosen[each].latency_us for each in operations)
    return timed_stage(
        Stage(tuple(made)),
        latency_us=draw(st.integers(3, max(4, int(alone_us)))),
        sequential_us=draw(st.just(alone_us) | st.integers(5, 60)),
        spread_us=draw(st.integers(0, 5)),
        workspace_bytes=sum(chosen[each].workspace_bytes for each in operations),
    )


@st.composite
def problems_to_model(draw: st.DrawFn) -> PlanningProblem:
    """Problems with known kernels, for the model."""
    problem = draw(problems())
    algorithms = {
        configuration: tuple(
            dataclasses.replace(each, kernels=tuple(draw(st.lists(KERNELS, max_size=2))))
            for each in its
        )
        for configuration, its in problem.algorithms.items()
    }
    return dataclasses.replace(problem, algorithms=algorithms, device=H200)


def may_run(nodes: Sequence[ProblemNode], stage: Stage[int], done: Collection[int]) -> bool:
    """Whether nodes can run as this stage after those that are done."""
    members = set(stage.operations)
    if len({nodes[node].group for node in members}) > 1:
        return False
    for lane in stage.lanes:
        keys = {nodes[node].merge_key for node in lane.operations}
        if lane.merged and (len(keys) > 1 or None in keys):
            return False
        before: set[int] = set()
        for node in lane.operations:
            needed = set(nodes[node].predecessors)
            inside = members & needed
            if not inside <= before & set(nodes[node].follows) or needed - inside - set(done):
                return False
            before |= set() if lane.merged else {node}
    return True


def alive(nodes: Sequence[ProblemNode], done: Collection[int]) -> list[int]:
    """The nodes whose outputs are in use after those that are done."""
    readers: dict[int, set[int]] = {node: set() for node in done}
    for reader, each in enumerate(nodes):
        for node in readers.keys() & set(each.predecessors):
            readers[node].add(reader)
    return [node for node, its in readers.items() if not its or its - set(done)]


def least_latency_us(problem: PlanningProblem, max_lanes: int, max_lane_length: int = 3) -> float:
    """Tries every schedule and algorithm; returns the least time, or infinity if none fits.

    It shares no code with the planner.
    """
    nodes = problem.nodes
    budget = math.inf if problem.memory_budget_bytes is None else problem.memory_budget_bytes
    bytes_of = [output_bytes(node.configuration) for node in nodes]
    # Numbers are hashed much faster than configurations.
    numbers = {configuration: number for number, configuration in enumerate(problem.algorithms)}
    kinds = [numbers[node.configuration] for node in nodes]
    algorithms_of = list(problem.algorithms.values())
    winners = [
        ([numbers[each] for each in measured.stage.operations], measured)
        for measured in problem.stages
        if measured.latency_us + measured.spread_us < measured.sequential_us
    ]

    def lanes_of(members: frozenset[int]) -> list[set[int]]:
        parts: list[set[int]] = []
        for node in sorted(members):
            touched = [part for part in parts if part & set(nodes[node].predecessors)]
            parts = [part for part in parts if part not in touched]
            parts.append({node}.union(*touched))
        return parts

    def ways(members: frozenset[int], done: frozenset[int]) -> Iterator[tuple[float, int]]:
        """The time and workspace of every way to run a stage."""
        its = sorted(kinds[node] for node in members)
        if len(its) == 1:
            for each in algorithms_of[its[0]]:
                yield each.latency_us, each.workspace_bytes
            return
        parts = lanes_of(members)
        if not 2 <= len(parts) <= max_lanes or max(map(len, parts)) > max_lane_length:
            return
        alone_us = sum(min(each.latency_us for each in algorithms_of[kind]) for kind in its)
        for of_stage, measured in winners:
            if sorted(of_stage) == its and any(
                [kinds[node] for node in order] == of_stage
                and may_run(nodes, _of_nodes(measured.stage, order), done)
                for order in itertools.permutations(sorted(members))
            ):
                share = measured.latency_us / measured.sequential_us
                yield share * alone_us, measured.workspace_bytes

    def least(done: frozenset[int]) -> float:
        left = [node for node in range(len(nodes)) if node not in done]
        if not left:
            return 0.0
        kept = alive(nodes, done)
        best = math.inf
        for size in range(1, len(left) + 1):
            for chosen in map(frozenset, itertools.combinations(left, size)):
                if any(set(nodes[node].predecessors) - done - chosen for node in chosen):
                    continue
                for latency_us, workspace_bytes in ways(chosen, done):
                    outputs = sum(bytes_of[node] for node in (*kept, *chosen))
                    if outputs + workspace_bytes <= budget:
                        best = min(best, latency_us + least(done | chosen))
        return best

    return least(frozenset())


def _of_nodes(stage: Stage[ConvolutionConfiguration], nodes: Sequence[int]) -> Stage[int]:
    left = iter(nodes)
    return stage.map(lambda _: next(left))
