from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import check, operation_of, sizes, stays_whole, values

from tf_interop.parallel.types import Degrees

IMAGE = (5, 7, 6, 9)
DEGREES = (
    Degrees(),
    Degrees(sample=2),
    Degrees(height=3, width=2),
    Degrees(filter=2, channel=2),
    Degrees(sample=3, height=2, filter=2),
    Degrees(sample=4, width=5),
)
UNARY = (
    *("Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Sigmoid", "Tanh", "Softplus", "Softsign"),
    *("Identity", "Snapshot", "StopGradient", "PreventGradient", "ZerosLike", "OnesLike"),
    *("Neg", "Abs", "Sign", "Square", "Exp", "Floor"),
    *("Sqrt", "Rsqrt", "Log", "Reciprocal", "Inv"),
)
BINARY = (
    *("Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "Maximum", "Minimum", "SquaredDifference"),
    *("Greater", "GreaterEqual", "Less", "LessEqual"),
    *("ReluGrad", "Relu6Grad", "LeakyReluGrad", "EluGrad", "SeluGrad", "SoftplusGrad"),
    *("SoftsignGrad", "SigmoidGrad", "TanhGrad", "RsqrtGrad", "SqrtGrad", "ReciprocalGrad"),
)
AXES = ((1, 2), (-3, 2), (0, 1, 2), (0,), (3,), (0, 1, 2, 3), (-1, 0))
INDEX = {"Tidx": tf.int64}


@pytest.mark.parametrize("op", [*UNARY, *BINARY])
def test_divides_an_elementwise_op(op: str) -> None:
    for shape in (IMAGE, (6, 11)):
        inputs = [np.abs(values(*shape, seed=seed)) + 0.5 for seed in (0, 1)]
        count = 1 if op in UNARY else 2
        # Vectorized loops and their remainders may round the last bit differently.
        check(op, inputs[:count], None, DEGREES[3:5], tolerance=1e-6)


@pytest.mark.parametrize(
    "shapes",
    [
        *((IMAGE, each) for each in ((), (9,), (1,), (1, 1, 1, 9), (5, 1, 1, 1), (7, 1, 9))),
        *((each, IMAGE) for each in ((), (9,), (5, 1, 1, 1))),
        *(((6, 1), (1, 11)), ((6, 11), (11,)), ((), (6, 11))),
    ],
    ids=str,
)
def test_reads_the_matching_box_of_a_broadcast_operand(shapes: tuple[tuple[int, ...], ...]) -> None:
    check("Sub", [values(*shape, seed=seed) for seed, shape in enumerate(shapes)], None, DEGREES)


def image(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    return 1 + values(*(shape or IMAGE), dtype=dtype) / 2


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("AddN", [values(*IMAGE, seed=seed) for seed in range(4)], {"N": 4}),
        ("SelectV2", [values(*IMAGE) > 0, values(9), values(*IMAGE, seed=2)], {}),
        ("LeakyRelu", [values(*IMAGE)], {"alpha": 0.7}),
        ("Cast", [values(*IMAGE)], {"T": None, "SrcT": tf.float32, "DstT": tf.float16}),
        *(
            (op, [image(), sizes(*axes)], INDEX | {"keep_dims": keep_dims})
            for op in ("Sum", "Mean")
            for axes in AXES
            for keep_dims in (False, True)
        ),
        ("Sum", [image(7, 5), np.array(0)], INDEX),
        *(
            ("BroadcastTo", [values(*shape), sizes(*IMAGE)], INDEX)
            for shape in ((5, 1, 1, 9), (1, 1, 1, 1), (9,), (), IMAGE)
        ),
        ("Tile", [values(5, 1, 1, 9), sizes(1, 7, 6, 1)], {"Tmultiples": tf.int64}),
    ],
)
def test_divides_ops_with_other_operands_and_attributes(
    op: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    check(op, inputs, attributes, DEGREES, tolerance=1e-14)


@pytest.mark.parametrize("op", ["LRN", "LRNGrad"])
def test_divides_a_local_response_normalization_by_pixels(op: str) -> None:
    attributes = {"depth_radius": 2, "bias": 1.5, "alpha": 0.1, "beta": 0.75}
    count = 1 if op == "LRN" else 3
    inputs = [values(*IMAGE, seed=seed) for seed in range(count)]
    degrees = [*DEGREES, Degrees(filter=2)]
    *_, by_channels = check(op, inputs, attributes, degrees, tolerance=1e-6)
    # All channels of a pixel are on one device.
    [part] = by_channels
    assert part.reads == (((0, 5), (0, 7), (0, 6), (0, 9)),) * count


def test_divides_channels_of_nchw_by_filter_and_channel_together() -> None:
    inputs = [values(2, 9, 7, 6), values(9, 1, 1, seed=1)]
    [parts] = check("Mul", inputs, None, [Degrees(filter=2, channel=2)], layout="NCHW")
    assert [part.reads[1] for part in parts] == [
        ((begin, end), (0, 1), (0, 1)) for begin, end in ((0, 3), (3, 5), (5, 7), (7, 9))
    ]


def test_leaves_places_beyond_a_short_axis_empty() -> None:
    [parts] = check("Relu", [values(4, 1, 1, 3)], None, [Degrees(sample=2, height=2)])
    assert [part.place for part in parts] == [0, 2]


@pytest.mark.parametrize("shape", [(), (9,), (3, 4, 5), (0, 4)])
def test_keeps_tensors_without_axes_of_a_layer_whole(shape: tuple[int, ...]) -> None:
    assert stays_whole(operation_of("Relu", [values(*shape)])[0], Degrees(sample=2))


@pytest.mark.parametrize(
    ("op", "dtype"), [("Max", np.float64), ("Min", np.float64), ("Mean", np.uint8)]
)
def test_divides_an_extremum_or_a_mean_of_integers_only_along_other_axes(
    op: str, dtype: Any
) -> None:
    inputs = [(9 * image()).astype(dtype), sizes(1, 2)]
    check(op, inputs, INDEX, [Degrees(sample=2, filter=2)])
    assert stays_whole(operation_of(op, inputs, INDEX)[0], Degrees(height=2))


def test_keeps_repetitions_of_several_values_whole() -> None:
    inputs = [values(5, 2, 1, 9), sizes(1, 7, 6, 1)]
    several, _ = operation_of("Tile", inputs, {"Tmultiples": tf.int64})
    assert stays_whole(several, Degrees(sample=2))


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        *(("Softmax", [image(*shape)]) for shape in ((7, 11), (7, 2, 3, 11))),
        ("LogSoftmax", [image(7, 11)]),
        ("SoftmaxCrossEntropyWithLogits", [image(7, 11), np.eye(11)[:7]]),
        ("SparseSoftmaxCrossEntropyWithLogits", [image(7, 11), sizes(*range(7))]),
    ],
)
def test_divides_a_softmax_or_a_loss_along_the_batch(op: str, inputs: list[Any]) -> None:
    attributes = {"Tlabels": tf.int64 if "Sparse" in op else None}
    [parts] = check(op, inputs, attributes, [Degrees(sample=3, filter=2)], tolerance=1e-14)
    assert [part.place for part in parts] == [0, 2, 4]


def test_keeps_a_loss_with_broadcast_labels_whole() -> None:
    inputs = [image(7, 11), np.eye(11)[:1]]
    loss, _ = operation_of("SoftmaxCrossEntropyWithLogits", inputs)
    assert stays_whole(loss, Degrees(sample=2))
