"""Products of one vector and a matrix in a unit are as exact as TensorFlow's kernels."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from profiled_events import profile, ways_of_steps
from stage_program import operation
from tensorflow.core.framework import node_def_pb2
from unit_program import assert_same_bits, in_graph, stock

pytestmark = pytest.mark.usefixtures("without_optimization")

CONVOLUTION = {"strides": [1] * 4, "padding": "SAME"}


def step_of(op: str, *ops: str, **attributes: Any) -> node_def_pb2.NodeDef:
    if ops:
        attributes |= {"fused_ops": ["BiasAdd", *ops], "num_args": 1}
    if op == "_FusedConv2D":
        attributes |= {"TArgs": [tf.float32]}
    if "Conv2D" in op:
        attributes = CONVOLUTION | attributes
    operands = [f"inputs:{place}" for place in range(3 if ops else 2)]
    return operation("step", op, operands, **attributes)


def inputs_of(op: str, rows: int, columns: int) -> list[tf.Tensor]:
    ones = [1, 1] if "Conv2D" in op else []
    shapes = ([1, *ones, rows], [*ones, rows, columns], [columns])
    return [tf.random.stateless_normal(each, (rows, place)) for place, each in enumerate(shapes)]


def in_double(inputs: list[tf.Tensor], function: Any) -> np.ndarray:
    vector, matrix, *bias = (np.squeeze(each.numpy()).astype(np.float64) for each in inputs)
    vector, matrix = np.atleast_1d(vector), np.reshape(matrix, [np.size(vector), -1])
    return function(vector @ matrix + (bias[0] if bias else 0))


FUNCTIONS: dict[str, Any] = {
    "Relu": lambda x: np.maximum(x, 0),
    "Relu6": lambda x: np.clip(x, 0, 6),
    "Elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "LeakyRelu": lambda x: np.where(x > 0, x, 0.3 * x),
    "_MklSwish": lambda x: x / (1 + np.exp(-x)),
    "_FusedHardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
}
SIZES = [(1, 1), (3, 5), (64, 64), (150, 1000), (1152, 48)]
CASES = [
    *((op, size, "") for op in ("Conv2D", "MatMul") for size in SIZES),
    *((op, size, "Relu") for op in ("_FusedConv2D", "_FusedMatMul") for size in SIZES),
    *(("_FusedConv2D", (40, 70), activation) for activation in FUNCTIONS),
]


@pytest.mark.parametrize(("op", "size", "activation"), CASES)
def test_is_exact(unit: Any, op: str, size: tuple[int, int], activation: str) -> None:
    inputs = inputs_of(op, *size)[: 3 if activation else 2]
    fused = [activation] if activation else []
    step = step_of(op, *fused, **({"leakyrelu_alpha": 0.3} if activation == "LeakyRelu" else {}))
    expected = in_double(inputs, FUNCTIONS[activation] if activation else lambda x: x)
    for cores in (1, 2, 0):
        [found] = in_graph(unit, [step], ["steps:0:0"], cores=cores)(*inputs)
        np.testing.assert_allclose(np.ravel(found), np.ravel(expected), rtol=1e-5, atol=1e-5)
        assert found.shape == (*inputs[0].shape[:-1], size[1])


def test_takes_one_vector_alone(unit: Any, tmp_path: pathlib.Path) -> None:
    image, matrix = [1, 1, 1, 8], [8, 6]
    others: list[tuple[node_def_pb2.NodeDef, list[list[int]]]] = [
        (step_of("Conv2D"), [[2, 1, 1, 8], [1, 1, 8, 6]]),
        (step_of("Conv2D"), [[1, 1, 2, 8], [1, 1, 8, 6]]),
        (step_of("Conv2D"), [image, [3, 3, 8, 6]]),
        (step_of("Conv2D"), [image, [1, 1, 4, 6]]),
        (
            step_of("Conv2D", padding="EXPLICIT", explicit_paddings=[0, 0, 1, 1, 0, 0, 0, 0]),
            [image, [1, 1, 8, 6]],
        ),
        (step_of("Conv2D", data_format="NCHW"), [[1, 8, 1, 1], [1, 1, 8, 6]]),
        (step_of("MatMul", transpose_b=True), [[1, 8], [8, 8]]),
        (step_of("MatMul", transpose_a=True), [[8, 1], matrix]),
        (step_of("MatMul"), [[2, 8], matrix]),
    ]

    def run() -> None:
        for step, shapes in others:
            inputs = [tf.random.stateless_normal(each, (1, 2)) for each in shapes]
            unit_of_step = in_graph(unit, [step], ["steps:0:0"], cores=0)
            assert_same_bits(unit_of_step(*inputs), stock([step], ["steps:0:0"])(*inputs))
        taken = operation("taken", "MatMul", ["inputs:0", "inputs:1"])
        in_graph(unit, [taken], ["steps:0:0"])(*inputs_of("MatMul", 8, 6)[:2])

    ways = ways_of_steps(profile(tmp_path, run))
    assert [name for name in ways if "TfInterop>VectorProduct" in ways[name]] == ["taken"]
