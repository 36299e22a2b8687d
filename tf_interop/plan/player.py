"""A plan in the order in which it runs: what can run then, and what is alive."""

from __future__ import annotations

from collections.abc import Iterator

from tf_interop.contraction import misplaced_step
from tf_interop.errors import PlanError
from tf_interop.plan.live_memory import LiveMemory
from tf_interop.plan.problem import PlanningProblem
from tf_interop.plan.types import GraphPlan, PlannedStage, UnstagedConvolution
from tf_interop.stage import Stage, Step

Planned = PlannedStage | UnstagedConvolution


def in_order(plan: GraphPlan) -> Iterator[tuple[int, Planned]]:
    """The stages of a plan and its unstaged convolutions, as they run one after another.

    Yields:
        A stage with its number, or an unstaged convolution with that of the stage that it runs
        before.

    Raises:
        PlanError: the unstaged convolutions are not in the order of these numbers.
    """
    places = [each.before_stage for each in plan.unstaged]
    if places != sorted(places) or any(place > len(plan.stages) for place in places):
        raise PlanError(
            f"Expected unstaged convolutions by the stage that they run before, from 0 to "
            f"{len(plan.stages)}, got {places}. Plan this graph anew."
        )
    entries: list[tuple[int, bool, Planned]] = [
        *((each.before_stage, False, each) for each in plan.unstaged),
        *((number, True, stage) for number, stage in enumerate(plan.stages)),
    ]
    for number, _, planned in sorted(entries, key=lambda entry: entry[:2]):
        yield number, planned


def stage_of(planned: Planned) -> Stage[str]:
    """What runs; an unstaged convolution is a stage of one step."""
    if isinstance(planned, PlannedStage):
        return planned.stage
    return Stage.in_sequence([Step(planned.node, planned.algorithm)])


class PlanPlayer:
    """Runs the stages of a plan, and keeps account of what is alive."""

    def __init__(self, problem: PlanningProblem) -> None:
        self._problem = problem
        self._place = {node.name: number for number, node in enumerate(problem.nodes)}
        self._memory = LiveMemory(problem)
        self._readers: list[list[int]] = [[] for _ in problem.nodes]
        for node, predecessors in enumerate(problem.predecessors):
            for predecessor in predecessors:
                self._readers[predecessor].append(node)
        self._ran = 0

    def check_can_run(self, stage: Stage[str], where: str) -> None:
        """Checks that all that a stage depends on has run.

        Args:
            stage: of nodes.
            where: names it in messages.

        Raises:
            PlanError: something has not, or steps of the stage depend on each other other than
                within a lane, or are of different groups.
        """
        placed = stage.map(self._place.__getitem__)
        members = set(placed.operations)
        nodes = self._problem.nodes
        misplaced = misplaced_step(self._readers, placed)
        if misplaced is not None:
            first, second = (nodes[place].name for place in misplaced)
            raise PlanError(
                f"Expected independent lanes in {where}, got '{second}', which depends on "
                f"'{first}'. Plan this graph anew."
            )
        for place in placed.operations:
            node = nodes[place]
            for predecessor in self._problem.predecessors[place]:
                name = nodes[predecessor].name
                if predecessor in members and name not in node.follows:
                    raise PlanError(
                        f"Expected steps that read each other directly in {where}, got "
                        f"'{node.name}' after '{name}', with something between. Plan this graph "
                        "anew."
                    )
                if predecessor not in members and not self._ran >> predecessor & 1:
                    raise PlanError(
                        f"Expected '{name}' before '{node.name}', which depends on it, got it "
                        f"after {where}. Plan this graph anew."
                    )
            first_node = nodes[placed.operations[0]]
            if node.group != first_node.group:
                raise PlanError(
                    f"Expected convolutions of one group in {where}, got '{first_node.group}' for "
                    f"'{first_node.name}' and '{node.group}' for '{node.name}'. Plan this graph "
                    "anew."
                )

    def run(self, stage: Stage[str], workspace_bytes: int) -> int:
        """Returns what is alive while the stage runs, in bytes, with a workspace of that size."""
        places = [self._place[name] for name in stage.operations]
        alive = self._memory.alive_bytes(self._ran)
        self._ran |= sum(1 << place for place in places)
        outputs = sum(self._problem.node_costs[place].output_bytes for place in places)
        return alive + outputs + workspace_bytes
