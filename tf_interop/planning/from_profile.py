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

from tf_interop.convolution import (
    ConvolutionNode,
    Refusal,
    RefusalReason,
    Shape,
    batch_size_of,
)
from tf_interop.graph.independence import Independence
from tf_interop.graph.levels import lanes_by_merge_key, level_groups
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.planning.lane_places import find_places
from tf_interop.planning.types import BatchSchedule, PlannedStage
from tf_interop.profile.entries import StageMeasurement, wins
from tf_interop.profile.types import Profile, is_measured_as_it_runs
from tf_interop.stage import Stage, Step

_Group = Sequence[ConvolutionNode]


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
            Stage.side_by_side(Step(node.name) for node in group), f"always: depth {depth}"
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
        The stages, in the order of `group_always`, as they were measured. Convolutions in none of
        them stay as they are.

    Raises:
        ValueError: `independence` is of other convolutions.
    """
    measured = _Measured(
        profile.deterministic_part if deterministic else profile, merge_keys or {}, allow_tf32
    )
    stages: list[PlannedStage] = []
    for _, group in level_groups(convolutions, independence):
        check_time_limit()
        if batch_size_of(node.configuration for node in group) is None:
            stage = measured.stage_for_batch_sizes(group)
            stages += [] if stage is None else [stage]
        else:
            stages += measured.winning_stages(group)
    return tuple(stages)


def leave_out_unmeasured(
    convolutions: Sequence[ConvolutionNode], profile: Profile | None, device_type: str
) -> tuple[tuple[ConvolutionNode, ...], tuple[Refusal, ...]]:
    """Splits convolutions into those that the device runs and those that nobody knows of.

    TensorFlow's own GPU kernels and ours ask cuDNN in different words (other layouts, other
    formulations), and which engines cuDNN has for double, for volumes and for a fused LeakyRelu
    depends on its version and on the GPU (tests/cc/cudnn_sweep.txt). A convolution that no engine
    takes runs as TensorFlow's op would, and its stage with it, in sequence. So a stage may hold one
    of these on a GPU only if it was measured there. Plans and measured stages are such a proof
    already; stages of the policy "always" are not.

    Args:
        convolutions: the convolutions of a graph.
        profile: measurements on the device, if there are any.
        device_type: `CPU`, where the host backend runs all of them, or `GPU`.

    Returns:
        The convolutions that may be put into stages, in order, and a refusal for each other one.
    """
    if device_type != "GPU":
        return tuple(convolutions), ()
    measured = {each.configuration for each in profile.algorithms} if profile is not None else set()
    kept: list[ConvolutionNode] = []
    refusals: list[Refusal] = []
    for node in convolutions:
        configuration = node.configuration
        what = None
        if configuration.spatial_rank == 3:
            what = "volumes"
        elif configuration.dtype == "float64":
            what = configuration.dtype
        elif "LeakyRelu" in configuration.fused_ops:
            what = "a fused LeakyRelu"
        if what is None or configuration in measured:
            kept.append(node)
            continue
        refusals.append(
            Refusal(
                node.name,
                configuration.op,
                RefusalReason.NOT_MEASURED,
                f"Expected a profile in which this GPU ran the convolution, as one of {what} needs "
                "it, got none.",
            )
        )
    return tuple(kept), tuple(refusals)


@dataclasses.dataclass(frozen=True, slots=True)
class _Measured:
    """What a profile says of groups of convolutions.

    Attributes:
        profile: the profile.
        merge_keys: of the convolutions that have one, by name.
        allow_tf32: TensorFlow's switch for TF32.
    """

    profile: Profile
    merge_keys: Mapping[str, str]
    allow_tf32: bool

    def find(self, group: _Group) -> tuple[Stage[str], StageMeasurement] | None:
        """The fastest measurement that these convolutions can run as, and how they do."""
        offered = [(node.configuration, self.merge_keys.get(node.name)) for node in group]
        for each in self.profile.find_stages(node.configuration for node in group):
            if is_measured_as_it_runs(each, self.profile.device, allow_tf32=self.allow_tf32):
                places = find_places(each.stage, offered)
                if places is not None:
                    return places.map(lambda place: group[place].name), each
        return None

    def winning_stages(self, group: _Group) -> list[PlannedStage]:
        """The whole group as a stage, or those of its convolutions that read one image."""
        sets = [lane for lane in lanes_by_merge_key(group, self.merge_keys) if len(lane) > 1]
        # The level itself first: where both save as much, nothing has to be merged.
        found = [self.find(each) for each in (group, *(s for s in sets if len(s) < len(group)))]
        whole, *parts = [each if each and wins(each[1]) else None for each in found]
        made = [each for each in parts if each is not None]
        saved_us = sum(_saved_us(measurement) for _, measurement in made)
        if whole is not None and _saved_us(whole[1]) >= saved_us:
            made = [whole]
        return [PlannedStage(stage, _why(measurement)) for stage, measurement in made]

    def stage_for_batch_sizes(self, group: _Group) -> PlannedStage | None:
        """A stage with a schedule for every batch size that the group was measured with."""
        found = {
            size: self.find([_with_batch_size(node, size) for node in group])
            for size in self.profile.stage_batch_sizes
        }
        measured = {size: each for size, each in found.items() if each is not None}
        winning = {size: each for size, each in measured.items() if wins(each[1])}
        if not winning:
            return None
        best, _ = min(winning.values(), key=lambda each: each[1].latency_us / each[1].sequential_us)
        in_sequence = Stage.in_sequence(Step(node.name) for node in group)
        return PlannedStage(
            best,
            f"profiled: wins with batch {', '.join(map(str, winning))} of "
            f"{', '.join(map(str, measured))} measured",
            schedules=tuple(
                BatchSchedule(size, stage if size in winning else in_sequence)
                for size, (stage, _) in measured.items()
            ),
        )


def _saved_us(measurement: StageMeasurement) -> float:
    return measurement.sequential_us - measurement.latency_us


def _why(measurement: StageMeasurement) -> str:
    return (
        f"profiled{', merged into a wider convolution' if measurement.stage.is_merged else ''}: "
        f"{measurement.latency_us:.1f} us against {measurement.sequential_us:.1f} us in sequence"
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
