"""The ConvStage op beside TensorFlow's own ops, on the CPU; op_matrix_test.py has all kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from convolution_cases import Case, digits, ordinary_cases, program_of, run_stage
from stage_program import arguments, assert_names
from unnoticed import counted

import tf_interop


@pytest.mark.parametrize("depthwise", [False, True], ids=["plain", "depthwise"])
@pytest.mark.parametrize(
    ("image_shape", "filter_shape"),
    [
        ([2, 5, 5, 3], [0, 3, 3, 4]),
        ([2, 5, 5, 3], [3, 3, 3, 0]),
        ([2, 5, 5, 0], [3, 3, 0, 4]),
        ([2, 0, 5, 3], [3, 3, 3, 4]),
        ([0, 5, 5, 3], [3, 3, 3, 4]),
    ],
)
def test_gradients_of_empty_tensors_are_zeros(
    conv_stage: Any, image_shape: list[int], filter_shape: list[int], depthwise: bool
) -> None:
    stem = "DepthwiseConv2dNative" if depthwise else "Conv2D"
    channels = filter_shape[3] * (filter_shape[2] if depthwise else 1)
    image, filter_ = digits(image_shape), digits(filter_shape, seed=1)
    gradient = digits([*image_shape[:3], channels], seed=2)
    attributes = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    cases = [
        Case(f"{stem}BackpropInput", (image_shape, filter_, gradient), attributes),
        Case(f"{stem}BackpropFilter", (image, filter_shape, gradient), attributes),
    ]
    # TensorFlow gives the same with oneDNN; without, some are errors and others end the process.
    results = run_stage(conv_stage, cases)
    for result, shape in zip(results, (image_shape, filter_shape), strict=True):
        np.testing.assert_array_equal(result, np.zeros(shape, np.float32))


@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "NDHWC", "NCDHW"])
def test_infers_shapes(conv_stage: Any, layout: str) -> None:
    """Of a stage whose first image has an unknown batch size."""
    cases = ordinary_cases(layout=layout, padding="VALID", stride=2)
    inputs: list[Any] = []
    sizes: list[Any] = []
    with tf.Graph().as_default():
        document = program_of(cases, inputs, sizes)
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

    # Of unknown shape, so that it is the kernel that sees them.
    @tf.function(input_signature=[tf.TensorSpec(None)] * 2, autograph=False)
    def stage(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return conv_stage(**arguments(tensors, [], program_of([case], [], [])))

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
