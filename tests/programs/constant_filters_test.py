"""Filters that are constants of a graph are transformed once, and none is taken for another.

The host backend transforms float16 and bfloat16 filters: it converts them to float32.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_cases import Case, cases_of, program_of
from stage_program import arguments
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

import tf_interop
from tf_interop.runtime.plugin import get_plugin

v1 = tf.compat.v1

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


def normal(seed: int, *shape: int, dtype: tf.DType = tf.float16) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape)
    return values.astype(dtype.as_numpy_dtype)


def digits(seed: int, *shape: int, dtype: tf.DType = tf.float16) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype.as_numpy_dtype)


IMAGE = digits(0, 2, 6, 6, 4)
FILTERS = [digits(seed, 3, 3, 4, 4) for seed in (1, 2)]


def transformed() -> int:
    return tf_interop.status().counters.filters_transformed


def branches(image: tf.Tensor, filters: list[Any]) -> list[tf.Tensor]:
    return [tf.nn.conv2d(image, filter_, 1, "SAME") for filter_ in filters]


def stock(image: np.ndarray, filters: list[Any]) -> list[tf.Tensor]:
    """What TensorFlow's own ops give: run eagerly, they never come by the plugin."""
    return branches(tf.constant(image), [tf.constant(filter_) for filter_ in filters])


def assert_equal(results: list[tf.Tensor], expected: list[tf.Tensor]) -> None:
    for result, each in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, each)


def stage_with_marks(conv_stage: Any, cases: list[Case], constant_inputs: list[int]) -> Any:
    """A function of the cases' tensors, which runs them as one stage whose marks are given."""
    inputs: list[Any] = []
    sizes: list[Any] = []
    document = program_of(cases, inputs, sizes) | {"constant_inputs": constant_inputs}

    @tf.function
    def stage(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return conv_stage(**arguments(tensors, sizes, document))

    return stage


def is_size(operand: Any) -> bool:
    return isinstance(operand, list)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_gives_the_bits_of_a_filter_that_is_not_constant(
    conv_stage: Any, layout: str, dtype: tf.DType
) -> None:
    cases = list(cases_of(layout, dtype, "SAME", 1, 1, 1))
    tensors = [
        tf.constant(normal(seed, *operand.shape, dtype=dtype))
        for seed, operand in enumerate(
            operand for case in cases for operand in case.operands if not is_size(operand)
        )
    ]
    # Every input is marked; what is no filter of a forward or backward-input step is left alone.
    marked = stage_with_marks(conv_stage, cases, list(range(len(tensors))))
    expected = stage_with_marks(conv_stage, cases, [])(*tensors)
    before = transformed()
    for _ in range(3):
        assert_equal(marked(*tensors), expected)
    reads_filter = [case for case in cases if not case.op.endswith("BackpropFilter")]
    assert transformed() == before + len(reads_filter)


def test_transforms_constants_of_a_graph_once() -> None:
    tf_interop.enable("always")

    @tf.function
    def compute(image: tf.Tensor) -> list[tf.Tensor]:
        return branches(image, FILTERS)  # arrays, which become Const nodes

    before = transformed()
    # Both have the same shape: one must not be taken for the other.
    expected = stock(IMAGE, FILTERS)
    for _ in range(4):
        assert_equal(compute(tf.constant(IMAGE)), expected)
    assert transformed() == before + 2


def test_transforms_variables_that_were_frozen_once() -> None:
    variables = [tf.Variable(filter_) for filter_ in FILTERS]

    @tf.function(input_signature=[tf.TensorSpec(IMAGE.shape, tf.float16)])
    def compute(image: tf.Tensor) -> list[tf.Tensor]:
        return branches(image, [variable.read_value() for variable in variables])

    frozen = convert_variables_to_constants_v2(compute.get_concrete_function())
    tf_interop.enable("always")
    before = transformed()
    for _ in range(3):
        assert_equal(frozen(tf.constant(IMAGE)), stock(IMAGE, FILTERS))
    assert transformed() == before + 2


def test_sees_a_variable_change() -> None:
    variables = [tf.Variable(filter_) for filter_ in FILTERS]
    tf_interop.enable("always")

    @tf.function
    def compute(image: tf.Tensor) -> list[tf.Tensor]:
        return branches(image, variables)

    before = transformed()
    for factor in (1, 2, 3):
        changed = [factor * filter_ for filter_ in FILTERS]
        for variable, value in zip(variables, changed, strict=True):
            variable.assign(value)
        assert_equal(compute(tf.constant(IMAGE)), stock(IMAGE, changed))
    assert get_plugin().reports[-1].plan.stages
    assert transformed() == before


def test_transforms_anew_for_another_batch_size_and_keeps_both() -> None:
    tf_interop.enable("always")

    @tf.function(input_signature=[tf.TensorSpec([None, 6, 6, 4], tf.float16)])
    def compute(image: tf.Tensor) -> list[tf.Tensor]:
        return branches(image, FILTERS)

    before = transformed()
    for _ in range(3):
        for batch in (1, 2):
            image = IMAGE[:batch]
            assert_equal(compute(tf.constant(image)), stock(image, FILTERS))
    assert transformed() == before + 2 * 2


def test_uses_none_that_was_made_under_the_other_switch_for_tf32() -> None:
    tf_interop.enable("always")

    @tf.function
    def compute(image: tf.Tensor) -> list[tf.Tensor]:
        return branches(image, FILTERS)

    before = transformed()
    try:
        for allow, made in ((True, 2), (False, 4), (True, 4), (False, 4)):
            tf.config.experimental.enable_tensor_float_32_execution(allow)
            assert_equal(compute(tf.constant(IMAGE)), stock(IMAGE, FILTERS))
            assert transformed() == before + made
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)


