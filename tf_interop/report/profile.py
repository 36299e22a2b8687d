"""Whether a profile that is shown beside a plan is the one that the plan was made by."""

from __future__ import annotations

import dataclasses

from tf_interop.convolution import batch_size_of
from tf_interop.plan.types import GraphPlan, Plan
from tf_interop.profile.types import Profile
from tf_interop.report.network import Network
from tf_interop.report.words import count_of, measured_count


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileFit:
    """What a profile has of an entry of a plan.

    Attributes:
        text: a sentence.
        is_whole: whether it has as many as the plan has times of, as far as that is known.
    """

    text: str
    is_whole: bool


def profile_fit(graph: GraphPlan, network: Network | None, profile: Profile) -> ProfileFit:
    """How many convolutions of a graph a profile has.

    Args:
        graph: an entry of a plan.
        network: what its convolutions compute; without it only batch sizes can be compared.
        profile: the profile.
    """
    total, planned = graph.convolution_count, measured_count(graph)
    of_all = f"of {count_of(total, 'convolution')}"
    configurations = [] if network is None else [node.configuration for node in network.nodes]
    if configurations and None not in configurations:
        has = sum(
            each is not None and bool(profile.find_algorithms(each)) for each in configurations
        )
        return ProfileFit(f"The profile has {has} {of_all} of this graph.", has >= planned)
    sizes = sorted(
        {
            size
            for each in profile.algorithms
            if (size := batch_size_of([each.configuration])) is not None
        }
    )
    if graph.batch_size is not None and graph.batch_size not in sizes:
        of_sizes = f"it is of batch size {', '.join(map(str, sizes))}" if sizes else "it is empty"
        return ProfileFit(
            f"The profile has 0 {of_all} of this graph: {of_sizes}, the plan of "
            f"{graph.batch_size}.",
            is_whole=not planned,
        )
    return ProfileFit(
        f"How many {of_all} the profile has is not known without --model.", is_whole=True
    )


def foreign_device(plan: Plan, profile: Profile) -> str:
    """What to say where plan and profile are of two devices; else empty."""
    planned = plan.made_with.get("device", profile.device.name)
    if planned == profile.device.name:
        return ""
    return f"The plan was made by a profile of {planned}, and this one is of {profile.device.name}."
