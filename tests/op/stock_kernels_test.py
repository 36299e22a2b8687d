"""A stage without a plan for its batch size: TensorFlow's own kernels, and their very bits.

Real numbers, whose sums differ with the order of their addends: what is the same to the bit was
computed by the same kernel.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_cases import Case, cases_of, program_of
from stage_program import arguments, assert_names, lane, operation, program, schedule

import tf_interop

UNPLANNED = "batch size 2 is not in the plan (3, 5)"


@pytest.fixture(autouse=True)
def without_plugin() -> Iterator[None]:
    """TensorFlow's own graphs are the reference."""
    tf_interop.disable()
    yield
    tf_interop.enable()


@contextlib.contextmanager
def counted() -> Iterator[dict[str, int]]:
    """What is counted as fallbacks inside."""
    before = tf_interop.status().counters.fallbacks
    new: dict[str, int] = {}
    yield new
    for reason, count in tf_interop.status().counters.fallbacks.items():
        if count != before.get(reason, 0):
            new[reason] = count - before.get(reason, 0)


def real(case: Case) -> Case:
    random = np.random.default_rng(5)
    operands = tuple(
        each
        if isinstance(each, list)
        else random.standard_normal(each.shape).astype(case.dtype.as_numpy_dtype)
        for each in case.operands
    )
    return Case(case.op, operands, case.attributes)


def as_graph(case: Case) -> np.ndarray:
    """What TensorFlow gives in a graph, where oneDNN's kernels are taken for the ops."""
    tensors = [each for each in case.operands if not isinstance(each, list)]

    @tf.function(autograph=False)
    def own(*values: tf.Tensor) -> tf.Tensor:
        left = iter(values)
        operands = (each if isinstance(each, list) else next(left) for each in case.operands)
        return Case(case.op, tuple(operands), case.attributes).own()

    return own(*map(tf.constant, tensors)).numpy()


def unplanned(conv_stage: Any, cases: list[Case], **changes: Any) -> Callable[..., Any]:
    """A stage of cases whose schedules are for other batch sizes."""
    inputs: list[Any] = []
    sizes: list[Any] = []
    document = program_of(cases, inputs, sizes) | changes
    [only] = document["schedules"]
    document["schedules"] = [only | {"batch_size": batch_size} for batch_size in (3, 5)]

    @tf.function(autograph=False)
    def stage(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return conv_stage(**arguments(tensors, sizes, document))

    return lambda *tensors: stage(*map(tf.constant, tensors or inputs))


@pytest.mark.parametrize(
    "dtype", [tf.float32, tf.bfloat16, tf.float16, tf.float64], ids=lambda dtype: dtype.name
)
def test_gives_the_very_bits_of_the_own_ops(conv_stage: Any, dtype: tf.DType) -> None:
    cases = [real(case) for case in cases_of("NHWC", dtype, "SAME", 2, 1, 1)]
    with counted() as fallbacks:
        results = unplanned(conv_stage, cases)()
    for case, result in zip(cases, results, strict=True):
        assert result.numpy().tobytes() == as_graph(case).tobytes(), case.op
    [(reason, count)] = fallbacks.items()
    assert count == 1
    assert UNPLANNED in reason


def test_other_batch_sizes_run_by_their_schedules(conv_stage: Any) -> None:
    # Pins that do not exist say, by falling back, which of them were asked for.
    pins = [["DIRECT", "NONE_A"], ["NONE_B", "NONE_C"]]
    case = Case("Conv2D", (None, None), {"strides": [1] * 4, "padding": "SAME"})
    operations = [
        operation(f"step_{i}", case.op, ["inputs:0", f"inputs:{i}"], **case.attributes)
        for i in (1, 2)
    ]
    schedules = [
        schedule(lane((0, first)), lane((1, second)), batch_size=batch_size)
        for batch_size, (first, second) in zip((3, 5), pins, strict=True)
    ]
    filters = [np.ones([3, 3, 2, 4], np.float32)] * 2

    @tf.function(input_signature=[tf.TensorSpec([None, 6, 6, 2])], autograph=False)
    def stage(images: tf.Tensor) -> list[tf.Tensor]:
        return conv_stage(**arguments([images, *filters], [], program(operations, *schedules)))

    expected = {3: ["NONE_A"], 5: ["NONE_B", "NONE_C"], 2: [UNPLANNED], 0: [], 1: ["size 1 "]}
    for _ in range(2):  # the second time from what was kept
        for batch_size, names in expected.items():
            images = np.ones([batch_size, 6, 6, 2], np.float32)
            with counted() as fallbacks:
                results = stage(images)
            assert sorted(fallbacks.values()) == [1] * len(names)
            assert [any(name in reason for reason in fallbacks) for name in names] == [True] * len(
                names
            )
            for result in results:
                assert result.shape == [batch_size, 6, 6, 4]
                # oneDNN's Conv2D gives an empty batch the image's own channels.
                if batch_size:
                    np.testing.assert_array_equal(
                        result, tf.nn.conv2d(images, filters[0], 1, "SAME")
                    )


def test_a_constant_filter_is_transformed_for_itself_alone(conv_stage: Any) -> None:
    # oneDNN's kernels keep a filter that is said to be constant. No pass says so of others.
    case = real(next(iter(cases_of("NHWC", tf.float32, "SAME", 1, 1, 1))))
    stage = unplanned(conv_stage, [case], constant_inputs=[1])
    image, filter_ = case.operands
    for factor in (1, 1, 2, 3, 1):
        scaled = Case(case.op, (image, np.float32(factor) * filter_), case.attributes)
        [result] = stage(*scaled.operands)
        np.testing.assert_array_equal(result, as_graph(scaled))


def test_a_fused_convolution(conv_stage: Any) -> None:
    fused = {"strides": [1] * 4, "padding": "SAME", "fused_ops": ["BiasAdd", "Relu"]}
    case = real(next(iter(cases_of("NHWC", tf.float32, "SAME", 1, 1, 1))))
    bias = np.linspace(-1, 1, 8, dtype=np.float32)
    [result] = unplanned(conv_stage, [Case("_FusedConv2D", (*case.operands, bias), fused)])()

    @tf.function  # which TensorFlow fuses
    def own(image: tf.Tensor, filter_: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(image, filter_, 1, "SAME"), bias))

    np.testing.assert_array_equal(result, own(*case.operands))


