"""Lanes of several steps on the CPU, with and without a plan for the batch size.

Without a plan TensorFlow's own kernels run. The bits of real numbers then show which kernel
computed them, because sums depend on the order of addends. Elsewhere tensors contain small whole
numbers, so results are again equal to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from convolution_cases import DTYPES, digits, ordinary_cases, program_of, real_numbers
from stage_program import (
    Document,
    arguments,
    assert_names,
    in_graph,
    lane,
    operation,
    program,
    schedule,
)
from tensorflow.core.framework import node_def_pb2
from unnoticed import assert_same, counted, in_threads

pytestmark = pytest.mark.usefixtures("plugin_off")

PLAIN = {"strides": [1, 1, 1, 1], "padding": "SAME"}
TURNED = np.eye(4, dtype=np.float32)[::-1].reshape([1, 1, 4, 4])  # reverses the channels
FILTERS = [
    digits([3, 3, 2, 4], seed=1),
    digits([1, 1, 4, 3], seed=2),
    digits([3, 3, 3, 2], seed=3),
    TURNED,
]
IMAGE = digits([2, 6, 5, 2])
UNPLANNED = "batch size 2 is not in the plan (3, 5)"
NO_KERNEL = (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError)


def convolution(name: str, image: str, filter_: int, **changes: Any) -> node_def_pb2.NodeDef:
    return operation(name, "Conv2D", [image, f"inputs:{filter_}"], **(PLAIN | changes))


def chain(dtype: tf.DType = tf.float32) -> list[node_def_pb2.NodeDef]:
    """Four convolutions in a row, and one beside them."""
    return [
        convolution("first", "inputs:0", 1, dtype=dtype),
        convolution("turned", "steps:0:0", 4, dtype=dtype),
        convolution("second", "steps:1:0", 2, dtype=dtype),
        convolution("third", "steps:2:0", 3, dtype=dtype),
        convolution("beside", "inputs:0", 1, dtype=dtype, strides=[1, 2, 2, 1]),
    ]


LANES = (lane(0, 1, 2, 3), lane(4))


def own(image: Any = IMAGE) -> list[tf.Tensor]:
    """The results of TensorFlow's own ops for `chain`."""
    results = [image]
    for filter_ in (FILTERS[0], TURNED, *FILTERS[1:3]):
        results.append(tf.nn.conv2d(results[-1], filter_, 1, "SAME"))
    return [*results[1:], tf.nn.conv2d(image, FILTERS[0], 2, "SAME")]


def assert_runs(conv_stage: Any, document: Document, dtype: tf.DType = tf.float32) -> None:
    as_numpy = dtype.as_numpy_dtype
    inputs = [each.astype(as_numpy) for each in (IMAGE, *FILTERS)]
    results = in_graph(conv_stage, **arguments(inputs, [], document))
    for text, result in zip(document["results"], results, strict=True):
        expected = own()[int(text.split(":")[1])].numpy().astype(as_numpy)
        np.testing.assert_array_equal(result, expected, err_msg=text)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    "outputs", [[0, 1, 2, 3, 4], [3, 4], [4, 3], [1, 4, 3], [0, 3, 4], [2]], ids=str
)
def test_gives_what_the_own_ops_give(conv_stage: Any, outputs: list[int], dtype: tf.DType) -> None:
    with counted() as new:
        assert_runs(conv_stage, program(chain(dtype), schedule(*LANES), outputs=outputs), dtype)
    assert new.fallbacks == {}
    turned = schedule(*LANES[::-1], batch_size=11)
    with counted() as new:
        assert_runs(conv_stage, program(chain(dtype), turned, outputs=outputs), dtype)
    [reason] = new.fallbacks
    assert "batch size 2 is not in the plan (11)" in reason


@pytest.mark.parametrize("batch_size", [None, 7], ids=["planned", "without a plan"])
def test_grappler_computes_a_stage_of_constants(conv_stage: Any, batch_size: int | None) -> None:
    document = program(chain(), schedule(*LANES, batch_size=batch_size))
    stage = tf.function(lambda: conv_stage(**arguments([IMAGE, *FILTERS], [], document)))
    with counted() as new:
        assert_same(stage(), own())
    assert new.stages_run > 0
    with counted() as new:
        stage()
    assert new.stages_run == 0


