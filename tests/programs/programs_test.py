"""Whole programs must not notice the plugin: same numbers, same errors, no deadlock.

All values are small whole numbers, so that every sum and the comparison are exact.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import function as tensorflow_function
from unnoticed import (
    FILTERS,
    IMAGE,
    Program,
    assert_same,
    assert_unnoticed,
    branches,
    conv,
    digits,
    gradients,
    in_function,
    in_session,
    is_rewritten,
    run_python,
)

import tf_interop
from tf_interop.runtime.plugin import get_plugin

v1 = tf.compat.v1


@pytest.fixture(autouse=True, params=["stages", "units"])
def fixture_kind(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    plugin_as_after_import: None,
) -> None:
    monkeypatch.setenv("TF_INTEROP_HOST_STAGES", str(int(request.param == "stages")))


def loop(image: tf.Tensor, times: int, parallel: int = 10) -> list[tf.Tensor]:
    """An invariant, an accumulator, and two variables that need each other's last value."""

    def body(i: tf.Tensor, a: tf.Tensor, b: tf.Tensor, results: tf.TensorArray) -> tuple[Any, ...]:
        new_a, new_b = conv(b, 0), conv(a, 1) + conv(image, 2)
        return i + 1, new_a, new_b, results.write(i, new_a)

    _, a, b, results = tf.while_loop(
        lambda i, a, *_: (i < times) & (tf.reduce_sum(conv(a, 3)) < 1e9),
        body,
        (0, image, conv(image, 3), tf.TensorArray(tf.float32, times, element_shape=[2, 6, 6, 4])),
        parallel_iterations=parallel,
    )
    return [a, b, results.stack(), conv(a, 0), conv(image, 0)]


def nested_conds(image: tf.Tensor) -> tf.Tensor:
    total = tf.reduce_sum(image)
    return conv(image, 3) + tf.cond(
        total > -1e6,
        lambda: tf.cond(total > 1e6, lambda: conv(image, 0), lambda: conv(conv(image, 1), 0)),
        lambda: conv(image, 2) + conv(image, 1),
    )


CONTROL_FLOW: dict[str, Program] = {
    "conds": gradients(nested_conds),
    "switch": lambda x: (
        tf.switch_case(
            tf.cast(tf.reduce_sum(x) > 0, tf.int32),
            [lambda: conv(x, 0) + conv(x, 1), lambda: conv(conv(x, 2), 1)],
        )
        + conv(x, 3)
    ),
    "loops": lambda x: [loop(x, 3), loop(x, 3, parallel=1), loop(x, 0)],
    "gradient_of_a_loop": gradients(lambda x: loop(x, 2)[0] + conv(x, 2)),
    "maps": lambda x: [
        tf.vectorized_map(lambda e: conv(e[None], 0) + conv(e[None], 1), x),
        tf.scan(lambda a, e: conv(a, 0) + conv(e, 1), tf.stack([x, -x]), x),
        *gradients(lambda y: tf.map_fn(lambda e: branches(e[None])[0], y))(x),
    ],
}


def reads_and_assigns() -> Program:
    variable = tf.Variable(FILTERS[0].astype(np.float16))  # of a dtype whose filters are held

    @tf.function
    def compute(image: tf.Tensor) -> list[tf.Tensor]:
        image = tf.cast(image, tf.float16)
        first = tf.nn.conv2d(image, variable, 1, "SAME")
        variable.assign_add(tf.ones_like(variable))
        second = tf.nn.conv2d(image, variable, 1, "SAME")
        variable.assign(variable * 2.0)
        return [first, second, tf.nn.conv2d(image, variable, 1, "SAME"), variable.read_value()]

    return compute


def nested(**options: Any) -> Callable[[], Program]:
    def make() -> Program:
        inner = tf.function(lambda x: conv(x, 0) + conv(x, 1), autograph=False, **options)
        return tf.function(lambda x: inner(x) + inner(conv(x, 2)) + conv(x, 3), autograph=False)

    return make


def through_python(image: tf.Tensor) -> tf.Tensor:
    between = tf.py_function(lambda x: x + 1, [conv(image, 0) + conv(image, 1)], tf.float32)
    return conv(tf.ensure_shape(between, image.shape), 2) + conv(image, 3)


def adds_a_bias_of_rank_4(image: tf.Tensor) -> tf.Tensor:
    """oneDNN's remapper turns the addition into a BiasAdd."""
    bias = tf.reshape(tf.constant([1.0, -2.0, 3.0, 0.0]), [1, 1, 1, 4])
    return tf.nn.relu(conv(image, 0) + bias) + (conv(image, 1) + bias)


def mixed_precision(image: tf.Tensor) -> tf.Tensor:
    half, *filters = (tf.cast(each, tf.bfloat16) for each in (image, *FILTERS))
    x = tf.nn.relu(tf.nn.conv2d(half, filters[0], 1, "SAME"))
    x = tf.nn.conv2d(tf.clip_by_value(x, -1, 1), filters[1], 1, "SAME") + half
    return tf.cast(x, tf.float32)


