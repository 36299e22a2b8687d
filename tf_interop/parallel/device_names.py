"""The names of the devices of a parallel plan, as graphs have them."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_interop import tensorflow_internals
from tf_interop.errors import PlanError
from tf_interop.graph.view import GraphView


def full_device_names(devices: Sequence[str]) -> tuple[str, ...]:
    """The full names of devices; what names no job or task is of this process.

    Raises:
        PlanError: a name is none of a device, or two are of one.
    """
    job, task = tensorflow_internals.local_task()
    here = tf.DeviceSpec(job=job, replica=0, task=task)
    names: dict[str, str] = {}
    for device in devices:
        try:
            spec = tf.DeviceSpec.from_string(device)
        except ValueError:
            spec = tf.DeviceSpec()
        if spec.device_type is None or spec.device_index is None:
            raise PlanError(
                f"Expected names of devices such as '/device:GPU:1', got '{device}'. Correct the "
                "parallel plan."
            )
        name = here.make_merged_spec(spec).to_string()
        if name in names:
            raise PlanError(
                f"Expected every device once, got '{names[name]}' and '{device}' for {name}. "
                "Correct the parallel plan."
            )
        names[name] = device
    return tuple(names)


def number_devices(devices: Sequence[str], view: GraphView) -> tuple[tuple[str, ...], list[int]]:
    """The names of all devices, `devices` first, and the number of the device of each node.

    Raises:
        PlanError: as of `full_device_names`.
    """
    numbers = {name: number for number, name in enumerate(full_device_names(devices))}
    device_of_node = [numbers.setdefault(node.device, len(numbers)) for node in view.nodes]
    return tuple(numbers), device_of_node


def check_devices_are_there(devices: Sequence[str]) -> None:
    """Checks that this process, or the cluster that it is connected to, has devices.

    It lists the devices, which settles for the whole process which ones TensorFlow uses.

    Raises:
        PlanError: a name is none of a device, or no such device is there.
    """
    wanted = full_device_names(devices)
    there = full_device_names([each.name for each in tf.config.list_logical_devices()])
    missing = [name for name in wanted if name not in there]
    if missing:
        raise PlanError(
            f"Expected the {len(wanted)} devices of the parallel plan, got {len(there)}: "
            f"{', '.join(there)}. Missing: {', '.join(missing)}. Make a plan for the devices that "
            "are here, or connect to the cluster that has them first "
            "(tf.config.experimental_connect_to_cluster)."
        )
