"""The ConvStage op beside TensorFlow's own ops, on the CPU; op_matrix_test.py has all kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from convolution_cases import Case, digits, ordinary_cases, program_of, run_stage
from stage_program import arguments, assert_names
from unnoticed import counted, run_python

import tf_interop


@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "NDHWC", "NCDHW"])
def test_infers_shapes(conv_stage: Any, layout: str) -> None:
    """Of a stage whose first image has an unknown batch size."""
    cases = ordinary_cases(layout=layout, padding="VALID", stride=2)
    inputs, sizes, document = program_of(cases)
    with tf.Graph().as_default():
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


# In a process of its own, which cannot take it back.
DETERMINISTIC = """
import numpy as np, tensorflow as tf, tf_interop
from tf_interop import tensorflow_internals
from unnoticed import assert_same
assert not tensorflow_internals.is_op_determinism_on()
tf.config.experimental.enable_op_determinism()
tf.random.set_seed(0)
assert tensorflow_internals.is_op_determinism_on()
filters = [np.random.default_rng(seed).normal(size=[3, 3, 4, 8]) for seed in (1, 2)]
image = tf.constant(np.random.default_rng(0).normal(size=[3, 9, 9, 4]), tf.float32)

@tf.function
def gradients(image):
    with tf.GradientTape() as tape:
        variables = [tf.cast(each, tf.float32) for each in filters]
        tape.watch(variables)
        loss = sum(tf.reduce_sum(tf.nn.conv2d(image, each, 1, "SAME") ** 2) for each in variables)
    return tape.gradient(loss, variables)

tf_interop.enable("always")
runs = [[each.numpy() for each in gradients(image)] for _ in range(5)]
assert tf_interop.status().stage_count and tf_interop.status().counters.stages_run
for run in runs[1:]:
    assert_same(run, runs[0])
"""


def test_runs_with_op_determinism() -> None:
    run_python(DETERMINISTIC)
