"""What the user asked the pass to do."""

from __future__ import annotations

import dataclasses
import enum

from tf_interop.planning.types import Plan
from tf_interop.profile.types import Profile


class Policy(enum.Enum):
    """Which convolutions are put into stages.

    PROFILED: only stages that a plan names or that a profile says win.
    ALWAYS: every convolution; independent ones share a stage. For verification, and for the CPU,
        where nothing has been measured.
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
    """

    policy: Policy = Policy.PROFILED
    plan: Plan | None = None
    profile: Profile | None = None
    allow_foreign_profile: bool = False
    pass_time_limit_s: float = DEFAULT_PASS_TIME_LIMIT_S
    workspace_limit_mb: int | None = None

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
