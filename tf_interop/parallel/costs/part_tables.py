"""The parts of an operation under all configurations of its layer, as arrays.

Calling a rule for every configuration would be slow. But axes do not depend on each other: the box
of a part along several axes is the intersection of its boxes along each axis alone. So a rule
divides one axis at a time, and NumPy makes the parts of all configurations from these. `filter` and
`channel` count as one axis here, because they divide the same channels of many tensors.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop.graph.find import find_convolutions
from tf_interop.graph.ops import input_dtypes
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.parallel.costs.box_tables import Booleans, BoxTable, BoxTables, Floats, Integers
from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.op_parts import Operation, OpPart, are_addends
from tf_interop.parallel.regions import Box, sizes, whole
from tf_interop.parallel.types import Degrees
from tf_interop.profile.types import Profile


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Combination:
    """The parts along single axes that make up each part of each configuration.

    A *slot* is the number of a part along one axis alone. Each part of a configuration has a row,
    with one slot for each axis.

    Attributes:
        first_slots: the first slot of each division of one axis.
        slots: by row and axis.
        configurations: the configuration of each row.
        places: the number of each row's part within its configuration.
    """

    first_slots: dict[Degrees, int]
    slots: Integers
    configurations: Integers
    places: Integers


def combine(configurations: Sequence[Degrees]) -> Combination:
    """Numbers the parts along single axes, and finds the parts of each configuration."""
    first_slots: dict[Degrees, int] = {}
    slots, next_slot = [], 0
    for degrees in configurations:
        by_axis = _along_each_axis(degrees)
        for each in by_axis:
            if each not in first_slots:
                first_slots[each] = next_slot
                next_slot += each.count
        coordinates = np.unravel_index(np.arange(degrees.count), [each.count for each in by_axis])
        slots.append(np.stack(coordinates, axis=1) + [first_slots[each] for each in by_axis])
    counts = [degrees.count for degrees in configurations]
    return Combination(
        first_slots,
        np.concatenate(slots),
        np.repeat(np.arange(len(configurations)), counts),
        np.concatenate([np.arange(count) for count in counts]),
    )


def combine_whole(configurations: Sequence[Degrees]) -> Combination:
    """The same for operations whose boxes along several axes are no intersections.

    Every configuration is divided at once, so each of its parts has a slot of its own.
    """
    counts = [degrees.count for degrees in configurations]
    firsts = np.cumsum([0, *counts[:-1]])
    places = np.concatenate([np.arange(count) for count in counts])
    numbers = np.repeat(np.arange(len(configurations)), counts)
    slots = (firsts[numbers] + places)[:, np.newaxis]
    return Combination(
        dict(zip(configurations, firsts.tolist(), strict=True)), slots, numbers, places
    )


def _along_each_axis(degrees: Degrees) -> tuple[Degrees, ...]:
    return (
        Degrees(sample=degrees.sample),
        Degrees(height=degrees.height),
        Degrees(width=degrees.width),
        Degrees(filter=degrees.filter, channel=degrees.channel),
    )


class PartTables:
    """The boxes and the work of an operation's parts.

    Attributes:
        reads: for each input, the boxes that parts read.
        gives: for each output, the boxes that parts compute.
        multiply_adds: by configuration and device.
    """

    def __init__(
        self,
        operation: Operation,
        divide: Callable[[Degrees], Sequence[OpPart] | None],
        combination: Combination,
        home: int,
        device_count: int,
        tables: BoxTables,
    ) -> None:
        """Divides an operation along each axis, and combines the parts.

        Args:
            operation: the operation.
            divide: its rule.
            combination: the parts of each configuration.
            home: the device on which it runs whole, where the rule refuses.
            device_count: the number of devices.
            tables: makes tables of boxes.
        """
        self._home, self._tables, self._rows = home, tables, combination
        self._size = int(combination.configurations[-1]) + 1
        self._slot_count = int(combination.slots.max()) + 1
        self._parts: list[tuple[int, OpPart]] = []
        refused, sums = np.zeros((2, self._slot_count), np.bool_)
        for degrees, first in combination.first_slots.items():
            its = slice(first, first + degrees.count)
            parts = divide(degrees)
            if parts is None:
                refused[its] = True
                continue
            sums[its] = are_addends(parts)
            self._parts += [(first + part.place, part) for part in parts]
        self._is_refused = self._any_row(refused)
        self._kept = ~self._is_refused[combination.configurations]
        no_sums = np.zeros(self._size, np.bool_)
        self.reads = tuple(
            self._table([part.reads[at] for _, part in self._parts], shape, no_sums)
            for at, shape in enumerate(operation.input_shapes)
        )
        are_sums = self._any_row(sums) & ~self._is_refused
        self.gives = tuple(
            self._table([part.gives[port] for _, part in self._parts], shape, are_sums)
            for port, shape in enumerate(operation.output_shapes)
        )
        self.multiply_adds = self._multiply_adds(device_count)

    def _any_row(self, of_slots: Booleans) -> Booleans:
        """Whether a part of each configuration has one of these slots."""
        found = np.zeros(self._size, np.bool_)
        found[self._rows.configurations[of_slots[self._rows.slots].any(axis=1)]] = True
        return found

    def _table(
        self, boxes: Sequence[Box | None], shape: tuple[int, ...], are_sums: Booleans
    ) -> BoxTable:
        slots = [slot for (slot, _), box in zip(self._parts, boxes, strict=True) if box is not None]
        rank = len(shape)
        flat = itertools.chain.from_iterable(
            itertools.chain.from_iterable(box for box in boxes if box is not None)
        )
        bounds = np.zeros((self._slot_count, rank, 2), np.int64)
        bounds[slots] = np.fromiter(flat, np.int64).reshape(len(slots), rank, 2)
        is_there = np.zeros(self._slot_count, np.bool_)
        is_there[slots] = True
        rows = np.flatnonzero(self._kept & is_there[self._rows.slots].all(axis=1))
        shared = bounds[self._rows.slots[rows]]
        combined = np.stack([shared[..., 0].max(axis=1), shared[..., 1].min(axis=1)], axis=2)
        divided = (self._rows.configurations[rows], self._rows.places[rows])
        numbers = np.flatnonzero(self._is_refused)
        undivided = np.tile(np.array(whole(shape), np.int64).ravel(), (len(numbers), 1))
        found = [
            np.column_stack([*divided, combined.reshape(len(rows), 2 * rank)]),
            np.column_stack([numbers, np.full(len(numbers), self._home), undivided]),
        ]
        return self._tables.make(np.concatenate(found), are_sums)

    def _multiply_adds(self, device_count: int) -> Floats:
        found = np.zeros((self._size, device_count))
        of_slots = np.zeros(self._slot_count)
        for slot, part in self._parts:
            of_slots[slot] = part.multiply_adds
        # The first row is the whole operation, so its slots are whole too.
        all_of_it = of_slots[self._rows.slots[0, 0]]
        if all_of_it:
            shares = (of_slots / all_of_it)[self._rows.slots].prod(axis=1)
            found[self._rows.configurations, self._rows.places] = np.rint(shares * all_of_it)
            found[self._is_refused] = 0
            found[self._is_refused, self._home] = all_of_it
        return found


class MeasuredParts:
    """The times of parts of convolutions in a profile."""

    def __init__(self, profile: Profile, *, allow_tf32: bool) -> None:
        self._profile = profile
        self._allow_tf32 = allow_tf32

    def seconds(self, operation: Operation, part: OpPart) -> float | None:
        """The time of a part's convolution; None without one, or if it was not measured."""
        view = GraphView(_graph_of(operation, part))
        convolutions, _ = find_convolutions(view, GraphProperties(view))
        if len(convolutions) != 1:
            return None
        found = self._profile.find_algorithms(
            convolutions[0].configuration, allow_tf32=self._allow_tf32
        )
        return found[0].latency_us * 1e-6 if found else None


def _graph_of(operation: Operation, part: OpPart) -> graph_pb2.GraphDef:
    """The nodes of a part, with the shapes of all their tensors."""
    graph_def = graph_pb2.GraphDef()
    maker = NodeMaker(graph_def, "", "part", set())
    dtypes = map(tf.as_dtype, input_dtypes(operation.node))
    names = [
        "" if box is None else maker("Placeholder", dtype=dtype, shape=tf.TensorShape(sizes(box)))
        for box, dtype in zip(part.reads, dtypes, strict=True)
    ]
    part.emit(maker, names)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    return graph.as_graph_def(add_shapes=True)
