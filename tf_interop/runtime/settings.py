"""Settings, subjects and reports of the pass."""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from tf_interop.convolution import Refusal
from tf_interop.planning.types import GraphPlan, Plan

if TYPE_CHECKING:  # these need TensorFlow
    from tf_interop.graph.properties import ShapeInference
    from tf_interop.parallel.divide import Divider


class Policy(enum.Enum):
    """Which convolutions become stages, and whether units run on one core.

    PROFILED: only those in a plan. ALWAYS, for verification: on a GPU every convolution, with
    independent ones in one stage; on a CPU every unit, on one core.
    """

    PROFILED = "profiled"
    ALWAYS = "always"


# The pass takes a third of a second for the training step of a NASNet. A program that waits much
# longer than this limit would seem to hang.
DEFAULT_PASS_TIME_LIMIT_S = 60.0

DEFAULT_KEPT_MB = 1024
"""Enough for every application of Keras but the largest ConvNeXt."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of the pass. Replaced as a whole, never changed.

    Attributes:
        policy: which convolutions become stages.
        plan: stages, and what was measured on a CPU, for the policy PROFILED.
        pass_time_limit_s: how long the pass may take for one graph. A graph that takes longer stays
            unchanged.
        workspace_limit_mb: limit for all workspaces of one stage together, in MiB; None for no
            limit. It also applies to existing stages.
        has_host_stages: whether a CPU gets stages instead of units. They are slower; tests
            of stages that have no GPU set TF_INTEROP_HOST_STAGES=1.
        divider: divides layers over devices, before stages are made.
        kept_mb: limit for the values of one graph that depend only on variables and are kept
            between calls, in MiB; 0 keeps none and folds nothing.
        times_itself: whether units on a CPU find out how they run fastest, and stages of a GPU
            whether their plan is faster than TensorFlow.
        captures_compiled: whether all convolutions of functions that XLA compiles for a GPU get
            into stages. XLA captures stages into its CUDA graphs, but no other convolutions.
    """

    policy: Policy = Policy.PROFILED
    plan: Plan | None = None
    pass_time_limit_s: float = DEFAULT_PASS_TIME_LIMIT_S
    workspace_limit_mb: int | None = None
    has_host_stages: bool = dataclasses.field(
        default_factory=lambda: os.environ.get("TF_INTEROP_HOST_STAGES") == "1"
    )
    divider: Divider | None = None
    kept_mb: int = 0
    times_itself: bool = False
    captures_compiled: bool = False

    def makes_units(self, device_type: str) -> bool:
        """Whether a device of this type gets units and no stages."""
        return device_type == "CPU" and not self.has_host_stages

    @property
    def can_make_stages(self) -> bool:
        """Whether there is anything to make stages from."""
        return self.policy is Policy.ALWAYS or self.plan is not None

    def stages_time_themselves(self, device_type: str) -> bool:
        """Whether a device of this type gets stages that compare their plan with TensorFlow."""
        return self.times_itself and device_type == "GPU"

    def stages_all_compiled(self, device_type: str) -> bool:
        """Whether all convolutions of functions that XLA compiles get into stages."""
        if device_type == "GPU" and self.captures_compiled:
            return True
        return self.can_make_stages and not self.makes_units(device_type)

    def can_fold(self, device_type: str) -> bool:
        """Whether parameters are folded and kept, and normalizations in training fused.

        Stages of a GPU were not compared with stock TensorFlow yet, so there it takes a plan.
        """
        return self.kept_mb > 0 and (device_type == "CPU" or self.can_make_stages)

    @property
    def can_change_graphs(self) -> bool:
        """Whether there is anything to do."""
        changes_stages = self.can_make_stages or self.captures_compiled
        is_folding = self.kept_mb > 0
        return changes_stages or self.divider is not None or is_folding or self.times_itself


@dataclasses.dataclass(frozen=True)
class GraphItem:
    """What a pass knows of a graph beside its nodes.

    Attributes:
        device_type: `CPU` or `GPU`; nodes on other devices stay as they are.
        nodes_to_preserve: names that must stay.
        fetches: the nodes or tensors that the graph is run for; empty if unknown.
        infer_output_shapes: called only for shapes that the attributes lack.
        is_compiled: whether it is the body of a function that XLA compiles, and not Grappler's.
    """

    device_type: str
    nodes_to_preserve: Collection[str] = ()
    fetches: Collection[str] = ()
    infer_output_shapes: ShapeInference | None = None
    is_compiled: bool = False


@dataclasses.dataclass(frozen=True)
class PassReport:
    """The result of the pass for one graph.

    Attributes:
        device_type: `CPU` or `GPU`; only convolutions on it were considered.
        function: the name of the Python function that the graph is of; empty if unknown.
        convolution_count: convolutions that could be part of a stage.
        refusals: convolution nodes that stay as they are, with the reason.
        plan: the graph's structure, the stages that were made, and what was measured for the graph.
        why_unchanged: empty if stages or units were made, else why not.
        is_in_plan: whether the plan has an entry for it, or for most of its stages.
        why_no_plan: why not; empty if there is no plan.
        op_names: the nodes of the stages or units that were made.
        operation_count: the operations in them.
        timed_graph: the name under which its units time themselves; empty if they do not.
    """

    device_type: str
    node_count: int
    convolution_count: int
    refusals: tuple[Refusal, ...]
    plan: GraphPlan
    function: str = ""
    milliseconds: float = 0.0
    why_unchanged: str = ""
    is_in_plan: bool = False
    why_no_plan: str = ""
    op_names: tuple[str, ...] = ()
    operation_count: int = 0
    timed_graph: str = ""

    @property
    def is_compiled(self) -> bool:
        """Whether it is a function that XLA compiles."""
        return self.plan.jit_compile
