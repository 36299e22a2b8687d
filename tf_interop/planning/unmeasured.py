"""Leaves out convolutions that a GPU may be unable to run, where nothing shows that it can.

TensorFlow's own GPU kernels and ours ask cuDNN in different words (other layouts, other
formulations), and which engines cuDNN has for double and for volumes depends on its version and on
the GPU. A convolution that no engine takes would fail its step, where TensorFlow's op runs. So a
stage may hold one of these on a GPU only if it was measured there. Plans and measured stages are
such a proof already; stages of the policy "always" are not.
"""

from __future__ import annotations

from collections.abc import Sequence

from tf_interop.convolution import (
    ConvolutionConfiguration,
    ConvolutionNode,
    Refusal,
    RefusalReason,
)
from tf_interop.profile.types import Profile


def leave_out_unmeasured(
    convolutions: Sequence[ConvolutionNode], profile: Profile | None, device_type: str
) -> tuple[tuple[ConvolutionNode, ...], tuple[Refusal, ...]]:
    """Splits convolutions into those that the device runs and those that nobody knows of.

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
        if not _needs_proof(configuration) or configuration in measured:
            kept.append(node)
            continue
        what = "volumes" if configuration.spatial_rank == 3 else configuration.dtype
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


def _needs_proof(configuration: ConvolutionConfiguration) -> bool:
    return configuration.dtype == "float64" or configuration.spatial_rank == 3
