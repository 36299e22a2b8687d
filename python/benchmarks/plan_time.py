"""Measures CPU time and memory of the planner on the convolutions of Keras applications.

The graphs are real. Times are simulated: each convolution and each stage has a random time, the
same in every run.
"""

from __future__ import annotations

import itertools
import random
import resource
import time
from collections.abc import Sequence
from typing import Any

from python.benchmarks.result_file import Case, in_new_process
from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.planning.make import PlanOptions, make_plan
from tf_interop.planning.problem import PlanningProblem, ProblemNode
from tf_interop.planning.stage_search import Space, mask_of
from tf_interop.profile.entries import AlgorithmMeasurement, StageMeasurement
from tf_interop.stage import Stage, Step
from tf_interop.structure import Structure

MAX_LANES = PlanOptions().max_lanes
WORKSPACE_BYTES = 1 << 20
SEED = 1


def read_network(name: str) -> tuple[ProblemNode, ...]:
    """The convolutions of a Keras application, for inference or `:training`."""
    # Not at the top: the planner's memory is measured in a process without TensorFlow.
    import tensorflow as tf

    from tf_interop.graph.find import find_convolutions
    from tf_interop.graph.independence import Independence
    from tf_interop.graph.properties import GraphProperties
    from tf_interop.graph.view import GraphView
    from tf_interop.model.graphs import trace

    network, _, mode = name.partition(":")
    model = getattr(tf.keras.applications, network)(weights=None)
    view = GraphView(trace(model, batch_size=2, training=mode == "training").graph_def)
    convolutions, _ = find_convolutions(view, GraphProperties(view))
    predecessors = Independence(view, convolutions).direct_predecessors(range(len(convolutions)))
    return tuple(
        ProblemNode(
            f"n{number}",
            node.configuration,
            its,
            group=f"{node.device} {node.region}",
        )
        for number, (node, its) in enumerate(zip(convolutions, predecessors, strict=True))
    )


def make_problem(nodes: Sequence[ProblemNode]) -> PlanningProblem:
    """Simulates the times of convolutions.

    Stages are all independent pairs, and sets of three and four from one or two levels.
    """
    name_of = _names(nodes)
    configuration_of = {name: configuration for configuration, name in name_of.items()}
    latencies_us = {
        name: random.Random(f"{SEED} {name}").uniform(10, 200) for name in sorted(name_of.values())
    }
    stages = []
    for names in sorted(_sets_to_measure(nodes)):
        chance = random.Random(f"{SEED} {names}")
        alone_us = [latencies_us[name] for name in names]
        latency_us = max(*alone_us, sum(alone_us) * chance.uniform(0.6, 1.1))
        stages.append(
            StageMeasurement(
                Stage.side_by_side(Step(configuration_of[name], "GEMM") for name in names),
                tf32=False,
                latency_us=latency_us,
                same_sequential_us=sum(alone_us),
                sequential_us=sum(alone_us),
                spread_us=0.01 * latency_us,
                workspace_bytes=0,
                source="simulated",
            )
        )
    algorithms = {
        configuration_of[name]: (
            _simulated(configuration_of[name], "GEMM", latency_us, WORKSPACE_BYTES),
            _simulated(configuration_of[name], "DIRECT", 1.3 * latency_us, 0),
        )
        for name, latency_us in latencies_us.items()
    }
    # Only files of plans need the structure.
    return PlanningProblem(tuple(nodes), algorithms, Structure("", ()), tuple(stages))


def _names(nodes: Sequence[ProblemNode]) -> dict[ConvolutionConfiguration, str]:
    """A short name for each configuration."""
    distinct = dict.fromkeys(node.configuration for node in nodes)
    return {configuration: f"c{number}" for number, configuration in enumerate(distinct)}


def _simulated(
    configuration: ConvolutionConfiguration, algorithm: str, latency_us: float, workspace_bytes: int
) -> AlgorithmMeasurement:
    return AlgorithmMeasurement(
        configuration,
        algorithm,
        tf32=False,
        latency_us=latency_us,
        spread_us=0.01 * latency_us,
        workspace_bytes=workspace_bytes,
        relative_error=0.0,
        deterministic=True,
        kernels=(),
        source="simulated",
    )


def _sets_to_measure(nodes: Sequence[ProblemNode]) -> set[tuple[str, ...]]:
    """The names of the configurations of each stage."""
    space = Space([node.predecessors for node in nodes], lambda _: (), max_lanes=MAX_LANES)
    depths: list[int] = []
    levels: dict[tuple[int, str], list[int]] = {}
    for number, node in enumerate(nodes):
        depths.append(1 + max((depths[each] for each in node.predecessors), default=0))
        levels.setdefault((depths[number], node.group), []).append(number)
    ordered = [levels[key] for key in sorted(levels)]
    sets: list[tuple[int, ...]] = [*itertools.combinations(range(len(nodes)), 2)]
    for level, following in zip(ordered, [*ordered[1:], []], strict=True):
        for size in range(3, MAX_LANES + 1):
            sets += itertools.combinations([*level, *following], size)
    name_of = _names(nodes)
    names = [name_of[node.configuration] for node in nodes]
    return {
        tuple(sorted(names[number] for number in its))
        for its in sets
        if space.lanes(mask_of(its)) is not None
    }


def measure(name: str) -> dict[str, Any]:
    """Plans in this process; returns CPU time, memory and the kind of search."""
    problem = make_problem(in_new_process(read_network, name))
    start = time.process_time()
    plan = make_plan(problem)
    seconds = time.process_time() - start
    assert plan.prediction is not None
    return {
        "convolutions": len(problem.nodes),
        "configurations": len(problem.algorithms),
        "measured_stages": len(problem.stages),
        "seconds": seconds,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "stages": len(plan.stages),
        "search": plan.prediction.search.partition(" ")[0].rstrip(","),
    }


CASE = Case(
    title="Time and memory of planning",
    says="CPU time of the planner, and memory of its process. The planned times are simulated, so "
    "the gain of the plans is left out.",
    networks=(
        "InceptionV3",
        "NASNetMobile",
        "ResNet50:training",
        "InceptionV3:training",
        "InceptionResNetV2:training",
    ),
    measure=measure,
)
