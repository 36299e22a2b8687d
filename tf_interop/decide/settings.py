"""What the user asked the pass to do."""

from __future__ import annotations

import dataclasses
import enum

from tf_interop.know.plan import Plan
from tf_interop.know.profile import Profile


class Policy(enum.Enum):
    """Which convolutions are put into stages.

    PROFILED: only stages that a plan names or that a profile says win.
    ALWAYS: every convolution; independent ones share a stage. For verification, and for the CPU,
        where nothing has been measured.
    """

    PROFILED = "profiled"
    ALWAYS = "always"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the pass works from. Replaced as a whole, never changed.

    Attributes:
        policy: which convolutions are put into stages.
        plan: stages by name, for the policy PROFILED; it goes before the profile.
        profile: measured stages, for the policy PROFILED.
    """

    policy: Policy = Policy.PROFILED
    plan: Plan | None = None
    profile: Profile | None = None

    @property
    def can_make_stages(self) -> bool:
        """Whether there is anything to make stages from."""
        return self.policy is Policy.ALWAYS or self.plan is not None or self.profile is not None
