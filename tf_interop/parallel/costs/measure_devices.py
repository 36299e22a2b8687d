"""Measures the devices of this process, or of the cluster that it is connected to.

A second or so for each device: one large convolution, one large copy; and messages of two sizes
between each two devices. Messages go to and fro in one function call; what the same chain of copies
takes on one device is taken off.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_interop.parallel.costs.devices import Device, DeviceGraph
from tf_interop.parallel.device_names import check_devices_are_there, full_device_names
from tf_interop.planning.problem import ValueSource

_IMAGE = (8, 56, 56, 64)
_FILTER = (3, 3, 64, 64)
_MULTIPLY_ADDS = 8 * 56 * 56 * 64 * 3 * 3 * 64
_COPIED_VALUES = 1 << 22
_MESSAGE_VALUES = (1 << 8, 1 << 20)
_HOPS = 8
_REPETITIONS = 5
# Between CPUs of one process nothing is copied: what is left is the clock's error.
_LEAST_SECONDS = 1e-6


def measure_devices(names: Sequence[str]) -> DeviceGraph:
    """Measures devices, each alone.

    Args:
        names: of the devices.

    Raises:
        PlanError: a name is none of a device, or there is no such device.
    """
    check_devices_are_there(names)
    devices = tuple(
        _measure_device(name, full)
        for name, full in zip(names, full_device_names(names), strict=True)
    )
    bytes_per_s = [[0.0] * len(names) for _ in names]
    latency_s = [[0.0] * len(names) for _ in names]
    for first, second in itertools.combinations(range(len(names)), 2):
        small, large = (
            _time_message(names[first], names[second], each) for each in _MESSAGE_VALUES
        )
        values = _MESSAGE_VALUES[1] - _MESSAGE_VALUES[0]
        rate = values * tf.float32.size / max(large - small, _LEAST_SECONDS)
        for source, destination in ((first, second), (second, first)):
            bytes_per_s[source][destination] = rate
            latency_s[source][destination] = max(small, _LEAST_SECONDS)
    return DeviceGraph(
        devices, tuple(map(tuple, bytes_per_s)), tuple(map(tuple, latency_s)), ValueSource.MEASURED
    )


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
        memory_bytes=_physical_bytes() if is_cpu else None,
        pool=f"CPUs of /job:{spec.job}/task:{spec.task}" if is_cpu else None,
    )


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _time_message(first: str, second: str, value_count: int) -> float:
    """Seconds of a message of float32 values."""
    with tf.device(first):
        values = tf.zeros([value_count])

    def go(devices: Sequence[str]) -> tf.Tensor:
        here = values
        for hop in range(_HOPS):
            with tf.device(devices[hop % 2]):
                here = tf.roll(here, 1, 0)
        with tf.device(first):
            return here[0]

    to_and_fro = _time(lambda: go((second, first)))
    return (to_and_fro - _time(lambda: go((first, first)))) / _HOPS


def _time(run: Callable[[], tf.Tensor]) -> float:
    """The median of several runs as a function, in seconds; the result is waited for."""
    run = tf.function(run, autograph=False)
    run().numpy()
    seconds = []
    for _ in range(_REPETITIONS):
        start = time.perf_counter()
        run().numpy()
        seconds.append(time.perf_counter() - start)
    return max(statistics.median(seconds), _LEAST_SECONDS)
