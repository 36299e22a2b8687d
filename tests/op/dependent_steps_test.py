"""Lanes whose steps read what earlier steps of theirs compute, on the CPU.

Tensors hold small whole numbers, so that the comparison is to the bit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_cases import digits
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

import tf_interop

PLAIN = {"strides": [1, 1, 1, 1], "padding": "SAME"}
FILTERS = [digits([3, 3, 2, 4], seed=1), digits([1, 1, 4, 3], seed=2), digits([3, 3, 3, 2], seed=3)]
IMAGE = digits([2, 6, 5, 2])


def convolution(name: str, image: str, filter_: int, **changes: Any) -> node_def_pb2.NodeDef:
    return operation(name, "Conv2D", [image, f"inputs:{filter_}"], **(PLAIN | changes))


# Three convolutions in a row, with a Relu after the first.
CHAIN = [
    convolution("first", "inputs:0", 1),
    operation("relu", "Relu", ["steps:0"]),
    convolution("second", "steps:1", 2),
    convolution("third", "steps:2", 3),
]
# Beside them another lane.
BESIDE = [*CHAIN, convolution("beside", "inputs:0", 1, strides=[1, 2, 2, 1])]


def in_dtype(operations: list[node_def_pb2.NodeDef], dtype: tf.DType) -> list[node_def_pb2.NodeDef]:
    copies = [node_def_pb2.NodeDef.FromString(each.SerializeToString()) for each in operations]
    for each in copies:
        each.attr["T"].type = dtype.as_datatype_enum
    return copies


def own(image: Any = IMAGE) -> list[tf.Tensor]:
    """What TensorFlow's own ops give for each of BESIDE."""
    first = tf.nn.conv2d(image, FILTERS[0], 1, "SAME")
    relu = tf.nn.relu(first)
    second = tf.nn.conv2d(relu, FILTERS[1], 1, "SAME")
    third = tf.nn.conv2d(second, FILTERS[2], 1, "SAME")
    return [first, relu, second, third, tf.nn.conv2d(image, FILTERS[0], 2, "SAME")]


def run(conv_stage: Any, document: Document, image: Any = IMAGE) -> list[tf.Tensor]:
    return in_graph(conv_stage, **arguments([image, *FILTERS], [], document))


def assert_runs(conv_stage: Any, document: Document, image: np.ndarray = IMAGE) -> None:
    results, expected = run(conv_stage, document, image), own(image)
    for place, result in zip(document["outputs"], results, strict=True):
        np.testing.assert_array_equal(result, expected[place], err_msg=str(place))


def fallbacks() -> dict[str, int]:
    return tf_interop.status().counters.fallbacks


@pytest.fixture(autouse=True)
def _settings_as_at_first() -> Iterator[None]:
    yield
    tf_interop.enable()


@pytest.mark.parametrize(
    "outputs", [[0, 1, 2, 3, 4], [3, 4], [4, 3], [1, 4, 3], [0, 3, 4], [2]], ids=str
)
def test_gives_what_the_own_ops_give(conv_stage: Any, outputs: list[int]) -> None:
    before = fallbacks()
    assert_runs(conv_stage, program(BESIDE, schedule(lane(0, 1, 2, 3), lane(4)), outputs=outputs))
    assert fallbacks() == before


def test_operations_may_stand_in_any_order(conv_stage: Any) -> None:
    # The third, the second, the first: what reads stands before what it reads.
    turned = [
        convolution("third", "steps:1", 3),
        convolution("second", "steps:3", 2),
        convolution("first", "inputs:0", 1),
        operation("relu", "Relu", ["steps:2"]),
    ]
    document = program(turned, schedule(lane(2, 3, 1, 0)))
    for result, place in zip(run(conv_stage, document), (3, 2, 0, 1), strict=True):
        np.testing.assert_array_equal(result, own()[place])


def test_a_result_is_read_by_several_steps(conv_stage: Any) -> None:
    operations = [
        convolution("first", "inputs:0", 1),
        operation("relu", "Relu", ["steps:0"]),
        convolution("of_relu", "steps:1", 2),
        convolution("of_first", "steps:0", 2),
    ]
    results = run(conv_stage, program(operations, schedule(lane(0, 1, 2, 3)), outputs=[0, 2, 3]))
    first, relu = own()[:2]
    np.testing.assert_array_equal(results[0], first)
    np.testing.assert_array_equal(results[1], tf.nn.conv2d(relu, FILTERS[1], 1, "SAME"))
    np.testing.assert_array_equal(results[2], tf.nn.conv2d(first, FILTERS[1], 1, "SAME"))


