"""The parts of an operation under all configurations of its layer, as arrays."""

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
from tf_interop.parallel.costs.box_tables import Booleans, BoxTable, BoxTables, Floats
from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.op_parts import Operation, OpPart, are_addends
from tf_interop.parallel.regions import Box, sizes, whole
from tf_interop.parallel.types import Degrees
from tf_interop.profile.types import Profile


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PartTables:
    """The boxes and the work of an operation's parts.

    Attributes:
        reads: for each input, the boxes that parts read.
        gives: for each output, the boxes that parts compute.
        multiply_adds: by configuration and device.
    """

    reads: tuple[BoxTable, ...]
    gives: tuple[BoxTable, ...]
    multiply_adds: Floats


def find_parts(
    operation: Operation,
    divide: Callable[[Degrees], Sequence[OpPart] | None],
    configurations: Sequence[Degrees],
    home: int,
    device_count: int,
    tables: BoxTables,
) -> PartTables:
    """Divides an operation in all ways; where its rule refuses, it runs whole on device `home`."""
    undivided = _undivided(operation, divide(Degrees()))
    rows: list[tuple[int, int, OpPart]] = []  # configuration, device, part
    are_sums = np.zeros(len(configurations), np.bool_)
    multiply_adds = np.zeros((len(configurations), device_count))
    for number, degrees in enumerate(configurations):
        parts = divide(degrees)
        if parts is None:
            rows.append((number, home, undivided))
            continue
        rows += [(number, part.place, part) for part in parts]
        are_sums[number] = are_addends(parts)
    for number, device, part in rows:
        multiply_adds[number, device] = part.multiply_adds

    def table(boxes: Sequence[Box | None], rank: int, are_sums: Booleans) -> BoxTable:
        found = [
            (number, device, *itertools.chain.from_iterable(box))
            for (number, device, _), box in zip(rows, boxes, strict=True)
            if box is not None
        ]
        return tables.make(np.array(found, np.int64).reshape(-1, 2 + 2 * rank), are_sums)

    return PartTables(
        tuple(
            table([part.reads[at] for *_, part in rows], len(shape), np.zeros_like(are_sums))
            for at, shape in enumerate(operation.input_shapes)
        ),
        tuple(
            table([part.gives[port] for *_, part in rows], len(shape), are_sums)
            for port, shape in enumerate(operation.output_shapes)
        ),
        multiply_adds,
    )


def _undivided(operation: Operation, parts: Sequence[OpPart] | None) -> OpPart:
    """All of an operation, which is the only one of `parts` if it can be divided."""
    reads, gives = (
        tuple(map(whole, shapes)) for shapes in (operation.input_shapes, operation.output_shapes)
    )
    adds = sum(part.multiply_adds for part in parts or ())
    return OpPart(reads, gives, lambda *_: (), adds)


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