def test_names_a_kernel_that_fails_in_the_middle(conv_stage: Any) -> None:
    # On a CPU TensorFlow has no kernel for double in NCHW.
    double: Any = {**PLAIN, "dtype": tf.float64}
    operations = [
        convolution("first", "inputs:0", 1, **double),
        convolution("second", "steps:0:0", 1, **double),
        convolution("odd", "steps:1:0", 2, **double, data_format="NCHW"),
    ]
    inputs = [digits(shape, tf.float64) for shape in ([2, 4, 4, 4], [1, 1, 4, 4], [1, 1, 4, 4])]
    planned = program(operations, schedule(lane(0, 1, 2)))
    assert len(in_graph(conv_stage, **arguments(inputs, [], planned))) == 3
    unplanned = program(operations, schedule(lane(0, 1, 2), batch_size=7))
    with pytest.raises(NO_KERNEL) as failed:
        in_graph(conv_stage, **arguments(inputs, [], unplanned))
    assert_names(failed, "step 'odd'", "batch size 2")


def test_gradients_in_a_lane(conv_stage: Any) -> None:
    """Backward through two convolutions."""
    gradient = digits([2, 6, 5, 3], seed=4)
    first = own()[0]
    operations = [
        operation("gi2", "Conv2DBackpropInput", ["inputs:5", "inputs:1", "inputs:2"], **PLAIN),
        operation("gi1", "Conv2DBackpropInput", ["inputs:6", "inputs:0", "steps:0:0"], **PLAIN),
        operation("gf1", "Conv2DBackpropFilter", ["inputs:3", "inputs:7", "steps:0:0"], **PLAIN),
        operation("gf2", "Conv2DBackpropFilter", ["inputs:4", "inputs:8", "inputs:2"], **PLAIN),
    ]
    document = program(operations, schedule(lane(0, 2, 1), lane(3)), outputs=[1, 2, 3])
    inputs = [FILTERS[0], FILTERS[1], gradient, IMAGE, first]
    sizes = [list(first.shape), list(IMAGE.shape), [3, 3, 2, 4], [1, 1, 4, 3]]
    results = in_graph(conv_stage, **arguments(inputs, sizes, document))
    with tf.GradientTape() as tape:
        watched = [tf.constant(each) for each in (IMAGE, *FILTERS[:2])]
        tape.watch(watched)
        hidden = tf.nn.conv2d(watched[0], watched[1], 1, "SAME")
        result = tf.nn.conv2d(hidden, watched[2], 1, "SAME")
    assert_same(results, tape.gradient(result, watched, gradient))


