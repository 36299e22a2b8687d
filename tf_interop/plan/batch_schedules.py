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

from collections.abc import Sequence

from tf_interop.plan.types import (
    BatchSchedule,
    GraphPlan,
    Lane,
    PinnedConvolution,
    PlannedStage,
)


def stages_for_batch_sizes(entries: Sequence[GraphPlan]) -> tuple[PlannedStage, ...]:
    """The stages to make of plans for one graph, each with a schedule for every batch size.

    Args:
        entries: one or more, each of a batch size of its own, with names of one graph.
    """
    ascending = sorted(entries, key=_batch_size)
    stages_of = [_by_members(entry) for entry in ascending]
    taken = max(
        ascending, key=lambda base: (_saved_share(base, ascending, stages_of), _batch_size(base))
    )
    why = (
        f"of the plan for batch {'size' if len(ascending) == 1 else 'sizes'} "
        f"{', '.join(str(_batch_size(entry)) for entry in ascending)}"
    )
    if len(ascending) > 1:
        why += f", grouped as for {_batch_size(taken)}"
    return tuple(
        PlannedStage(
            lanes=stage.lanes,
            why=why,
            lane_options=stage.lane_options,
            schedules=tuple(
                _schedule(stage, entry, known)
                for entry, known in zip(ascending, stages_of, strict=True)
            ),
        )
        for stage in taken.stages
    )


_StagesByMembers = dict[frozenset[str], PlannedStage]


def _batch_size(entry: GraphPlan) -> int:
    assert entry.batch_size is not None
    return entry.batch_size


def _members(stage: PlannedStage) -> frozenset[str]:
    return frozenset(pinned.node for pinned in stage.convolutions)


def _by_members(entry: GraphPlan) -> _StagesByMembers:
    return {_members(stage): stage for stage in entry.stages}


def _saved_share(
    base: GraphPlan, entries: Sequence[GraphPlan], stages_of: Sequence[_StagesByMembers]
) -> float:
    """What the stages of `base` are predicted to save, as a share, summed over batch sizes."""
    groups = [_members(stage) for stage in base.stages]
    total = 0.0
    for entry, known in zip(entries, stages_of, strict=True):
        if entry.prediction is None or not entry.prediction.sequential_us:
            continue
        stages = [known[group] for group in groups if group in known]
        saved_us = sum(
            stage.prediction.sequential_us - stage.prediction.latency_us
            for stage in stages
            if stage.prediction is not None
        )
        total += saved_us / entry.prediction.sequential_us
    return total


def _schedule(stage: PlannedStage, entry: GraphPlan, known: _StagesByMembers) -> BatchSchedule:
    same = known.get(_members(stage))
    if same is not None:
        return BatchSchedule(_batch_size(entry), same.lanes, same.lane_options)
    return BatchSchedule(_batch_size(entry), (_in_sequence(stage, entry),))


def _in_sequence(stage: PlannedStage, entry: GraphPlan) -> Lane:
    algorithms = {each.node: each.algorithm for each in entry.alone}
    return tuple(
        PinnedConvolution(pinned.node, algorithms.get(pinned.node)) for pinned in stage.convolutions
    )