def test_takes_no_other_filter_for_a_marked_one(conv_stage: Any) -> None:
    # No pass would mark what is computed. The kernel must not trust the mark alone: the memory of a
    # filter is free after the call, and the next call's filter comes to be there.
    attributes = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    image = digits(0, 2, 6, 6, 32)
    bases = [digits(seed, 3, 3, 32, 32) for seed in (1, 2)]
    cases = [Case("Conv2D", (image, base), attributes) for base in bases]
    stage = stage_with_marks(conv_stage, cases, [1, 3])

    @tf.function
    def compute(factor: tf.Tensor) -> list[tf.Tensor]:
        return stage(image, factor * bases[0], image, factor * bases[1])

    for factor in map(np.float16, range(1, 9)):
        results = compute(tf.constant(factor))
        assert_equal(results, stock(image, [factor * base for base in bases]))


def test_takes_a_value_that_a_session_feeds() -> None:
    tf_interop.enable("always")
    graph = tf.Graph()
    with graph.as_default():
        image = v1.placeholder(tf.float16, IMAGE.shape)
        filters = [tf.constant(filter_) for filter_ in FILTERS]
        outputs = branches(image, filters)
    before = transformed()
    with contextlib.closing(v1.Session(graph=graph)) as session:
        for seed in (9, 10, 11):
            fed = digits(seed, 3, 3, 4, 4)
            # Then in place: were the array's memory taken for a constant, the old value would stay.
            for value in (fed.copy(), 2 * fed):
                fed[:] = value
                results = session.run(outputs, {image: IMAGE, filters[0]: fed})
                assert_equal(results, stock(IMAGE, [fed, FILTERS[1]]))
    assert transformed() == before + 1  # the filter that is not fed


def test_threads_that_call_at_once_get_their_own_results() -> None:
    tf_interop.enable("always")

    @tf.function(input_signature=[tf.TensorSpec([None, 6, 6, 4], tf.float16)])
    def compute(image: tf.Tensor) -> list[tf.Tensor]:
        return branches(image, FILTERS)

    compute.get_concrete_function()
    images = [digits(seed, 1 + seed % 3, 6, 6, 4) for seed in range(8)]
    expected = [stock(image, FILTERS) for image in images]
    failures: list[AssertionError] = []

    def call(image: np.ndarray, results: list[tf.Tensor]) -> None:
        try:
            for _ in range(10):
                assert_equal(compute(tf.constant(image)), results)
        except AssertionError as error:
            failures.append(error)

    before = transformed()
    threads = [
        threading.Thread(target=call, args=each) for each in zip(images, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert transformed() == before + 3 * 2  # for three batch sizes
