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
    assert_unnoticed,
    branches,
    conv,
    digits,
    gradients,
    in_function,
    in_session,
    is_rewritten,
    run_python,
    stages_run,
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
    "nested_conds": nested_conds,
    "case": lambda x: (
        tf.switch_case(
            tf.cast(tf.reduce_sum(x) > 0, tf.int32),
            [lambda: conv(x, 0) + conv(x, 1), lambda: conv(conv(x, 2), 1)],
        )
        + conv(x, 3)
    ),
    "loop": lambda x: loop(x, 3),
    "loop_in_order": lambda x: loop(x, 3, parallel=1),
    "loop_that_does_not_run": lambda x: loop(x, 0),
    "map": lambda x: tf.map_fn(lambda e: conv(e[None], 0) + conv(e[None], 1), x),
    "vectorized_map": lambda x: tf.vectorized_map(lambda e: conv(e[None], 0) + conv(e[None], 1), x),
    "scan": lambda x: tf.scan(lambda a, e: conv(a, 0) + conv(e, 1), tf.stack([x, -x]), x),
    "gradient_of_conds": gradients(nested_conds),
    "gradient_of_loop": gradients(lambda x: loop(x, 2)[0] + conv(x, 2)),
    "gradient_of_map": gradients(lambda x: tf.map_fn(lambda e: branches(e[None])[0], x)),
}


@pytest.mark.parametrize("program", CONTROL_FLOW.values(), ids=CONTROL_FLOW)
def test_control_flow(program: Program) -> None:
    assert_unnoticed(in_function(program))


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


