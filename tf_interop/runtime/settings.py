"""What the user asked the pass to do."""

from __future__ import annotations

import dataclasses
import enum
import os

from tf_interop.planning.types import Plan
from tf_interop.profile.types import Profile


class Policy(enum.Enum):
    """Which convolutions are put into stages, and which units run on one core.

    PROFILED: only what a plan names or a profile says wins.
    ALWAYS: on a GPU every convolution, where independent ones share a stage; on a CPU every unit
        runs on one core. For verification.
    """

    PROFILED = "profiled"
    ALWAYS = "always"


# Far above what the pass takes for the training step of a NASNet, which is a third of a second, and
# below what would pass for a program that hangs.
DEFAULT_PASS_TIME_LIMIT_S = 60.0

_DEVICE_TYPES = {"cudnn": "GPU", "host": "CPU"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the pass works from. Replaced as a whole, never changed.

    Attributes:
        policy: which convolutions are put into stages.
        plan: stages by name, for the policy PROFILED; it goes before the profile.
        profile: measured stages, for the policy PROFILED.
        allow_foreign_profile: whether the profile may be of another device than graphs run on.
        pass_time_limit_s: how long the pass may take for one graph, in seconds; a graph that it
            takes longer for stays as it is.
        workspace_limit_mb: what the workspaces of one stage may take together, in MiB; None for no
            limit. It holds for stages that were made before, too.
        has_host_stages: whether a CPU gets stages, as a GPU does, in place of narrow units. They
            are slower; tests of stages that have no GPU set TF_INTEROP_HOST_STAGES=1.
    """

    policy: Policy = Policy.PROFILED
    plan: Plan | None = None
    profile: Profile | None = None
    allow_foreign_profile: bool = False
    pass_time_limit_s: float = DEFAULT_PASS_TIME_LIMIT_S
    workspace_limit_mb: int | None = None
    has_host_stages: bool = dataclasses.field(
        default_factory=lambda: os.environ.get("TF_INTEROP_HOST_STAGES") == "1"
    )

    def makes_units(self, device_type: str) -> bool:
        """Whether a device of this type gets narrow units and no stages."""
        return device_type == "CPU" and not self.has_host_stages

    def profile_for(self, device_type: str) -> Profile | None:
        """The profile, where it may be used for convolutions on a device of this type.

        Args:
            device_type: `CPU` or `GPU`. A process that runs on a GPU has graphs for the CPU too.
        """
        if self.profile is None or self.allow_foreign_profile:
            return self.profile
        return self.profile if _DEVICE_TYPES[self.profile.device.backend] == device_type else None

    @property
    def can_make_stages(self) -> bool:
        """Whether there is anything to make stages from."""
        return self.policy is Policy.ALWAYS or self.plan is not None or self.profile is not None