def of_results(image: tf.Tensor) -> list[tf.Tensor]:
    """A result that is fetched and consumed, one as a filter, and an image as a filter."""
    filter_ = tf.nn.conv2d(FILTERS[0], digits(9, 1, 1, 4, 4), 1, "SAME")
    of_filter = tf.nn.conv2d(image, filter_, 1, "SAME") + conv(image, 1)
    square = image[:, :4, :4]
    of_image = gradients(lambda each: tf.nn.conv2d(each, each, 1, "SAME"))(square)
    return [conv(image, 0), conv(conv(image, 0), 1), of_filter, *of_image]


def asserting(limit: float) -> Callable[[], Program]:
    def program(image: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_less(tf.reduce_max(conv(image, 0)), limit)
        return conv(image, 1)

    return lambda: tf.function(program)


def nested_functions(image: tf.Tensor) -> tf.Tensor:
    inner = tf.function(branches, autograph=False)
    middle = tf.function(lambda x: inner(inner(x)) + conv(x, 2), autograph=False)
    return middle(image)


def loop_in_a_cond_in_a_loop(image: tf.Tensor) -> tf.Tensor:
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, branches(y)), (0, x))[1]

    def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, tf.cond(i % 2 == 0, lambda: inner(x), lambda: branches(x))

    return tf.while_loop(lambda i, _: i < 3, body, (0, image))[1]


PROGRAMS: dict[str, Callable[[], Program]] = {
    **{name: in_function(program) for name, program in CONTROL_FLOW.items()},
    "loop_in_a_cond_in_a_loop": in_function(gradients(loop_in_a_cond_in_a_loop)),
    "reads_and_assigns": reads_and_assigns,
    "nested": nested(),
    "nested_not_inlined": nested(experimental_attributes={"_noinline": True}),
    "nested_compiled_by_xla": nested(jit_compile=True),
    "through_python": in_function(through_python),
    "mixed_precision": in_function(gradients(mixed_precision)),
    "of_results": in_function(of_results),
    "assertion_holds": asserting(1e5),
    "assertion_fails": asserting(-1e5),
}


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_program(make: Callable[[], Program]) -> None:
    assert_unnoticed(make)


# The options of tf.config.optimizer.set_experimental_options, by their defaults.
ON = (
    *("layout_optimizer", "constant_folding", "shape_optimization", "remapping"),
    *("arithmetic_optimization", "dependency_optimization", "loop_optimization"),
    *("function_optimization", "implementation_selector"),
)
OFF = (
    *("debug_stripper", "disable_model_pruning", "scoped_allocator_optimization"),
    *("pin_to_host_optimization", "auto_mixed_precision"),
    *("auto_mixed_precision_onednn_bfloat16", "auto_mixed_precision_mkl"),
)


@pytest.mark.parametrize(
    "options",
    [
        dict.fromkeys(ON, False) | {"disable_model_pruning": True},
        dict.fromkeys(OFF, True) | {"min_graph_nodes": -1},
    ],
    ids=["none", "all"],
)
def test_options_of_tensorflows_own_graph_passes(options: dict[str, Any]) -> None:
    def program(image: tf.Tensor) -> tf.Tensor:
        return adds_a_bias_of_rank_4(image) + nested_conds(image) + nested_functions(image)

    tf.config.optimizer.set_experimental_options(options)
    try:
        assert_unnoticed(in_function(gradients(program)))
    finally:
        # TensorFlow's defaults.
        tf.config.optimizer.set_experimental_options(dict.fromkeys(options))


UNKNOWN = tf.TensorSpec([None, None, None, None], tf.float32)


@pytest.mark.parametrize("shape", [(0, 6, 6, 4), (1, 1, 1, 4), (2, 0, 6, 4), (2, 6, 6, 3)], ids=str)
def test_sizes_known_only_at_run_time(shape: tuple[int, ...]) -> None:
    def both(image: tf.Tensor) -> list[tf.Tensor]:
        # Without strides: for an empty image oneDNN's kernel returns the image's shape.
        return [conv(image, 0), conv(image, 1)]

    assert_unnoticed(in_function(both, input_signature=[UNKNOWN]), digits(5, *shape))


