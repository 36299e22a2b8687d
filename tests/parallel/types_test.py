"""Degrees, and the rules that files of parallel plans have to keep.

`formats_test.py` has the tests for all kinds of files.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import pathlib
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parallel_values import PARALLEL_PLAN

from tf_interop.errors import PlanError
from tf_interop.parallel.op_parts import boxes_of
from tf_interop.parallel.types import (
    Axis,
    Degrees,
    DividedLayer,
    GraphDivision,
    ParallelPlan,
    save_parallel_plan,
)


def with_layer(degrees: Degrees, devices: tuple[int, ...], *others: DividedLayer) -> ParallelPlan:
    layers = (DividedLayer("conv", degrees, devices), *others)
    return ParallelPlan(("/device:CPU:0", "/device:CPU:1"), (GraphDivision("f", layers),))


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (
            ParallelPlan(("/device:CPU:0",) * 2, ()),
            "Expected each device once, got ['/device:CPU:0', '/device:CPU:0'] at `$.devices`",
        ),
        (
            dataclasses.replace(PARALLEL_PLAN, graphs=PARALLEL_PLAN.graphs[:1] * 2),
            "Expected each graph once for a batch size, got fingerprint '0123456789abcdef' again "
            "at `$.graphs[1].fingerprint`",
        ),
        (
            with_layer(Degrees(sample=2), (0,)),
            "Expected 2 different devices for sample 2, got [0] at `$.graphs[0].layers[0].devices`",
        ),
        (
            with_layer(Degrees(sample=2), (1, 1)),
            "Expected 2 different devices for sample 2, got [1, 1] at",
        ),
        (
            with_layer(Degrees(filter=2), (1, 2)),
            "Expected devices below 2, got [1, 2] at `$.graphs[0].layers[0].devices`",
        ),
        (
            with_layer(Degrees(), (0,), DividedLayer("conv", Degrees(), (1,))),
            "Expected each layer once, got ['conv', 'conv'] at `$.graphs[0].layers`",
        ),
    ],
)
def test_refuses_an_illegal_plan(plan: ParallelPlan, expected: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(PlanError, match=re.escape(expected)):
        save_parallel_plan(plan, tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())


DEGREES = st.builds(Degrees, *[st.integers(1, 3)] * 5)


@given(DEGREES)
def test_places_are_in_order_with_the_channel_fastest(degrees: Degrees) -> None:
    places = list(degrees.places)
    assert len(places) == degrees.count == math.prod(degrees.by_axis.values())
    assert list(places[0]) == list(Axis)
    numbers = [tuple(place.values()) for place in places]
    assert numbers == sorted(set(numbers))
    assert all(place[axis] < degrees.by_axis[axis] for place in places for axis in Axis)


def test_degrees_show_the_divided_axes() -> None:
    assert str(Degrees()) == "whole"
    assert str(Degrees(sample=2, filter=4)) == "sample 2, filter 4"


@given(st.tuples(*[st.integers(1, 6)] * 4), DEGREES, st.sampled_from(["NHWC", "NCHW"]))
def test_boxes_of_a_layer_cover_a_tensor_once(
    shape: tuple[int, ...], degrees: Degrees, layout: str
) -> None:
    boxes = boxes_of(shape, layout, degrees)
    assert boxes.keys() <= set(range(degrees.count))
    assert all(begin < end for box in boxes.values() for begin, end in box)
    times_there = np.zeros(shape, int)
    for box in boxes.values():
        times_there[tuple(itertools.starmap(slice, box))] += 1
    assert (times_there == 1).all()
