"""Elementwise steps of a unit, joined to one pass, return the bits of TensorFlow's own ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_program import operation
from tensorflow.core.framework import node_def_pb2
from unit_program import assert_same_bits, in_graph, spans_of, stock

NodeDef = node_def_pb2.NodeDef

pytestmark = pytest.mark.usefixtures("without_optimization")
BINARY = ["AddV2", "Sub", "Mul", "RealDiv", "Maximum", "Minimum"]
UNARY = ["Relu", "Relu6", "Square", "Neg"]  # Neg is in no pass

IMAGE = [2, 6, 35, 48]
SHAPES = {
    "as the result": IMAGE,
    "of one value": [1],
    "of channels": [48],
    "of channels and images": [2, 1, 1, 48],
    "of images": [2, 1, 1, 1],
    "of rows": [1, 6, 1, 1],
    "of rows and channels": [1, 6, 1, 48],
    "of rows of all images": [2, 6, 1, 1],
    "of an image": [6, 35, 48],
    "of columns and channels": [35, 48],
    "of pixels": [2, 6, 35, 1],
}


@pytest.fixture(params=[tf.float32, tf.bfloat16], ids=lambda dtype: dtype.name)
def dtype(request: pytest.FixtureRequest) -> tf.DType:
    return request.param


def random(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_gives_the_bits_of_stock(
    unit: Any,
    steps: list[NodeDef],
    results: list[str],
    values: Sequence[np.ndarray],
    dtypes: Sequence[tf.DType] = (),
) -> None:
    """`dtypes` are that of the inputs and those of the results; by default that of the steps."""
    of_inputs, *of_results = dtypes or [tf.as_dtype(steps[0].attr["T"].type)] * (len(results) + 1)
    with np.errstate(all="ignore"):
        given = [tf.cast(value, of_inputs) for value in values]
        expected = with_one_nan(stock(steps, results)(*given))
        for cores in (1, 0, 2):
            run = in_graph(unit, steps, results, cores=cores, Tout=of_results)
            for _ in range(2):
                assert_same_bits(with_one_nan(run(*map(tf.identity, given))), expected)


def with_one_nan(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """NaN may have any bits, and of bfloat16 TensorFlow's kernels return zeros of either sign."""
    unsigned = [each + 0 if each.dtype == tf.bfloat16 else each for each in tensors]
    return [tf.where(tf.math.is_nan(each), tf.cast(np.nan, each.dtype), each) for each in unsigned]


@pytest.mark.parametrize("kind", SHAPES)
def test_broadcasts(unit: Any, dtype: tf.DType, kind: str) -> None:
    other = random(SHAPES[kind], seed=1)
    for op in BINARY:
        steps = [
            operation("first", op, ["inputs:0", "inputs:1"], dtype),
            operation("second", op, ["inputs:1", "steps:0:0"], dtype),
            operation("relu", "Relu", ["steps:1:0"], dtype),
        ]
        assert_gives_the_bits_of_stock(unit, steps, ["steps:2:0"], [random(IMAGE), other])


@pytest.mark.parametrize("count", range(1, 12))
def test_sums_of_any_number_of_tensors(unit: Any, dtype: tf.DType, count: int) -> None:
    factors = [
        operation(f"of_{i}", "Mul", [f"inputs:{i}", "inputs:0"], dtype) for i in range(count)
    ]
    inputs = [f"steps:{i}:0" for i in range(count)]
    steps = [*factors, operation("sum", "AddN", inputs, dtype, N=count)]
    steps.append(operation("relu", "Relu", [f"steps:{count}:0"], dtype))
    values = [random([50, 70], seed) for seed in range(count)]
    assert_gives_the_bits_of_stock(unit, steps, [f"steps:{count + 1}:0"], values)


def test_values_that_are_no_numbers(unit: Any, dtype: tf.DType) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 7, -7, 1e-45], np.float32)
    left, right = np.tile(values, (3, 8)), np.tile(np.repeat(values, 8), (3, 1))
    for op in BINARY:
        for activation in ("Relu", "Relu6", "Square"):
            steps = [
                operation("first", op, ["inputs:0", "inputs:1"], dtype),
                operation("last", activation, ["steps:0:0"], dtype),
            ]
            given = [tf.cast(value, dtype) for value in (left, right)]
            [expected] = stock(steps, ["steps:1:0"])(*given)
            [found] = in_graph(unit, steps, ["steps:1:0"], dtype)(*given)
            np.testing.assert_array_equal(tf.cast(found, tf.float32), tf.cast(expected, tf.float32))


def image_scaled_and_shifted(dtype: tf.DType) -> list[NodeDef]:
    return [
        operation("scaled", "Mul", ["inputs:0", "inputs:1"], dtype),
        operation("centred", "Sub", ["steps:0:0", "inputs:2"], dtype),
        operation("normal", "RealDiv", ["steps:1:0", "inputs:3"], dtype),
    ]


def then_relu(op: str, **attributes: Any) -> Callable[[tf.DType], list[NodeDef]]:
    return lambda dtype: [
        operation("first", op, ["inputs:0", "inputs:1"], dtype, **attributes),
        operation("relu", "Relu", ["steps:0:0"], dtype),
    ]


