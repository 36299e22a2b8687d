"""Checks, without a word from those who made it, that a plan holds what it says of itself.

`plan_check` asks whether stages may be built into a graph. This asks, of a plan and the problem
that it was made for, whether all convolutions run in a legal order, and whether each figure of the
prediction follows from the problem: latencies from measurements, memory from outputs and
workspaces. It takes nothing from the planner: it plays the plan through (`plan_player`).
Only what a model says of a stage is not recomputed; there it checks what must hold of any model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from tf_interop.errors import PlanError
from tf_interop.plan.player import PlanPlayer, PlanStep, steps_in_order
from tf_interop.plan.problem import (
    Candidate,
    ConvolutionCosts,
    FigureSource,
    KnownStage,
    PlanningProblem,
)
from tf_interop.plan.types import (
    GraphPlan,
    GraphPrediction,
    PinnedConvolution,
    StagePrediction,
)

# Sums of the same numbers in another order differ by less.
_RELATIVE_ROUNDING = 1e-9


def check_prediction(plan: GraphPlan, problem: PlanningProblem) -> None:
    """Checks the plan of one graph against the problem that it was made for.

    Args:
        plan: a plan with predictions.
        problem: a legal one.

    Raises:
        PlanError: something differs. Names the convolution or stage, what follows from the problem
            and what the plan says. Stages are numbered from 0.
    """
    _check_identity(plan, problem)
    _check_each_once(plan, problem)
    costs_of = _costs_of_nodes(problem)
    measured: dict[tuple[str, ...], list[KnownStage]] = {}
    for stage in problem.stages:
        measured.setdefault(stage.costs, []).append(stage)
    merge_keys = {node.name: node.merge_key for node in problem.nodes}
    player = PlanPlayer(problem, costs_of)
    latency_us = 0.0
    peak_bytes = 0
    for step in steps_in_order(plan):
        player.check_can_run(step)
        _check_merged_lanes(step, merge_keys)
        workspace_bytes = _check_cost(step, problem, costs_of, measured)
        peak = player.run(step, workspace_bytes)
        _expect(peak, step.peak_bytes, "a peak of", "bytes", step.where)
        latency_us += step.latency_us
        peak_bytes = max(peak_bytes, peak)
    assert plan.prediction is not None
    _check_totals(plan.prediction, problem, latency_us, peak_bytes)


def _costs_of_nodes(problem: PlanningProblem) -> dict[str, ConvolutionCosts]:
    costs_of = {costs.name: costs for costs in problem.costs}
    return {node.name: costs_of[node.costs] for node in problem.nodes}


def _check_identity(plan: GraphPlan, problem: PlanningProblem) -> None:
    if plan.prediction is None:
        raise PlanError("Expected a plan with a prediction, got none. Plan this graph anew.")
    count = max(problem.convolution_count, len(problem.nodes))
    for what, expected, got in (
        ("fingerprint", problem.fingerprint, plan.fingerprint),
        ("batch size", problem.batch_size, plan.batch_size),
        ("convolution count", count, plan.convolution_count),
        ("memory budget", problem.memory_budget_bytes, plan.prediction.memory_budget_bytes),
    ):
        if expected != got:
            raise PlanError(
                f"Expected the {what} {expected!r}, which the problem has, got {got!r}. Plan this "
                "graph anew."
            )


def _check_each_once(plan: GraphPlan, problem: PlanningProblem) -> None:
    known = {node.name for node in problem.nodes}
    seen: set[str] = set()
    planned = [pinned.node for stage in plan.stages for pinned in stage.convolutions]
    for name in (*planned, *(alone.node for alone in plan.alone)):
        if name not in known:
            raise PlanError(f"Expected nodes of the problem, got '{name}'. Plan this graph anew.")
        if name in seen:
            raise PlanError(
                f"Expected each convolution once, got '{name}' again. Plan this graph anew."
            )
        seen.add(name)
    for node in problem.nodes:
        if node.name not in seen:
            raise PlanError(
                f"Expected every convolution in a stage or alone, got '{node.name}' in none. Plan "
                "this graph anew."
            )


def _check_merged_lanes(step: PlanStep, merge_keys: Mapping[str, str | None]) -> None:
    for lane, is_merged in enumerate(step.merged):
        if not is_merged:
            continue
        names = [
            pinned.node for pinned, of in zip(step.pinned, step.lanes, strict=True) if of == lane
        ]
        keys = {merge_keys[name] for name in names}
        if len(keys) > 1 or None in keys:
            raise PlanError(
                f"Expected convolutions on one image in merged lane {lane} of {step.where}, got "
                f"{names}, which cannot be one wider convolution. Plan this graph anew."
            )


def _check_cost(
    step: PlanStep,
    problem: PlanningProblem,
    costs_of: Mapping[str, ConvolutionCosts],
    measured: Mapping[tuple[str, ...], Sequence[KnownStage]],
) -> int:
    """Checks the times that the plan says of a step. Returns its workspace."""
    costs = [costs_of[pinned.node] for pinned in step.pinned]
    # What is merged runs with an algorithm of the wider convolution, which only the measurement of
    # the stage knows.
    candidates = [
        _candidate(pinned, each)
        for pinned, each, lane in zip(step.pinned, costs, step.lanes, strict=True)
        if not step.merged[lane]
    ]
    if step.stage is None:
        _expect(candidates[0].latency_us, step.latency_us, "a latency of", "us", step.where)
        return candidates[0].workspace_bytes
    prediction = step.stage.prediction
    assert prediction is not None
    sequential_us = sum(_fastest_us(each) for each in costs)
    _expect(
        sequential_us, prediction.sequential_us, "a time one after another of", "us", step.where
    )
    if len(step.pinned) == 1:
        _expect(candidates[0].latency_us, step.latency_us, "a latency of", "us", step.where)
        workspace_bytes = candidates[0].workspace_bytes
    elif prediction.source is FigureSource.MEASURED:
        known = measured.get(tuple(each.name for each in costs), ())
        stage = _measured(step, prediction, known, sequential_us)
        workspace_bytes = stage.workspace_bytes
        # The figures as measured: scaling would round a draw into a win.
        whole_us = sequential_us if stage.sequential_us is None else stage.sequential_us
        _expect_win(stage.latency_us, stage.spread_us, whole_us, step.where)
    else:
        if any(step.merged):
            raise PlanError(
                f"Expected a measurement of {step.where}, whose lanes are merged, got a model's "
                "figure. Plan this graph anew."
            )
        workspace_bytes = sum(each.workspace_bytes for each in candidates)
        _check_modelled(step, prediction, candidates, problem)
        _expect_win(prediction.latency_us, prediction.spread_us, sequential_us, step.where)
    _expect(workspace_bytes, prediction.workspace_bytes, "a workspace of", "bytes", step.where)
    return workspace_bytes


def _candidate(pinned: PinnedConvolution, costs: ConvolutionCosts) -> Candidate:
    for candidate in costs.candidates:
        if candidate.algorithm == pinned.algorithm:
            return candidate
    raise PlanError(
        f"Expected a candidate of convolution '{pinned.node}', got {pinned.algorithm!r}. Plan this "
        "graph anew."
    )


def _fastest_us(costs: ConvolutionCosts) -> float:
    return min(candidate.latency_us for candidate in costs.candidates)


def _measured(
    step: PlanStep,
    prediction: StagePrediction,
    known: Sequence[KnownStage],
    alone_us: float,
) -> KnownStage:
    """That of the measurements of its convolutions which a stage's latency and spread are from."""
    assert step.stage is not None
    lanes = len(step.stage.lanes)
    options = step.stage.lane_options
    asked = (
        tuple(pinned.algorithm for pinned in step.pinned),
        tuple(each.priority for each in options) or (0,) * lanes,
        tuple(each.sm_count for each in options) or (0,) * lanes,
        step.lanes,
        step.merged,
    )
    alike = [
        stage
        for stage in known
        if asked
        == (
            stage.algorithms,
            stage.priorities or (0,) * lanes,
            stage.sm_counts or (0,) * lanes,
            stage.lanes or tuple(range(len(stage.costs))),
            stage.merged or (False,) * lanes,
        )
    ]
    if not alike:
        merged = f", merged in lanes {list(step.lanes)}" if any(step.merged) else ""
        raise PlanError(
            f"Expected a measurement of {step.where}, which says that it was measured, got none "
            f"with algorithms {list(asked[0])}, priorities {list(asked[1])} and SM counts "
            f"{list(asked[2])} in this order{merged}. Plan this graph anew."
        )
    expected = []
    for stage in alike:
        # Of a stage beside its own sequence the share that it saves counts.
        scale = 1.0 if stage.sequential_us is None else alone_us / stage.sequential_us
        expected.append((stage.latency_us * scale, stage.spread_us * scale))
        if _are_close(expected[-1], (prediction.latency_us, prediction.spread_us)):
            return stage
    raise PlanError(
        f"Expected a latency and spread in us of {expected} for {step.where}, got "
        f"{(prediction.latency_us, prediction.spread_us)}. Plan this graph anew."
    )


