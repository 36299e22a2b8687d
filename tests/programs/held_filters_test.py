"""Filters of constants and variables are transformed once, and never confused.

The host backend transforms float16 and bfloat16 filters, by converting them to float32.
"""

from __future__ import annotations

import concurrent.futures
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from convolution_cases import digits, ordinary_cases, program_of, real_numbers
from stage_program import arguments, lane, operation, program, schedule
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from unnoticed import assert_same, counted

import tf_interop
from tf_interop.runtime.plugin import get_plugin

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")

IMAGE = digits([2, 6, 6, 4], tf.float16)
FILTERS = [digits([3, 3, 4, 4], tf.float16, seed) for seed in (1, 2)]
UNKNOWN_BATCH = tf.TensorSpec([None, 6, 6, 4], tf.float16)


def branches(image: tf.Tensor, filters: list[Any]) -> list[tf.Tensor]:
    return [tf.nn.conv2d(image, filter_, 1, "SAME") for filter_ in filters]


def make_variables() -> list[tf.Variable]:
    return [tf.Variable(filter_) for filter_ in FILTERS]


def in_function(filters: list[Any], **options: Any) -> Callable[[Any], list[tf.Tensor]]:
    """The branches as a function; arrays become Const nodes."""
    return tf.function(lambda image: branches(image, filters), autograph=False, **options)


def assert_branches(results: list[tf.Tensor], image: np.ndarray, filters: list[Any]) -> None:
    """Compares with TensorFlow's own ops, run eagerly and so without the plugin."""
    assert_same(results, branches(image, filters))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_gives_the_bits_of_filters_that_are_not_held(
    conv_stage: Any, layout: str, dtype: tf.DType
) -> None:
    cases = ordinary_cases(dtype, layout, numbers=real_numbers)
    inputs, sizes, document = program_of(cases)

    def stage(marks: list[int]) -> Any:
        marked = document | {"kept_inputs": marks}
        return tf.function(lambda *each: conv_stage(**arguments(each, sizes, marked)))

    tensors = list(map(tf.constant, inputs))
    expected = stage([])(*tensors)
    # Marks on inputs that are not filters do nothing.
    all_marked = stage(list(range(len(tensors))))
    with counted() as new:
        for _ in range(3):
            assert_same(all_marked(*tensors), expected)
    assert new.filters_transformed == sum("BackpropFilter" not in case.op for case in cases)


def test_transforms_constants_and_variables_once() -> None:
    tf_interop.enable("always")
    variables = make_variables()
    function = in_function(variables, input_signature=[UNKNOWN_BATCH])
    frozen = convert_variables_to_constants_v2(function.get_concrete_function())
    # Both filters have the same shape.
    for compute in (in_function(FILTERS), frozen, in_function(variables)):
        with counted() as new:
            for _ in range(4):
                assert_branches(compute(tf.constant(IMAGE)), IMAGE, FILTERS)
        assert new.filters_transformed == 2


@tf.function(jit_compile=True)
def add_in_xla(variable: tf.Variable, value: tf.Tensor) -> None:
    variable.assign_add(value)


def scatter_and_share(variable: tf.Variable, value: tf.Tensor) -> None:
    variable.scatter_nd_add([[0], [1], [2]], value)
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)


@pytest.mark.parametrize(
    ("add", "transformed"),
    [
        (lambda variable, value: variable.assign(variable + value), 5),
        (lambda variable, value: variable.assign_add(value), 5),
        # After it each read returns another copy.
        (lambda variable, value: variable.scatter_nd_add([[0], [1], [2]], value), 3),
        (scatter_and_share, 5),
        (add_in_xla, 5),
    ],
    ids=["assign", "assign_add", "scatter", "scatter_and_share", "xla"],
)
def test_sees_a_variable_change_between_calls(
    add: Callable[[tf.Variable, Any], Any], transformed: int
) -> None:
    tf_interop.enable("always")
    variables = make_variables()
    compute = in_function(variables)
    with counted() as new:
        for factor in range(1, 6):
            for _ in range(2):  # like inference between updates, so filters stay held
                now = [factor * filter_ for filter_ in FILTERS]
                assert_branches(compute(tf.constant(IMAGE)), IMAGE, now)
            for variable, filter_ in zip(variables, FILTERS, strict=True):
                add(variable, filter_)
    assert get_plugin().reports[-1].plan.stages
    assert new.filters_transformed == len(FILTERS) * transformed


