"""Degrees: their parts, in order, and how they are read and shown."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tf_interop.parallel.op_parts import boxes_of
from tf_interop.parallel.types import Axis, Degrees

DEGREES = st.builds(Degrees, *[st.integers(1, 3)] * 5)


@given(DEGREES)
def test_every_place_is_there_once_the_channel_fastest(degrees: Degrees) -> None:
    places = list(degrees.places)
    assert len(places) == degrees.count == math.prod(degrees.by_axis.values())
    assert list(places[0]) == list(Axis)
    numbers = [tuple(place.values()) for place in places]
    assert numbers == sorted(set(numbers))
    assert all(place[axis] < degrees.by_axis[axis] for place in places for axis in Axis)


def test_degrees_are_shown_by_what_is_divided() -> None:
    assert str(Degrees()) == "whole"
    assert str(Degrees(sample=2, filter=4)) == "sample 2, filter 4"


@given(st.tuples(*[st.integers(1, 6)] * 4), DEGREES, st.sampled_from(["NHWC", "NCHW"]))
def test_what_follows_a_layer_is_divided_into_even_boxes_once(
    shape: tuple[int, ...], degrees: Degrees, layout: str
) -> None:
    boxes = boxes_of(shape, layout, degrees)
    assert boxes.keys() <= set(range(degrees.count))
    assert all(begin < end for box in boxes.values() for begin, end in box)
    times_there = np.zeros(shape, int)
    for box in boxes.values():
        times_there[tuple(itertools.starmap(slice, box))] += 1
    assert (times_there == 1).all()


def test_channels_are_divided_by_filter_and_channel_together() -> None:
    degrees = Degrees(sample=2, filter=2, channel=2)
    rows = boxes_of((2, 8), "NHWC", degrees)
    assert rows[0] == ((0, 1), (0, 2))
    assert rows[7] == ((1, 2), (6, 8))
    assert boxes_of((2, 8, 3, 3), "NCHW", degrees)[7] == ((1, 2), (6, 8), (0, 3), (0, 3))
