"""A plan in the order in which it runs."""

from __future__ import annotations

from collections.abc import Iterator

from tf_interop.errors import PlanError
from tf_interop.planning.types import GraphPlan, PlannedStage, UnstagedConvolution
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
