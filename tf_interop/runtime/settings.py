"""The settings of the pass: what the user asked for."""

from __future__ import annotations

import dataclasses
import enum
import os

from tf_interop.parallel.types import ParallelPlan
from tf_interop.planning.types import Plan


class Policy(enum.Enum):
    """Which convolutions become stages, and which units become narrow.

    PROFILED: only what a plan names. ALWAYS: every convolution on a GPU, independent ones in one
    stage; every unit on a CPU, on one core. For verification.
    """

    PROFILED = "profiled"
    ALWAYS = "always"


# Far above what the pass takes for the training step of a NASNet, which is a third of a second, and
# below what would pass for a program that hangs.
DEFAULT_PASS_TIME_LIMIT_S = 60.0


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the pass works from. Replaced as a whole, never changed.

    Attributes:
        policy: which convolutions are put into stages.
        plan: stages and units by name, for the policy PROFILED.
        pass_time_limit_s: how long the pass may take for one graph, in seconds; a graph that takes
            longer stays unchanged.
        workspace_limit_mb: limit for all workspaces of one stage together, in MiB; None for no
            limit. It also applies to existing stages.
        has_host_stages: whether a CPU gets stages, as a GPU does, in place of narrow units. They
            are slower; tests of stages that have no GPU set TF_INTEROP_HOST_STAGES=1.
        parallel: how layers are divided over devices, before stages are made.
    """

    policy: Policy = Policy.PROFILED
    plan: Plan | None = None
    pass_time_limit_s: float = DEFAULT_PASS_TIME_LIMIT_S
    workspace_limit_mb: int | None = None
    has_host_stages: bool = dataclasses.field(
        default_factory=lambda: os.environ.get("TF_INTEROP_HOST_STAGES") == "1"
    )
    parallel: ParallelPlan | None = None

    def makes_units(self, device_type: str) -> bool:
        """Whether a device of this type gets narrow units and no stages."""
        return device_type == "CPU" and not self.has_host_stages

    @property
    def can_make_stages(self) -> bool:
        """Whether there is anything to make stages from."""
        return self.policy is Policy.ALWAYS or self.plan is not None

    @property
    def can_change_graphs(self) -> bool:
        """Whether there is anything to make stages from, or to divide layers by."""
        return self.can_make_stages or self.parallel is not None
