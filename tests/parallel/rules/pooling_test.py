from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import check_parts, operation_of

from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.op_parts import Operation
from tf_interop.parallel.rules.pooling import RULES

IMAGE = (3, 11, 10, 4)
DEGREES = (
    Degrees(sample=2),
    Degrees(filter=3),
    Degrees(height=2),
    Degrees(height=5, width=3),
    Degrees(sample=2, height=2, width=2, channel=2),
)
# Kernel and stride (height, width), padding.
GEOMETRIES: tuple[tuple[tuple[int, int], tuple[int, int], str], ...] = (
    ((2, 2), (2, 2), "VALID"),
    ((3, 3), (2, 2), "SAME"),
    ((3, 3), (2, 2), "VALID"),
    ((3, 2), (1, 1), "SAME"),
    ((5, 3), (1, 2), "SAME"),
    ((1, 1), (2, 2), "VALID"),
    ((2, 1), (3, 4), "SAME"),
    ((2, 2), (3, 4), "VALID"),
    ((11, 10), (1, 1), "VALID"),
)


def image_of(seed: int = 0) -> np.ndarray:
    """An image with many equal values."""
    return np.random.default_rng(seed).integers(-4, 4, IMAGE).astype(np.float32)


def attributes_of(
    kernel: tuple[int, int], stride: tuple[int, int], padding: str, **others: Any
) -> dict[str, Any]:
    sizes = {"ksize": [1, *kernel, 1], "strides": [1, *stride, 1]}
    return {"T": tf.float32, "padding": padding, **sizes, **others}


def gradient_of(
    op: str, attributes: dict[str, Any]
) -> tuple[Operation, list[np.ndarray], list[np.ndarray]]:
    """The gradient of `op`, what it reads, and its result."""
    _, (output,) = operation_of(op, [image_of()], attributes)
    gradient = np.random.default_rng(1).normal(size=output.shape).astype(np.float32)
    inputs = [image_of(), output, gradient]
    constants = []
    if op == "AvgPool":
        inputs, constants = [np.array(IMAGE, np.int32), gradient], [0]
    operation, results = operation_of(f"{op}Grad", inputs, attributes, constants=constants)
    return operation, inputs, results


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_divides_maxima_exactly(geometry: Any) -> None:
    inputs = [image_of() - 10]  # so that zeros as padding would count
    operation, results = operation_of("MaxPool", inputs, attributes_of(*geometry))
    for degrees in DEGREES:
        check_parts(RULES["MaxPool"], operation, inputs, results, degrees)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_divides_means(geometry: Any) -> None:
    inputs = [image_of()]
    operation, results = operation_of("AvgPool", inputs, attributes_of(*geometry))
    for degrees in DEGREES:
        check_parts(RULES["AvgPool"], operation, inputs, results, degrees, tolerance=1e-6)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_gradients_of_equal_maxima_go_where_they_go_in_the_whole(geometry: Any) -> None:
    operation, inputs, results = gradient_of("MaxPool", attributes_of(*geometry))
    for degrees in DEGREES:
        # Gradients of several windows are added in another order.
        check_parts(RULES["MaxPoolGrad"], operation, inputs, results, degrees, tolerance=1e-6)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_divides_gradients_of_means(geometry: Any) -> None:
    operation, inputs, results = gradient_of("AvgPool", attributes_of(*geometry))
    for degrees in DEGREES:
        check_parts(RULES["AvgPoolGrad"], operation, inputs, results, degrees, tolerance=1e-6)


def test_divides_explicit_padding() -> None:
    paddings = [0, 0, 2, 0, 1, 2, 0, 0]
    attributes = attributes_of((3, 4), (2, 1), "EXPLICIT", explicit_paddings=paddings)
    inputs = [image_of() - 10]
    operation, results = operation_of("MaxPool", inputs, attributes)
    for degrees in DEGREES:
        check_parts(RULES["MaxPool"], operation, inputs, results, degrees)
    operation, inputs, results = gradient_of("MaxPool", attributes)
    for degrees in DEGREES:
        check_parts(RULES["MaxPoolGrad"], operation, inputs, results, degrees, tolerance=1e-6)