# Steps of a dtype, and values.
CASES: dict[str, tuple[Callable[[tf.DType], list[NodeDef]], list[Any]]] = {
    "one operation that broadcasts both operands": (
        lambda dtype: [operation("mul", "Mul", ["inputs:0", "inputs:1"], dtype)],
        [random([3, 1, 7, 1]), random([5, 1, 1400])],
    ),
    "an image of three channels": (
        image_scaled_and_shifted,
        [random([3, 40, 31, 3]), np.float32(1 / 255), random([1, 1, 1, 3]), random([3])],
    ),
    "a bias of channels": (then_relu("BiasAdd"), [random([2, 4, 5, 5]), random([5])]),
    "a bias of the first dimension": (
        then_relu("BiasAdd", data_format="NCHW"),
        [random([2, 4, 5, 5]), random([4])],
    ),
    "empty": (then_relu("AddV2"), [np.zeros([0, 3], np.float32), np.ones([1, 3], np.float32)]),
}


@pytest.mark.parametrize("case", CASES)
def test_gives_the_bits_of_stock(unit: Any, dtype: tf.DType, case: str) -> None:
    steps_of, values = CASES[case]
    steps = steps_of(dtype)
    assert_gives_the_bits_of_stock(unit, steps, [f"steps:{len(steps) - 1}:0"], values)


def test_other_types_run_as_before(unit: Any) -> None:
    values = [random([4, 3]), random([3])]
    assert_gives_the_bits_of_stock(unit, then_relu("AddV2")(tf.float16), ["steps:1:0"], values)


def random_steps(
    seed: int, inputs: int, dtypes: Sequence[tf.DType]
) -> tuple[list[NodeDef], list[str], list[tf.DType]]:
    """Steps that read any earlier values, of any shape; their results, and the dtypes of these."""
    choose = np.random.default_rng(seed)
    operands = [(f"inputs:{i}", dtypes[0]) for i in range(inputs)]
    steps: list[NodeDef] = []
    for i in range(int(choose.integers(4, 25))):
        # Mostly late ones, so that most values have one reader.
        late = operands[-3:] if choose.random() < 0.8 else operands
        first, dtype = late[choose.integers(len(late))]
        if len(dtypes) > 1 and choose.random() < 0.3:
            to = dtypes[choose.integers(len(dtypes))]
            steps.append(cast(f"step_{i}", first, dtype, to))
            operands.append((f"steps:{i}:0", to))
            continue
        op = str(choose.choice([*BINARY, *BINARY, *UNARY]))
        others = [name for name, each in late if each == dtype]
        read = [first, str(choose.choice(others))] if op in BINARY else [first]
        steps.append(operation(f"step_{i}", op, read, dtype))
        operands.append((f"steps:{i}:0", dtype))
    read_outside = choose.choice(len(steps), int(choose.integers(0, 3)))
    results = [operands[-1], *(operands[inputs + i] for i in read_outside)]
    return steps, [name for name, _ in results], [each for _, each in results]


def cast(name: str, operand: str, before: tf.DType, after: tf.DType) -> NodeDef:
    node = NodeDef(name=name, op="Cast", input=[operand])
    node.attr["SrcT"].type, node.attr["DstT"].type = (
        each.as_datatype_enum for each in (before, after)
    )
    return node


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(
    "dtypes",
    [[tf.float32], [tf.bfloat16], [tf.bfloat16, tf.float32]],
    ids=["float32", "bfloat16", "mixed"],
)
def test_random_steps(unit: Any, seed: int, dtypes: list[tf.DType]) -> None:
    shapes = list(SHAPES.values())
    places = np.random.default_rng(seed).choice(len(shapes), 4)
    values = [random(shapes[place], seed=i) for i, place in enumerate(places)]
    steps, results, of_results = random_steps(seed, len(values), dtypes)
    assert_gives_the_bits_of_stock(unit, steps, results, values, [dtypes[0], *of_results])


def test_the_error_is_that_of_the_own_op(unit: Any) -> None:
    steps = [
        operation("sum", "AddV2", ["inputs:0", "inputs:1"]),
        operation("relu", "Relu", ["steps:0:0"]),
    ]
    run = in_graph(unit, steps, ["steps:1:0"])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[4,3\] vs\. \[4,2\].*'sum'"):
        run(np.ones([4, 3], np.float32), np.ones([4, 2], np.float32))
    steps[0] = operation("sum", "AddN", ["inputs:0", "inputs:1"], N=2)
    run = in_graph(unit, steps, ["steps:1:0"])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[4,3\] vs\. \[1,3\].*'sum'"):
        run(np.ones([4, 3], np.float32), np.ones([1, 3], np.float32))


def test_joins_what_one_step_reads(unit: Any) -> None:
    steps = [
        operation("scaled", "Mul", ["inputs:0", "inputs:1"]),
        operation("shared", "AddV2", ["steps:0:0", "inputs:0"]),
        operation("relu", "Relu", ["steps:1:0"]),
        operation("square", "Square", ["steps:1:0"]),
        operation("result", "Sub", ["steps:2:0", "steps:3:0"]),
    ]
    run = in_graph(unit, steps, ["steps:4:0"])

    def call_twice() -> None:  # the first call is not recorded
        for _ in range(2):
            run(random([4, 3]), random([3]))

    [span] = spans_of(call_twice, calls=1)
    assert span.name == "shared result"
