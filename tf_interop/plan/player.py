"""Plays a plan through, one step after the other: what can run then, and what is alive."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tf_interop.errors import PlanError
from tf_interop.plan.problem import ConvolutionCosts, PlanningProblem
from tf_interop.plan.types import AloneConvolution, GraphPlan, PinnedConvolution, PlannedStage


@dataclasses.dataclass(frozen=True, slots=True)
class PlanStep:
    """What runs at the same time: a stage, or a convolution in none.

    Attributes:
        where: names it in messages.
        pinned: its convolutions, lane after lane.
        lanes: the lane of each.
        merged: of each lane whether it is merged.
        stage: the stage; None for a convolution in none.
        latency_us: what the plan says that it takes.
        peak_bytes: what the plan says of memory.
    """

    where: str
    pinned: tuple[PinnedConvolution, ...]
    lanes: tuple[int, ...]
    merged: tuple[bool, ...]
    stage: PlannedStage | None
    latency_us: float
    peak_bytes: int

    @classmethod
    def of_stage(cls, number: int, stage: PlannedStage) -> PlanStep:
        """A stage.

        Raises:
            PlanError: a lane of several convolutions is not merged, or one of one is, or there is
                no prediction.
        """
        where = f"stage {number}"
        merged = tuple(each.merged for each in stage.lane_options) or (False,) * len(stage.lanes)
        for number, lane in enumerate(stage.lanes):
            if (len(lane) > 1) != merged[number]:
                raise PlanError(
                    f"Expected one convolution in each lane of {where}, or several that are "
                    f"merged, got {len(lane)} in lane {number}, which is "
                    f"{'merged' if merged[number] else 'not merged'}. Plan this graph anew."
                )
        if stage.prediction is None:
            raise PlanError(f"Expected a prediction of {where}, got none. Plan this graph anew.")
        prediction = stage.prediction
        lanes = tuple(number for number, lane in enumerate(stage.lanes) for _ in lane)
        return cls(
            where,
            stage.convolutions,
            lanes,
            merged,
            stage,
            prediction.latency_us,
            prediction.peak_bytes,
        )

    @classmethod
    def of_alone(cls, alone: AloneConvolution) -> PlanStep:
        """A convolution in no stage."""
        return cls(
            f"convolution '{alone.node}' alone",
            (PinnedConvolution(alone.node, alone.algorithm),),
            (0,),
            (False,),
            None,
            alone.latency_us,
            alone.peak_bytes,
        )


def steps_in_order(plan: GraphPlan) -> list[PlanStep]:
    """The stages of a plan and its convolutions in none, as they run one after another.

    Raises:
        PlanError: it is not said in order before which stages those run, or a stage is none that
            can be checked.
    """
    steps: list[PlanStep] = []
    before = [alone.before_stage for alone in plan.alone]
    if before != sorted(before) or any(place > len(plan.stages) for place in before):
        raise PlanError(
            f"Expected convolutions in no stage by the stage that they run before, from 0 to "
            f"{len(plan.stages)}, got {before}. Plan this graph anew."
        )
    waiting = list(plan.alone)
    for number, stage in enumerate(plan.stages):
        while waiting and waiting[0].before_stage <= number:
            steps.append(PlanStep.of_alone(waiting.pop(0)))
        steps.append(PlanStep.of_stage(number, stage))
    return steps + [PlanStep.of_alone(alone) for alone in waiting]


class PlanPlayer:
    """Runs a plan's convolutions by name and keeps account of what is alive."""

    def __init__(self, problem: PlanningProblem, costs_of: Mapping[str, ConvolutionCosts]) -> None:
        self._nodes = {node.name: node for node in problem.nodes}
        self._costs_of = costs_of
        self._unread_by: dict[str, set[str]] = {node.name: set() for node in problem.nodes}
        for node in problem.nodes:
            for predecessor in node.predecessors:
                self._unread_by[predecessor].add(node.name)
        self._has_run: set[str] = set()
        self._alive: dict[str, int] = {}

    def check_can_run(self, step: PlanStep) -> None:
        """Checks that all that a step depends on has run.

        Raises:
            PlanError: something has not, or convolutions of one step depend on each other or are of
                different groups.
        """
        names = {pinned.node for pinned in step.pinned}
        nodes = [self._nodes[pinned.node] for pinned in step.pinned]
        for node in nodes:
            for predecessor in node.predecessors:
                if predecessor in names:
                    raise PlanError(
                        f"Expected independent convolutions in {step.where}, got '{node.name}' "
                        f"that depends on '{predecessor}'. Plan this graph anew."
                    )
                if predecessor not in self._has_run:
                    raise PlanError(
                        f"Expected '{predecessor}' before '{node.name}', which depends on it, got "
                        f"it behind {step.where}. Plan this graph anew."
                    )
            if node.group != nodes[0].group:
                raise PlanError(
                    f"Expected convolutions of one group in {step.where}, got "
                    f"'{nodes[0].group}' for '{nodes[0].name}' and '{node.group}' for "
                    f"'{node.name}'. Plan this graph anew."
                )

    def run(self, step: PlanStep, workspace_bytes: int) -> int:
        """Returns what is alive while the step runs, in bytes, with a workspace of that size."""
        for pinned in step.pinned:
            self._alive[pinned.node] = self._costs_of[pinned.node].output_bytes
        peak_bytes = sum(self._alive.values()) + workspace_bytes
        for pinned in step.pinned:
            self._has_run.add(pinned.node)
            for predecessor in set(self._nodes[pinned.node].predecessors):
                self._unread_by[predecessor].discard(pinned.node)
                if not self._unread_by[predecessor]:
                    del self._alive[predecessor]
        return peak_bytes
