"""Filters that are constants of a graph are transformed once, and none is taken for another.

The host backend transforms float16 and bfloat16 filters: it converts them to float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from convolution_cases import digits, ordinary_cases, program_of, real_numbers
from stage_program import arguments, lane, operation, program, schedule
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from unnoticed import counted

import tf_interop
from tf_interop.runtime.plugin import get_plugin

v1 = tf.compat.v1

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")

IMAGE = digits([2, 6, 6, 4], tf.float16)
FILTERS = [digits([3, 3, 4, 4], tf.float16, seed) for seed in (1, 2)]
UNKNOWN_BATCH = tf.TensorSpec([None, 6, 6, 4], tf.float16)


def branches(image: tf.Tensor, filters: list[Any]) -> list[tf.Tensor]:
    return [tf.nn.conv2d(image, filter_, 1, "SAME") for filter_ in filters]


def in_function(filters: list[Any], **options: Any) -> Callable[[Any], list[tf.Tensor]]:
    """The branches as a function; filters that are arrays become Const nodes."""
    return tf.function(lambda image: branches(image, filters), autograph=False, **options)


def assert_branches(results: list[tf.Tensor], image: np.ndarray, filters: list[Any]) -> None:
    """Asserts that these are the results of TensorFlow's own ops, which no plugin sees run."""
    for result, each in zip(results, branches(image, filters), strict=True):
        np.testing.assert_array_equal(result, each)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_gives_the_bits_of_a_filter_that_is_not_constant(
    conv_stage: Any, layout: str, dtype: tf.DType
) -> None:
    cases = ordinary_cases(dtype, layout, numbers=real_numbers)
    inputs: list[Any] = []
    sizes: list[Any] = []
    document = program_of(cases, inputs, sizes)

    def stage(marks: list[int]) -> Any:
        marked = document | {"constant_inputs": marks}
        return tf.function(lambda *each: conv_stage(**arguments(each, sizes, marked)))

    tensors = list(map(tf.constant, inputs))
    expected = stage([])(*tensors)
    # Every input is marked; what is no filter of a forward or backward-input step is left alone.
    all_marked = stage(list(range(len(tensors))))
    with counted() as new:
        for _ in range(3):
            for ours, theirs in zip(all_marked(*tensors), expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)
    assert new.filters_transformed == sum("BackpropFilter" not in case.op for case in cases)


def test_transforms_constants_of_a_graph_once() -> None:
    tf_interop.enable("always")
    variables = [tf.Variable(filter_) for filter_ in FILTERS]
    function = in_function(variables, input_signature=[UNKNOWN_BATCH])
    frozen = convert_variables_to_constants_v2(function.get_concrete_function())
    # Both filters have the same shape: one must not be taken for the other.
    for compute in (in_function(FILTERS), frozen):
        with counted() as new:
            for _ in range(4):
                assert_branches(compute(tf.constant(IMAGE)), IMAGE, FILTERS)
        assert new.filters_transformed == 2


def test_sees_a_variable_change() -> None:
    variables = [tf.Variable(filter_) for filter_ in FILTERS]
    tf_interop.enable("always")
    compute = in_function(variables)
    with counted() as new:
        for factor in (1, 2, 3):
            changed = [factor * filter_ for filter_ in FILTERS]
            for variable, value in zip(variables, changed, strict=True):
                variable.assign(value)
            assert_branches(compute(tf.constant(IMAGE)), IMAGE, changed)
    assert get_plugin().reports[-1].plan.stages
    assert new.filters_transformed == 0


def test_uses_none_that_was_made_under_the_other_switch_for_tf32() -> None:
    tf_interop.enable("always")
    compute = in_function(FILTERS)
    try:
        for allow, made in ((True, 2), (False, 2), (True, 0), (False, 0)):
            tf.config.experimental.enable_tensor_float_32_execution(allow)
            with counted() as new:
                assert_branches(compute(tf.constant(IMAGE)), IMAGE, FILTERS)
            assert new.filters_transformed == made
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)


@pytest.mark.parametrize(
    "only",
    [
        schedule(lane(0), lane(1)),
        schedule(lane(0, 1, merged=True)),
        schedule(lane(0), lane(1), batch_size=3),
    ],
    ids=["planned", "merged", "without_a_plan"],
)
def test_takes_no_other_filter_for_a_marked_one(conv_stage: Any, only: Any) -> None:
    # No pass would mark what is computed. The kernel must not trust the mark alone: the memory of a
    # filter is free after the call, and the next call's filter comes to be there.
    image = digits([2, 6, 6, 32], tf.float16)
    bases = [digits([3, 3, 32, 32], tf.float16, seed) for seed in (1, 2)]
    plain: Any = {"strides": [1, 1, 1, 1], "padding": "SAME", "dtype": tf.float16}
    operations = [
        operation(name, "Conv2D", ["inputs:0", f"inputs:{place}"], **plain)
        for place, name in enumerate("ab", 1)
    ]
    document = program(operations, only, constant_inputs=[1, 2])

    @tf.function
    def compute(factor: tf.Tensor) -> list[tf.Tensor]:
        inputs = [image, factor * bases[0], factor * bases[1]]
        return conv_stage(**arguments(inputs, [], document))

    for factor in map(np.float16, (1, 1, *range(2, 9), 1)):
        results = compute(tf.constant(factor))
        assert_branches(results, image, [factor * base for base in bases])


def test_takes_a_value_that_a_session_feeds() -> None:
    tf_interop.enable("always")
    graph = tf.Graph()
    with graph.as_default():
        image = v1.placeholder(tf.float16, IMAGE.shape)
        filters = [tf.constant(filter_) for filter_ in FILTERS]
        outputs = branches(image, filters)
    with counted() as new, contextlib.closing(v1.Session(graph=graph)) as session:
        for seed in (9, 10, 11):
            fed = digits([3, 3, 4, 4], tf.float16, seed)
            # Then in place: were the array's memory taken for a constant, the old value would stay.
            for value in (fed.copy(), 2 * fed):
                fed[:] = value
                results = session.run(outputs, {image: IMAGE, filters[0]: fed})
                assert_branches(results, IMAGE, [fed, FILTERS[1]])
    assert new.filters_transformed == 1  # the filter that is not fed
