"""From graph and profile to a problem: it keeps every dependency and every usable measurement."""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Mapping

import pytest
from planning_graphs import INCEPTION, make_graph
from profile_values import (
    BACKWARD,
    CPU,
    HOPPER_SM,
    LARGE,
    SMALL,
    make_algorithm,
    make_profile,
    make_stage,
)

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.graph.independence import Independence
from tf_interop.graph.landmarks import find_structure
from tf_interop.planning.problem import PlanningProblem
from tf_interop.planning.problem_of_graph import make_planning_problem
from tf_interop.planning.sm_model import Device
from tf_interop.profile.entries import StageMeasurement
from tf_interop.profile.types import Profile

STRIDED = dataclasses.replace(SMALL, strides=(2, 2))
PROFILE = make_profile(make_algorithm(SMALL), make_algorithm(LARGE, latency_us=40.0))
WITH_LARGE = {"5x5": LARGE}


def problem_of(
    nodes: dict[str, str],
    profile: Profile = PROFILE,
    configurations: Mapping[str, ConvolutionConfiguration] = {},
    places: Mapping[str, dict[str, str]] = {},
    **options: bool | int,
) -> PlanningProblem:
    """Every Conv2D is SMALL unless `configurations` has it."""
    view, convolutions = make_graph(
        nodes, configurations={**dict.fromkeys(nodes, SMALL), **configurations}, **places
    )
    independence = Independence(view, convolutions)
    return make_planning_problem(view, convolutions, independence, profile, **options)


@pytest.mark.parametrize("seed", range(20))
def test_keeps_all_dependencies_and_no_needless_predecessor(seed: int) -> None:
    generator = random.Random(seed)
    nodes: dict[str, str] = {}
    unmeasured = {}
    for number in range(30):
        sources = generator.sample(list(nodes), min(number, generator.randrange(4)))
        inputs = (generator.choice(("", "", "^")) + each for each in sources)
        op = generator.choice(("Conv2D", "Conv2D", "Relu"))
        nodes[f"n{number}"] = " ".join((op, *sorted(inputs, reverse=True)))  # control inputs last
        if op == "Conv2D" and not generator.randrange(4):
            unmeasured[f"n{number}"] = STRIDED
    # A GraphDef lists its nodes in any order.
    nodes = dict(generator.sample(list(nodes.items()), len(nodes)))
    problem = problem_of(nodes, configurations=unmeasured)
    planned = {node.name for node in problem.nodes}
    assert planned.isdisjoint(unmeasured)
    assert set(problem.structure.names) == planned | unmeasured.keys()
    reached = {name: _reached(name, nodes) & planned for name in planned}
    names = [node.name for node in problem.nodes]
    for node in problem.nodes:
        nearest = {names[each] for each in node.predecessors}
        follows = {names[each] for each in node.follows}
        assert nearest.union(*(reached[each] for each in nearest)) == reached[node.name]
        for each in nearest:
            if any(each in reached[other] for other in nearest - {each}):
                # It is named only to keep the two out of one lane.
                assert follows
                assert each not in follows


def _reached(name: str, nodes: dict[str, str]) -> set[str]:
    sources = {each.removeprefix("^") for each in nodes[name].split()[1:]}
    return sources.union(*(_reached(each, nodes) for each in sources))


def test_has_the_algorithms_of_each_convolution() -> None:
    problem = problem_of(INCEPTION, configurations=WITH_LARGE)
    algorithms = {
        node.name: its for node, its in zip(problem.nodes, problem.node_algorithms, strict=True)
    }
    small, large = PROFILE.algorithms
    assert algorithms["5x5"] == (large,)
    assert all(its == (small,) for name, its in algorithms.items() if name != "5x5")
    assert sorted(set(problem.numbers)) == [0, 1]


def test_describes_graph_device_and_memory() -> None:
    problem = problem_of(INCEPTION, memory_budget_bytes=1 << 30)
    graph = make_graph(INCEPTION, configurations=dict.fromkeys(INCEPTION, SMALL))
    assert problem.structure == find_structure(*graph)
    assert (len(problem.structure.landmarks), problem.batch_size) == (6, 8)
    assert problem.device == Device(HOPPER_SM, 132)
    assert problem.memory_budget_bytes == 1 << 30
    assert problem_of(INCEPTION, dataclasses.replace(PROFILE, device=CPU)).device is None


