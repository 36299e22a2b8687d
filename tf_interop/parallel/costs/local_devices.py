"""The devices of this process or its cluster: their names, presence and speed."""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

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
_COPIED_VALUES = 1 << 20
"""As many as results of layers often have. More wait longer for a shared memory."""
_MESSAGE_VALUES = (1 << 8, 1 << 20)
_EXCHANGES = 8
_MESSAGES_AT_ONCE = 16
_REPETITIONS = 5
# So that a call of a device of another process does not count.
_CONVOLUTIONS_IN_A_ROW = 4
_COPIES_IN_A_ROW = 64
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

    This takes about a second for each device: large convolutions and large copies, then
    messages of two sizes, and several at once, which each two devices send each other, as they do
    in a step. The time of the same copies on one device is subtracted. The plugin is off meanwhile.

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
    convolution = _time(_convolution(names[0]))
    core_count = convolution.core_seconds / convolution.seconds
    bytes_per_s, latency_s, message_s = np.zeros((3, len(names), len(names)))
    busy_s_of_message, busy_s_of_byte, call_s = [0.0], [0.0], [0.0]
    for first, second in itertools.combinations(range(len(names)), 2):
        pair = names[first], names[second]
        small, large = (_time_exchange(*pair, each) for each in _MESSAGE_VALUES)
        many = _time_exchange(*pair, _MESSAGE_VALUES[0], _MESSAGES_AT_ONCE)
        small_s = max(small.seconds, _LEAST_SECONDS)
        next_s = min(max(many.seconds - small.seconds, 0.0) / (_MESSAGES_AT_ONCE - 1), small_s)
        values = _MESSAGE_VALUES[1] - _MESSAGE_VALUES[0]
        sending_s = max(large.seconds - small.seconds, _LEAST_SECONDS)
        both = [first, second], [second, first]
        bytes_per_s[both] = values * tf.float32.size / sending_s
        latency_s[both] = small_s - next_s
        message_s[both] = next_s
        if first == 0:
            one = _time_exchange(*pair, _MESSAGE_VALUES[0], count=1)
            call_s.append(max(one.seconds, 0.0))
        pools = {devices[first].pool, devices[second].pool}
        if first == 0 and len(pools) == 2 and None not in pools:
            # Of the cores that compute.
            busy_s = (many.core_seconds - small.core_seconds) / (_MESSAGES_AT_ONCE - 1) / core_count
            busy_s_of_message.append(min(max(busy_s, 0.0), next_s))
            busy_s = (large.core_seconds - small.core_seconds) / core_count
            byte_count = values * tf.float32.size
            busy_s_of_byte.append(min(max(busy_s, 0.0), sending_s) / byte_count)
    rates, latencies, messages = (
        tuple(map(tuple, each.tolist())) for each in (bytes_per_s, latency_s, message_s)
    )
    return DeviceGraph(
        devices,
        rates,
        latencies,
        messages,
        max(busy_s_of_message),
        max(busy_s_of_byte),
        max(call_s),
        _slowdown(devices, _convolution),
        _slowdown(devices, _copy),
        ValueSource.MEASURED,
    )


def _slowdown(
    devices: Sequence[Device], make_work: Callable[[str], Callable[[], tf.Tensor]]
) -> float:
    """How many times as long a device works while one of each pool does the same."""
    of_pools = {each.pool or each.name: each.name for each in reversed(devices)}
    works = [make_work(name) for name in of_pools.values()]
    together = functools.partial(_time, lambda: tf.stack([each() for each in works]))
    alone = functools.partial(_time, works[-1])
    # In turns, because the speed of a shared machine changes.
    turns = [(together().seconds, alone().seconds) for _ in range(_REPETITIONS)]
    together_s, alone_s = map(min, zip(*turns, strict=True))
    return float(max(together_s / alone_s, 1.0))


def _convolution(name: str) -> Callable[[], tf.Tensor]:
    with tf.device(name):
        image, filter_ = tf.random.normal(_IMAGE), tf.random.normal(_FILTER)

    def convolve() -> tf.Tensor:
        with tf.device(name):
            x = image
            for _ in range(_CONVOLUTIONS_IN_A_ROW):
                x = tf.nn.conv2d(x, filter_, 1, "SAME")
            return tf.reduce_max(x)

    return convolve


def _copy(name: str) -> Callable[[], tf.Tensor]:
    with tf.device(name):
        values = tf.zeros([_COPIED_VALUES])

    def copy() -> tf.Tensor:
        with tf.device(name):
            x = values
            for _ in range(_COPIES_IN_A_ROW):
                x = tf.roll(x, 1, 0)
            return x[0]

    return copy


def _measure_device(name: str, full_name: str) -> Device:
    spec = tf.DeviceSpec.from_string(full_name)
    is_cpu = spec.device_type == "CPU"
    multiply_adds = _CONVOLUTIONS_IN_A_ROW * _MULTIPLY_ADDS
    moved_bytes = _COPIES_IN_A_ROW * 2 * _COPIED_VALUES * tf.float32.size
    return Device(
        name,
        multiply_adds_per_s=multiply_adds / _time(_convolution(name)).seconds,
        memory_bytes_per_s=moved_bytes / _time(_copy(name)).seconds,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if is_cpu else None,
        pool=f"CPUs of /job:{spec.job}/task:{spec.task}" if is_cpu else None,
    )


class _Time(NamedTuple):
    """The time of a call, and the time that cores worked for this process meanwhile."""

    seconds: float
    core_seconds: float


def _time_exchange(
    first: str, second: str, value_count: int, message_count: int = 1, count: int = _EXCHANGES
) -> _Time:
    """The time until messages of float32 values, which two devices send each other, are all there.

    The first device is one of this process, which has both ends of messages. The time of cores is
    that of one end.
    """
    values = {}
    for name in (first, second):
        with tf.device(name):
            values[name] = [tf.zeros([value_count]) for _ in range(message_count)]

    def roll(device: str, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        with tf.device(device):
            return [tf.roll(each, 1, 0) for each in tensors]

    def add(device: str, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        with tf.device(device):
            return tf.add_n([each[0] for each in tensors])

    def exchange() -> tf.Tensor:
        here, there = values[first], values[second]
        for _ in range(count):
            here, there = roll(first, there), roll(second, here)
        return tf.add(add(first, here), add(second, there))

    def stay() -> tf.Tensor:
        here = values[first]
        for _ in range(count):
            here = roll(first, here)
        return add(first, here)

    both, one = _time(exchange), _time(stay)
    return _Time(
        (both.seconds - one.seconds) / count, (both.core_seconds - one.core_seconds) / 2 / count
    )


def _time(run: Callable[[], tf.Tensor]) -> _Time:
    """The least time until a function's result is there, because others may use the machine."""
    run = tf.function(run, autograph=False)
    run().numpy()
    times = []
    for _ in range(_REPETITIONS):
        start, core_start = time.perf_counter(), time.process_time()
        run().numpy()
        times.append((time.perf_counter() - start, time.process_time() - core_start))
    seconds, core_seconds = min(times)
    return _Time(max(seconds, _LEAST_SECONDS), core_seconds)
