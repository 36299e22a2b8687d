"""Lanes whose convolutions run as one wider convolution, in stock TensorFlow on the CPU.

All values are small whole numbers, whose sums are exact, so that the comparison is to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from convolution_cases import DTYPES, Case, digits, to_layout
from stage_program import (
    Document,
    arguments,
    assert_refused,
    encoded,
    in_graph,
    lane,
    program,
    schedule,
)
from unnoticed import counted


def merged_program(cases: list[Case], *lanes: Document) -> tuple[list[Any], Document]:
    """Inputs and program of cases that read the image of the first, all in a merged lane or so."""
    inputs: list[Any] = []
    operations = [case.step(inputs, []) for case in cases]
    for each in operations:
        each.input[0] = "inputs:0"
    every = lane(*range(len(cases)), merged=True)
    return inputs, program(operations, schedule(*(lanes or [every])))


def cases_of_one_image(
    layout: str = "NHWC", dtype: tf.DType = tf.float32, filters: tuple[int, ...] = (6, 1, 9)
) -> list[Case]:
    image = digits([2, 7, 8, 4] if layout == "NHWC" else [2, 4, 7, 8], dtype)
    ones = {"strides": [1] * 4, "dilations": [1] * 4}
    attributes = ones | {"padding": "SAME", "data_format": layout}
    return [
        Case("Conv2D", (image, digits([3, 3, 4, count], dtype, seed=i)), attributes)
        for i, count in enumerate(filters)
    ]


def run(conv_stage: Any, cases: list[Case], *lanes: Document) -> list[tf.Tensor]:
    inputs, document = merged_program(cases, *lanes)
    return in_graph(conv_stage, **arguments(inputs, [], document))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_gives_what_the_own_ops_give(conv_stage: Any, layout: str, dtype: tf.DType) -> None:
    cases = cases_of_one_image(layout, dtype)
    fused = {"fused_ops": ["BiasAdd", "Relu"]}
    biases = [digits([count], dtype, seed=7) for count in (6, 1, 9)]
    with_bias = [
        Case("_FusedConv2D", (*case.operands, bias), case.attributes | fused)
        for case, bias in zip(cases, biases, strict=True)
    ]
    with counted() as new:
        every = run(conv_stage, cases)
        some = run(conv_stage, cases, lane(0), lane(1, 2, merged=True))
        fused_results = run(conv_stage, with_bias)
    assert new.fallbacks == {}
    for case, bias, one, other, of_fused in zip(
        cases, biases, every, some, fused_results, strict=True
    ):
        image, filter_ = case.operands
        # Of NCHW and double a CPU has no kernel.
        nhwc = image if layout == "NHWC" else np.moveaxis(image, 1, -1)
        plain = tf.nn.conv2d(nhwc, filter_, 1, "SAME")
        activated = tf.nn.relu(plain + bias)
        for result, expected in ((one, plain), (other, plain), (of_fused, activated)):
            np.testing.assert_array_equal(result, to_layout(expected.numpy(), layout))


@pytest.mark.parametrize(("place", "operand"), [(0, "inputs:2"), (0, "steps:0"), (1, "steps:0")])
def test_refuses_steps_that_do_not_read_one_image_and_no_step(
    conv_stage: Any, place: int, operand: str
) -> None:
    cases = cases_of_one_image(filters=(4, 4))
    inputs, document = merged_program(cases)
    step = cases[1].step([None, None], [])
    step.input[place] = operand
    document["operations"][1] = encoded(step)
    assert_refused(conv_stage, "lanes[0]", "merged lane", **arguments(inputs, [], document))


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_joins_constant_filters_once(conv_stage: Any, dtype: tf.DType) -> None:
    inputs, document = merged_program(
        cases_of_one_image(dtype=dtype), lane(0, 1, merged=True), lane(2)
    )
    marked = document | {"held_inputs": [1, 3]}
    constants = [tf.constant(each) for each in inputs[1:]]
    stage = tf.function(lambda image: conv_stage(**arguments([image, *constants], [], marked)))
    with counted() as new:
        for seed in range(3):
            image = digits([2, 7, 8, 4], dtype, seed=10 + seed)
            for filter_, result in zip(inputs[1::2], stage(tf.constant(image)), strict=True):
                np.testing.assert_array_equal(result, tf.nn.conv2d(image, filter_, 1, "SAME"))
    assert new.filters_transformed == 1
