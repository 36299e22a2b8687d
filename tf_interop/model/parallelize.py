"""Plans how to divide the layers of a model over several devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_interop import tensorflow_internals
from tf_interop.errors import PlanError
from tf_interop.model.graphs import (
    handed_graph_of,
    optimize_graph,
    trace,
    with_inferred_shapes,
)
from tf_interop.parallel.costs.devices import DeviceGraph, load_device_graph, take_devices
from tf_interop.parallel.costs.local_devices import full_device_names, measure_devices
from tf_interop.parallel.costs.part_tables import MeasuredParts
from tf_interop.parallel.layers.heads import HEAD_OPS
from tf_interop.parallel.layers.prepare import prepare
from tf_interop.parallel.make_division import make_division
from tf_interop.parallel.types import ParallelPlan
from tf_interop.profile.file import load_profile
from tf_interop.profile.types import Profile
from tf_interop.versioned_file import PathLike

_TIMED_STEPS = 5


def parallelize(
    model_or_function: Any,
    devices: Sequence[str] | int | None = None,
    *,
    batch_size: int = 1,
    training: bool = False,
    image_size: tuple[int, int] | int | None = None,
    memory_limit: int | None = None,
    profile: Profile | PathLike | None = None,
    device_graph: DeviceGraph | PathLike | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> ParallelPlan:
    """Plans how to divide the layers of a model over several devices.

    Each layer has its own configuration: it is divided by samples, height, width, and output or
    input channels, over all devices or some. By the cost model, the chosen configurations take the
    least time for all layers and for the data sent between them. Nothing is divided unless that is
    a tenth faster than one device. The model runs a few times, on zeros, to get its graph and the
    time of its step on one device, and keeps its variables.

    Args:
        model_or_function: a Keras model with known inputs, a concrete function, a tf.function with
            an input signature, or a GraphDef.
        devices: names of devices such as `/device:GPU:1`, or their number; None for all. The first
            must be the one that the model runs on without a plan.
        batch_size: for inputs whose first dimension is unknown. The plan is for this size only.
        training: whether to plan a training step of a Keras model instead of its inference.
        image_size: height and width, or one number for both, where inputs of rank 4 lack them.
        memory_limit: bytes that no device may exceed.
        profile: measured convolutions of one of the devices, or their file. Parts missing from it
            are modelled.
        device_graph: the speed of devices, which may be elsewhere, and of their links, or its file.
            None measures the devices here.
        say: called with a few words on the progress.

    Returns:
        A plan for `enable(parallel=…)`.

    Raises:
        ValueError: an argument is of the wrong kind, or an input's shape is unknown.
        GraphError: TensorFlow refuses the graph.
        PlanError: a device is missing, or no division fits in memory.
        LibraryError: the compiled library is missing or does not fit this TensorFlow.
    """
    if memory_limit is not None and memory_limit < 1:
        raise ValueError(f"memory_limit must be 1 byte or more, not {memory_limit}.")
    loaded = profile if profile is None or isinstance(profile, Profile) else load_profile(profile)
    if device_graph is not None and not isinstance(device_graph, DeviceGraph):
        device_graph = load_device_graph(device_graph)
    is_here = device_graph is None
    if device_graph is not None:
        chosen = _choose(device_graph, _devices_of(device_graph.names, devices))
    else:
        say("Measuring devices")
        here = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        chosen = measure_devices(_devices_of([each.name for each in here], devices))
    say("Tracing")
    traced = trace(
        model_or_function, batch_size=batch_size, training=training, image_size=image_size
    )
    say(f"Planning {traced.name}")
    handed = None if traced.run is None else handed_graph_of(traced, HEAD_OPS)
    graph_def = optimize_graph(traced, None) if handed is None else handed
    layers = prepare(with_inferred_shapes(graph_def), shares=traced.name)
    if not layers.layers:
        raise ValueError(
            "The model has no convolutions or matrix products with known shapes to divide."
        )
    _check_first_device(chosen, {layers.view.nodes[node].device for node in layers.layer_of})
    allow_tf32 = tensorflow_internals.is_tf32_on()
    measured = None if loaded is None else MeasuredParts(loaded, allow_tf32=allow_tf32)
    division = make_division(
        layers,
        chosen,
        mode=traced.mode,
        memory_limit=memory_limit,
        measured=measured,
        step_s=min(traced.run(_TIMED_STEPS)) if is_here and traced.run is not None else None,
    )
    version = tensorflow_internals.tensorflow_version()
    made_with = {"tensorflow": version, "devices": chosen.source.value}
    return ParallelPlan(chosen.names, (division,), made_with=made_with)


def _devices_of(there: Sequence[str], wanted: Sequence[str] | int | None) -> Sequence[str]:
    """The names of the requested devices; numbers and None mean the first ones, or all."""
    if wanted is None:
        return there
    if not isinstance(wanted, int):
        if isinstance(wanted, str) or not wanted:
            raise ValueError(
                "Expected devices to be a number or a list of names such as ['/device:GPU:0', "
                f"'/device:GPU:1'], got {wanted!r}."
            )
        return wanted
    if not 1 <= wanted <= len(there):
        raise PlanError(
            f"{wanted} devices were requested, but these exist: {', '.join(there)}. Request 1 to "
            f"{len(there)}, describe others in a device graph, or make logical devices with "
            "tf.config.set_logical_device_configuration before TensorFlow starts."
        )
    return there[:wanted]


def _choose(graph: DeviceGraph, devices: Sequence[str]) -> DeviceGraph:
    """The requested devices of a device graph."""
    known = full_device_names(graph.names)
    wanted = full_device_names(devices)
    missing = [name for name in wanted if name not in known]
    if missing:
        raise PlanError(
            f"The device graph has {', '.join(known)}, but not {', '.join(missing)}. Describe "
            "the missing devices in it, or omit it to measure the devices here."
        )
    return take_devices(graph, [known.index(name) for name in wanted])


def _check_first_device(devices: DeviceGraph, of_layers: set[str]) -> None:
    """Refuses a list of devices that does not begin with the model's own."""
    names = full_device_names(devices.names)
    for name in sorted(of_layers - {""}):
        if name in names[1:] or (name not in names and devices.source.value == "measured"):
            raise PlanError(
                f"The model runs on {name}, but the first device is {names[0]}. Name the model's "
                "device first."
            )
