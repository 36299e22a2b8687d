"""Turning the plugin on and off, and saying what it does.

TensorFlow's own option decides whether plugins are called:
`tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": …})`. `enable` and `disable`
set it; setting it directly does the same.
"""

from __future__ import annotations

import os

from absl import logging

from tf_interop.decide.settings import Policy, Settings
from tf_interop.errors import LibraryError, ProfileError
from tf_interop.know import tensorflow_internals
from tf_interop.know.nvidia import has_nvidia_gpu
from tf_interop.know.plan import Plan
from tf_interop.know.plan_file import load_plan
from tf_interop.know.profile import Profile
from tf_interop.know.profile_file import load_profile
from tf_interop.know.profiled_device import running_device, this_cpu, why_foreign
from tf_interop.use.plugin import get_plugin


def enable(
    policy: str = "profiled",
    *,
    plan: Plan | str | os.PathLike[str] | None = None,
    profile: Profile | str | os.PathLike[str] | None = None,
    allow_foreign_profile: bool = False,
    workspace_limit_mb: int | None = None,
) -> None:
    """Turns the plugin on for functions that are optimized from now on.

    A function that has been called before keeps the graph that it got then, unless the option
    `use_plugin_optimizers` changes by this call: TensorFlow then optimizes it anew.

    Args:
        policy: `"profiled"` makes only stages that `plan` names or `profile` says win; with
            neither, nothing is rewritten. `"always"` puts every convolution into a stage, faster
            or not; independent ones share one.
        plan: a plan or its file, for the policy `"profiled"`.
        profile: a profile or its file, for the policy `"profiled"`; used for graphs that the plan
            does not hold.
        allow_foreign_profile: whether the profile may be of another device or cuDNN version than
            those of this process. What wins there may lose here, and algorithms that this cuDNN
            does not have are replaced.
        workspace_limit_mb: what the workspaces of one stage may take together, in MiB; a stage
            whose plan asks for more runs on fewer lanes, with other algorithms or in sequence. None
            leaves it to what memory there is. TensorFlow's own limit for each convolution,
            `TF_CUDNN_WORKSPACE_LIMIT_IN_MB`, holds beside it.

    Raises:
        ValueError: the policy is unknown, or does not go with a plan or profile, or the limit is
            negative.
        PlanError: the plan file cannot be read.
        ProfileError: the profile file cannot be read, or is of another device or cuDNN version.
        LibraryError: the compiled library is missing or does not fit this TensorFlow.
    """
    settings = make_settings(
        policy,
        plan=plan,
        profile=profile,
        allow_foreign_profile=allow_foreign_profile,
        workspace_limit_mb=workspace_limit_mb,
    )
    plugin = get_plugin()
    if not plugin.device_types:
        raise LibraryError(" ".join(plugin.refused_device_types.values()))
    plugin.settings = settings
    tensorflow_internals.set_plugin_optimizers_option(True)
    if has_nvidia_gpu():
        logging.warning(
            "tf_interop is on. Keras compiles models with XLA where a GPU is present, and XLA "
            "leaves nothing to it: compile with jit_compile=False, or use "
            "tf_interop.keras.ConvStages."
        )


def disable() -> None:
    """Turns the plugin off; functions are optimized anew when they are called next.

    The option that this sets turns other graph-optimizer plugins off as well.
    """
    tensorflow_internals.set_plugin_optimizers_option(False)


def make_settings(
    policy: str,
    *,
    plan: Plan | str | os.PathLike[str] | None = None,
    profile: Profile | str | os.PathLike[str] | None = None,
    allow_foreign_profile: bool = False,
    workspace_limit_mb: int | None = None,
) -> Settings:
    """Checks the arguments of `enable` and reads the files that they name.

    Raises:
        ValueError: the policy is unknown, or does not go with a plan or profile, or the limit is
            negative.
        PlanError: the plan file cannot be read.
        ProfileError: the profile file cannot be read, or is of another device or cuDNN version.
    """
    known = [each.value for each in Policy]
    if policy not in known:
        raise ValueError(f"Expected policy to be one of {known}, got {policy!r}.")
    if policy == Policy.ALWAYS.value and (plan is not None or profile is not None):
        raise ValueError(
            "Expected no plan and no profile with policy 'always', which looks at neither. "
            "Leave them out, or use policy 'profiled'."
        )
    if workspace_limit_mb is not None and workspace_limit_mb < 0:
        raise ValueError(
            f"Expected workspace_limit_mb to be at least 0, got {workspace_limit_mb}. 0 has every "
            "stage run with what needs least."
        )
    loaded = profile if profile is None or isinstance(profile, Profile) else load_profile(profile)
    if loaded is not None and not allow_foreign_profile:
        check_fits_this_process(loaded)
    return Settings(
        Policy(policy),
        plan if plan is None or isinstance(plan, Plan) else load_plan(plan),
        loaded,
        allow_foreign_profile,
        workspace_limit_mb,
    )


def check_fits_this_process(profile: Profile) -> None:
    """Refuses a profile of another device than that which TensorFlow will run convolutions on.

    That is the first GPU that CUDA shows this process, or the CPU where there is none, or where
    TensorFlow was built without CUDA or was told to use no GPU.

    Raises:
        ProfileError: the profile is of another device or cuDNN version.
    """
    gpu = running_device("cudnn") if tensorflow_internals.may_have_gpus() else None
    difference = why_foreign(profile.device, gpu or this_cpu())
    if difference is not None:
        raise ProfileError(
            f"Expected a profile of what this process runs on, got one of another: {difference}. "
            "Measure anew here, or pass allow_foreign_profile=True (tf-interop run: "
            "--allow-foreign-profile) to go by this one all the same."
        )