@pytest.mark.parametrize("dtype", [tf.float64, tf.float16, tf.bfloat16])
def test_pads_with_the_lowest_number_of_a_dtype(dtype: tf.DType) -> None:
    inputs = [(image_of() - 10).astype(dtype.as_numpy_dtype)]
    attributes = attributes_of((3, 3), (2, 2), "SAME") | {"T": dtype}
    operation, results = operation_of("MaxPool", inputs, attributes)
    check_parts(RULES["MaxPool"], operation, inputs, results, DEGREES[3])


def test_a_part_reads_its_windows_alone() -> None:
    operation, results = operation_of(
        "MaxPool", [image_of()], attributes_of((3, 3), (2, 2), "VALID")
    )
    assert results[0].shape == (3, 5, 4, 4)
    parts = check_parts(RULES["MaxPool"], operation, [image_of()], results, Degrees(height=2))
    assert [part.reads for part in parts.parts] == [
        (((0, 3), (0, 7), (0, 10), (0, 4)),),
        (((0, 3), (6, 11), (0, 10), (0, 4)),),
    ]
    assert [part.gives[0][1] for part in parts.parts] == [(0, 3), (3, 5)]


def test_a_part_that_no_window_reaches_reads_nothing() -> None:
    operation, inputs, results = gradient_of("AvgPool", attributes_of((1, 1), (10, 1), "VALID"))
    parts = check_parts(RULES["AvgPoolGrad"], operation, inputs, results, Degrees(height=3))
    assert parts.parts[1].reads == (None, None)


def test_an_undivided_image_is_pooled_as_in_the_whole() -> None:
    for op in ("MaxPool", "AvgPool"):
        operation, results = operation_of(op, [image_of()], attributes_of((3, 3), (2, 2), "SAME"))
        check_parts(RULES[op], operation, [image_of()], results, Degrees(sample=3, filter=2))


@pytest.mark.parametrize("op", ["MaxPool", "MaxPoolGrad", "AvgPool", "AvgPoolGrad"])
def test_boxes_in_nchw_are_those_in_nhwc(op: str) -> None:
    # CPUs have no kernels for NCHW.
    attributes = attributes_of((3, 2), (2, 1), "SAME")
    if op.endswith("Grad"):
        operation, _, _ = gradient_of(op.removesuffix("Grad"), attributes)
    else:
        operation, _ = operation_of(op, [image_of()], attributes)
    in_nchw = _in_nchw(operation)
    for degrees in DEGREES:
        parts, others = RULES[op](operation, degrees), RULES[op](in_nchw, degrees)
        assert parts is not None
        assert others is not None
        for part, other in zip(parts.parts, others.parts, strict=True):
            assert part.place == other.place
            assert tuple(map(_transposed, part.reads)) == other.reads
            assert tuple(map(_transposed, part.gives)) == other.gives


def test_keeps_a_pooling_of_channels_whole() -> None:
    attributes = {"T": tf.float32, "padding": "VALID"}
    attributes |= {"ksize": [1, 1, 1, 2], "strides": [1, 1, 1, 2]}
    operation, _ = operation_of("MaxPool", [image_of()], attributes)
    assert RULES["MaxPool"](operation, Degrees(sample=2)) is None


def _transposed(box: Any) -> Any:
    return None if box is None or len(box) != 4 else (box[0], box[3], box[1], box[2])


def _in_nchw(operation: Operation) -> Operation:
    node = type(operation.node).FromString(operation.node.SerializeToString())
    node.attr["data_format"].s = b"NCHW"
    for name in ("ksize", "strides"):
        node.attr[name].list.i[:] = _transposed(node.attr[name].list.i)
    shapes = [
        tuple(_transposed(shape) or shape for shape in shapes)
        for shapes in (operation.input_shapes, operation.output_shapes)
    ]
    return dataclasses.replace(
        operation, node=node, input_shapes=shapes[0], output_shapes=shapes[1], layout="NCHW"
    )
