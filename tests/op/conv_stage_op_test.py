"""The ConvStage op beside TensorFlow's own ops, on the CPU; op_matrix_test.py has all kinds.

All values are small whole numbers, whose sums are exact, so that results are equal to the bit.
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
    to_layout,
)
from stage_program import (
    Document,
    arguments,
    assert_names,
    assert_refused,
    encoded,
    in_graph,
    lane,
    program,
    schedule,
)
from unnoticed import assert_same, counted

import tf_interop


@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "NDHWC", "NCDHW"])
def test_infers_shapes(conv_stage: Any, layout: str) -> None:
    cases = ordinary_cases(layout=layout, padding="VALID", stride=2)
    inputs, sizes, document = program_of(cases)
    with tf.Graph().as_default():
        # The first image has an unknown batch size.
        inputs[0] = tf.compat.v1.placeholder(tf.float32, [None, *inputs[0].shape[1:]])
        inferred = conv_stage(**arguments(inputs, sizes, document))
    shapes = [output.shape.as_list() for output in run_stage(conv_stage, cases)]
    shapes[0][0] = None
    assert [output.shape.as_list() for output in inferred] == shapes


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


def merged_program(cases: list[Case], *lanes: Document) -> tuple[list[Any], Document]:
    """Inputs and program of cases that read the first one's image, by default in a merged lane."""
    inputs: list[Any] = []
    operations = [case.step(inputs, []) for case in cases]
    for each in operations:
        each.input[0] = "inputs:0"
    every = lane(*range(len(cases)), merged=True)
    return inputs, program(operations, schedule(*(lanes or [every])))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_merged_lane_gives_what_the_own_ops_give(
    conv_stage: Any, layout: str, dtype: tf.DType
) -> None:
    cases = cases_of_one_image(layout, dtype)
    # On a CPU TensorFlow has no convolution of double in NCHW.
    image = cases[0].operands[0]
    nhwc = image if layout == "NHWC" else np.moveaxis(image, 1, -1)
    plain = [tf.nn.conv2d(nhwc, case.operands[1], 1, "SAME") for case in cases]
    biases = [digits([count], dtype, seed=7) for count in (6, 1, 9)]
    fused = [
        Case(
            "_FusedConv2D",
            (*case.operands, bias),
            case.attributes | {"fused_ops": ["BiasAdd", "Relu"]},
        )
        for case, bias in zip(cases, biases, strict=True)
    ]
    activated = [tf.nn.relu(each + bias) for each, bias in zip(plain, biases, strict=True)]
    for chosen, lanes, expected in (
        (cases, (), plain),
        (cases, (lane(0), lane(1, 2, merged=True)), plain),
        (fused, (), activated),
    ):
        inputs, document = merged_program(chosen, *lanes)
        with counted() as new:
            results = in_graph(conv_stage, **arguments(inputs, [], document))
        assert_same(results, [to_layout(each.numpy(), layout) for each in expected])
        assert new.fallbacks == {}


@pytest.mark.parametrize(("place", "operand"), [(0, "inputs:2"), (0, "steps:0"), (1, "steps:0")])
def test_steps_of_a_merged_lane_read_one_image_and_no_step(
    conv_stage: Any, place: int, operand: str
) -> None:
    case = cases_of_one_image()[0]
    inputs, document = merged_program([case, case])
    step = case.step([None, None], [])
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
            expected = [tf.nn.conv2d(image, filter_, 1, "SAME") for filter_ in inputs[1::2]]
            assert_same(stage(tf.constant(image)), expected)
    assert new.filters_transformed == 1
