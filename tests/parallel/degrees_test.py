"""Degrees: their parts, in order, and how they are read and shown."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_interop.parallel.degrees import Axis, Degrees
from tf_interop.parallel.op_parts import boxes_of
from tf_interop.parallel.regions import volume

DEGREES = st.builds(Degrees, *[st.integers(1, 3)] * 5)


@given(DEGREES)
def test_every_place_is_there_once_the_channel_fastest(degrees: Degrees) -> None:
    places = list(degrees.places)
    assert len(places) == degrees.count == math.prod(degrees.by_axis.values())
    assert list(places[0]) == list(Axis)
    numbers = [tuple(place.values()) for place in places]
    assert numbers == sorted(set(numbers))
    assert all(place[axis] < degrees.by_axis[axis] for place in places for axis in Axis)


def test_parts_are_numbered_along_the_last_axis_first() -> None:
    places = [(place[Axis.SAMPLE], place[Axis.CHANNEL]) for place in Degrees(2, channel=2).places]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_degrees_are_shown_by_what_is_divided() -> None:
    assert str(Degrees()) == "whole"
    assert str(Degrees(sample=2, filter=4)) == "sample 2, filter 4"


@given(DEGREES)
def test_degrees_in_a_file_are_the_same(degrees: Degrees) -> None:
    assert msgspec.json.decode(msgspec.json.encode(degrees), type=Degrees) == degrees


def test_a_degree_below_one_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="sample"):
        msgspec.json.decode(b'{"sample": 0}', type=Degrees)


@given(st.tuples(*[st.integers(1, 6)] * 4), DEGREES, st.sampled_from(["NHWC", "NCHW"]))
def test_what_follows_a_layer_is_divided_into_even_boxes_once(
    shape: tuple[int, ...], degrees: Degrees, layout: str
) -> None:
    boxes = boxes_of(shape, layout, degrees)
    assert boxes.keys() <= set(range(degrees.count))
    assert all(begin < end for box in boxes.values() for begin, end in box)
    values: Counter[tuple[int, ...]] = Counter()
    for box in boxes.values():
        values.update(
            (n, h, w, c)
            for n in range(*box[0])
            for h in range(*box[1])
            for w in range(*box[2])
            for c in range(*box[3])
        )
    assert len(values) == math.prod(shape)
    assert set(values.values()) == {1}
    assert sum(map(volume, boxes.values())) == math.prod(shape)


def test_channels_are_divided_by_filter_and_channel_together() -> None:
    degrees = Degrees(sample=2, filter=2, channel=2)
    rows = boxes_of((2, 8), "NHWC", degrees)
    assert rows[0] == ((0, 1), (0, 2))
    assert rows[7] == ((1, 2), (6, 8))
    assert boxes_of((2, 8, 3, 3), "NCHW", degrees)[7] == ((1, 2), (6, 8), (0, 3), (0, 3))


def test_an_axis_that_is_too_short_leaves_places_idle() -> None:
    assert list(boxes_of((1, 1, 1, 6), "NHWC", Degrees(sample=2, filter=2))) == [0, 1]
    assert list(boxes_of((3, 8), "NHWC", Degrees(height=2, sample=3))) == [0, 2, 4]
