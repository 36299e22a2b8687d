"""Compares the ConvStage op with TensorFlow's own ops on the CPU; op_matrix_test.py has all kinds.

All values are small whole numbers, whose sums are exact, so results are equal to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from convolution_cases import (
    DTYPES,
    Case,
    digits,
    ordinary_cases,
    program_of,
    run_stage,
)
from stage_program import Document, arguments, assert_names, in_graph, lane, program, schedule
from unnoticed import assert_same, counted

import tf_interop


@pytest.mark.parametrize(
    ("op", "image_shape", "filter_shape", "got"),
    [
        ("Conv2D", [1, 5, 5, 3], [3, 3, 2, 2], "[3,3,2,2]"),
        ("Conv2D", [5, 5, 3], [3, 3, 3, 2], "[5,5,3]"),
        ("Conv3D", [2] * 4, [2] * 5, "[2,2,2,2]"),
    ],
)
def test_refuses_shapes_that_do_not_fit(
    conv_stage: Any, op: str, image_shape: list[int], filter_shape: list[int], got: str
) -> None:
    operands = digits(image_shape), digits(filter_shape)
    case = Case(op, operands, {"strides": [1] * (5 if op == "Conv3D" else 4), "padding": "SAME"})

    # Only the kernel sees the shapes.
    @tf.function(input_signature=[tf.TensorSpec(None)] * 2, autograph=False)
    def stage(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return conv_stage(**arguments(tensors, [], program_of([case])[2]))

    with pytest.raises(tf.errors.InvalidArgumentError) as refused:
        stage(*operands)
    assert_names(refused, "step 'case_0'", got)


def test_an_unknown_pin_falls_back_and_is_counted_for_its_device(conv_stage: Any) -> None:
    case = ordinary_cases()[0]
    with counted() as new:
        [result] = run_stage(conv_stage, [case], algorithm="eng9_k9=9")
    np.testing.assert_array_equal(result, case.own())
    [(reason, count)] = new.fallbacks.items()
    assert "eng9_k9=9" in reason
    assert (new.stages_run, count) == (1, 1)
    counters = tf_interop.status().counters
    assert counters.devices["CPU:0"].fallbacks[reason] == counters.fallbacks[reason]
    assert sum(each.stages_run for each in counters.devices.values()) == counters.stages_run


def cases_of_one_image(layout: str = "NHWC", dtype: tf.DType = tf.float32) -> list[Case]:
    image = digits([2, 7, 8, 4] if layout == "NHWC" else [2, 4, 7, 8], dtype)
    ones = {"strides": [1] * 4, "dilations": [1] * 4}
    attributes = ones | {"padding": "SAME", "data_format": layout}
    return [
        Case("Conv2D", (image, digits([3, 3, 4, count], dtype, seed=i)), attributes)
        for i, count in enumerate((6, 1, 9))
    ]


def program_of_one_image(cases: list[Case], *lanes: Document) -> tuple[list[Any], Document]:
    """Inputs and program of cases that all read the image of the first."""
    inputs: list[Any] = []
    operations = [case.step(inputs, []) for case in cases]
    for each in operations:
        each.input[0] = "inputs:0"
    return inputs, program(operations, schedule(*lanes))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_merged_lane_gives_what_single_lanes_give(
    conv_stage: Any, layout: str, dtype: tf.DType
) -> None:
    cases = cases_of_one_image(layout, dtype)
    biases = (digits([count], dtype, seed=7) for count in (6, 1, 9))
    epilogue = {"fused_ops": ["BiasAdd", "Relu"]}
    fused = [
        Case("_FusedConv2D", (*case.operands, bias), case.attributes | epilogue)
        for case, bias in zip(cases, biases, strict=True)
    ]
    for chosen, lanes in (
        (cases, [lane(0, 1, 2, merged=True)]),
        (cases, [lane(0), lane(1, 2, merged=True)]),
        (fused, [lane(0, 1, 2, merged=True)]),
    ):
        with counted() as new:
            merged, single = (
                in_graph(conv_stage, **arguments(inputs, [], document))
                for each in (lanes, map(lane, range(3)))
                for inputs, document in [program_of_one_image(chosen, *each)]
            )
        assert_same(merged, single)
        assert new.fallbacks == {}


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_joins_constant_filters_once(conv_stage: Any, dtype: tf.DType) -> None:
    inputs, document = program_of_one_image(
        cases_of_one_image(dtype=dtype), lane(0, 1, merged=True), lane(2)
    )
    marked = document | {"kept_inputs": [1, 3]}
    constants = [tf.constant(each) for each in inputs[1:]]
    stage = tf.function(lambda image: conv_stage(**arguments([image, *constants], [], marked)))
    with counted() as new:
        for seed in range(3):
            image = digits([2, 7, 8, 4], dtype, seed=10 + seed)
            expected = [tf.nn.conv2d(image, filter_, 1, "SAME") for filter_ in inputs[1::2]]
            assert_same(stage(tf.constant(image)), expected)
    assert new.filters_transformed == 1
