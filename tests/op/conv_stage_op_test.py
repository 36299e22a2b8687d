"""Compares the ConvStage op with TensorFlow's own ops on the CPU; op_matrix_test.py has all kinds.

All values are small whole numbers, whose sums are exact, so results are equal to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from convolution_cases import (
    Case,
    digits,
    ordinary_cases,
    program_of,
    run_stage,
)
from stage_program import arguments, assert_names, lane, operation, program, schedule
from unnoticed import assert_same, counted, run_python

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


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_joins_constant_filters_once(conv_stage: Any, dtype: tf.DType) -> None:
    filters = [digits([3, 3, 4, count], dtype, seed=i) for i, count in enumerate((6, 1, 9))]
    plain = {"strides": [1] * 4, "padding": "SAME", "dtype": dtype}
    operations = [
        operation(f"convolution_{i}", "Conv2D", ["inputs:0", f"inputs:{i}"], **plain)
        for i in (1, 2, 3)
    ]
    document = program(operations, schedule(lane(0, 1, merged=True), lane(2)), kept_inputs=[1, 2])
    constants = [tf.constant(each) for each in filters]
    stage = tf.function(lambda image: conv_stage(**arguments([image, *constants], [], document)))
    with counted() as new:
        for seed in range(3):
            image = digits([2, 7, 8, 4], dtype, seed=10 + seed)
            expected = [tf.nn.conv2d(image, filter_, 1, "SAME") for filter_ in filters]
            assert_same(stage(tf.constant(image)), expected)
    assert new.filters_transformed == 1


TIMED = """
import tensorflow as tf
from stage_program import arguments, lane, operation, program, schedule
from tf_interop.runtime.kernel_library import load_kernel_library

library = load_kernel_library()
conv_stage = tf.load_op_library(str(library.build_info.path)).tf_interop_conv_stage
plain = {"strides": [1, 1, 1, 1], "padding": "SAME"}
operations = [operation(name, "Conv2D", ["inputs:0", "inputs:1"], **plain) for name in "ab"]
inputs = tf.ones([1, 4, 4, 2]), tf.ones([1, 1, 2, 2])
of_op = arguments(inputs, [], program(operations), timed=True)
stage = tf.function(lambda: conv_stage(**of_op), autograph=False)
stage()
print("timed:", len(library.read_stage_timings()))
"""


@pytest.mark.parametrize(("variable", "timed"), [("0", 1), ("1", 0)])
def test_tries_no_ways_where_tensorflows_convolutions_must_be_deterministic(
    variable: str, timed: int
) -> None:
    assert f"timed: {timed}" in run_python(TIMED, TF_CUDNN_DETERMINISTIC=variable)
