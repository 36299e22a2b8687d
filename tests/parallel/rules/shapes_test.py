from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import Array, check, operation_of, sizes, stays_whole, values

from tf_interop.parallel.types import Degrees

IMAGE = (5, 7, 6, 9)
DEGREES = (
    Degrees(sample=2),
    Degrees(height=3, width=2),
    Degrees(filter=2, channel=2),
    Degrees(sample=3, height=2, filter=2),
)
PADDINGS = sizes((0, 0), (4, 1), (0, 3), (2, 5))
STRIDED = [
    ((0, 1, -4, 0), (5, -1, 6, 9), 0, 0),
    ((3, 1, 2, 0), (0, 6, 9, 7), 1, 1),
    ((0, 2), (5, 6), 3, 0),
]
RESHAPES = [
    (IMAGE, (5, 378)),
    ((5, 378), IMAGE),
    (IMAGE, (5, 42, 9)),
    ((5, 1, 1, 9), (5, 9)),
    ((5, 9), (5, 9, 1, 1)),
    ((9,), (1, 9, 1, 1)),
    ((1, 1, 1, 9), (9,)),
    ((1, 5), (1, 1, 5, 1)),
]


def to_concatenate(axis: int) -> list[Array]:
    shapes = [list(IMAGE), list(IMAGE), list(IMAGE)]
    shapes[0][axis], shapes[1][axis] = 1, 3
    return [*(values(*shape, seed=seed) for seed, shape in enumerate(shapes)), np.int64(axis)]


CASES: list[tuple[str, list[Array], dict[str, Any]]] = [
    *(
        ("ConcatV2", to_concatenate(axis), {"N": 3, "Tidx": tf.int64})
        for axis in (0, 1, 2, 3, -1, -4)
    ),
    ("Slice", [values(*IMAGE), sizes(1, 0, 2, 3), sizes(4, 7, -1, 5)], {"Index": tf.int64}),
    ("Slice", [values(6, 11), sizes(0, 4), sizes(6, 7)], {"Index": tf.int64}),
    ("Pad", [values(*IMAGE), PADDINGS], {"Tpaddings": tf.int64}),
    ("PadV2", [values(*IMAGE), PADDINGS, np.float32(-3)], {"Tpaddings": tf.int64}),
    *(
        ("Reshape", [values(*shape), sizes(*result)], {"Tshape": tf.int64})
        for shape, result in RESHAPES
    ),
    ("Squeeze", [values(5, 1, 1, 9)], {"squeeze_dims": [1, 2]}),
    ("ExpandDims", [values(5, 6, 9), np.int64(1)], {"Tdim": tf.int64}),
    *(("Split", [np.int32(axis), values(6, 8, 4, 10)], {"num_split": 2}) for axis in (0, 1, -1)),
]


@pytest.mark.parametrize(("op", "inputs", "attributes"), CASES)
def test_parts_give_the_same(op: str, inputs: list[Array], attributes: dict[str, Any]) -> None:
    check(op, inputs, attributes, DEGREES)


@pytest.mark.parametrize(("begin", "end", "begin_mask", "end_mask"), STRIDED)
def test_divides_plain_strided_slices_and_their_gradients(
    begin: tuple[int, ...], end: tuple[int, ...], begin_mask: int, end_mask: int
) -> None:
    masks = {"begin_mask": begin_mask, "end_mask": end_mask}
    bounds = [sizes(*begin), sizes(*end), sizes(*[1] * len(begin))]
    check("StridedSlice", [values(*IMAGE), *bounds], masks | {"Index": tf.int64}, DEGREES)
    cut = tf.strided_slice(values(*IMAGE), *bounds, **masks).numpy()
    inputs = [sizes(*IMAGE), *bounds, cut]
    check("StridedSliceGrad", inputs, masks | {"Index": tf.int64}, DEGREES)


def test_divides_an_uneven_split() -> None:
    inputs = [values(*IMAGE), sizes(4, 2, 3), np.int32(3)]
    split = "SplitV", inputs, {"Tlen": tf.int64, "num_split": 3}
    [*_, by_channels] = check(*split, DEGREES)
    assert {part.place for part in by_channels} == {0, 2, 4, 6, 8, 10}  # its channels stay together


