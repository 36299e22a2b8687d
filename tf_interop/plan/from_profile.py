"""Policies that group convolutions into stages.

All groups are *level groups*: convolutions of equal depth, where depth is the number of
convolutions on the longest chain that ends with one. GoogLeNet's module, depths in brackets:

    input -+-> 1x1 [1] -----------------------+            stage 1x1, 3x3_reduce, 5x5_reduce,
           +-> 3x3_reduce [1] --> 3x3 [2] ----+                  pool_proj
           +-> 5x5_reduce [1] --> 5x5 [2] ----+--> output
           +-> pool --> pool_proj [1] --------+            stage 3x3, 5x5

Any set of level groups is legal. Depth grows along every path from one convolution to another, so
those of one group are independent. And if one group comes before another in the contracted graph,
its depth is smaller, so no two come before each other: contracting all of them leaves no cycle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tf_interop.convolution import ConvolutionNode, Shape, batch_size_of
from tf_interop.graph.independence import Independence
from tf_interop.graph.levels import lanes_by_merge_key, level_groups
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.plan.lane_places import find_places
from tf_interop.plan.types import (
    BatchSchedule,
    LaneOptions,
    PinnedConvolution,
    PlannedStage,
)
from tf_interop.profile.entries import StageMeasurement, wins
from tf_interop.profile.types import Profile, is_measured_as_it_runs


def group_always(
    convolutions: Sequence[ConvolutionNode], independence: Independence
) -> tuple[PlannedStage, ...]:
    """Puts every convolution into a stage, whether that is faster or not.

    Convolutions of equal depth, device and region share one, each with a lane of its own; one that
    is alone gets a stage of its own. No algorithm is pinned.

    Args:
        convolutions: the convolutions of a graph.
        independence: of the same convolutions, in the same order.

    Returns:
        The stages, by depth, then in the order of the convolutions.

    Raises:
        ValueError: `independence` is of other convolutions.
    """
    return tuple(
        PlannedStage(
            lanes=tuple((PinnedConvolution(node.name),) for node in group),
            why=f"always: depth {depth}",
        )
        for depth, group in level_groups(convolutions, independence)
    )


def group_profiled(
    convolutions: Sequence[ConvolutionNode],
    independence: Independence,
    profile: Profile,
    *,
    merge_keys: Mapping[str, str] | None = None,
    allow_tf32: bool = True,
    deterministic: bool = False,
) -> tuple[PlannedStage, ...]:
    """Makes a stage of each level group that the profile holds and that wins.

    This is a filter, not a search. It looks at the groups of `group_always`, each whole, and at
    those of their convolutions that could be merged into a wider one, because they read one image;
    of the two it makes what saves more. Another part of a group, or convolutions of different
    depths, may win where these do not, and it will not see that. It takes a measurement for exactly
    the group's configurations, batch size included; a group with another unknown dimension has
    none. Of several it takes the fastest that was measured with TensorFlow's switch for TF32 as it
    is now, where it computes in float32 on a GPU: a stage that rounds to TF32 must not replace
    convolutions that do not, and one that does not was compared with a slower sequence than
    TensorFlow's.

    A whole group whose batch size is not known becomes a stage as soon as it wins with one of the
    batch sizes that it was measured with. It has a schedule for each of these, in sequence where it
    does not win.

    Args:
        convolutions: the convolutions of a graph.
        independence: of the same convolutions, in the same order.
        profile: measurements on the device that the graph will run on.
        merge_keys: of the convolutions that have one, by name (see `find_merge_keys`). What was
            measured merged is made only of convolutions with the same one.
        allow_tf32: TensorFlow's switch for TF32.
        deterministic: TensorFlow's switch for op determinism; where it is on, only stages count
            whose algorithms gave the same bits every time.

    Returns:
        The stages, in the order of `group_always`, with the lanes, their options and the algorithms
        that were measured. Convolutions in none of them are to be left alone.

    Raises:
        ValueError: `independence` is of other convolutions.
    """
    if deterministic:
        profile = profile.deterministic_part
    keys = merge_keys or {}
    stages: list[PlannedStage] = []
    for _, group in level_groups(convolutions, independence):
        check_time_limit()
        if batch_size_of(node.configuration for node in group) is None:
            stage = _stage_for_measured_batch_sizes(group, keys, profile, allow_tf32=allow_tf32)
            stages += [] if stage is None else [stage]
            continue
        sets = [lane for lane in lanes_by_merge_key(group, keys) if len(lane) > 1]
        # The level itself first: where both save as much, nothing has to be merged.
        found = [
            _find_measured(each, keys, profile, allow_tf32=allow_tf32)
            for each in (group, *(each for each in sets if len(each) < len(group)))
        ]
        whole, *parts = [each if each and wins(each.measurement) else None for each in found]
        made = [each for each in parts if each is not None]
        if whole is not None and whole.saved_us >= sum(each.saved_us for each in made):
            made = [whole]
        stages += [each.as_stage() for each in made]
    return tuple(stages)


@dataclasses.dataclass(frozen=True, slots=True)
class _MeasuredGroup:
    """A group of convolutions and a measurement that it can run as.

    Attributes:
        nodes: the convolutions, each at its place in the measurement.
        measurement: the measurement.
    """

    nodes: tuple[ConvolutionNode, ...]
    measurement: StageMeasurement

    @property
    def saved_us(self) -> float:
        return self.measurement.sequential_us - self.measurement.concurrent_us

    @property
    def share_of_sequence(self) -> float:
        return self.measurement.concurrent_us / self.measurement.sequential_us

    def as_stage(self) -> PlannedStage:
        measurement = self.measurement
        lanes: list[list[PinnedConvolution]] = [[] for _ in range(max(measurement.lanes) + 1)]
        for node, measured, lane in zip(
            self.nodes, measurement.convolutions, measurement.lanes, strict=True
        ):
            lanes[lane].append(PinnedConvolution(node.name, measured.algorithm))
        merged = ", merged into a wider convolution" if any(measurement.merged) else ""
        return PlannedStage(
            lanes=tuple(tuple(lane) for lane in lanes),
            why=(
                f"profiled{merged}: {measurement.concurrent_us:.1f} us against "
                f"{measurement.sequential_us:.1f} us in sequence"
            ),
            lane_options=_lane_options_of(measurement, len(lanes)),
        )


def _find_measured(
    group: Sequence[ConvolutionNode],
    merge_keys: Mapping[str, str],
    profile: Profile,
    *,
    allow_tf32: bool,
) -> _MeasuredGroup | None:
    """The fastest measurement that these convolutions can run as."""
    offered = [(node.configuration, merge_keys.get(node.name)) for node in group]
    for each in profile.find_stages(node.configuration for node in group):
        if not is_measured_as_it_runs(each, profile.device, allow_tf32=allow_tf32):
            continue
        wanted = [measured.configuration for measured in each.convolutions]
        places = find_places(wanted, each.lanes, each.merged, offered)
        if places is not None:
            nodes = tuple(group[place] for place in places)
            return _MeasuredGroup(nodes, each)
    return None


def _stage_for_measured_batch_sizes(
    group: Sequence[ConvolutionNode],
    merge_keys: Mapping[str, str],
    profile: Profile,
    *,
    allow_tf32: bool,
) -> PlannedStage | None:
    """A stage with a schedule for every batch size that the group was measured with."""
    measured: dict[int, _MeasuredGroup] = {}
    for batch_size in profile.stage_batch_sizes:
        of_this_size = [_with_batch_size(node, batch_size) for node in group]
        found = _find_measured(of_this_size, merge_keys, profile, allow_tf32=allow_tf32)
        if found is not None:
            measured[batch_size] = found
    winning = {size: each for size, each in measured.items() if wins(each.measurement)}
    if not winning:
        return None
    best = min(winning, key=lambda size: winning[size].share_of_sequence)
    schedules = []
    for batch_size, each in measured.items():
        stage = each.as_stage()
        in_sequence = (tuple(PinnedConvolution(node.name) for node in group),)
        schedules.append(
            BatchSchedule(batch_size, stage.lanes, stage.lane_options)
            if batch_size in winning
            else BatchSchedule(batch_size, in_sequence)
        )
    taken = next(schedule for schedule in schedules if schedule.batch_size == best)
    return PlannedStage(
        lanes=taken.lanes,
        why=f"profiled: wins with batch {', '.join(map(str, winning))} of "
        f"{', '.join(map(str, measured))} measured",
        lane_options=taken.lane_options,
        schedules=tuple(schedules),
    )


def _with_batch_size(node: ConvolutionNode, batch_size: int) -> ConvolutionNode:
    """The convolution as it is with this batch size, where its own is not known."""

    def filled(shape: Shape | None) -> Shape | None:
        return (batch_size, *shape[1:]) if shape and shape[0] is None else shape

    configuration = dataclasses.replace(
        node.configuration,
        image_shape=filled(node.configuration.image_shape),
        output_shape=filled(node.configuration.output_shape),
    )
    return dataclasses.replace(node, configuration=configuration)


def _lane_options_of(measurement: StageMeasurement, lane_count: int) -> tuple[LaneOptions, ...]:
    # Those that were asked for: the device makes of them again what it made of them then.
    sm_counts = measurement.asked_sm_counts or measurement.sm_counts
    if not (sm_counts or measurement.priorities or any(measurement.merged)):
        return ()
    return tuple(
        map(
            LaneOptions,
            measurement.priorities or (0,) * lane_count,
            sm_counts or (0,) * lane_count,
            measurement.merged or (False,) * lane_count,
        )
    )
