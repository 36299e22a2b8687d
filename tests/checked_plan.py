"""Checks that a plan is legal for its problem and that its predictions are right.

It shares no code with the planner: it plays the plan through step by step, and recomputes every
prediction except the times of stages, which `least_latency_us` judges.
"""

from __future__ import annotations

import math

import pytest
from planning_values import may_run

from tf_interop.planning.make import PlanOptions, make_plan
from tf_interop.planning.problem import ConvolutionCosts, PlanningProblem
from tf_interop.planning.types import GraphPlan, PlannedStage
from tf_interop.stage import Stage, Step


def checked_plan(problem: PlanningProblem, options: PlanOptions | None = None) -> GraphPlan:
    """Plans, and checks the plan."""
    plan = make_plan(problem, options)
    check_plan(plan, problem)
    return plan


def check_plan(plan: GraphPlan, problem: PlanningProblem) -> None:
    """Fails where a plan does not follow from its problem."""
    prediction = plan.prediction
    assert prediction is not None
    assert plan.fingerprint == problem.fingerprint
    assert plan.batch_size == problem.batch_size
    assert plan.convolution_count == max(problem.convolution_count, len(problem.nodes))
    assert prediction.memory_budget_bytes == problem.memory_budget_bytes
    player = _Player(problem)
    latency_us = 0.0
    peaks = [0]
    for step in _in_order(plan):
        if isinstance(step, PlannedStage):
            assert step.prediction is not None
            latency_us += step.prediction.latency_us
            peaks.append(player.run(step.stage, step.prediction.workspace_bytes))
            assert step.prediction.peak_bytes == peaks[-1]
        else:
            costs = player.costs_of[step.node]
            candidate = costs.candidate(step.algorithm)
            assert candidate is not None
            assert step.latency_us == pytest.approx(candidate.latency_us)
            latency_us += candidate.latency_us
            stage = Stage.in_sequence([Step(step.node, step.algorithm)])
            peaks.append(player.run(stage, candidate.workspace_bytes))
            assert step.peak_bytes == peaks[-1]
    assert sorted(player.done) == sorted(node.name for node in problem.nodes)
    assert prediction.latency_us == pytest.approx(latency_us)
    assert prediction.peak_bytes == max(peaks)
    if problem.memory_budget_bytes is None:
        alone_us = sum(min(c.latency_us for c in of.candidates) for of in player.costs_of.values())
        assert prediction.sequential_us == pytest.approx(alone_us)
    budget = math.inf if problem.memory_budget_bytes is None else problem.memory_budget_bytes
    assert max(peaks) <= budget
    if prediction.sequential_peak_bytes <= budget:
        assert latency_us <= prediction.sequential_us * (1 + 1e-9)


def _in_order(plan: GraphPlan) -> list[object]:
    before = [each.before_stage for each in plan.unstaged]
    assert before == sorted(before)
    assert all(0 <= each <= len(plan.stages) for each in before)
    steps: list[object] = []
    for number in range(len(plan.stages) + 1):
        steps += [each for each in plan.unstaged if each.before_stage == number]
        steps += plan.stages[number : number + 1]
    return steps


class _Player:
    def __init__(self, problem: PlanningProblem) -> None:
        by_name = {costs.name: costs for costs in problem.costs}
        self._problem = problem
        self._nodes = {node.name: node for node in problem.nodes}
        self.costs_of: dict[str, ConvolutionCosts] = {
            node.name: by_name[node.costs] for node in problem.nodes
        }
        self.done: list[str] = []

    def run(self, stage: Stage[str], workspace_bytes: int) -> int:
        """Checks that a stage can run now; what is alive then, in bytes."""
        assert may_run(self._nodes, stage, self.done)
        assert not set(self.done) & set(stage.operations)
        alive = [
            name
            for name in self.done
            if all(name not in node.predecessors for node in self._nodes.values())
            or any(
                name in node.predecessors and node.name not in self.done
                for node in self._nodes.values()
            )
        ]
        self.done += stage.operations
        outputs = sum(self.costs_of[name].output_bytes for name in (*alive, *stage.operations))
        return outputs + workspace_bytes
