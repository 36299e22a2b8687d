"""Turns the plugin on and off.

TensorFlow's own option decides whether it calls plugins:
`tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": …})`. `enable` and `disable`
set it; setting it directly does the same, except for XLA's depthwise convolutions on a CPU.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from tf_interop import tensorflow_internals
from tf_interop.errors import TfInteropError
from tf_interop.graph.xla import xla_auto_clustering
from tf_interop.measure.device import has_nvidia_gpu, this_cpu
from tf_interop.parallel.divide import Divider, ParallelPlan
from tf_interop.planning.types import Plan, load_plan
from tf_interop.runtime import known_calls, packed_calls
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import (
    DEFAULT_KEPT_MB,
    DEFAULT_PASS_TIME_LIMIT_S,
    Policy,
    Settings,
)
from tf_interop.terminal import count_of
from tf_interop.versioned_file import PathLike


def enable(
    policy: str = "profiled",
    *,
    plan: Plan | PathLike | None = None,
    parallel: ParallelPlan | PathLike | None = None,
    pass_time_limit_s: float = DEFAULT_PASS_TIME_LIMIT_S,
    workspace_limit_mb: int | None = None,
    kept: bool | None = None,
    kept_mb: int = DEFAULT_KEPT_MB,
    self_timing: bool | None = None,
) -> None:
    """Turns the plugin on, or changes its settings.

    If the settings change, functions are optimized again at their next call. For that, TensorFlow
    drops the kernels of eager execution, as `tf.random.set_seed` does: random ops with their own
    seed start again. Sessions and tf.data pipelines that have run keep their graphs.

    In functions that XLA compiles for a GPU, all convolutions become stages, independent ones one
    stage. XLA then captures a whole step into one CUDA graph, which it does not with convolutions
    of its own.

    Args:
        policy: `"profiled"` makes only the stages of `plan`, and in functions that XLA compiles for
            a GPU also stages of all other convolutions; on a CPU, units that time themselves.
            `"always"` puts every convolution on a GPU into a stage, independent ones into the same
            one, and runs every unit of a CPU on one core, whether it is faster or not.
        plan: a plan or its file, for the policy `"profiled"`.
        parallel: a parallel plan or its file, which divides layers over devices. Stages are then
            made on each device. `enable` then lists TensorFlow's devices, so set them up first.
        pass_time_limit_s: how long the pass may take for one graph. A graph that takes longer stays
            unchanged, and `status()` reports it.
        workspace_limit_mb: limit for all workspaces of one stage together, in MiB. A stage that
            needs more runs on fewer lanes, with other algorithms or in sequence. With None, only
            memory limits it. TensorFlow's own limit for each convolution,
            `TF_CUDNN_WORKSPACE_LIMIT_IN_MB`, also applies.
        kept: whether to fold normalizations and scales into filters, to keep what depends only on
            variables until one of them changes, and to fuse normalizations in training. None means
            only with the policy `"profiled"`, because the policy `"always"` is for comparing bits.
            Folding and fusing round differently. On a GPU nothing is folded or fused without a plan
            or the policy `"always"`.
        kept_mb: limit for the values of one graph that are kept, in MiB. Filters that oneDNN
            arranges take their size once more.
        self_timing: whether a graph on a CPU finds out by itself, during its first steps and now
            and then, how its operations run fastest: as in stock TensorFlow, on one core each, or
            on several that stay awake. A plan leaves graphs as they are that were measured to be
            fastest in stock TensorFlow. On a GPU, whether each stage of a plan is compared with
            TensorFlow's own kernels, which run if they are faster. None means with the policy
            `"profiled"`, unless TF_INTEROP_SELF_TIMING=0 is set. Under
            `tf.config.experimental.enable_op_determinism` nothing is tried.

    Raises:
        ValueError: the policy is unknown or allows no plan or self-timing, a limit is negative, or
            the time limit is 0.
        PlanError: a plan file cannot be read, or devices of a parallel plan are missing.
        LibraryError: the compiled library is missing or does not fit this TensorFlow.
    """
    turn_on(
        make_settings(
            *(policy, plan, parallel, pass_time_limit_s, workspace_limit_mb),
            kept=kept,
            kept_mb=kept_mb,
            self_timing=self_timing,
        )
    )


def turn_on(settings: Settings) -> None:
    """Turns the plugin on with these settings; raises as `enable` does."""
    plugin = get_plugin()
    plugin.check_registered()
    changes_graphs = settings != plugin.settings
    if changes_graphs and plugin.settings.divider is not None:
        plugin.settings.divider.turn_off()
    plugin.settings = settings
    was_on = tensorflow_internals.plugin_optimizers_option()
    plugin.set_option(True)
    if not was_on and (left := plugin.library.read_xla_calls().left):
        logging.warning(
            "XLA compiled %s for this CPU before tf_interop was on. They are many times slower "
            "than TensorFlow's own, and stay so in compiled functions that other functions call, "
            "as in Keras. Call tf_interop.enable() before the first step, or make these functions "
            "anew, for example with model.compile.",
            count_of(left, "depthwise convolution"),
        )
    if settings.divider is None:
        packed_calls.turn_on()
        known_calls.turn_on()
    else:
        packed_calls.turn_off()
        known_calls.turn_off()
        settings.divider.turn_on()
    if changes_graphs:
        tensorflow_internals.optimize_functions_anew()
    if auto_clustering := xla_auto_clustering():
        logging.warning(
            "tf_interop is on, and XLA is on for all graphs (%s). XLA fuses nothing into stages, "
            "which may cost more than they gain. Turn one of the two off.",
            auto_clustering,
        )


def settings_in_use() -> Settings | None:
    """The settings with which the plugin is on; None if it is off, or changes nothing."""
    is_off = tensorflow_internals.plugin_optimizers_option() is False
    settings = get_plugin().settings
    return None if is_off or not settings.can_change_graphs else settings


def disable() -> None:
    """Turns the plugin off; functions are optimized again at their next call.

    New tf.data pipelines and Sessions get no stages either; those that have run keep theirs. Other
    graph-optimizer plugins are turned off, too.
    """
    divider = None
    try:
        plugin = get_plugin()
        divider = plugin.settings.divider
        plugin.set_option(False)
    except (TfInteropError, ImportError):  # without the library there is only the option
        tensorflow_internals.set_plugin_optimizers_option(False)
    packed_calls.turn_off()
    known_calls.turn_off()
    try:
        if divider is not None:
            divider.turn_off()  # raises if a device is gone that had values
    finally:
        # TensorFlow keeps options by thread, so functions of others still reach the pass once.
        tensorflow_internals.optimize_functions_anew()


@contextlib.contextmanager
def calls_as_stock() -> Iterator[None]:
    """Calls functions as TensorFlow does inside the `with` block, in all threads."""
    was_on = packed_calls.is_on()
    packed_calls.turn_off()
    known_calls.turn_off()
    try:
        yield
    finally:
        if was_on:
            packed_calls.turn_on()
            known_calls.turn_on()


@contextlib.contextmanager
def changing_nothing() -> Iterator[None]:
    """Inside the `with` block TensorFlow shows the plugin its graphs, and none is changed."""
    plugin = get_plugin()
    settings, option = plugin.settings, tensorflow_internals.plugin_optimizers_option()
    plugin.settings = Settings()
    try:
        if option is False:
            tensorflow_internals.set_plugin_optimizers_option(True)
        with calls_as_stock():
            yield
    finally:
        if option is False:
            tensorflow_internals.set_plugin_optimizers_option(False)
        plugin.settings = settings


def make_settings(
    policy: str,
    plan: Plan | PathLike | None,
    parallel: ParallelPlan | PathLike | None,
    pass_time_limit_s: float,
    workspace_limit_mb: int | None,
    *,
    kept: bool | None = None,
    kept_mb: int = DEFAULT_KEPT_MB,
    self_timing: bool | None = None,
) -> Settings:
    """Checks the arguments of `enable` and reads the plan's file; raises as it does."""
    policies = [each.value for each in Policy]
    if policy not in policies:
        got = repr(policy) if isinstance(policy, str) else f"a {type(policy).__name__}"
        raise ValueError(
            f"Expected policy to be one of {policies}, got {got}. Pass a plan as the argument plan."
        )
    if policy == Policy.ALWAYS.value and plan is not None:
        raise ValueError(
            "policy 'always' uses no plan, but one was given. Leave the plan out, or use policy "
            "'profiled'."
        )
    if not pass_time_limit_s > 0:
        raise ValueError(
            f"Expected pass_time_limit_s to be positive, got {pass_time_limit_s!r}. Pass "
            "infinity for no limit."
        )
    if workspace_limit_mb is not None and workspace_limit_mb < 0:
        raise ValueError(
            f"Expected workspace_limit_mb to be at least 0, got {workspace_limit_mb}. With 0 "
            "every stage uses the algorithms that need the least workspace."
        )
    if kept_mb < 0:
        raise ValueError(
            f"Expected kept_mb to be at least 0, got {kept_mb}. With 0 nothing is kept."
        )
    is_profiled = policy == Policy.PROFILED.value
    if self_timing and not is_profiled:
        raise ValueError(
            "policy 'always' runs every unit on one core, but self_timing was given. Leave it out, "
            "or use policy 'profiled'."
        )
    if kept is None:
        kept = is_profiled
    if self_timing is None:
        self_timing = is_profiled and os.environ.get("TF_INTEROP_SELF_TIMING") != "0"
    if plan is not None and not isinstance(plan, Plan):
        if not isinstance(plan, str | os.PathLike):
            raise ValueError(
                f"Expected plan to be a Plan or its file, got a {type(plan).__name__}. Of what "
                "tune returns, pass its .plan."
            )
        plan = load_plan(plan)
    if plan is not None and (difference := why_tuned_elsewhere(plan)):
        logging.warning("%s", difference)
    return Settings(
        Policy(policy),
        plan,
        pass_time_limit_s,
        workspace_limit_mb,
        divider=None if parallel is None else Divider.of(parallel),
        kept_mb=kept_mb if kept else 0,
        times_itself=self_timing,
        captures_compiled=has_nvidia_gpu(),
    )


def why_tuned_elsewhere(plan: Plan) -> str:
    """Describes how this process's device differs from the one that a plan was tuned on.

    Empty if it does not differ, or if nothing was tuned.
    """
    tuned = [each.measured for each in plan.graphs if each.measured]
    if not tuned:
        return ""
    if has_nvidia_gpu() and tensorflow_internals.may_have_gpus():
        return (
            "The plan was tuned on a CPU and changes nothing on this process's GPU. Tune again "
            "here, or hide the GPU (CUDA_VISIBLE_DEVICES=-1)."
        )
    here = this_cpu()
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    cores = min(here.sm_count, threads or here.sm_count)
    found = f"{here.name} with {cores} cores"
    expected = f"{plan.made_with.get('device', here.name)} with {tuned[0].cores} cores"
    if found == expected:
        return ""
    return (
        f"The plan was tuned on {expected}, but this process has {found}. What is fastest there "
        "may not be fastest here: tune again here."
    )
