"""A made-up network and its plan, and the elements of a page, for tests of reports."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any
from xml.etree import ElementTree

from plan_values import landmarks_of, measured_step
from planning_values import H200, named, places_of, problem_of, timed, timed_stage
from profile_values import KERNEL

from tf_interop.convolution import Refusal, RefusalReason
from tf_interop.planning.explain import explain_plan
from tf_interop.planning.make import make_plan
from tf_interop.planning.problem import PlanningProblem, ProblemNode
from tf_interop.planning.types import (
    XLA,
    ComparedStep,
    GraphPlan,
    Plan,
    PlannedStage,
)
from tf_interop.report.network import Network, NetworkNode
from tf_interop.report.page import render_page
from tf_interop.stage import Lane, Stage, Step
from tf_interop.structure import Structure

EVIL_NAME = "<script>alert(1)</script>\"'&"
FINGERPRINT = "0123456789abcdef"

# A stem, two modules of three branches, and a tail; one branch has two convolutions.
_NODES = {
    "stem": "",
    "a_1x1": "stem",
    "a_reduce": "stem",
    "a_5x5": "a_reduce",
    EVIL_NAME: "a_1x1 a_5x5",
    "b_3x3": "a_1x1 a_5x5",
    "b_5x5": "a_1x1 a_5x5",
    "tail": f"{EVIL_NAME} b_3x3 b_5x5",
}


def network_problem() -> PlanningProblem:
    """Eight convolutions with kernels, and one measured stage; other times are modelled."""
    kernel = dataclasses.replace(KERNEL, grid=(30, 1, 1), alu_utilization=0.5)
    gemm = dataclasses.replace(kernel, registers_per_thread=96, shared_memory_bytes=20_000)
    fft = dataclasses.replace(kernel, registers_per_thread=40, shared_memory_bytes=70_000)
    configurations = {
        name: named(name, number << 18) for number, name in enumerate(_NODES, start=1)
    }
    algorithms = []
    for number, configuration in enumerate(configurations.values()):
        latency_us = 20.0 + 7 * number
        algorithms += [
            timed(configuration, "IMPLICIT_PRECOMP_GEMM", latency_us, 1 << 18, gemm),
            timed(configuration, "FFT_TILING", latency_us + 4, 1 << 20, fft),
        ]
    measured = [
        Step(configurations["a_1x1"], "IMPLICIT_PRECOMP_GEMM"),
        Step(configurations["a_reduce"], "FFT_TILING"),
    ]
    return problem_of(
        [
            ProblemNode(name, configurations[name], places_of(before, _NODES))
            for name, before in _NODES.items()
        ],
        algorithms,
        [timed_stage(Stage.side_by_side(measured), 30.0, 61.0, 1.0, 5 << 18)],
        memory_budget_bytes=32 << 20,
        device=H200,
        structure=Structure(FINGERPRINT, landmarks_of(*_NODES)),
        batch_size=8,
    )


@functools.cache
def planned_graph() -> GraphPlan:
    """The planner's plan for that network, with reasons."""
    problem = network_problem()
    return explain_plan(problem, make_plan(problem))


def network_plan() -> Plan:
    """A plan of that one graph."""
    return Plan((planned_graph(),), made_with={"device": "NVIDIA H200"})


def network() -> Network:
    """Its dependencies."""
    problem = network_problem()
    nodes = tuple(
        NetworkNode(node.name, node.predecessors, note=f"note of {node.name}")
        for node in problem.nodes
    )
    refusal = Refusal("<b>dw</b>", "Conv2D", RefusalReason.DTYPE, "Expected float32, got int8.")
    return Network(nodes, (refusal,))


def tuned_graph() -> GraphPlan:
    """A tuned graph, which `tf_interop.enable()` makes 1.84 times as fast as stock TensorFlow."""
    landmarks = landmarks_of("net/stem", EVIL_NAME, "net/right")
    measured = measured_step(1.84, others=[ComparedStep(XLA, 16.0, 1.25)])
    return GraphPlan(FINGERPRINT, landmarks, batch_size=1, mode="inference", measured=measured)


def plan_without_values() -> Plan:
    """A policy's plan: a stage without values, with options and a lane of two convolutions."""
    merged = Lane((Step("left"), Step("left_too")), priority=-1, merged=True)
    stage = PlannedStage(Stage((merged, Lane((Step("right"),)))), why="always: depth 1")
    landmarks = landmarks_of("left", "left_too", "right", "alone")
    return Plan((GraphPlan("fedcba9876543210", landmarks, (stage,)),))


class Element(ElementTree.Element):
    """An element of a page."""

    def of_class(self, name: str) -> list[Element]:
        return [each for each in self.iter() if name in each.get("class", "").split()]

    def of_tag(self, tag: str) -> list[Element]:
        return list(self.iter(tag))

    @property
    def words(self) -> str:
        """The element's text, with single spaces."""
        return " ".join(" ".join(self.itertext()).split())


def parse_page(page: str) -> Element:
    """Parses a page, which is also well-formed XML, without its style."""
    builder = ElementTree.TreeBuilder(element_factory=Element)
    markup = re.sub("<style>.*?</style>", "", page, flags=re.DOTALL)
    return ElementTree.fromstring(markup, ElementTree.XMLParser(target=builder))


def page_of(
    plan: Plan | GraphPlan, made_with: dict[str, str] | None = None, **others: Any
) -> Element:
    """Renders a plan, or a plan of one graph; `others` are arguments of `render_page`."""
    if isinstance(plan, GraphPlan):
        plan = Plan((plan,), made_with=made_with or {})
    return parse_page(render_page(plan, **{"title": "A network", **others}))


def labels_of(element: Element) -> list[str]:
    """The labels of values in an element: measured, modelled and so on."""
    return texts_of(element, "label")


def texts_of(page: Element, name: str) -> list[str]:
    """The texts of all elements of a class."""
    return [each.words for each in page.of_class(name)]


def rows_of(table: Element) -> list[str]:
    """The texts of the rows of a table, without its heading."""
    return [row.words for row in table.of_tag("tbody")[0].of_tag("tr")]
