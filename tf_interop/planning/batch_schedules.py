"""Stages for a graph whose batch size is not known, out of plans for several batch sizes.

A convolution can be in one stage only, so one of the plans says which convolutions share one: its
stages are made, and at the other batch sizes

- a stage that the plan for that batch size has too, of the same convolutions, runs as it says;
- any other runs in sequence, each convolution with the algorithm that the plan takes for it alone.
  That plan may put them into other stages; but nothing says how they do in these.

The plan that is taken is the one whose stages save most over all batch sizes, each batch size
counted by the share of its own time that is saved: nobody knows how often each of them will come.
Where plans predict nothing, or of several as good, it is that of the largest batch size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tf_interop.planning.types import BatchSchedule, GraphPlan, PlannedStage
from tf_interop.stage import Stage, Step

_ByBatchSize = Mapping[int, GraphPlan]
_ByMembers = Mapping[frozenset[str], PlannedStage]


def stages_for_batch_sizes(entries: Sequence[GraphPlan]) -> tuple[PlannedStage, ...]:
    """The stages to make of plans for one graph, each with a schedule for every batch size.

    Args:
        entries: one or more, each of a batch size of its own, with names of one graph.
    """
    by_batch_size = {
        each.batch_size or 0: each
        for each in sorted(entries, key=lambda each: each.batch_size or 0)
    }
    stages_of = {size: _by_members(entry) for size, entry in by_batch_size.items()}
    taken = max(
        by_batch_size,
        key=lambda size: (_saved_share(stages_of[size], by_batch_size, stages_of), size),
    )
    why = (
        f"of the plan for batch {'size' if len(by_batch_size) == 1 else 'sizes'} "
        f"{', '.join(map(str, by_batch_size))}"
    )
    if len(by_batch_size) > 1:
        why += f", grouped as for {taken}"
    return tuple(
        PlannedStage(
            stage.stage,
            why,
            schedules=tuple(
                BatchSchedule(
                    size,
                    stages_of[size][members].stage
                    if members in stages_of[size]
                    else _in_sequence(stage.nodes, entry),
                )
                for size, entry in by_batch_size.items()
            ),
        )
        for members, stage in stages_of[taken].items()
    )


def _by_members(entry: GraphPlan) -> _ByMembers:
    return {frozenset(stage.nodes): stage for stage in entry.stages}


def _saved_share(
    made: _ByMembers, entries: _ByBatchSize, stages_of: Mapping[int, _ByMembers]
) -> float:
    """What these stages are predicted to save, as a share, summed over batch sizes."""
    total = 0.0
    for size, entry in entries.items():
        if entry.prediction is None or not entry.prediction.sequential_us:
            continue
        predictions = [
            stage.prediction
            for members, stage in stages_of[size].items()
            if members in made and stage.prediction is not None
        ]
        saved_us = sum(each.sequential_us - each.latency_us for each in predictions)
        total += saved_us / entry.prediction.sequential_us
    return total


def _in_sequence(nodes: Sequence[str], entry: GraphPlan) -> Stage[str]:
    algorithms = {each.node: each.algorithm for each in entry.unstaged}
    return Stage.in_sequence(Step(node, algorithms.get(node)) for node in nodes)
