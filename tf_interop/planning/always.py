"""The policy that puts every convolution into a stage.

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

from collections.abc import Sequence

from tf_interop.convolution import ConvolutionNode, Refusal, RefusalReason
from tf_interop.graph.independence import Independence, level_groups
from tf_interop.planning.types import PlannedStage
from tf_interop.stage import Stage, Step


def group_always(
    convolutions: Sequence[ConvolutionNode], independence: Independence
) -> tuple[PlannedStage, ...]:
    """Puts every convolution into a stage, whether that is faster or not.

    Convolutions of equal depth, device and region share one, each with a lane of its own; one that
    is alone gets a stage of its own. No algorithm is pinned.

    Returns:
        The stages, by depth, then in the order of the convolutions.
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
    """Splits convolutions into those that the device surely runs, and the others.

    TensorFlow's own GPU kernels and ours ask cuDNN in different words (other layouts, other
    formulations), and which engines cuDNN has for double, for volumes and for a fused LeakyRelu
    depends on its version and on the GPU (tests/cc/cudnn_sweep.txt). A convolution that no engine
    takes runs as TensorFlow's op would, and its stage with it, in sequence. So a stage may hold one
    of these on a GPU only if it was measured there, which a plan shows and the policy "always" does
    not.

    Args:
        convolutions: the convolutions of a graph.
        device_type: `CPU`, where the host backend runs all of them, or `GPU`.
        has_bfloat16: whether the GPU has arithmetic for it. For one that has not, as a T4, cuDNN
            has no engine, and TensorFlow converts to float32.

    Returns:
        The convolutions that may be put into stages, in order, and a refusal for each other one.
    """
    if device_type != "GPU":
        return tuple(convolutions), ()
    kept: list[ConvolutionNode] = []
    refusals: list[Refusal] = []
    for node in convolutions:
        configuration = node.configuration
        what = None
        if configuration.spatial_rank == 3:
            what = "volumes"
        elif configuration.dtype == "float64" or (
            configuration.dtype == "bfloat16" and not has_bfloat16
        ):
            what = configuration.dtype
        elif "LeakyRelu" in configuration.fused_ops:
            what = "a fused LeakyRelu"
        if what is None:
            kept.append(node)
            continue
        refusals.append(
            Refusal(
                node.name,
                configuration.op,
                RefusalReason.NOT_MEASURED,
                f"Expected a plan for this convolution, as one of {what} needs it, got none.",
            )
        )
    return tuple(kept), tuple(refusals)
