"""The boxes of a tensor under many configurations at once, and the time to send them.

A search needs the cost of each configuration of one layer with each configuration of another. Here
the boxes of all configurations are rows of one array, and all pairs are computed together.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_interop.parallel.costs.devices import DeviceGraph
from tf_interop.parallel.regions import whole

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


# Compared by identity: `BoxTables` makes one table for each content.
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BoxTable:
    """The boxes of one tensor that devices hold or read under each configuration.

    Rows are ordered by configuration, then by device. A configuration without boxes has one empty
    row. Boxes have one dimension more than the tensor, so that a scalar's box has one dimension.

    Attributes:
        configurations: the configuration of each row.
        devices: the device of each row.
        begins: by row and dimension.
        ends: by row and dimension.
        are_sums: whether equal boxes are addends, by configuration.
    """

    configurations: Integers
    devices: Integers
    begins: Integers
    ends: Integers
    are_sums: Booleans

    @property
    def volumes(self) -> Integers:
        """The number of values of each row."""
        return np.asarray(np.prod(self.ends - self.begins, axis=1))

    def volumes_of_devices(self, device_count: int) -> Floats:
        """The number of values by configuration and device."""
        shape = len(self.are_sums), device_count
        rows = self.configurations * device_count + self.devices
        sums = np.bincount(rows, self.volumes, minlength=math.prod(shape))
        return np.asarray(sums.reshape(shape), np.float64)


class BoxTables:
    """Makes each table once, because cells of a network repeat, and so do their boxes."""

    def __init__(self) -> None:
        self._tables: dict[tuple[bytes, ...], BoxTable] = {}
        self._joined: dict[tuple[int, ...], BoxTable] = {}

    def make(self, rows: Integers, are_sums: Booleans) -> BoxTable:
        """Makes a table from rows of a configuration, a device, and the bounds of a box."""
        missing = np.setdiff1d(np.arange(len(are_sums)), rows[:, 0])
        array = np.zeros((len(rows) + len(missing), rows.shape[1] + 2), np.int64)
        array[: len(rows), :-2] = rows
        array[: len(rows), -1] = 1
        array[len(rows) :, 0] = missing
        return self._once(array, are_sums)

    def make_whole(self, shape: tuple[int, ...], devices: Iterable[int]) -> BoxTable:
        """Makes a table of one configuration with the whole tensor on some devices."""
        box = np.array(whole(shape), np.int64).ravel()
        rows = [np.array([0, device, *box]) for device in sorted(devices)]
        return self.make(np.stack(rows), np.zeros(1, np.bool_))

    def join(self, tables: Iterable[BoxTable]) -> BoxTable:
        """The boxes of several readers together; equal boxes on one device count once."""
        parts = list({id(each): each for each in tables}.values())
        if len(parts) == 1:
            return parts[0]
        key = tuple(sorted(map(id, parts)))
        if key not in self._joined:
            array = np.unique(np.concatenate([_as_array(each) for each in parts]), axis=0)
            self._joined[key] = self._once(array, parts[0].are_sums)
        return self._joined[key]

    def _once(self, array: Integers, are_sums: Booleans) -> BoxTable:
        array = array[np.lexsort((array[:, 1], array[:, 0]))]
        key = np.array(array.shape).tobytes(), array.tobytes(), are_sums.tobytes()
        if key not in self._tables:
            bounds = array[:, 2:].reshape(len(array), -1, 2)
            self._tables[key] = BoxTable(
                array[:, 0], array[:, 1], bounds[:, :, 0].copy(), bounds[:, :, 1].copy(), are_sums
            )
        return self._tables[key]


def _as_array(table: BoxTable) -> Integers:
    bounds = np.stack([table.begins, table.ends], axis=2).reshape(len(table.devices), -1)
    return np.column_stack([table.configurations, table.devices, bounds])


class Links:
    """The times of messages between devices.

    Caches by the identity of tables, so one BoxTables that outlives it must make all of them.

    Attributes:
        seconds_per_byte: by the sending and the receiving device.
        latency_s: by the sending and the receiving device.
        message_s: by the sending and the receiving device.
        busy_s_of_message: see `DeviceGraph`.
        busy_s_of_byte: see `DeviceGraph`.
    """

    def __init__(self, devices: DeviceGraph) -> None:
        count = len(devices.devices)
        others = ~np.eye(count, dtype=np.bool_)
        self.seconds_per_byte: Floats = np.zeros((count, count))
        self.seconds_per_byte[others] = 1 / np.array(devices.bytes_per_s)[others]
        self.latency_s: Floats = np.where(others, np.array(devices.latency_s), 0.0)
        self.message_s: Floats = np.where(others, np.array(devices.message_s), 0.0)
        self.busy_s_of_message, self.busy_s_of_byte = (
            np.where(others, each, 0.0)
            for each in (devices.busy_s_of_message, devices.busy_s_of_byte)
        )
        self._known_intervals: dict[tuple[int, int], tuple[Integers, Integers]] = {}

    def awaited_s(self, given: BoxTable, read: BoxTable, item_bytes: int) -> Floats:
        """The time until all boxes of `read` are complete, by both configurations.

        The links or the cores that copy decide, whichever take longer. The longest latency of a
        message adds to that.
        """
        overlaps = self._overlaps(given, read)
        pairs = np.ix_(given.devices, read.devices)
        latency_s = self.latency_s.astype(np.float32)[pairs] * (overlaps > 0)
        of_given = np.maximum.reduceat(latency_s, _starts(given.configurations), axis=0)
        latest = np.maximum.reduceat(of_given, _starts(read.configurations), axis=1)
        return np.asarray(np.maximum(*self._times(given, read, overlaps, item_bytes)) + latest)

    def times(self, given: BoxTable, read: BoxTable, item_bytes: int) -> tuple[Floats, Floats]:
        """The times of links and of copying cores, by both configurations.

        On its links a device sends messages one after another, and receives them one after another.
        Its cores do both. Devices work in parallel, so the busiest one decides.
        """
        return self._times(given, read, self._overlaps(given, read), item_bytes)

    def _times(
        self, given: BoxTable, read: BoxTable, overlaps: npt.NDArray[np.float32], item_bytes: int
    ) -> tuple[Floats, Floats]:
        pairs = np.ix_(given.devices, read.devices)

        def seconds(of_message: Floats, of_byte: Floats) -> npt.NDArray[np.float32]:
            its = (item_bytes * of_byte).astype(np.float32)[pairs] * overlaps
            its += of_message.astype(np.float32)[pairs] * (overlaps > 0)
            return its

        on_links = seconds(self.message_s, self.seconds_per_byte)
        received = _longest(_by_configuration(on_links, given), read)
        sent = _longest(_by_configuration(on_links.T, read), given).T
        links_s = np.asarray(np.maximum(received, sent))
        if not (self.busy_s_of_message.any() or self.busy_s_of_byte.any()):
            return links_s, np.zeros_like(links_s)
        copied = seconds(self.busy_s_of_message, self.busy_s_of_byte)
        of_readers = self._of_devices(_by_configuration(copied, given), read)
        of_givers = self._of_devices(_by_configuration(copied.T, read), given)
        return links_s, (of_readers + of_givers.transpose(1, 0, 2)).max(axis=2)

    def _of_devices(self, values: npt.NDArray[Any], table: BoxTable) -> Floats:
        """The sums over the rows of each configuration and device, along the second axis."""
        starts = _starts(_pairs(table))
        sums: Floats = np.zeros((len(values), len(table.are_sums), len(self.latency_s)))
        at = slice(None), table.configurations[starts], table.devices[starts]
        sums[at] = np.add.reduceat(values, starts, axis=1)
        return sums

    def _overlaps(self, given: BoxTable, read: BoxTable) -> npt.NDArray[np.float32]:
        """The number of values that each row of `given` shares with each row of `read`."""
        product: npt.NDArray[np.float32] | None = None
        scale = 1
        for dimension in range(given.begins.shape[1]):
            # A dimension has few different intervals: compute those, then spread them over rows.
            of_given, given_rows = self._intervals(given, dimension)
            of_read, read_rows = self._intervals(read, dimension)
            shared = np.minimum(of_given[:, None, 1], of_read[None, :, 1])
            shared -= np.maximum(of_given[:, None, 0], of_read[None, :, 0])
            shared = np.maximum(shared, 0)
            if shared.size == 1:
                scale *= int(shared[0, 0])
                continue
            factor = shared.astype(np.float32)[given_rows].take(read_rows, axis=1)
            product = factor if product is None else np.multiply(product, factor, out=product)
        if product is None:
            product = np.ones((len(given.devices), len(read.devices)), np.float32)
        if scale != 1:
            product *= scale
        return product

    def _intervals(self, table: BoxTable, dimension: int) -> tuple[Integers, Integers]:
        """The different intervals of a dimension, and the index of each row's interval."""
        key = id(table), dimension
        if key not in self._known_intervals:
            both = np.stack([table.begins[:, dimension], table.ends[:, dimension]], axis=1)
            codes, rows = np.unique(both @ np.array([1 << 31, 1]), return_inverse=True)
            intervals = np.stack([codes >> 31, codes & ((1 << 31) - 1)], axis=1)
            self._known_intervals[key] = intervals, rows
        return self._known_intervals[key]


def _by_configuration(values: npt.NDArray[Any], table: BoxTable) -> Floats:
    """Sums over the rows of each configuration, along the first axis."""
    return np.add.reduceat(values, _starts(table.configurations), axis=0)


def _longest(values: npt.NDArray[Any], table: BoxTable) -> Floats:
    """The largest sum over the rows of a device, by configuration, along the second axis."""
    starts = _starts(_pairs(table))
    of_devices = np.add.reduceat(values, starts, axis=1)
    return np.maximum.reduceat(of_devices, _starts(table.configurations[starts]), axis=1)


def _pairs(table: BoxTable) -> Integers:
    """A number for each configuration and device, by row; ascending."""
    return np.asarray(table.configurations * (table.devices.max() + 1) + table.devices)


def _starts(ascending: Integers) -> Integers:
    return np.flatnonzero(np.diff(ascending, prepend=-1))
