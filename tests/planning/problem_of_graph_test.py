"""From graph and profile to a problem: nothing that orders convolutions or costs time is lost."""

from __future__ import annotations

import collections
import dataclasses
import random

import pytest
from planning_graphs import INCEPTION, make_graph
from profile_values import (
    BACKWARD,
    CPU,
    HOPPER_SM,
    KERNEL,
    LARGE,
    SMALL,
    make_algorithm,
    make_profile,
    make_stage,
)

from tf_interop.convolution import ConvolutionConfiguration, fingerprint_convolutions
from tf_interop.graph.independence import Independence
from tf_interop.planning.problem import MeasuredStage, PlanningProblem
from tf_interop.planning.problem_of_graph import make_planning_problem, output_bytes
from tf_interop.profile.types import Profile

PROFILE = make_profile(make_algorithm(SMALL), make_algorithm(LARGE, latency_us=40.0))


def _problem(
    nodes: dict[str, str],
    profile: Profile = PROFILE,
    *,
    configurations: dict[str, ConvolutionConfiguration] | None = None,
    regions: dict[str, str] | None = None,
    devices: dict[str, str] | None = None,
    deterministic: bool = False,
) -> PlanningProblem:
    configurations = {
        name: (configurations or {}).get(name, SMALL)
        for name, text in nodes.items()
        if text.startswith("Conv2D")
    }
    view, convolutions = make_graph(
        nodes, configurations=configurations, regions=regions, devices=devices
    )
    return make_planning_problem(
        view,
        convolutions,
        Independence(view, convolutions),
        profile,
        deterministic=deterministic,
        memory_budget_bytes=1 << 30,
    )


def _predecessors(problem: PlanningProblem) -> dict[str, tuple[str, ...]]:
    return {node.name: node.predecessors for node in problem.nodes}


@pytest.mark.parametrize("seed", range(20))
def test_reaches_what_the_graph_reaches_and_names_no_predecessor_in_vain(seed: int) -> None:
    generator = random.Random(seed)
    unknown = dataclasses.replace(SMALL, strides=(2, 2))
    nodes: dict[str, str] = {}
    configurations = {}
    for number in range(30):
        sources = generator.sample(list(nodes), min(number, generator.randrange(4)))
        inputs = (generator.choice(("", "", "^")) + each for each in sources)
        op = generator.choice(("Conv2D", "Conv2D", "Relu"))
        nodes[f"n{number}"] = " ".join((op, *sorted(inputs, reverse=True)))  # control inputs last
        if op == "Conv2D" and not generator.randrange(4):
            configurations[f"n{number}"] = unknown
    # The order in which a GraphDef lists its nodes means nothing.
    nodes = dict(generator.sample(list(nodes.items()), len(nodes)))
    problem = _problem(nodes, configurations=configurations)
    planned = {node.name for node in problem.nodes}
    assert planned.isdisjoint(configurations)
    assert problem.convolution_count == len(planned) + len(configurations)
    reached = {name: _reached(name, nodes) & planned for name in planned}
    for node in problem.nodes:
        nearest = set(node.predecessors)
        assert nearest.union(*(reached[each] for each in nearest)) == reached[node.name]
        for each in nearest:
            if any(each in reached[other] for other in nearest - {each}):
                # Named only to keep it out of a lane with this one.
                assert node.follows
                assert each not in node.follows


def _reached(name: str, nodes: dict[str, str]) -> set[str]:
    sources = {each.removeprefix("^") for each in nodes[name].split()[1:]}
    return sources.union(*(_reached(each, nodes) for each in sources))


def test_convolutions_of_one_configuration_share_their_costs() -> None:
    problem = _problem(INCEPTION, configurations={"5x5": LARGE})
    assert len(problem.costs) == 2
    by_name = {node.name: problem.costs_by_name[node.costs] for node in problem.nodes}
    assert by_name["5x5"].fastest.latency_us == 40.0
    assert {by_name[name].fastest.latency_us for name in ("1x1", "3x3", "pool_proj")} == {12.5}
    [candidate] = by_name["5x5"].candidates
    assert (candidate.algorithm, candidate.workspace_bytes) == ("eng4_k2=1", 4096)
    assert (candidate.spread_us, candidate.kernels) == (0.25, (KERNEL,))


def test_says_what_graph_device_and_memory_it_is_of() -> None:
    problem = _problem(INCEPTION)
    _, convolutions = make_graph(INCEPTION, configurations=dict.fromkeys(INCEPTION, SMALL))
    assert problem.fingerprint == fingerprint_convolutions(convolutions)
    assert (problem.convolution_count, problem.batch_size) == (6, 8)
    assert (problem.sm_count, problem.sm_limits) == (132, HOPPER_SM)
    assert problem.memory_budget_bytes == 1 << 30
    on_cpu = _problem(INCEPTION, dataclasses.replace(PROFILE, device=CPU))
    assert (on_cpu.sm_count, on_cpu.sm_limits) == (None, None)