def test_a_kernel_that_fails_names_the_step(conv_stage: Any) -> None:
    # TensorFlow has no kernel for double in NCHW on a CPU: nor would it run without the stage.
    cases = list(cases_of("NCHW", tf.float64, "SAME", 1, 1, 1))[:1]
    with pytest.raises((tf.errors.UnimplementedError, tf.errors.InvalidArgumentError)) as refused:
        unplanned(conv_stage, cases)()
    assert_names(refused, "step 'case_0'", UNPLANNED)


def test_results_without_a_plan_are_read_by_the_next_op(conv_stage: Any) -> None:
    # Which may write into them where nobody else holds them: kernels must not keep their results.
    case = real(next(iter(cases_of("NHWC", tf.float32, "SAME", 1, 1, 1))))
    stage = unplanned(conv_stage, [case])

    @tf.function(autograph=False)
    def twice() -> tuple[tf.Tensor, tf.Tensor]:
        return tf.nn.relu(stage()[0]), tf.nn.relu(stage()[0])

    own = tf.nn.relu(as_graph(case))
    for _ in range(3):
        for result in twice():
            np.testing.assert_array_equal(result, own)


def test_threads_that_call_at_once_get_their_own_results(conv_stage: Any) -> None:
    case = real(next(iter(cases_of("NHWC", tf.float32, "SAME", 1, 1, 1))))
    image, filter_ = case.operands
    stage = unplanned(conv_stage, [case])
    images = [
        np.float32(factor) * image[:1].repeat(batch, 0) for factor in (1, 2) for batch in (1, 2, 3)
    ]
    expected = [as_graph(Case(case.op, (each, filter_), case.attributes)) for each in images]
    failures: list[AssertionError] = []

    def call(each: np.ndarray, own: np.ndarray) -> None:
        try:
            for _ in range(10):
                np.testing.assert_allclose(stage(each, filter_)[0], own, rtol=1e-5, atol=1e-5)
        except AssertionError as error:
            failures.append(error)

    threads = [
        threading.Thread(target=call, args=each) for each in zip(images, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