def test_refuses_an_empty_filter_in_tensorflows_words() -> None:
    tf_interop.enable("always")

    @tf.function(input_signature=[UNKNOWN])
    def convolve(filter_: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(IMAGE, filter_, 1, "SAME")

    for shape in ([0, 3, 4, 4], [3, 3, 4, 0]):
        message = "filter must not have zero elements"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            convolve(tf.zeros(shape))
    assert tf_interop.status().op_count > 0


def two_images() -> tuple[tf.Tensor, tf.Tensor]:
    return v1.placeholder(tf.float32, [2, 6, 6, 4]), v1.placeholder(tf.float32, [2, 6, 6, 4])


def fed_after_a_convolution(session: Any) -> list[Any]:
    """Nodes that only a fed tensor needs have no inputs, so no stage may read those."""
    p, q = two_images()
    a, b = conv(p, 0), conv(q, 1)
    r = tf.nn.relu(a)
    y = r + b
    return [
        session.run(y, {p: IMAGE, q: IMAGE}),
        session.run(y, {a: IMAGE, q: IMAGE}),
        session.run(y, {r: IMAGE, q: IMAGE}),
        *session.run([b, y], {a: IMAGE, q: IMAGE}),
        *session.run([a, r, y], {p: IMAGE, q: IMAGE}),
    ]


def run_in_parts(session: Any) -> list[Any]:
    """The second image may be computed from the first result."""
    p, q = two_images()
    a, b = conv(p, 0), conv(q, 1)
    c = conv(a, 2)
    handle = session.partial_run_setup([a, b, c], [p, q])
    first = session.partial_run(handle, a, {p: IMAGE})
    return [first, *session.partial_run(handle, [b, c], {q: np.clip(first, -2, 2)})]


def queue_between_convolutions(session: Any) -> list[Any]:
    """No edge shows that the dequeue waits for the enqueue."""
    p, q = two_images()
    queue = v1.FIFOQueue(2, [tf.float32], [[2, 6, 6, 4]])
    enqueue = queue.enqueue([conv(p, 0)])
    y = conv(queue.dequeue(), 1) + conv(q, 3)
    return list(session.run([y, enqueue], {p: IMAGE, q: IMAGE})[:1])


def targets_and_reference_variables(session: Any) -> list[Any]:
    p, q = two_images()
    variable = v1.Variable(FILTERS[0], use_resource=False)
    a = tf.nn.conv2d(p, variable, 1, "SAME")
    with tf.control_dependencies([a]):
        assign = v1.assign_add(variable, tf.ones_like(variable))
    with tf.control_dependencies([assign]):
        b = tf.nn.conv2d(p, tf.identity(variable), 1, "SAME")
    session.run(v1.global_variables_initializer())
    results = session.run([a, b, conv(q, 1)], {p: IMAGE, q: IMAGE})
    session.run(b.op, {p: IMAGE})
    return [*results, session.run(variable)]


def gradient_of_a_function_as_it_runs(session: Any) -> list[Any]:
    """TensorFlow 1 differentiates the function's optimized graph when it runs the gradient."""

    @tensorflow_function.Defun(tf.float32, noinline=True)
    def twice(image: tf.Tensor) -> tf.Tensor:
        with tf.device("/CPU:0"):
            return conv(image, 0) + conv(image, 1)

    p, _ = two_images()
    with tf.device("/CPU:0"):
        result = twice(p)
    gradient = v1.gradients(tf.reduce_sum(result), p)
    return list(session.run([result, *gradient, conv(p, 2)], {p: IMAGE}))


@pytest.mark.parametrize("disable_model_pruning", [False, True], ids=["pruned", "not_pruned"])
@pytest.mark.parametrize(
    "run",
    [
        fed_after_a_convolution,
        run_in_parts,
        queue_between_convolutions,
        targets_and_reference_variables,
        gradient_of_a_function_as_it_runs,
    ],
    ids=lambda run: run.__name__,
)
def test_session(run: Callable[[Any], list[Any]], disable_model_pruning: bool) -> None:
    assert_unnoticed(in_session(run, disable_model_pruning=disable_model_pruning))


@pytest.mark.parametrize("fixture_kind", ["stages"], indirect=True)
def test_data_pipeline() -> None:
    """In its own process, because pipelines keep the option that TensorFlow started with."""
    run_python(
        """
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from unnoticed import IMAGE, conv, is_rewritten
    tf_interop.enable("always")
    def chain(image):
        return tf.nn.relu(conv(image, 0)) + conv(image, 1)
    results = list(tf.data.Dataset.from_tensors(IMAGE).repeat(4).map(chain, num_parallel_calls=4))
    assert is_rewritten() and not tf_interop.status().failures
    for result in results:
        np.testing.assert_array_equal(result, chain(tf.constant(IMAGE)))
    """
    )


def test_a_saved_model_has_nothing_of_the_plugin_and_is_rewritten_again(
    tmp_path: pathlib.Path,
) -> None:
    module = tf.Module()
    spec = tf.TensorSpec([None, 6, 6, 4], tf.float32)
    module.compute = tf.function(gradients(branches), [spec], autograph=False)
    tf_interop.enable("always")
    result = module.compute(tf.constant(IMAGE))
    assert is_rewritten()
    tf.saved_model.save(module, str(tmp_path / "model"))
    # Without the plugin TensorFlow loads what it has itself.
    assert b"interop" not in (tmp_path / "model" / "saved_model.pb").read_bytes().lower()
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    get_plugin().forget_reports()
    assert_same(loaded.compute(tf.constant(IMAGE)), result)
    assert is_rewritten()