def test_a_stage_states_the_ranks_of_its_results(conv_stage: Any) -> None:
    volumes = operation(
        "volumes", "Conv3D", ["inputs:0", "inputs:1"], strides=[1] * 5, padding="SAME"
    )
    document = program([volumes, convolution("images", "inputs:2", 3)], schedule(lane(0), lane(1)))

    @tf.function(autograph=False)
    def stage(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return conv_stage(**arguments(list(tensors), [], document))

    shapes = [1, 2, 5, 6, 2], [1, 1, 1, 2, 3], [2, 6, 5, 2], [3, 3, 2, 4]
    traced = stage.get_concrete_function(*map(tf.TensorSpec, shapes))
    assert [each.shape.rank for each in traced.outputs] == [5, 4]


def test_threads_get_their_own_results(conv_stage: Any) -> None:
    stages = [schedule(*LANES, batch_size=size) for size in (1, 3)]
    document = program(chain(), *stages, outputs=[3, 1, 4])

    @tf.function(input_signature=[tf.TensorSpec([None, 6, 5, 2])], autograph=False)
    def stage(image: tf.Tensor) -> list[tf.Tensor]:
        return conv_stage(**arguments([image, *FILTERS], [], document))

    assert [each.shape.rank for each in stage.get_concrete_function().outputs] == [4] * 3

    def call(image: np.ndarray) -> None:
        expected = [own(image)[place] for place in (3, 1, 4)]
        for _ in range(20):
            assert_same(stage(tf.constant(image)), expected)

    # Batch size 2 has no schedule.
    in_threads(call, [digits([1 + seed % 3, 6, 5, 2], seed=seed) for seed in range(6)])


def test_each_batch_size_has_its_schedule(conv_stage: Any) -> None:
    # Fallbacks name the requested algorithms that do not exist.
    schedules = [
        schedule(lane((0, "DIRECT")), lane((1, "NONE_A")), batch_size=3),
        schedule(lane((0, "NONE_B")), lane((1, "NONE_C")), batch_size=5),
    ]
    operations = [convolution(f"step_{i}", "inputs:0", i) for i in (1, 2)]
    filters = [np.ones([3, 3, 2, 4], np.float32)] * 2

    @tf.function(input_signature=[tf.TensorSpec([None, 6, 6, 2])], autograph=False)
    def stage(images: tf.Tensor) -> list[tf.Tensor]:
        return conv_stage(**arguments([images, *filters], [], program(operations, *schedules)))

    expected = {3: ["NONE_A"], 5: ["NONE_B", "NONE_C"], 2: [UNPLANNED], 0: [], 1: ["size 1 "]}
    for _ in range(2):  # the second time from the cache
        for batch_size, names in expected.items():
            images = np.ones([batch_size, 6, 6, 2], np.float32)
            with counted() as new:
                results = stage(images)
            assert sorted(new.fallbacks.values()) == [1] * len(names)
            assert all(any(name in reason for reason in new.fallbacks) for name in names)
            for result in results:
                assert result.shape == [batch_size, 6, 6, 4]
                if batch_size:  # oneDNN's result for an empty batch has the image's channels
                    own_result = tf.nn.conv2d(images, filters[0], 1, "SAME")
                    np.testing.assert_array_equal(result, own_result)


def test_most_convolutions_decide_the_batch_size(conv_stage: Any) -> None:
    image = digits([3, 6, 5, 2])
    places = (1, 0, 0)
    operations = [convolution(f"step_{i}", f"inputs:{place}", 2) for i, place in enumerate(places)]
    document = program(operations, schedule(*map(lane, range(3)), batch_size=3))
    with counted() as new:
        results = in_graph(conv_stage, **arguments([image, IMAGE, FILTERS[0]], [], document))
    assert new.fallbacks == {}
    expected = [tf.nn.conv2d((image, IMAGE)[place], FILTERS[0], 1, "SAME") for place in places]
    assert_same(results, expected)


def test_calls_with_other_sizes_of_a_gradient(conv_stage: Any) -> None:
    # With stride 2 images of 5 and 6 pixels have gradients of the same shape.
    filter_, gradient = digits([3, 3, 2, 4]), digits([1, 3, 3, 4])
    strided = PLAIN | {"strides": [1, 2, 2, 1]}
    step = operation("step", "Conv2DBackpropInput", ["inputs:2", "inputs:0", "inputs:1"], **strided)

    @tf.function(autograph=False)
    def stage(sizes: tf.Tensor) -> list[tf.Tensor]:
        return conv_stage(**arguments([filter_, gradient], [sizes], program([step])))

    for side in (5, 6, 5):
        sizes = tf.constant([1, side, side, 2])
        own = tf.nn.conv2d_transpose(gradient, filter_, sizes, 2, "SAME")
        assert_same(stage(sizes), [own])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_without_a_plan_gives_the_bits_of_the_own_ops(conv_stage: Any, dtype: tf.DType) -> None:
    cases = ordinary_cases(dtype, stride=2, numbers=real_numbers)
    inputs, sizes, document = program_of(cases)
    [only] = document["schedules"]
    document["schedules"] = [only | {"batch_size": batch_size} for batch_size in (3, 5)]
    with counted() as new:
        results = in_graph(conv_stage, **arguments(inputs, sizes, document))
    for case, result in zip(cases, results, strict=True):
        assert result.numpy().tobytes() == case.own_in_graph().tobytes(), case.op
    [(reason, count)] = new.fallbacks.items()
    assert count == 1
    assert UNPLANNED in reason
