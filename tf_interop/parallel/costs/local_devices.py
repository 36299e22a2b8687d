"""The devices of this process or its cluster: their names, presence and speed."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_interop import tensorflow_internals
from tf_interop.errors import PlanError
from tf_interop.graph.view import GraphView
from tf_interop.parallel.costs.devices import Device, DeviceGraph
from tf_interop.planning.types import ValueSource

_IMAGE = (8, 56, 56, 64)
_FILTER = (3, 3, 64, 64)
_MULTIPLY_ADDS = 8 * 56 * 56 * 64 * 3 * 3 * 64
_COPIED_VALUES = 1 << 22
_MESSAGE_VALUES = (1 << 8, 1 << 20)
_HOPS = 8
_MESSAGES_AT_ONCE = 16
_REPETITIONS = 5
# CPUs of one process copy nothing to each other, so only the clock's error is left.
_LEAST_SECONDS = 1e-6


def full_device_names(devices: Sequence[str]) -> tuple[str, ...]:
    """The full names of devices. A name without job or task is a device of this process.

    Raises:
        PlanError: a name is not a device's, or two names mean one device.
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
                f"'{device}' is not the name of a device. Write it like '/device:GPU:1'."
            )
        name = here.make_merged_spec(spec).to_string()
        if name in names:
            raise PlanError(
                f"'{names[name]}' and '{device}' both mean the device {name}. Name each once."
            )
        names[name] = device
    return tuple(names)


def number_devices(devices: Sequence[str], view: GraphView) -> tuple[tuple[str, ...], list[int]]:
    """The full names of all devices, `devices` first, and the number of each node's device.

    Raises:
        PlanError: see `full_device_names`.
    """
    numbers = {name: number for number, name in enumerate(full_device_names(devices))}
    device_of_node = [numbers.setdefault(node.device, len(numbers)) for node in view.nodes]
    return tuple(numbers), device_of_node


def check_devices_are_there(devices: Sequence[str]) -> None:
    """Checks that this process or its cluster has these devices.

    Listing the devices fixes, for the whole process, which of them TensorFlow uses.

    Raises:
        PlanError: a name is not a device's, or there is no such device.
    """
    wanted = full_device_names(devices)
    there = full_device_names([each.name for each in tf.config.list_logical_devices()])
    missing = [name for name in wanted if name not in there]
    if missing:
        raise PlanError(
            f"Devices are missing: {', '.join(missing)}. This process has {', '.join(there)}. "
            "Make a plan for these devices, or first connect to the cluster that has the missing "
            "ones (tf.config.experimental_connect_to_cluster)."
        )


def measure_devices(names: Sequence[str]) -> DeviceGraph:
    """Measures devices one by one, and the links between them.

    This takes about a second for each device: one large convolution and one large copy, then
    messages of two sizes, and several at once, to and from each other device. A function call sends
    messages back and forth; the time of the same copies on one device is subtracted. The plugin is
    off meanwhile.

    Raises:
        PlanError: a name is not a device's, or there is no such device.
    """
    check_devices_are_there(names)
    option = tensorflow_internals.plugin_optimizers_option()
    tensorflow_internals.set_plugin_optimizers_option(False)
    try:
        return _measure(names)
    finally:
        tensorflow_internals.set_plugin_optimizers_option(option)


def _measure(names: Sequence[str]) -> DeviceGraph:
    devices = tuple(map(_measure_device, names, full_device_names(names)))
    bytes_per_s, latency_s, message_s = np.zeros((3, len(names), len(names)))
    for first, second in itertools.combinations(range(len(names)), 2):
        small, large = (_time_hop(names[first], names[second], each) for each in _MESSAGE_VALUES)
        many = _time_hop(names[first], names[second], _MESSAGE_VALUES[0], _MESSAGES_AT_ONCE)
        next_s = min(max(many - small, 0.0) / (_MESSAGES_AT_ONCE - 1), max(small, _LEAST_SECONDS))
        values = _MESSAGE_VALUES[1] - _MESSAGE_VALUES[0]
        both = [first, second], [second, first]
        bytes_per_s[both] = values * tf.float32.size / max(large - small, _LEAST_SECONDS)
        latency_s[both] = max(small, _LEAST_SECONDS) - next_s
        message_s[both] = next_s
    rates, latencies, messages = (
        tuple(map(tuple, each.tolist())) for each in (bytes_per_s, latency_s, message_s)
    )
    return DeviceGraph(devices, rates, latencies, messages, ValueSource.MEASURED)


def _measure_device(name: str, full_name: str) -> Device:
    with tf.device(name):
        image, filter_ = tf.random.normal(_IMAGE), tf.random.normal(_FILTER)
        values = tf.zeros([_COPIED_VALUES])

    def convolve() -> tf.Tensor:
        with tf.device(name):
            return tf.reduce_max(tf.nn.conv2d(image, filter_, 1, "SAME"))

    def copy() -> tf.Tensor:
        with tf.device(name):
            return tf.roll(values, 1, 0)[0]

    spec = tf.DeviceSpec.from_string(full_name)
    is_cpu = spec.device_type == "CPU"
    return Device(
        name,
        multiply_adds_per_s=_MULTIPLY_ADDS / _time(convolve),
        memory_bytes_per_s=2 * _COPIED_VALUES * tf.float32.size / _time(copy),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if is_cpu else None,
        pool=f"CPUs of /job:{spec.job}/task:{spec.task}" if is_cpu else None,
    )


def _time_hop(first: str, second: str, value_count: int, message_count: int = 1) -> float:
    """The time until messages of float32 values, sent at once, are all there, in seconds."""
    with tf.device(first):
        values = [tf.zeros([value_count]) for _ in range(message_count)]

    def go(devices: Sequence[str]) -> tf.Tensor:
        here = values
        for hop in range(_HOPS):
            with tf.device(devices[hop % 2]):
                here = [tf.roll(each, 1, 0) for each in here]
        with tf.device(first):
            return tf.add_n([each[0] for each in here])

    back_and_forth = _time(lambda: go((second, first)))
    return (back_and_forth - _time(lambda: go((first, first)))) / _HOPS


def _time(run: Callable[[], tf.Tensor]) -> float:
    """The median time until a function's result is there, in seconds."""
    run = tf.function(run, autograph=False)
    run().numpy()
    seconds = []
    for _ in range(_REPETITIONS):
        start = time.perf_counter()
        run().numpy()
        seconds.append(time.perf_counter() - start)
    return max(statistics.median(seconds), _LEAST_SECONDS)