def _expect_win(latency_us: float, spread_us: float, sequential_us: float, where: str) -> None:
    if latency_us + spread_us >= sequential_us:
        raise PlanError(
            f"Expected {where} to win by more than its spread against {sequential_us} us one after "
            f"another, got {latency_us} us, give or take {spread_us}. Plan this graph anew."
        )


def _check_modelled(
    step: PlanStep,
    prediction: StagePrediction,
    candidates: list[Candidate],
    problem: PlanningProblem,
) -> None:
    if problem.sm_limits is None or not all(each.kernels for each in candidates):
        raise PlanError(
            f"Expected kernels and a device that a model could know {step.where} by, got none. "
            "Plan this graph anew."
        )
    longest_us = max(each.latency_us for each in candidates)
    if prediction.latency_us < longest_us * (1 - _RELATIVE_ROUNDING):
        raise PlanError(
            f"Expected {step.where} to take no less than its longest convolution, {longest_us} us, "
            f"got {prediction.latency_us}. Plan this graph anew."
        )


def _check_totals(
    prediction: GraphPrediction, problem: PlanningProblem, latency_us: float, peak_bytes: int
) -> None:
    where = "the graph"
    sequential_us, sequential_peak_bytes = _one_after_another(problem)
    _expect(latency_us, prediction.latency_us, "a latency of", "us", where)
    _expect(peak_bytes, prediction.peak_bytes, "a peak of", "bytes", where)
    _expect(sequential_us, prediction.sequential_us, "a time one after another of", "us", where)
    _expect(
        sequential_peak_bytes,
        prediction.sequential_peak_bytes,
        "a peak one after another of",
        "bytes",
        where,
    )
    budget = problem.memory_budget_bytes
    if budget is not None and peak_bytes > budget:
        raise PlanError(
            f"Expected a peak of at most the budget, {budget} bytes, got {peak_bytes}. Plan this "
            "graph anew."
        )
    does_sequence_fit = budget is None or sequential_peak_bytes <= budget
    if does_sequence_fit and latency_us > sequential_us * (1 + _RELATIVE_ROUNDING):
        raise PlanError(
            f"Expected a plan that is no slower than one after another, {sequential_us} us, got "
            f"{latency_us}. Plan this graph anew."
        )