def test_bytes_of_the_result_are_of_what_is_computed() -> None:
    assert output_bytes(SMALL) == 8 * 28 * 28 * 32 * 4
    assert output_bytes(BACKWARD) == 8 * 28 * 28 * 16 * 4
    kind = type(SMALL.kind).BACKWARD_FILTER
    assert output_bytes(dataclasses.replace(SMALL, kind=kind)) == 16 * 32 * 4
    assert output_bytes(dataclasses.replace(SMALL, dtype="bfloat16")) == 8 * 28 * 28 * 32 * 2


PAIR = ((SMALL, "eng4_k2=1"), (LARGE, "eng4_k2=1"))


def test_stages_are_known_as_they_were_measured() -> None:
    measured = make_stage(*PAIR, sm_counts=(60, 70), granted_sm_counts=(64, 68), priorities=(-1, 0))
    profile = make_profile(*PROFILE.algorithms, measured)
    [stage] = _problem(INCEPTION, profile, configurations={"5x5": LARGE}).stages
    names = {SMALL: "1x1", LARGE: "5x5"}
    assert stage == MeasuredStage(measured.stage.map(names.__getitem__), 20.0, 30.0, 1.5, 8192)


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param(make_stage(*PAIR, lanes=(0, 0)), id="one_lane"),
        pytest.param(make_stage(PAIR[0]), id="one_convolution"),
        pytest.param(make_stage((SMALL, None), PAIR[1]), id="the_runner_chose"),
        pytest.param(make_stage((SMALL, "eng9"), PAIR[1]), id="algorithm_not_measured_alone"),
        pytest.param(make_stage((BACKWARD, "eng4_k2=1"), PAIR[1]), id="other_convolution"),
        pytest.param(make_stage(*PAIR, tf32=False), id="measured_without_tf32"),
    ],
)
def test_leaves_out_stages_that_would_not_run_so(stage) -> None:
    profile = make_profile(*PROFILE.algorithms, stage)
    assert _problem(INCEPTION, profile, configurations={"5x5": LARGE}).stages == ()


@pytest.mark.parametrize(("algorithm", "count"), [("eng4_k2=1", 1), ("eng9", 0)])
def test_what_is_merged_ran_with_an_algorithm_of_the_wider_convolution(
    algorithm: str, count: int
) -> None:
    # FFT was measured of none of its parts; the lane beside it ran with what was measured alone.
    measured = make_stage(
        *((SMALL, "FFT"), (LARGE, algorithm), (SMALL, "FFT")), lanes=(0, 1, 0), merged=(True, False)
    )
    profile = make_profile(*PROFILE.algorithms, measured)
    assert len(_problem(INCEPTION, profile, configurations={"5x5": LARGE}).stages) == count


def test_a_convolution_may_follow_one_that_it_reads_directly_alone() -> None:
    nodes = {
        "a": "Conv2D",
        "b": "Conv2D a",
        "relu": "Relu b",
        "c": "Conv2D relu",
        "d": "Conv2D a ^wait",
        "wait": "NoOp ^a",
        # It reads a through Relu too: an op for a, b and e would wait for Relu, and Relu for it.
        "of_a": "Relu a",
        "e": "Conv2D b of_a",
    }
    problem = _problem(nodes)
    follows = {node.name: node.follows for node in problem.nodes}
    assert follows == {"a": (), "b": ("a",), "c": (), "d": (), "e": ("b",)}
    assert _predecessors(problem)["e"] == ("a", "b")


def test_convolutions_on_one_image_may_be_merged() -> None:
    strided = dataclasses.replace(SMALL, strides=(2, 2))
    profile = make_profile(*map(make_algorithm, (SMALL, strided)))
    nodes = INCEPTION | {"split": "Split", "a": "Conv2D split", "b": "Conv2D split:1"}
    groups = collections.defaultdict(set)
    for node in _problem(nodes, profile, configurations={"1x1": strided}).nodes:
        groups[node.merge_key].add(node.name)
    shared = [group for key, group in groups.items() if key and len(group) > 1]
    assert shared == [{"3x3_reduce", "5x5_reduce"}]


def test_leaves_out_what_gives_other_bits_where_determinism_is_asked_for() -> None:
    profile = make_profile(
        make_algorithm(SMALL, "FFT", latency_us=5.0, deterministic=False),
        make_algorithm(SMALL, "GEMM", latency_us=10.0),
    )
    for deterministic, expected in ((True, ["GEMM"]), (False, ["FFT", "GEMM"])):
        [costs] = _problem(INCEPTION, profile, deterministic=deterministic).costs
        assert [candidate.algorithm for candidate in costs.candidates] == expected
