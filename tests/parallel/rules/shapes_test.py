from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import check_parts, operation_of

from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.op_parts import OpParts
from tf_interop.parallel.rules.shapes import RULES

IMAGE = (5, 7, 6, 9)
DEGREES = (
    Degrees(sample=2),
    Degrees(height=3, width=2),
    Degrees(filter=2, channel=2),
    Degrees(sample=3, height=2, filter=2),
)


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def sizes(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.int64)


def check(
    op: str,
    inputs: list[np.ndarray],
    attributes: dict[str, Any],
    degrees: tuple[Degrees, ...] = DEGREES,
    layout: str = "NHWC",
) -> list[OpParts]:
    """All parts, for each of `degrees`. Integers are constants."""
    constants = [place for place, each in enumerate(inputs) if each.dtype == np.int64]
    attributes = {"T": tf.float32} | attributes
    operation, results = operation_of(op, inputs, attributes, constants=constants, layout=layout)
    return [check_parts(RULES[op], operation, inputs, results, each) for each in degrees]


def refuses(op: str, inputs: list[np.ndarray], attributes: dict[str, Any]) -> bool:
    constants = [place for place, each in enumerate(inputs) if each.dtype == np.int64]
    operation, _ = operation_of(op, inputs, {"T": tf.float32} | attributes, constants=constants)
    return all(RULES[op](operation, each) is None for each in (Degrees(), *DEGREES))


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -4])
def test_divides_a_concatenation(axis: int) -> None:
    shapes = [list(IMAGE), list(IMAGE), list(IMAGE)]
    shapes[0][axis], shapes[1][axis] = 1, 3
    inputs = [values(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    check("ConcatV2", [*inputs, np.int64(axis)], {"N": 3, "Tidx": tf.int64})


def test_a_part_of_a_concatenation_reads_what_it_gives() -> None:
    inputs = [values(2, 4, 4, 3), values(2, 4, 4, 5), np.int64(3)]
    (parts,) = check("ConcatV2", inputs, {"N": 2, "Tidx": tf.int64}, (Degrees(filter=2),))
    assert [part.reads for part in parts.parts] == [
        (((0, 2), (0, 4), (0, 4), (0, 3)), ((0, 2), (0, 4), (0, 4), (0, 1)), None),
        (None, ((0, 2), (0, 4), (0, 4), (1, 5)), None),
    ]


def test_divides_slices() -> None:
    inputs = [values(*IMAGE), sizes(1, 0, 2, 3), sizes(4, 7, -1, 5)]
    check("Slice", inputs, {"Index": tf.int64})
    inputs = [values(6, 11), sizes(0, 4), sizes(6, 7)]
    check("Slice", inputs, {"Index": tf.int64})


STRIDED = [
    ((0, 1, -4, 0), (5, -1, 6, 9), (1, 1, 1, 1), 0, 0),
    ((3, 1, 2, 0), (0, 6, 9, 7), (1, 1, 1, 1), 1, 1),
    ((0, 2), (5, 6), (1, 1), 3, 0),
]


@pytest.mark.parametrize(("begin", "end", "strides", "begin_mask", "end_mask"), STRIDED)
def test_divides_plain_strided_slices_and_their_gradients(
    begin: tuple[int, ...],
    end: tuple[int, ...],
    strides: tuple[int, ...],
    begin_mask: int,
    end_mask: int,
) -> None:
    masks = {"Index": tf.int64, "begin_mask": begin_mask, "end_mask": end_mask}
    bounds = [sizes(*begin), sizes(*end), sizes(*strides)]
    check("StridedSlice", [values(*IMAGE), *bounds], masks)
    cut = tf.raw_ops.StridedSlice(
        input=values(*IMAGE),
        begin=bounds[0],
        end=bounds[1],
        strides=bounds[2],
        begin_mask=begin_mask,
        end_mask=end_mask,
    )
    check("StridedSliceGrad", [sizes(*IMAGE), *bounds, cut.numpy()], masks)


@pytest.mark.parametrize(
    ("strides", "mask"), [((1, 2, 1, 1), "begin_mask"), ((1, 1, 1, 1), "shrink_axis_mask")]
)
def test_keeps_a_strided_slice_whole_that_is_not_plain(strides: tuple[int, ...], mask: str) -> None:
    bounds = [sizes(0, 0, 0, 0), sizes(*IMAGE), sizes(*strides)]
    assert refuses("StridedSlice", [values(*IMAGE), *bounds], {"Index": tf.int64, mask: 1})


def test_divides_padding() -> None:
    paddings = sizes((0, 0), (4, 1), (0, 3), (2, 5))
    check("Pad", [values(*IMAGE), paddings], {"Tpaddings": tf.int64})
    inputs = [values(*IMAGE), paddings, np.float32(-3)]
    check("PadV2", inputs, {"Tpaddings": tf.int64})


def test_a_part_of_padding_alone_reads_nothing() -> None:
    inputs = [values(2, 3, 4, 1), sizes((0, 0), (3, 0), (0, 0), (0, 0))]
    (parts,) = check("Pad", inputs, {"Tpaddings": tf.int64}, (Degrees(height=2),))
    assert parts.parts[0].reads == (None, None)
    assert parts.parts[1].reads[0] == ((0, 2), (0, 3), (0, 4), (0, 1))


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


@pytest.mark.parametrize(("shape", "result"), RESHAPES, ids=str)
def test_divides_a_reshape(shape: tuple[int, ...], result: tuple[int, ...]) -> None:
    check("Reshape", [values(*shape), sizes(*result)], {"Tshape": tf.int64})


@pytest.mark.parametrize(
    ("shape", "result"), [((4, 6), (6, 4)), ((4, 6), (24,)), ((6,), (1, 2, 3))]
)
def test_keeps_a_reshape_whole_that_moves_the_batch(
    shape: tuple[int, ...], result: tuple[int, ...]
) -> None:
    assert refuses("Reshape", [values(*shape), sizes(*result)], {"Tshape": tf.int64})


def test_a_reshape_that_keeps_channels_is_divided_along_them() -> None:
    inputs = [values(4, 1, 1, 6), sizes(4, 6)]
    degrees = Degrees(sample=2, filter=2)
    (parts,) = check("Reshape", inputs, {"Tshape": tf.int64}, (degrees,))
    assert parts.parts[3].reads[0] == ((2, 4), (0, 1), (0, 1), (3, 6))
    inputs = [values(4, 2, 1, 6), sizes(4, 12)]
    (parts,) = check("Reshape", inputs, {"Tshape": tf.int64}, (degrees,))
    assert [part.place for part in parts.parts] == [0, 2]


def test_divides_axes_of_one_that_come_and_go() -> None:
    check("Squeeze", [values(5, 1, 1, 9)], {"squeeze_dims": [1, 2]})
    check("ExpandDims", [values(5, 6, 9), np.int64(1)], {"Tdim": tf.int64})


@pytest.mark.parametrize("permutation", [(0, 3, 1, 2), (0, 2, 3, 1)])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_divides_a_change_of_layout(permutation: tuple[int, ...], layout: str) -> None:
    inputs = [values(*IMAGE), sizes(*permutation)]
    degrees = (*DEGREES, Degrees(height=2))
    parts = check("Transpose", inputs, {"Tperm": tf.int64}, degrees, layout)[-1]
    result = [IMAGE[axis] for axis in permutation]
    height = 2 if permutation == (0, 3, 1, 2) else 1
    first = parts.parts[0].gives[0]
    assert [end for _, end in first] == [
        -(-size // 2) if axis == height else size for axis, size in enumerate(result)
    ]


def test_keeps_other_transpositions_whole() -> None:
    inputs = [values(*IMAGE), sizes(3, 0, 1, 2)]
    assert refuses("Transpose", inputs, {"Tperm": tf.int64})


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_divides_a_split(axis: int) -> None:
    inputs = [np.int32(axis), values(6, 8, 4, 10)]
    attributes = {"T": tf.float32, "num_split": 2}
    operation, results = operation_of("Split", inputs, attributes, constants=[0])
    for degrees in DEGREES:
        check_parts(RULES["Split"], operation, inputs, results, degrees)


def test_divides_a_split_into_uneven_pieces() -> None:
    attributes = {"T": tf.float32, "Tlen": tf.int64, "num_split": 3}
    inputs = [values(*IMAGE), sizes(4, 2, 3), np.int32(3)]
    operation, results = operation_of("SplitV", inputs, attributes, constants=[1, 2])
    for degrees in (DEGREES[0], DEGREES[1], DEGREES[3]):
        check_parts(RULES["SplitV"], operation, inputs, results, degrees)
    assert RULES["SplitV"](operation, Degrees(filter=3)) is None