def _one_after_another(problem: PlanningProblem) -> tuple[float, int]:
    """Time and peak of all nodes in their order, each with its fastest algorithm that fits."""
    budget = math.inf if problem.memory_budget_bytes is None else problem.memory_budget_bytes
    costs_of = _costs_of_nodes(problem)
    player = PlanPlayer(problem, costs_of)
    latency_us = 0.0
    peak_bytes = 0
    for node in problem.nodes:
        step = PlanStep("", (PinnedConvolution(node.name),), (0,), (False,), None, 0.0, 0)
        without_workspace = player.run(step, 0)
        candidates = costs_of[node.name].candidates
        fitting = [
            each for each in candidates if without_workspace + each.workspace_bytes <= budget
        ]
        if fitting:
            best = min(fitting, key=lambda each: (each.latency_us, each.workspace_bytes))
        else:
            best = min(candidates, key=lambda each: (each.workspace_bytes, each.latency_us))
        latency_us += best.latency_us
        peak_bytes = max(peak_bytes, without_workspace + best.workspace_bytes)
    return latency_us, peak_bytes


def _expect(expected: float, got: float, what: str, unit: str, where: str) -> None:
    if not _are_close((expected,), (got,)):
        raise PlanError(
            f"Expected {what} {expected} {unit} for {where}, got {got}. Plan this graph anew."
        )


def _are_close(expected: Iterable[float], got: Iterable[float]) -> bool:
    return all(
        math.isclose(one, other, rel_tol=_RELATIVE_ROUNDING, abs_tol=_RELATIVE_ROUNDING)
        for one, other in zip(expected, got, strict=True)
    )
