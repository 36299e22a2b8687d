"""The policy that puts every convolution into a stage.

Every stage is a *level group*: convolutions of equal depth, where depth is the number of
convolutions on the longest chain that ends with one. GoogLeNet's module, depths in brackets:

    input -+-> 1x1 [1] -----------------------+            stage 1x1, 3x3_reduce, 5x5_reduce,
           +-> 3x3_reduce [1] --> 3x3 [2] ----+                  pool_proj
           +-> 5x5_reduce [1] --> 5x5 [2] ----+--> output
           +-> pool --> pool_proj [1] --------+            stage 3x3, 5x5

Any set of level groups is legal. Depth grows along every path from one convolution to another, so
the convolutions of one group are independent. And a group that comes before another in the
contracted graph has a smaller depth, so the contracted graph has no cycle.
"""

from __future__ import annotations

from collections.abc import Sequence

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionNode, Refusal, RefusalReason
from tf_interop.graph.independence import Independence, level_groups
from tf_interop.planning.types import PlannedStage
from tf_interop.stage import Stage, Step


def group_always(
    convolutions: Sequence[ConvolutionNode], independence: Independence
) -> tuple[PlannedStage, ...]:
    """The stages by depth, each convolution on a lane of its own with no algorithm pinned.

    Convolutions of one stage are also on one device and in one control-flow region.
    """
    return tuple(
        PlannedStage(
            Stage.side_by_side(Step(node.name) for node in group), f"always: depth {depth}"
        )
        for depth, group in level_groups(convolutions, independence)
    )


def leave_out_unmeasured(
    convolutions: Sequence[ConvolutionNode], device_type: str, *, has_bfloat16: bool
) -> tuple[tuple[ConvolutionNode, ...], tuple[Refusal, ...]]:
    """Separates the convolutions that a GPU may be unable to run in a stage, with refusals.

    cuDNN's engines for double, for volumes and for a fused LeakyRelu depend on its version and on
    the GPU (docs/results/cudnn_sweep.json). If no engine accepts a convolution, its whole stage
    runs in sequence. So only a plan from measurements may contain one of these.

    Args:
        convolutions: all convolutions of a graph.
        device_type: `GPU`, or `CPU`, where the host backend runs all of them.
        has_bfloat16: whether the GPU computes in bfloat16. For one that does not, such as a T4,
            cuDNN has no engine for it, and TensorFlow converts to float32.
    """
    if device_type != "GPU":
        return tuple(convolutions), ()
    needs = [(node, _what_needs_a_plan(node.configuration, has_bfloat16)) for node in convolutions]
    refusals = (
        Refusal(
            node.name,
            node.configuration.op,
            RefusalReason.NOT_MEASURED,
            f"A stage with {what} needs a plan from measurements. Profile this GPU and plan the "
            "model.",
        )
        for node, what in needs
        if what
    )
    return tuple(node for node, what in needs if not what), tuple(refusals)


def _what_needs_a_plan(configuration: ConvolutionConfiguration, has_bfloat16: bool) -> str | None:
    if configuration.spatial_rank == 3:
        return "volumes"
    if configuration.dtype in (("float64",) if has_bfloat16 else ("float64", "bfloat16")):
        return configuration.dtype
    return "a fused LeakyRelu" if "LeakyRelu" in configuration.fused_ops else None