@pytest.mark.parametrize("permutation", [(0, 3, 1, 2), (0, 2, 3, 1)])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_divides_a_change_of_layout(permutation: tuple[int, ...], layout: str) -> None:
    inputs = [values(*IMAGE), sizes(*permutation)]
    degrees = (*DEGREES, Degrees(height=2))
    parts = check("Transpose", inputs, {"Tperm": tf.int64}, degrees, layout=layout)[-1]
    result = [IMAGE[axis] for axis in permutation]
    height = 2 if permutation == (0, 3, 1, 2) else 1
    assert [end for _, end in parts[0].gives[0]] == [
        -(-size // 2) if axis == height else size for axis, size in enumerate(result)
    ]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        *(
            (
                "StridedSlice",
                [values(*IMAGE), sizes(0, 0, 0, 0), sizes(*IMAGE), sizes(*strides)],
                {"Index": tf.int64, mask: 1},
            )
            for strides, mask in (
                ((1, 2, 1, 1), "begin_mask"),
                ((1, 1, 1, 1), "shrink_axis_mask"),
            )
        ),
        *(
            ("Reshape", [values(*shape), sizes(*result)], {"Tshape": tf.int64})
            for shape, result in (((4, 6), (6, 4)), ((4, 6), (24,)), ((6,), (1, 2, 3)))
        ),
        ("Transpose", [values(*IMAGE), sizes(3, 0, 1, 2)], {"Tperm": tf.int64}),
    ],
    ids=["strides", "axis dropped", *["batch moved"] * 3, "no layout"],
)
def test_keeps_other_moves_of_values_whole(
    op: str, inputs: list[Array], attributes: dict[str, Any]
) -> None:
    assert stays_whole(operation_of(op, inputs, attributes)[0], Degrees(), *DEGREES)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        *{
            case[0]: case for case in CASES if case[0] in ("ConcatV2", "Slice", "Pad", "Split")
        }.values(),
        ("Transpose", [values(*IMAGE), sizes(0, 3, 1, 2)], {"Tperm": tf.int64}),
        ("Sum", [values(*IMAGE), sizes(1, 2)], {"Tidx": tf.int64}),
    ],
)
def test_keeps_ops_with_unknown_numbers_whole(
    op: str, inputs: list[Array], attributes: dict[str, Any]
) -> None:
    operation, _ = operation_of(op, inputs, attributes)
    unknown = dataclasses.replace(operation, input_values=(None,) * len(inputs))
    assert stays_whole(unknown, *DEGREES)


def test_a_part_of_a_concatenation_only_reads_what_it_gives() -> None:
    inputs = [values(2, 4, 4, 3), values(2, 4, 4, 5), np.int64(3)]
    attributes = {"N": 2, "Tidx": tf.int64}
    [parts] = check("ConcatV2", inputs, attributes, [Degrees(filter=2)])
    assert [part.reads for part in parts] == [
        (((0, 2), (0, 4), (0, 4), (0, 3)), ((0, 2), (0, 4), (0, 4), (0, 1)), None),
        (None, ((0, 2), (0, 4), (0, 4), (1, 5)), None),
    ]


def test_a_part_of_padding_alone_reads_nothing() -> None:
    inputs = [values(2, 3, 4, 1), sizes((0, 0), (3, 0), (0, 0), (0, 0))]
    [parts] = check("Pad", inputs, {"Tpaddings": tf.int64}, [Degrees(height=2)])
    assert parts[0].reads == (None, None)
    assert parts[1].reads[0] == ((0, 2), (0, 3), (0, 4), (0, 1))


def test_a_reshape_that_keeps_channels_is_divided_along_them() -> None:
    degrees, attributes = [Degrees(sample=2, filter=2)], {"Tshape": tf.int64}
    [parts] = check("Reshape", [values(4, 1, 1, 6), sizes(4, 6)], attributes, degrees)
    assert parts[3].reads[0] == ((2, 4), (0, 1), (0, 1), (3, 6))
    [parts] = check("Reshape", [values(4, 2, 1, 6), sizes(4, 12)], attributes, degrees)
    assert [part.place for part in parts] == [0, 2]