@tf.custom_gradient
def with_own_gradient(image: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    return conv(image, 0), lambda upstream: conv(upstream, 1) + conv(image, 2)


def adds_a_bias_of_rank_4(image: tf.Tensor) -> tf.Tensor:
    """oneDNN's remapper turns the addition into a BiasAdd."""
    bias = tf.reshape(tf.constant([1.0, -2.0, 3.0, 0.0]), [1, 1, 1, 4])
    return tf.nn.relu(conv(image, 0) + bias) + (conv(image, 1) + bias)


def mixed_precision(image: tf.Tensor) -> tf.Tensor:
    half, *filters = (tf.cast(each, tf.bfloat16) for each in (image, *FILTERS))
    x = tf.nn.relu(tf.nn.conv2d(half, filters[0], 1, "SAME"))
    x = tf.nn.conv2d(tf.clip_by_value(x, -1, 1), filters[1], 1, "SAME") + half
    return tf.cast(x, tf.float32)


def quantization_aware(image: tf.Tensor) -> tf.Tensor:
    x = tf.quantization.fake_quant_with_min_max_vars(conv(image, 0), -128.0, 127.0)
    filter_ = tf.quantization.fake_quant_with_min_max_args(FILTERS[1], -128, 127)
    return tf.nn.conv2d(tf.nn.relu(x), filter_, 1, "SAME") + conv(image, 2)


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
    "gradient_of_nested_functions": in_function(gradients(nested_functions)),
    "loop_in_a_cond_in_a_loop": in_function(loop_in_a_cond_in_a_loop),
    "gradient_of_a_loop_in_a_cond_in_a_loop": in_function(gradients(loop_in_a_cond_in_a_loop)),
    "reads_and_assigns": reads_and_assigns,
    "nested": nested(),
    "nested_not_inlined": nested(experimental_attributes={"_noinline": True}),
    "nested_compiled_by_xla": nested(jit_compile=True),
    "through_python": in_function(through_python),
    "custom_gradient": in_function(gradients(with_own_gradient)),
    "mixed_precision": in_function(gradients(mixed_precision)),
    "quantization_aware": in_function(gradients(quantization_aware)),
    "bias_of_rank_4": in_function(adds_a_bias_of_rank_4),
    "fetched_and_consumed": in_function(lambda x: (conv(x, 0), conv(x, 0), conv(conv(x, 0), 1))),
    "filter_from_a_convolution": in_function(
        lambda x: (
            tf.nn.conv2d(x, tf.nn.conv2d(FILTERS[0], digits(9, 1, 1, 4, 4), 1, "SAME"), 1, "SAME")
            + conv(x, 1)
        )
    ),
    "image_is_the_filter": in_function(
        lambda x: gradients(lambda y: tf.nn.conv2d(y, y, 1, "SAME"))(x[:, :4, :4])
    ),
    "assertion_holds": in_function(
        lambda x: [tf.debugging.assert_less(tf.reduce_max(conv(x, 0)), 1e5), conv(x, 1)][1]
    ),
    "assertion_fails": in_function(
        lambda x: [tf.debugging.assert_less(tf.reduce_max(conv(x, 0)), -1e5), conv(x, 1)][1]
    ),
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
OPTIONS: dict[str, dict[str, Any]] = {
    "none": dict.fromkeys(ON, False) | {"disable_model_pruning": True},
    "all": dict.fromkeys(OFF, True) | {"min_graph_nodes": -1},
    **{f"without_{name}": {name: False} for name in ("constant_folding", "remapping")},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_of_tensorflows_own_graph_passes(options: dict[str, Any]) -> None:
    tf.config.optimizer.set_experimental_options(options)
    programs = (adds_a_bias_of_rank_4, nested_conds, nested_functions)
    try:
        assert_unnoticed(in_function(gradients(lambda x: tf.add_n([each(x) for each in programs]))))
    finally:
        # TensorFlow's defaults.
        tf.config.optimizer.set_experimental_options(dict.fromkeys(options))


UNKNOWN = tf.TensorSpec([None, None, None, None], tf.float32)


@pytest.mark.parametrize(
    "shape", [(2, 6, 6, 4), (0, 6, 6, 4), (1, 1, 1, 4), (2, 0, 6, 4), (2, 6, 6, 3)], ids=str
)
def test_sizes_known_only_at_run_time(shape: tuple[int, ...]) -> None:
    def both(image: tf.Tensor) -> list[tf.Tensor]:
        # Without strides: for an empty image oneDNN's kernel returns the image's shape.
        return [conv(image, 0), conv(image, 1)]

    assert_unnoticed(in_function(both, input_signature=[UNKNOWN]), digits(5, *shape))


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (3, 3, 4, 0), (3, 0, 4, 4)], ids=str)
def test_refuses_an_empty_filter_in_tensorflows_words(shape: tuple[int, ...]) -> None:
    tf_interop.enable("always")

    @tf.function(input_signature=[UNKNOWN])
    def convolve(filter_: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(IMAGE, filter_, 1, "SAME")

    with pytest.raises(tf.errors.InvalidArgumentError, match="filter must not have zero elements"):
        convolve(tf.zeros(shape))
    status = tf_interop.status()
    assert status.stage_count + status.unit_node_count > 0


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
    assert is_rewritten(0) and not tf_interop.status().failures
    for result in results:
        np.testing.assert_array_equal(result, chain(tf.constant(IMAGE)))
    """
    )


def test_a_saved_model_has_nothing_of_the_plugin_and_is_rewritten_again(
    tmp_path: pathlib.Path,
) -> None:
    module = tf.Module()
    module.compute = tf.function(
        lambda image: gradients(branches)(image)[1],
        input_signature=[tf.TensorSpec([None, 6, 6, 4], tf.float32)],
        autograph=False,
    )
    tf_interop.enable("always")
    before = stages_run()
    result = module.compute(tf.constant(IMAGE))
    assert is_rewritten(before)
    tf.saved_model.save(module, str(tmp_path / "model"))
    # Without the plugin TensorFlow loads what it has itself.
    assert b"interop" not in (tmp_path / "model" / "saved_model.pb").read_bytes().lower()
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    get_plugin().forget_reports()
    before = stages_run()
    np.testing.assert_array_equal(loaded.compute(tf.constant(IMAGE)), result)
    assert is_rewritten(before)