@pytest.mark.parametrize("place", ["devices", "regions"])
def test_only_nodes_in_one_place_share_a_group(place: str) -> None:
    problem = problem_of(INCEPTION, places={place: {"1x1": "other", "3x3": "other"}})
    groups = collections.defaultdict(set)
    for node in problem.nodes:
        groups[node.group].add(node.name)
    assert sorted(map(sorted, groups.values())) == [
        ["1x1", "3x3"],
        ["3x3_reduce", "5x5", "5x5_reduce", "pool_proj"],
    ]


PAIR = ((SMALL, "eng4_k2=1"), (LARGE, "eng4_k2=1"))


def merged_stage(algorithm: str) -> StageMeasurement:
    """The merged lane has FFT, which none of its convolutions was measured with."""
    steps = ((SMALL, "FFT"), (LARGE, algorithm), (SMALL, "FFT"))
    return make_stage(*steps, lanes=(0, 1, 0), merged=(True, False))


def stages_of(stage: StageMeasurement) -> tuple[StageMeasurement, ...]:
    return problem_of(INCEPTION, make_profile(*PROFILE.algorithms, stage), WITH_LARGE).stages


@pytest.mark.parametrize(
    "measured",
    [
        make_stage(*PAIR, priorities=(-1, 0)),
        merged_stage("eng4_k2=1"),
    ],
)
def test_has_stages_as_they_were_measured(measured: StageMeasurement) -> None:
    assert stages_of(measured) == (measured,)


@pytest.mark.parametrize(
    "measured",
    [
        pytest.param(make_stage(*PAIR, lanes=(0, 0)), id="one_lane"),
        pytest.param(make_stage(PAIR[0]), id="one_convolution"),
        pytest.param(make_stage((SMALL, None), PAIR[1]), id="the_runner_chose"),
        pytest.param(make_stage((SMALL, "eng9"), PAIR[1]), id="algorithm_not_measured_alone"),
        pytest.param(make_stage((BACKWARD, "eng4_k2=1"), PAIR[1]), id="other_convolution"),
        pytest.param(make_stage(*PAIR, tf32=False), id="measured_without_tf32"),
        pytest.param(merged_stage("eng9"), id="beside_a_merged_lane"),
    ],
)
def test_leaves_out_stages_that_would_run_otherwise(measured: StageMeasurement) -> None:
    assert stages_of(measured) == ()


def test_a_convolution_may_follow_one_that_it_reads_directly() -> None:
    nodes = {
        "a": "Conv2D",
        "b": "Conv2D a",
        "relu": "Relu b",
        "c": "Conv2D relu",
        "d": "Conv2D a ^wait",
        "wait": "NoOp ^a",
        # Through Relu, e also reads a. An op for a, b and e would wait for Relu, and Relu for it.
        "of_a": "Relu a",
        "e": "Conv2D b of_a",
    }
    problem = problem_of(nodes)
    names = [node.name for node in problem.nodes]
    follows = {node.name: [names[each] for each in node.follows] for node in problem.nodes}
    assert follows == {"a": [], "b": ["a"], "c": [], "d": [], "e": ["b"]}
    [e] = [node for node in problem.nodes if node.name == "e"]
    assert [names[each] for each in e.predecessors] == ["a", "b"]


def test_convolutions_of_one_image_have_one_merge_key() -> None:
    profile = make_profile(*map(make_algorithm, (SMALL, STRIDED)))
    nodes = INCEPTION | {"split": "Split", "a": "Conv2D split", "b": "Conv2D split:1"}
    groups = collections.defaultdict(set)
    for node in problem_of(nodes, profile, {"1x1": STRIDED}).nodes:
        groups[node.merge_key].add(node.name)
    shared = [group for key, group in groups.items() if key and len(group) > 1]
    assert shared == [{"3x3_reduce", "5x5_reduce"}]


@pytest.mark.parametrize(
    ("deterministic", "expected"), [(True, ["GEMM"]), (False, ["FFT", "GEMM"])]
)
def test_leaves_out_non_deterministic_algorithms_on_request(
    deterministic: bool, expected: list[str]
) -> None:
    profile = make_profile(
        make_algorithm(SMALL, "FFT", latency_us=5.0, deterministic=False),
        make_algorithm(SMALL, "GEMM", latency_us=10.0),
    )
    [algorithms] = problem_of(INCEPTION, profile, deterministic=deterministic).algorithms.values()
    assert [each.algorithm for each in algorithms] == expected