def address_of(variable: tf.Variable) -> int:
    return variable.read_value()._numpy().__array_interface__["data"][0]


def test_training_stops_holding_filters() -> None:
    def make_step(variables: list[tf.Variable]) -> Callable[[tf.Tensor], list[tf.Tensor]]:
        def step(image: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                results = branches(image, variables)
                loss = tf.add_n([tf.reduce_sum(result * result) for result in results])
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(tf.sign(gradient))
            return results

        return tf.function(step, autograph=False)

    steps = 8
    tf_interop.disable()
    stock = make_variables()
    expected = [make_step(stock)(tf.constant(IMAGE)) for _ in range(steps)]
    tf_interop.enable("always")
    variables = make_variables()
    step = make_step(variables)
    with counted() as new:
        for results in expected:
            assert_same(step(tf.constant(IMAGE)), results)
    assert new.filters_transformed == 2 * 3
    for variable, other in zip(variables, stock, strict=True):
        np.testing.assert_array_equal(variable, other)
        # A variable is updated in place if nothing holds its value.
        address = address_of(variable)
        variable.assign_add(other)
        assert address_of(variable) == address


@pytest.mark.parametrize(
    "only",
    [
        schedule(lane(0), lane(1)),
        schedule(lane(0, 1, merged=True)),
        schedule(lane(0), lane(1), batch_size=3),
    ],
    ids=["planned", "merged", "without_a_plan"],
)
def test_does_not_trust_the_mark_alone(conv_stage: Any, only: Any) -> None:
    # The pass marks no computed filters. Their memory is free after the call, and the next call's
    # filter gets it.
    image = digits([2, 6, 6, 32], tf.float16)
    bases = [digits([3, 3, 32, 32], tf.float16, seed) for seed in (1, 2)]
    plain: Any = {"strides": [1, 1, 1, 1], "padding": "SAME", "dtype": tf.float16}
    operations = [
        operation(name, "Conv2D", ["inputs:0", f"inputs:{place}"], **plain)
        for place, name in enumerate("ab", 1)
    ]
    document = program(operations, only, kept_inputs=[1, 2])

    @tf.function
    def compute(factor: tf.Tensor) -> list[tf.Tensor]:
        inputs = [image, factor * bases[0], factor * bases[1]]
        return conv_stage(**arguments(inputs, [], document))

    for factor in map(np.float16, (1, 1, *range(2, 9), 1)):
        results = compute(tf.constant(factor))
        assert_branches(results, image, [factor * base for base in bases])


def test_sees_what_another_thread_assigns() -> None:
    tf_interop.enable("always")
    variables = make_variables()
    compute = in_function(variables)
    expected = [branches(IMAGE, [factor * filter_ for filter_ in FILTERS]) for factor in range(12)]
    assigned = [1]  # factors that both variables have reached
    calls: float = 0

    def assign() -> None:
        for factor in range(2, len(expected)):
            after = calls + 3
            for variable, filter_ in zip(variables, FILTERS, strict=True):
                variable.assign(factor * filter_)
            assigned.append(factor)
            while calls < after:
                time.sleep(0)

    with counted() as new, concurrent.futures.ThreadPoolExecutor() as pool:
        assigning = pool.submit(assign)
        try:
            while not assigning.done():
                oldest = assigned[-1]
                for place, result in enumerate(compute(tf.constant(IMAGE))):
                    assert any(np.array_equal(result, each[place]) for each in expected[oldest:])
                calls += 1
        finally:
            calls = math.inf  # lets `assign` go on
        assigning.result()
    # A call may see both variables change at once.
    assert new.filters_transformed > len(expected) - 2