@pytest.mark.parametrize(
    "dtype", [tf.float16, tf.bfloat16, tf.float64], ids=lambda dtype: dtype.name
)
def test_every_type(conv_stage: Any, dtype: tf.DType) -> None:
    inputs = [each.astype(dtype.as_numpy_dtype) for each in (IMAGE, *FILTERS)]
    document = program(in_dtype(CHAIN[:3], dtype), schedule(lane(0, 1, 2)), outputs=[2])
    [result] = in_graph(conv_stage, **arguments(inputs, [], document))
    np.testing.assert_array_equal(result, own()[2].numpy().astype(dtype.as_numpy_dtype))


def test_gradients_in_a_lane(conv_stage: Any) -> None:
    """Backward through two convolutions: a chain of input gradients; one by filter hangs on it."""
    gradient = digits([2, 6, 5, 3], seed=4)
    first = own()[0]
    operations = [
        operation("gi2", "Conv2DBackpropInput", ["sizes:0", "inputs:1", "inputs:2"], **PLAIN),
        operation("gi1", "Conv2DBackpropInput", ["sizes:1", "inputs:0", "steps:0"], **PLAIN),
        operation("gf1", "Conv2DBackpropFilter", ["inputs:3", "sizes:2", "steps:0"], **PLAIN),
        operation("gf2", "Conv2DBackpropFilter", ["inputs:4", "sizes:3", "inputs:2"], **PLAIN),
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
    for ours, theirs in zip(results, tape.gradient(result, watched, gradient), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_empty_batches(conv_stage: Any) -> None:
    document = program(BESIDE, schedule(lane(0, 1, 2, 3), lane(4)))
    shapes = [result.shape.as_list() for result in run(conv_stage, document, IMAGE[:0])]
    channels = [4, 4, 3, 2, 4]
    assert [shape[0] for shape in shapes] == [0] * 5
    assert [shape[3] for shape in shapes] == channels


def test_zeros_are_read_like_other_results(conv_stage: Any) -> None:
    # A gradient of an empty tensor is zeros, which the next step reads.
    operations = [
        operation("zeros", "Conv2DBackpropInput", ["sizes:0", "inputs:1", "inputs:2"], **PLAIN),
        operation("relu", "Relu", ["steps:0"]),
        operation("second", "Conv2D", ["steps:1", "inputs:0"], **PLAIN),
    ]
    inputs = [FILTERS[1], np.zeros([3, 3, 4, 0], np.float32), np.zeros([2, 6, 5, 0], np.float32)]
    document = program(operations, schedule(lane(0, 1, 2)), outputs=[2])
    [result] = in_graph(conv_stage, **arguments(inputs, [[2, 6, 5, 4]], document))
    np.testing.assert_array_equal(result, np.zeros([2, 6, 5, 3]))


def test_infers_shapes(conv_stage: Any) -> None:
    with tf.Graph().as_default():
        image = tf.compat.v1.placeholder(tf.float32, [None, 6, 5, 2])
        document = program(BESIDE, schedule(lane(4), lane(0, 1, 2, 3)), outputs=[3, 1, 4])
        outputs = conv_stage(**arguments([image, *FILTERS], [], document))
    assert [each.shape.as_list() for each in outputs] == [
        [None, 6, 5, 2],
        [None, 6, 5, 4],
        [None, 3, 3, 4],
    ]


def test_a_pin_that_is_refused_in_the_middle_is_counted(conv_stage: Any) -> None:
    before = fallbacks()
    assert_runs(conv_stage, program(CHAIN, schedule(lane(0, 1, (2, "NONE_MIDDLE"), 3))))
    [reason] = fallbacks().keys() - before.keys()
    assert "'second' with algorithm NONE_MIDDLE" in reason


def test_a_step_whose_operands_do_not_fit_is_named(conv_stage: Any) -> None:
    @tf.function(input_signature=[tf.TensorSpec(None)] * 4, autograph=False)
    def stage(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return conv_stage(**arguments(tensors, [], program(CHAIN, schedule(lane(0, 1, 2, 3)))))

    with pytest.raises(tf.errors.InvalidArgumentError) as refused:
        stage(IMAGE, FILTERS[0], digits([1, 1, 5, 3]), FILTERS[2])
    assert_names(refused, "step 'second'", "[1,1,5,3]")


@pytest.mark.parametrize("batch_size", [None, 7], ids=["planned", "without a plan"])
def test_what_reads_constants_alone_is_computed_while_the_graph_is_optimized(
    conv_stage: Any, batch_size: int | None
) -> None:
    document = program(BESIDE, schedule(lane(0, 1, 2, 3), lane(4), batch_size=batch_size))
    before = tf_interop.status().counters.stages_run
    stage = tf.function(lambda: conv_stage(**arguments([IMAGE, *FILTERS], [], document)))
    for _ in range(3):
        for result, expected in zip(stage(), own(), strict=True):
            np.testing.assert_array_equal(result, expected)
    after = tf_interop.status().counters.stages_run
    stage()
    assert tf_interop.status().counters.stages_run == after > before


def test_without_a_plan_the_own_kernels_run_in_order(conv_stage: Any) -> None:
    stages = schedule(lane(4), lane(0, 1, 2, 3), batch_size=11)
    for outputs in ([0, 1, 2, 3, 4], [4, 3]):
        assert_runs(conv_stage, program(BESIDE, stages, outputs=outputs))
    [count] = [n for reason, n in fallbacks().items() if "2 is not in the plan (11)" in reason]
    assert count == 2


def test_a_kernel_that_fails_in_the_middle_is_named(conv_stage: Any) -> None:
    # On a CPU TensorFlow has no kernel for double in NCHW.
    operations = [
        operation("first", "Conv2D", ["inputs:0", "inputs:1"], tf.float64, **PLAIN),
        operation("relu", "Relu", ["steps:0"], tf.float64),
        operation(
            "odd", "Conv2D", ["steps:1", "inputs:2"], tf.float64, **PLAIN, data_format="NCHW"
        ),
    ]
    inputs = [digits(shape, tf.float64) for shape in ([2, 4, 4, 4], [1, 1, 4, 4], [1, 1, 4, 4])]
    planned = program(operations, schedule(lane(0, 1, 2)))
    assert len(in_graph(conv_stage, **arguments(inputs, [], planned))) == 3
    unplanned = program(operations, schedule(lane(0, 1, 2), batch_size=7))
    with pytest.raises((tf.errors.UnimplementedError, tf.errors.InvalidArgumentError)) as failed:
        in_graph(conv_stage, **arguments(inputs, [], unplanned))
    assert_names(failed, "step 'odd'", "batch size 2")


@pytest.mark.parametrize(
    ("dtype", "rung"),
    # The host backend converts half to float in a workspace, whatever the algorithm.
    [(tf.float32, "with algorithms that need less"), (tf.float16, "step by step")],
    ids=["float32", "float16"],
)
def test_with_less_memory_steps_keep_their_order(
    conv_stage: Any, dtype: tf.DType, rung: str
) -> None:
    tf_interop.enable("always", workspace_limit_mb=0)
    before = fallbacks()
    document = program(in_dtype(BESIDE, dtype), schedule(lane(0, 1, 2, 3), lane(4)), outputs=[4, 3])
    inputs = [each.astype(dtype.as_numpy_dtype) for each in (IMAGE, *FILTERS)]
    results = in_graph(conv_stage, **arguments(inputs, [], document))
    for result, place in zip(results, (4, 3), strict=True):
        np.testing.assert_array_equal(result, own()[place].numpy().astype(dtype.as_numpy_dtype))
    [reason] = [each for each, count in fallbacks().items() if count > before.get(each, 0)]
    assert "no memory for the workspaces of a stage" in reason
    assert rung in reason


def test_threads_that_call_at_once_get_their_own_results(conv_stage: Any) -> None:
    stages = [schedule(lane(0, 1, 2, 3), lane(4), batch_size=size) for size in (1, 3)]
    document = program(BESIDE, *stages, outputs=[3, 1, 4])

    @tf.function(input_signature=[tf.TensorSpec([None, 6, 5, 2])], autograph=False)
    def stage(image: tf.Tensor) -> list[tf.Tensor]:
        return conv_stage(**arguments([image, *FILTERS], [], document))

    stage.get_concrete_function()
    # The batch size 2 has no schedule.
    images = [digits([1 + seed % 3, 6, 5, 2], seed=seed) for seed in range(6)]
    expected = [[own(image)[place] for place in (3, 1, 4)] for image in images]
    failures: list[BaseException] = []

    def call(image: np.ndarray, results: list[tf.Tensor]) -> None:
        try:
            for _ in range(20):
                for ours, theirs in zip(stage(tf.constant(image)), results, strict=True):
                    np.testing.assert_array_equal(ours, theirs)
        except Exception as error:
            failures.append(error)

    threads = [
        threading.Thread(target=call, args=each) for each in zip(images, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
