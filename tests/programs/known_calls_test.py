"""Calls with known types of arguments run the functions that TensorFlow chooses."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import tracing_compilation

from tf_interop.runtime import known_calls

ONES = tf.ones([3])


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    known_calls.turn_on()
    yield
    known_calls.turn_off()


def traced(**options: Any) -> Any:
    """Returns which trace of it runs, and its arguments."""
    traces: list[object] = []

    @tf.function(**options)
    def function(*args: Any, **kwargs: Any) -> Any:
        traces.append(None)
        return tf.constant(len(traces)), args, kwargs

    return function


CALLS: dict[str, Callable[[Any], object]] = {
    "tensor": lambda f: f(ONES),
    "shape": lambda f: f(tf.ones([4])),
    "dtype": lambda f: f(tf.ones([3], tf.int32)),
    "two": lambda f: f(ONES, ONES + 1),
    "one twice": lambda f: f(ONES, ONES),
    "true": lambda f: f(ONES, True),
    "one": lambda f: f(ONES, 1),
    "nones": lambda f: f(None, ONES, None),
    "keyword": lambda f: f(ONES, b=ONES + 1, a=ONES + 2),
    "exchanged": lambda f: f(a=ONES, b=ONES + 1),
    "exchanged again": lambda f: f(b=ONES, a=ONES + 1),
    "other order": lambda f: f(ONES, a=ONES + 2, b=ONES + 1),
    "no identifier": lambda f: f(**{"image/encoded": ONES, "a-b": ONES + 1}),
    "float": lambda f: f(ONES, 1.0),
    "list": lambda f: f([ONES]),
    "variable": lambda f: f(VARIABLE),
    "resource": lambda f: f(VARIABLE.handle),
    "graph": lambda f: tf.function(lambda: f(ONES))(),
    "constant": lambda f: f(1),
    "another graph": lambda f: in_graph(lambda: f(1)),
    "strategy": lambda f: in_strategy(lambda: f(ONES)),
}
VARIABLE = tf.Variable(ONES)


def in_graph(call: Callable[[], object]) -> object:
    with tf.Graph().as_default():
        return call()


def in_strategy(call: Callable[[], object]) -> object:
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        return call()


def values(nested: object) -> object:
    return tf.nest.map_structure(lambda each: getattr(each, "dtype", 0) and str(each), nested)


def test_calls_run_what_tensorflow_chooses() -> None:
    ours, stock = traced(), traced()
    for _ in range(4):
        for call in CALLS.values():
            got = call(ours)
            known_calls.turn_off()
            assert values(got) == values(call(stock))
            assert ours.experimental_get_tracing_count() == stock.experimental_get_tracing_count()
            known_calls.turn_on()


def test_does_not_search_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    function = traced()
    names = ["tensor", "shape", "two", "true", "keyword", "other order", "no identifier", "nones"]
    for name in names * 3:
        CALLS[name](function)
    monkeypatch.setattr(tracing_compilation, "trace_function", None)
    for name in names:
        CALLS[name](function)


@pytest.mark.parametrize("reduce_retracing", [False, True])
def test_traces_as_often_as_tensorflow(reduce_retracing: bool) -> None:
    function = traced(reduce_retracing=reduce_retracing)
    found = [int(function(tf.ones([size]))[0]) for size in (3, 3, 3, 4, 4, 4, 5, 5, 5, 3, 3)]
    assert found == [1, 1, 1, 2, 2, 2, *([2] if reduce_retracing else [3]) * 3, 1, 1]


def test_a_signature_converts_and_refuses() -> None:
    function = tf.function(lambda x: x + 1, input_signature=[tf.TensorSpec([None, 2])])
    for _ in range(3):
        assert function(tf.ones([1, 2])).shape == (1, 2)
        with pytest.raises(TypeError):
            function(tf.ones([1, 3]))


def test_an_argument_that_is_also_a_default() -> None:
    function = tf.function(lambda a, b=ONES: a - 2 * b)
    for _ in range(3):
        assert function(ONES).numpy().tolist() == [-1, -1, -1]
    assert function(ONES + 1).numpy().tolist() == [0, 0, 0]


def test_sees_variables_and_values_that_change() -> None:
    scale = tf.Variable(1.0)
    outside = [tf.constant(1.0)]
    function = tf.function(lambda x: x * scale)
    by_reference = tf.function(
        lambda x: (
            x
            * tf.compat.v1.get_default_graph().capture_call_time_value(
                lambda: outside[0], tf.TensorSpec([])
            )
        )
    )
    for value in range(5):
        scale.assign(float(value))
        outside[0] = tf.constant(float(value))
        assert function(ONES).numpy().tolist() == [value] * 3
        assert by_reference(ONES).numpy().tolist() == [value] * 3


def test_creates_variables_in_the_first_call_only() -> None:
    made: list[tf.Variable] = []

    @tf.function
    def function(x: Any) -> Any:
        if not made:
            made.append(tf.Variable(2.0))
        return made[0].assign_add(1.0) * x

    assert [function(ONES).numpy()[0] for _ in range(5)] == [3, 4, 5, 6, 7]


def test_records_gradients_and_keeps_nothing_alive() -> None:
    variable = tf.Variable(ONES)
    function = tf.function(lambda x: x * variable)
    for _ in range(3):
        function(ONES)
        with tf.GradientTape() as tape:
            result = function(ONES * 2)
        assert tape.gradient(result, variable).numpy().tolist() == [2, 2, 2]
    gone = weakref.ref(function)
    del function, tape, result
    gc.collect()
    assert gone() is None
