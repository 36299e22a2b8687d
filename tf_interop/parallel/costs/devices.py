"""A device graph: how fast devices compute, and how fast they send to each other.

Its file is versioned JSON, written by hand for devices elsewhere, or measured
(`local_devices.py`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated

import msgspec

from tf_interop.errors import PlanError
from tf_interop.planning.types import Bytes, ValueSource
from tf_interop.versioned_file import VersionedFormat

Rate = Annotated[float, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """A device that runs nothing else.

    Attributes:
        name: TensorFlow's name for it, such as `/device:GPU:1`.
        multiply_adds_per_s: rate of large convolutions.
        memory_bytes_per_s: rate of reads and writes together.
        memory_bytes: size of its memory; None for no limit.
        pool: devices of one pool share their cores and compute one after another, as the logical
            CPUs of one process do. None for a device with cores of its own.
    """

    name: str
    multiply_adds_per_s: Rate
    memory_bytes_per_s: Rate
    memory_bytes: Bytes | None = None
    pool: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceGraph:
    """Devices and their links, by the sending and the receiving device; diagonals are ignored.

    Sending n messages at once takes a latency, n times the time of a message, and their bytes over
    the rate. These are L, g and 1 / G of Alexandrov et al., "LogGP" (SPAA 1995). Their o, the time
    in which a device cannot compute, is given for a message and for a byte.

    Attributes:
        devices: the first runs all layers that are not divided.
        bytes_per_s: rates of large messages.
        latency_s: time that a small message is under way.
        message_s: time that each message adds, where several are sent at once.
        busy_s_of_message: time that the cores of a device work for a message that it sends or
            receives, and cannot compute; 0 if copy engines do that.
        busy_s_of_byte: the same for a byte of a large message.
        call_s: time that a call takes longer if several devices take part: they are told to start,
            wait for the first message, and tell that they are done.
        slowdown: how many times as long a device takes for a convolution while all others compute,
            because they share a processor or its power.
        memory_slowdown: the same for reads and writes, because they share a memory.
        source: measured if all values were.
        format: always `tf_interop.device_graph`.
        version: version of the format.
    """

    devices: Annotated[tuple[Device, ...], msgspec.Meta(min_length=1)]
    bytes_per_s: tuple[tuple[Annotated[float, msgspec.Meta(ge=0)], ...], ...]
    latency_s: tuple[tuple[Seconds, ...], ...]
    message_s: tuple[tuple[Seconds, ...], ...]
    busy_s_of_message: Seconds = 0.0
    busy_s_of_byte: Seconds = 0.0
    call_s: Seconds = 0.0
    slowdown: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    memory_slowdown: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    source: ValueSource = ValueSource.MODELLED
    format: str = "tf_interop.device_graph"
    version: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the devices."""
        return tuple(device.name for device in self.devices)

    @property
    def pools(self) -> tuple[int, ...]:
        """The number of each device's pool. A device without a pool has its own number."""
        numbers: dict[tuple[int, str], int] = {}
        return tuple(
            numbers.setdefault((-1, each.pool) if each.pool else (place, ""), len(numbers))
            for place, each in enumerate(self.devices)
        )


def uniform_device_graph(
    names: Sequence[str],
    *,
    multiply_adds_per_s: float,
    memory_bytes_per_s: float,
    bytes_per_s: float,
    latency_s: float,
    message_s: float = 0.0,
    memory_bytes: int | None = None,
) -> DeviceGraph:
    """Makes a graph of equal devices with equal links; see `Device` and `DeviceGraph`."""
    return DeviceGraph(
        tuple(
            Device(name, multiply_adds_per_s, memory_bytes_per_s, memory_bytes) for name in names
        ),
        ((bytes_per_s,) * len(names),) * len(names),
        ((latency_s,) * len(names),) * len(names),
        ((message_s,) * len(names),) * len(names),
    )


def take_devices(graph: DeviceGraph, places: Sequence[int]) -> DeviceGraph:
    """Makes a graph of the devices at these places, with their links."""

    def take(rows: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(rows[a][b] for b in places) for a in places)

    return dataclasses.replace(
        graph,
        devices=tuple(graph.devices[place] for place in places),
        bytes_per_s=take(graph.bytes_per_s),
        latency_s=take(graph.latency_s),
        message_s=take(graph.message_s),
    )


def _check_device_graph(graph: DeviceGraph) -> None:
    """Checks the rules that the types cannot express."""
    count = len(graph.devices)
    if len(set(graph.names)) < count:
        raise ValueError(f"Expected each device once, got {list(graph.names)} at `$.devices`")
    for field in ("bytes_per_s", "latency_s", "message_s"):
        rows = getattr(graph, field)
        if [len(row) for row in rows] != [count] * count:
            raise ValueError(
                f"Expected {count} rows of {count}, got rows of {[len(row) for row in rows]} at "
                f"`$.{field}`"
            )
    for source, row in enumerate(graph.bytes_per_s):
        for destination, rate in enumerate(row):
            if source != destination and not (rate > 0 and math.isfinite(rate)):
                raise ValueError(
                    f"Expected more than 0 bytes a second, got {rate} at "
                    f"`$.bytes_per_s[{source}][{destination}]`"
                )


DEVICE_GRAPH_FILE = VersionedFormat(
    DeviceGraph,
    noun="device graph",
    check=_check_device_graph,
    error=PlanError,
    remedy="Correct the file, or omit it to measure the devices of this machine.",
)
load_device_graph = DEVICE_GRAPH_FILE.load
save_device_graph = DEVICE_GRAPH_FILE.save
device_graph_schema = DEVICE_GRAPH_FILE.schema
