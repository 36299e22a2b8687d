"""Plans which convolutions of a model run together, and with which algorithms."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

from tensorflow.core.framework import graph_pb2

from tf_interop import tensorflow_internals
from tf_interop.errors import ProfileError
from tf_interop.graph.independence import Independence
from tf_interop.measure.device import free_memory_bytes, running_device, running_gpu, this_cpu
from tf_interop.model.graphs import convolutions_of, planned_graph, trace
from tf_interop.planning.check import check_stages
from tf_interop.planning.explain import explain_plan
from tf_interop.planning.make import PlanOptions, make_plan
from tf_interop.planning.problem_of_graph import make_planning_problem
from tf_interop.planning.types import GraphPlan, Plan, first_of_each
from tf_interop.profile.file import load_profile
from tf_interop.profile.types import Profile, why_foreign

CPU_TARGET = "cpu"


def plan(
    model_or_function_or_graph: Any,
    profile: Profile | str | os.PathLike[str],
    *,
    batch_sizes: Sequence[int] = (1,),
    training: bool = False,
    image_size: tuple[int, int] | int | None = None,
    jit_compile: bool = False,
    memory_budget_bytes: int | None = None,
    allow_tf32: bool | None = None,
    deterministic: bool | None = None,
    target: str | None = None,
    allow_foreign_profile: bool = False,
    options: PlanOptions | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Plans the convolutions of a model from their times in a profile.

    The model does not run; only Grappler's own passes do, on the traced graph, so that the plan is
    for the graph that the plugin will get. The graph is assumed to run on one device. Convolutions
    missing from the profile stay unchanged; the prediction counts them. It counts convolutions with
    their biases and activations, and nothing else that XLA may fuse with them.

    Args:
        model_or_function_or_graph: a Keras model with known inputs, a concrete function, a
            tf.function with an input signature, or a GraphDef.
        profile: of the model with these batch sizes, from `tf-interop profile`; or its file.
        batch_sizes: one plan entry each, for inputs whose first dimension is unknown.
        training: whether to plan training of a Keras model instead of its inference.
        image_size: height and width, or one number for both, where inputs of rank 4 lack them.
        jit_compile: whether XLA compiles the model. Its graph is then another, so the profile must
            be of it, too. A function that XLA compiles needs no such argument.
        memory_budget_bytes: for live outputs of convolutions, and workspaces. None: the GPU's free
            memory; on a CPU no limit.
        allow_tf32: TensorFlow's switch for TF32 when the plan is used; None: as it is now.
        deterministic: whether op determinism (`tf.config.experimental.enable_op_determinism`) will
            be on when the plan is used, which excludes algorithms whose results vary from run to
            run; None: as it is now.
        target: the device to plan for: `cpu`, or the compute capability of a GPU such as `9.0`,
            which this machine need not have. None: the device of this process.
        allow_foreign_profile: whether the profile may be for another device.
        options: how far to search.
        say: called with a few words on the progress.

    Returns:
        A plan for `enable(plan=…)`, with an entry for each batch size.

    Raises:
        ValueError: an argument is of the wrong kind, an input's shape is unknown, or the model has
            no convolution.
        GraphError: the GraphDef is not well-formed.
        ProfileError: the profile cannot be read, or is not for the plan's device.
        PlanError: the memory is too small for a convolution.
    """
    if not batch_sizes:
        raise ValueError("batch_sizes is empty. Pass at least one batch size.")
    loaded = profile if isinstance(profile, Profile) else load_profile(profile)
    if not allow_foreign_profile:
        _check_fits(loaded, target)
    if memory_budget_bytes is None:
        memory_budget_bytes = _free_memory_for(loaded)
    options = options or PlanOptions()
    if queues := loaded.device.hardware_queues:
        options = dataclasses.replace(
            options,
            max_lanes=min(options.max_lanes, queues),
            max_measured_lanes=min(options.max_measured_lanes, queues),
        )
    if allow_tf32 is None:
        allow_tf32 = tensorflow_internals.is_tf32_on()
    if deterministic is None:
        deterministic = tensorflow_internals.is_op_determinism_on()
    capability = loaded.device.compute_capability if target is None else target
    entries = []
    for batch_size in batch_sizes:
        say(f"Tracing batch {batch_size}")
        traced = trace(
            model_or_function_or_graph,
            batch_size=batch_size,
            training=training,
            image_size=image_size,
            jit_compile=jit_compile,
        )
        entry = _plan_graph(
            traced.name,
            planned_graph(traced, None if capability in ("", CPU_TARGET) else capability),
            loaded,
            options,
            say,
            allow_tf32=allow_tf32,
            deterministic=deterministic,
            memory_budget_bytes=memory_budget_bytes,
        )
        entries.append(dataclasses.replace(entry, mode=traced.mode, jit_compile=traced.is_compiled))
    # A model with a fixed batch size has the same graph for all of `batch_sizes`.
    return Plan(first_of_each(entries), made_with=_made_with(loaded))


def _free_memory_for(profile: Profile) -> int | None:
    """The free memory of the profile's GPU, or all of its memory if it is not here.

    None for a CPU, which has no limit.
    """
    if profile.device.backend == "host":
        return None
    here = running_device(profile.device.backend)
    if here is not None and here.name == profile.device.name:
        free = free_memory_bytes()
        if free is not None:
            return free
    return profile.device.memory_bytes or None


def _plan_graph(
    name: str,
    graph_def: graph_pb2.GraphDef,
    profile: Profile,
    options: PlanOptions,
    say: Callable[[str], None],
    **bounds: Any,
) -> GraphPlan:
    say(f"Planning {name}")
    view, convolutions, _ = convolutions_of(graph_def)
    if not convolutions:
        raise ValueError(
            "No convolution of the model can be part of a stage. tf-interop analyze lists the "
            "reasons."
        )
    independence = Independence(view, convolutions)
    problem = make_planning_problem(view, convolutions, independence, profile, **bounds)
    planned = explain_plan(
        problem,
        make_plan(problem, options, on_progress=lambda words: say(f"Planning {name}: {words}")),
    )
    # Against the graph itself, not the problem made from it.
    check_stages(planned.stages, view, convolutions)
    return planned


def _check_fits(profile: Profile, target: str | None) -> None:
    """Refuses a profile for another device than the target, or another version of cuDNN.

    Without a target the device is the one that TensorFlow will run convolutions on: the first GPU
    that CUDA shows this process, or the CPU if there is none or TensorFlow may not use it.
    """
    if target is None:
        gpu = running_gpu()
        device = gpu or this_cpu()
    else:
        capability = "" if target == CPU_TARGET else target
        device = dataclasses.replace(profile.device, compute_capability=capability)
    difference = why_foreign(profile.device, device)
    if difference is not None:
        raise ProfileError(
            f"The profile of {profile.device.name} is not for the plan's device: {difference}. "
            "Measure on that device, or pass allow_foreign_profile=True (on the command line: "
            "--allow-foreign-profile)."
        )


def _made_with(profile: Profile) -> dict[str, str]:
    device = profile.device
    made_with = {
        "tensorflow": tensorflow_internals.tensorflow_version(),
        "device": device.name,
        "backend": device.backend,
        "profiled": device.date,
        "cudnn": device.cudnn,
    }
    return {name: value for name, value in made_with.items() if value}
