"""Sending between all configurations at once, against pieces one by one."""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from tf_interop.parallel.costs.box_tables import BoxTable, BoxTables, Links
from tf_interop.parallel.costs.devices import Device, DeviceGraph
from tf_interop.parallel.regions import Box, Part, PartedTensor, pieces_of, split, volume

DEVICES = DeviceGraph(
    tuple(Device(f"/device:GPU:{place}", 1e9, 1e9) for place in range(4)),
    tuple(tuple(1e6 * (1 + a + 2 * b) for b in range(4)) for a in range(4)),
    tuple(tuple(1e-5 * (1 + 3 * a + b) for b in range(4)) for a in range(4)),
)
SHAPE = (6, 5)
Row = tuple[int, Box]


def _table(
    tables: BoxTables, rows: Sequence[Sequence[Row]], are_sums: Sequence[bool] | None = None
) -> BoxTable:
    """A table of the devices and boxes of each configuration."""
    flat = [
        [number, device, *itertools.chain(*box)]
        for number, each in enumerate(rows)
        for device, box in each
    ]
    array = np.array(flat, np.int64).reshape(len(flat), -1)
    return tables.make(array, np.array(are_sums or [False] * len(rows)))


def _random_rows(random_: random.Random) -> tuple[list[Row], bool]:
    """Parts of a tensor that cover it, on random devices, and whether they are addends."""
    rows, columns = (split(size, random_.randint(1, 3)) for size in SHAPE)
    count = random_.randint(1, 2)
    found = [
        (device, (row, column))
        for row in rows
        for column in columns
        for device in random_.sample(range(4), count)
    ]
    # By device, as parts of operations are by place.
    return sorted(found), count > 1


def _random_reads(random_: random.Random) -> list[Row]:
    reads = []
    for device in random_.sample(range(4), random_.randint(0, 4)):
        intervals = (sorted(random_.sample(range(size + 1), 2)) for size in SHAPE)
        reads.append((device, tuple((begin, end) for begin, end in intervals)))
    return reads


def _seconds(given: list[Row], is_sum: bool, reads: list[Row], item_bytes: int) -> float:
    """The time of the busiest device, piece by piece."""
    tensor = PartedTensor(SHAPE, tuple(Part(*row) for row in given), is_sum)
    sent: dict[int, float] = collections.defaultdict(float)
    received: dict[int, float] = collections.defaultdict(float)
    for device, box in reads:
        for piece in pieces_of(tensor, box):
            source = tensor.parts[piece.part].device
            if source != device:
                seconds = volume(piece.box) * item_bytes / DEVICES.bytes_per_s[source][device]
                seconds += DEVICES.latency_s[source][device]
                sent[source] += seconds
                received[device] += seconds
    return max([0.0, *sent.values(), *received.values()])


@pytest.mark.parametrize("seed", range(20))
def test_sends_what_pieces_need(seed: int) -> None:
    random_ = random.Random(seed)
    tables, links = BoxTables(), Links(DEVICES)
    given = [_random_rows(random_) for _ in range(4)]
    reads = [_random_reads(random_) for _ in range(4)]
    given_table = _table(tables, [rows for rows, _ in given], [is_sum for _, is_sum in given])
    read_table = _table(tables, reads)
    expected = [[_seconds(rows, is_sum, each, 4) for each in reads] for rows, is_sum in given]
    seconds = links.seconds(given_table, read_table, 4)
    np.testing.assert_allclose(seconds, expected, rtol=1e-5)
    within = links.seconds_within(given_table, read_table, 4)
    np.testing.assert_allclose(within, np.diag(expected), rtol=1e-5)


def test_sends_nothing_where_every_device_has_what_it_reads() -> None:
    tables, links = BoxTables(), Links(DEVICES)
    rows = [(0, ((0, 3), (0, 5))), (1, ((3, 6), (0, 5)))]
    table = _table(tables, [rows])
    assert links.seconds(table, table, 4).tolist() == [[0.0]]
    assert links.seconds_within(table, _table(tables, [rows]), 4).tolist() == [0.0]
    assert _table(tables, [rows]) is table


def test_scalars_are_sent_whole() -> None:
    tables, links = BoxTables(), Links(DEVICES)
    seconds = links.seconds(_table(tables, [[(0, ())]]), _table(tables, [[(1, ())], []]), 4)
    np.testing.assert_allclose(seconds, [[4 / 3e6 + 2e-5, 0.0]], rtol=1e-6)


def test_readers_on_one_device_are_sent_a_box_once() -> None:
    tables = BoxTables()
    first = tables.make_whole(SHAPE, [0])
    second = _table(tables, [[(0, ((0, 6), (0, 5))), (1, ((0, 2), (0, 5)))]])
    joined = tables.join([first, second, first])
    assert joined is second
    assert tables.join([first]) is first


def test_adds_by_a_ring() -> None:
    tables, links = BoxTables(), Links(DEVICES)
    box = ((0, 6), (0, 5))
    table = _table(tables, [[(0, box), (1, box)], [(0, box)]], [True, False])
    share = 2 * (1 / 2) * 30 * 4
    expected = share / min(DEVICES.bytes_per_s[0][1], DEVICES.bytes_per_s[1][0]) + 2 * 4e-5
    np.testing.assert_allclose(links.seconds_to_add(table, 4), [expected, 0.0])
