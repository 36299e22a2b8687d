"""A chain of operations as one op, on one core, returns the exact bits of TensorFlow's own ops."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_program import assert_names, operation
from tensorflow.core.framework import node_def_pb2
from unit_program import (
    DIVIDED,
    PLAIN,
    RANDOM,
    assert_same_bits,
    call_divided,
    chain,
    in_graph,
    self_timed,
    serialized,
    spans_of,
    stock,
    values_of_chain,
)
from unnoticed import assert_same

NodeDef = node_def_pb2.NodeDef

pytestmark = pytest.mark.usefixtures("without_optimization")


def bytes_of(key: str) -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"{key}:\s+(\d+)", status)[1]) << 10  # type: ignore[index]


@pytest.mark.parametrize(
    "dtype", [tf.float32, tf.bfloat16, tf.float16], ids=lambda dtype: dtype.name
)
def test_gives_the_very_bits_of_the_own_ops(unit: Any, dtype: tf.DType) -> None:
    # Includes the convolution's result; otherwise TensorFlow would fuse it with its bias.
    results = ["steps:0:0", "inputs:0", "steps:4:0", "steps:4:0", "steps:2:0", "inputs:0"]
    run = in_graph(unit, chain(dtype), results, dtype)
    own = stock(chain(dtype), results)
    for batch_size in (2, 1, 5):
        values = [tf.cast(value, dtype) for value in values_of_chain(batch_size)]
        assert_same_bits(run(*values), own(*values))


def test_reads_and_returns_any_output_of_a_step(unit: Any) -> None:
    steps = [
        operation("rows", "Unpack", ["inputs:0"], num=3),  # nothing reads the second
        operation("difference", "Sub", ["steps:0:2", "steps:0:0"]),
    ]
    results = ["steps:1:0", "steps:0:2"]
    rows = RANDOM.standard_normal([3, 4]).astype(np.float32)
    assert_same_bits(in_graph(unit, steps, results)(rows), stock(steps, results)(rows))


def test_writes_no_tensor_that_others_hold(unit: Any) -> None:
    # Element-wise kernels write into an operand that nobody else holds.
    steps = [
        operation("negated", "Neg", ["inputs:0"]),
        operation("doubled", "AddV2", ["steps:0:0", "steps:0:0"]),
        operation("again", "AddV2", ["steps:1:0", "inputs:0"]),
        operation("relu", "Relu", ["steps:2:0"]),
        operation("sum", "AddV2", ["steps:3:0", "steps:1:0"]),
    ]
    results = ["steps:2:0", "steps:4:0"]
    relu = [operation("relu", "Relu", ["inputs:0"])]
    run = in_graph(unit, steps, results)
    alone = in_graph(unit, relu, ["steps:0:0"])
    value = RANDOM.standard_normal([64]).astype(np.float32)
    own = stock(steps, results)(value)

    @tf.function(autograph=False)
    def shared(value: tf.Tensor) -> list[tf.Tensor]:
        held = -value  # only the executor holds it, for later readers
        written = alone(held)
        with tf.control_dependencies(written):
            return [held + 0.0, *written, *run(held)]

    given = tf.constant(value)
    of_constant = in_graph(unit, relu, ["steps:0:0"], constant=[value])
    for _ in range(3):
        assert_same_bits(run(given), own)
        np.testing.assert_array_equal(given, value)
        np.testing.assert_array_equal(of_constant()[0], np.maximum(value, 0))
        held, written, *_ = shared(given)
        np.testing.assert_array_equal(held, -value)
        np.testing.assert_array_equal(written, np.maximum(-value, 0))


def test_shapes_are_those_of_the_attribute(unit: Any) -> None:
    shapes = [tf.TensorShape([None, 6, 6, 8]), tf.TensorShape(None)]
    results = ["steps:4:0", "steps:1:0"]
    image, *filters = values_of_chain()
    traced = in_graph(unit, chain(), results, output_shapes=shapes).get_concrete_function(
        tf.TensorSpec([None, 12, 12, 8]), *filters
    )
    assert [each.shape for each in traced.outputs] == shapes
    unknown = in_graph(unit, chain(), results).get_concrete_function(image, *filters)
    assert [each.shape for each in unknown.outputs] == [tf.TensorShape(None)] * 2


def test_threads_that_end_free_their_primitives(unit: Any) -> None:
    tf1 = tf.compat.v1
    values = values_of_chain()
    steps = serialized(chain())
    config = tf1.ConfigProto(use_per_session_threads=True, inter_op_parallelism_threads=2)
    with tf.Graph().as_default():
        inputs = [tf1.placeholder(tf.float32, value.shape) for value in values]
        result = unit(inputs=inputs, Tout=[tf.float32], steps=steps, results=["steps:4:0"])
        for number in range(100):
            with tf1.Session(config=config) as session:
                session.run(result, dict(zip(inputs, values, strict=True)))
            if number == 20:
                before = bytes_of("VmRSS")
        after = bytes_of("VmRSS")
    assert after - before < 2 << 20  # 8 MB if they stay


def test_frees_inputs_that_no_step_reads_any_more(unit: Any) -> None:
    """Stock TensorFlow computes such a chain in place."""
    size = 64 << 20
    relu = operation("relu", "Relu", ["inputs:0"])
    scaled = operation("scaled", "Mul", ["steps:0:0", "inputs:1"])
    most = operation("most", "Max", ["steps:1:0", "inputs:2"])
    steps = serialized([relu, scaled, most])

    @tf.function(autograph=False)
    def run(count: tf.Tensor) -> tf.Tensor:
        inputs = [tf.random.uniform([count, 1024]), tf.constant(2.0), tf.constant([0, 1])]
        return unit(inputs=inputs, Tout=[tf.float32], steps=steps, results=["steps:2:0"])

    run(tf.constant(1))
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
    before = bytes_of("VmHWM")
    run(tf.constant(size // 4096))
    assert bytes_of("VmHWM") - before < 1.5 * size


def test_denormals_are_zero_on_the_callers_thread(unit: Any) -> None:
    tf1 = tf.compat.v1
    steps = serialized([operation("square", "Square", ["inputs:0"])])
    config = tf1.ConfigProto(inter_op_parallelism_threads=-1)
    with tf.Graph().as_default(), tf1.Session(config=config) as session:
        tiny = tf1.placeholder(tf.float32, [4])
        result = unit(inputs=[tiny], Tout=[tf.float32], steps=steps, results=["steps:0:0"])
        np.testing.assert_array_equal(session.run(result, {tiny: [1e-20] * 4}), np.zeros([1, 4]))


REFUSED = (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, ValueError)


Change = Callable[[list[NodeDef], dict[str, Any]], None]


def reads(place: int, operand: str) -> Change:
    return lambda steps, _: steps[place].input.__setitem__(0, operand)


def put(op: str, operands: Sequence[str], dtype: tf.DType = tf.float32) -> Change:
    return lambda steps, _: steps.__setitem__(2, operation("odd", op, operands, dtype))


def setting(**attributes: Any) -> Change:
    return lambda _, given: given.update(attributes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (reads(0, "steps:1:0"), ["'steps:1:0'", "the 0 steps before", "step 'first'"]),
        # An output only of oneDNN's kernel. The bias and its activation are one step by then.
        (reads(4, "steps:3:1"), ["'steps:2:1'"]),
        *(
            (reads(2, operand), ["Expected 'inputs:<i>'", f"'{operand}'", "step 'relu'"])
            for operand in ("steps:2:0", "inputs:4", "inputs:-1", "steps:1", "bias", "")
        ),
        (put("NoSuchOp", []), ["NoSuchOp", "step 'odd'"]),
        (put("Relu", []), ["1 operands of Relu", "got 0", "step 'odd'"]),
        (put("Relu", ["inputs:0"], tf.half), ["half", "got 'inputs:0', a float"]),
        (put("Conv2D", ["inputs:0", "inputs:1"]), ["strides", "step 'odd'"]),
        (put("RandomStandardNormal", ["inputs:0"]), ["without state", "step 'odd'"]),
        (setting(results=["steps:4:0"] * 2), ["1 results, one for each output", "got 2"]),
        (setting(results=["steps:5:0"]), ["'steps:5:0'"]),
        (setting(Tout=[tf.half]), ["Expected a half as result 0", "a float"]),
        (setting(steps=[b"\xff"]), ["a serialized NodeDef at step 0"]),
        (setting(kept_inputs=[4]), ["kept_inputs from 0 to 3", "got 4"]),
        (setting(cores=-1), ["cores of at least 0", "got -1"]),
        (setting(timed_graph="a", timed_unit=1, timed_units=1), ["timed_unit from 0 to 0"]),
        (setting(**self_timed() | {"timed_units": 2}), ["no split ones unless it is alone"]),
        (setting(split_inputs=[0, -1]), ["split_inputs from 0 to 3", "got -1"]),
        (setting(split_inputs=[0], results=["inputs:0"]), ["result 0, which does not depend"]),
        (setting(output_shapes=[[], []]), ["output_shapes for all 1 outputs", "got 2"]),
    ],
)
def test_refuses(unit: Any, change: Change, words: list[str]) -> None:
    steps, attributes = chain(), {"results": ["steps:4:0"], "Tout": [tf.float32]}
    change(steps, attributes)
    given = {"steps": serialized(steps)} | attributes
    inputs = [tf.constant(value) for value in values_of_chain()]
    with pytest.raises(REFUSED) as error:
        tf.function(lambda: unit(inputs=inputs, **given), autograph=False)()
    assert_names(error, *words)


def test_a_step_fails_as_the_own_op_does(unit: Any) -> None:
    steps = [
        operation("before", "Relu", ["inputs:0"]),
        operation("failing", "MatMul", ["steps:0:0", "inputs:1"]),
        operation("after", "Relu", ["steps:1:0"]),
    ]
    left, right = np.ones([2, 3], np.float32), np.ones([4, 5], np.float32)
    run = in_graph(unit, steps, ["steps:2:0"])
    # Tracing would refuse known shapes.
    shapes = [tf.TensorSpec([None, None])] * 2
    own = stock(steps, ["steps:2:0"]).get_concrete_function(*shapes)
    for _ in range(2):
        with pytest.raises(tf.errors.OpError) as of_stock:
            own(tf.constant(left), tf.constant(right))
        with pytest.raises(type(of_stock.value)) as error:
            run(left, right)
        [phrase] = re.findall(r"(Matrix size-incompatible.*\])", str(of_stock.value))
        assert phrase in str(error.value)
        assert "[at step 'failing']" in str(error.value)
    fitting = np.ones([3, 5], np.float32)
    assert_same_bits(run(left, fitting), own(tf.constant(left), tf.constant(fitting)))


def split(
    unit: Any,
    steps: Sequence[NodeDef],
    results: Sequence[str],
    values: Sequence[Any],
    way: str = DIVIDED,
    then: Sequence[Any] | None = None,
    **given: Any,
) -> list[np.ndarray]:
    """Runs the op on two threads until it divides the first input, and returns those results.

    Or returns those of the values `then`.
    """
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=2, use_per_session_threads=True)
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        inputs = [tf.compat.v1.placeholder(value.dtype) for value in values]
        given = {"Tout": [tf.float32] * len(results)} | self_timed() | given
        # As in a program, nobody else holds them.
        own = [tf.raw_ops.DeepCopy(x=each) for each in inputs]
        outputs = unit(inputs=own, steps=serialized(steps), results=results, **given)

        def run(its: Sequence[Any]) -> list[np.ndarray]:
            return list(session.run(outputs, dict(zip(inputs, its, strict=True))))

        found = call_divided(lambda: run(values), given["timed_graph"], way)
        return found if then is None else run(then)


@pytest.mark.parametrize(
    ("batch_size", "way"),
    [
        *((2, DIVIDED), (3, DIVIDED), (7, DIVIDED)),
        *((7, "in parts of 1 image"), (13, "in parts of 4 images")),
    ],
)
def test_parts_of_a_batch_give_the_very_bits_of_the_whole(
    unit: Any, batch_size: int, way: str
) -> None:
    values = values_of_chain(batch_size)
    results = ["steps:0:0", "steps:4:0"]
    expected = stock(chain(), results)(*values)
    for given in ({}, {"kept_inputs": [1, 2, 3]}):
        found = split(unit, chain(), results, values, way, **given)
        assert_same_bits(list(map(tf.constant, found)), expected)


def test_parts_do_not_write_what_they_share(unit: Any) -> None:
    # Steps that read only the shared input run first.
    steps = [
        operation("shared", "Neg", ["inputs:1"]),
        operation("part", "AddV2", ["inputs:0", "steps:0:0"]),
        operation("squared", "Square", ["steps:0:0"]),
        operation("again", "Mul", ["steps:1:0", "steps:2:0"]),
        operation("image", "Neg", ["inputs:0"]),
        operation("sum", "AddV2", ["steps:4:0", "steps:3:0"]),
    ]
    image = RANDOM.standard_normal([4, 64, 64]).astype(np.float32)
    shared = RANDOM.standard_normal([1, 64, 64]).astype(np.float32)
    given = image.copy(), shared.copy()
    [result] = split(unit, steps, ["steps:5:0"], given)
    np.testing.assert_array_equal(result, -image + (image - shared) * shared**2)
    assert_same(given, (image, shared))


def test_parts_of_one_image_do_not_write_what_they_share(unit: Any) -> None:
    image = RANDOM.standard_normal([7, 64]).astype(np.float32)
    shared = RANDOM.standard_normal([1, 64]).astype(np.float32)
    steps = [operation("difference", "Sub", ["inputs:1", "inputs:0"])]
    [result] = split(unit, steps, ["steps:0:0"], (image, shared), "in parts of 1 image")
    np.testing.assert_array_equal(result, shared - image)


def test_timeline_has_the_parts_of_a_call(unit: Any) -> None:
    spans = spans_of(lambda: split(unit, chain(), ["steps:4:0"], values_of_chain(5)), calls=100)
    *earlier, whole, first, second = sorted(spans, key=lambda span: (span.call, span.begin_ns))
    name = "first relu pool last"
    assert {each.name for each in earlier} == {name}
    assert {each.algorithm for each in earlier} == {
        "as stock TensorFlow",
        "on 1 core",
        "on 2 cores",
    }
    assert (whole.name, whole.algorithm) == (name, DIVIDED)
    assert {first.name, second.name} == {"images 0 to 1", "images 2 to 4"}
    for part in (first, second):
        assert whole.begin_ns <= part.begin_ns < part.end_ns <= whole.end_ns


def test_does_not_split_inputs_of_different_batch_sizes(unit: Any) -> None:
    add = [operation("add", "AddV2", ["inputs:0", "inputs:1"])]
    images = np.ones([4, 3], np.float32)
    for other in (np.ones([1, 3], np.float32), np.float32(1)):
        for split_inputs in ([0, 1], [1, 0]):
            [result] = split(unit, add, ["steps:0:0"], [images, other], split_inputs=split_inputs)
            np.testing.assert_array_equal(result, images + 1)


def test_the_error_of_one_part_is_that_of_its_step(unit: Any) -> None:
    gather = NodeDef(name="gather", op="GatherV2", input=["inputs:1", "inputs:0", "inputs:2"])
    gather.attr["Tparams"].type = tf.float32.as_datatype_enum
    for name in ("Tindices", "Taxis"):
        gather.attr[name].type = tf.int32.as_datatype_enum
    steps = [gather, operation("relu", "Relu", ["steps:0:0"])]
    table, axis = np.arange(5, dtype=np.float32), np.int32(0)
    right = [np.array([0, 1, 2, 3], np.int32), table, axis]
    for places in ([0, 1, 2, 7], [7, 1, 2, 3]):
        wrong = [np.array(places, np.int32), table, axis]
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            split(unit, steps, ["steps:1:0"], right, then=wrong)
        assert_names(error, "= 7 is not in [0, 5)", "[at step 'gather']")
    [result] = split(unit, steps, ["steps:1:0"], [np.array([4, 0, 3], np.int32), table, axis])
    np.testing.assert_array_equal(result, [4, 0, 3])
    add = [operation("add", "AddV2", ["inputs:0", "inputs:1"])]
    wide, narrow = np.ones([4, 3], np.float32), np.ones([4, 2], np.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[4,3\] vs\. \[4,2\]"):
        split(unit, add, ["steps:0:0"], [wide, wide], then=[wide, narrow], split_inputs=[0, 1])


def test_results_that_are_not_of_a_batch(unit: Any) -> None:
    # The results are [channels, channels], and [images, images] for the images of one part. So the
    # batch is not divided after all.
    for transposed in ("transpose_a", "transpose_b"):
        product = [operation("product", "MatMul", ["inputs:0", "inputs:0"], **{transposed: True})]
        [result] = split(unit, product, ["steps:0:0"], [np.ones([3, 4], np.float32)])
        size, value = (4, 3.0) if transposed == "transpose_a" else (3, 4.0)
        np.testing.assert_array_equal(result, np.full([size, size], value))


def test_adds_a_tensor_that_others_hold_in_many_calls_at_once(unit: Any) -> None:
    # oneDNN's own convolution copies such a tensor through members of its kernel, which calls at
    # the same time share: results were wrong, or the process crashed.
    convolution = operation(
        *("convolution", "_FusedConv2D", ["inputs:0", "inputs:1", "inputs:2", "inputs:0"]),
        num_args=2,
        fused_ops=["BiasAdd", "Add"],
        TArgs=[tf.float32, tf.float32],
        **PLAIN,
    )
    run = in_graph(unit, [convolution], ["steps:0:0"])
    filters = RANDOM.standard_normal([3, 3, 4, 4]).astype(np.float32)
    bias = RANDOM.standard_normal([4]).astype(np.float32)
    images = [RANDOM.standard_normal([2, 64, 64, 4]).astype(np.float32) for _ in range(4)]
    expected = [run(image, filters, bias)[0].numpy() for image in images]

    def calls(number: int) -> bool:
        return all(
            np.array_equal(run(images[number], filters, bias)[0], expected[number])
            for _ in range(200)
        )

    with futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(calls, range(4)))
