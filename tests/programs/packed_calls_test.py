"""Calls that pass variables in one tensor give what TensorFlow's own calls give."""

from __future__ import annotations

import concurrent.futures
import gc
import pathlib
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from profiled_events import profile
from unnoticed import counted, in_threads

import tf_interop
from tf_interop import tensorflow_internals
from tf_interop.runtime import packed_calls
from tf_interop.runtime.plugin import get_plugin

COUNT = 20
IMAGES = np.random.default_rng(0).normal(size=[2, 8, 8, 4]).astype(np.float32)

pytestmark = pytest.mark.usefixtures("enabled")


class Model(tf.Module):
    """Convolutions in sequence, with a variable each."""

    def __init__(self, count: int = COUNT) -> None:
        super().__init__()
        random = np.random.default_rng(1)
        values = random.normal(0, 0.4, [count, 1, 1, 4, 4]).astype(np.float32)
        self.filters = [tf.Variable(value) for value in values]

    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 4])])
    def __call__(self, images: Any) -> Any:
        return network(self.filters, images)


def network(filters: Any, images: Any) -> Any:
    for each in filters:
        images = tf.nn.elu(tf.nn.conv2d(images, each, 1, "SAME"))
    return images


def expected(filters: Any, images: Any = IMAGES) -> Any:
    return network(filters, images).numpy()


def assert_close(got: Any, values: Any) -> None:
    np.testing.assert_allclose(got, values, rtol=1e-5, atol=1e-6)


def packed_functions() -> list[str]:
    gc.collect()  # functions of other tests
    names = tensorflow_internals.function_names()
    return [name for name in names if name.endswith("_tf_interop_packed")]


def test_runs_a_copy_that_sees_every_value() -> None:
    model = Model()
    before = len(packed_functions())
    assert_close(model(IMAGES), expected(model.filters))
    assert len(packed_functions()) == before + 1
    for each in model.filters[::3]:
        each.assign_add(tf.ones_like(each) * 0.01)
        assert_close(model(IMAGES), expected(model.filters))
    # A sparse update makes TensorFlow copy the variable whenever it is read.
    row = tf.IndexedSlices(tf.ones([1, 1, 4, 4]), tf.constant([0]))
    model.filters[0].scatter_add(row)
    assert_close(model(IMAGES), expected(model.filters))
    assert len(packed_functions()) == before + 1


def test_passes_one_tensor_to_the_unit() -> None:
    model = Model()
    graphs = []
    with get_plugin().observe(lambda graph, _: graphs.append(graph)):
        model(IMAGES)
    nodes = {node.op: node for node in graphs[-1].node}
    assert "TfInterop>UnpackVariables" not in nodes  # only the Kept node needs them
    kept, unit = nodes["TfInterop>Kept"], nodes["TfInterop>Unit"]
    assert list(kept.input) == ["tf_interop_packed"]
    assert list(kept.attr["handles"].list.i) == list(range(COUNT))
    assert unit.input[-1] == kept.name
    assert len(unit.input) == 2


def runs_on_the_callers_thread(call: Callable[[], object], folder: pathlib.Path) -> bool:
    threads = {event.name: event.thread for event in profile(folder, call)}
    [of_call] = {
        threads[name] for name in threads if name.startswith("EagerLocalExecute: __inference")
    }
    [of_unit] = {threads[name] for name in threads if name.endswith(":TfInterop>Unit")}
    return of_call == of_unit


def test_the_caller_runs_a_network_that_is_one_unit(tmp_path: pathlib.Path) -> None:
    model = Model()
    model(IMAGES)
    assert runs_on_the_callers_thread(lambda: model(IMAGES), tmp_path / "main")

    # Another thread hands over its first calls, in case there are no more.
    def call_often() -> list[bool]:
        first = runs_on_the_callers_thread(lambda: model(IMAGES), tmp_path / "first")
        for _ in range(60):
            model(IMAGES)
        return [first, runs_on_the_callers_thread(lambda: model(IMAGES), tmp_path / "last")]

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        assert thread.submit(call_often).result() == [False, True]

    @tf.function
    def with_another_operation(images: Any) -> Any:
        return model(images), tf.unique(tf.reshape(images, [-1]))

    with_another_operation(IMAGES)
    assert not runs_on_the_callers_thread(lambda: with_another_operation(IMAGES), tmp_path / "two")


def test_few_variables_are_passed_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_calls, "FEWEST_VARIABLES", 16)
    model = Model(count=15)
    before = packed_functions()
    assert_close(model(IMAGES), expected(model.filters))
    assert packed_functions() == before


def test_tapes_record_as_before() -> None:
    model = Model()
    model(IMAGES)
    before = packed_functions()
    image = tf.constant(IMAGES)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(image) ** 2)
    gradients = tape.gradient(loss, model.filters)
    assert tape.watched_variables() == tuple(model.filters)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(network(model.filters, image) ** 2)
    for got, value in zip(gradients, tape.gradient(loss, model.filters), strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-3, atol=1e-4)
    with tf.autodiff.ForwardAccumulator(image, tf.ones_like(image)) as accumulator:
        result = model(image)
    assert accumulator.jvp(result) is not None
    assert packed_functions() == before


def test_gradients_keep_no_activations() -> None:
    @tf.function
    def run(x: Any) -> Any:
        for each in filters:
            x = tf.tanh(x * each)
        return x

    def activations() -> int:
        gc.collect()
        return sum(
            type(each) is type(filters[0].handle) and each.shape == (1234,)
            for each in gc.get_objects()
        )

    filters = [tf.Variable(1.0) for _ in range(COUNT)]
    for _ in range(2):
        with tf.GradientTape() as tape:
            result = run(tf.ones([1234]))
        assert len(tape.gradient(result, filters)) == COUNT
        del tape, result
        assert activations() == 0


def test_random_numbers_go_on() -> None:
    filters = [tf.Variable(0.0, trainable=False) for _ in range(COUNT)]
    tf.random.set_seed(1)
    draw = tf.function(lambda: tf.random.uniform([4]) + tf.add_n([each + 0.0 for each in filters]))
    first = draw().numpy()
    with tf.GradientTape():
        second = draw().numpy()
    assert first.tolist() != second.tolist()


def test_errors_name_lines_of_the_program() -> None:
    filters = [tf.Variable(1.0) for _ in range(COUNT)]

    @tf.function
    def run(place: Any) -> Any:
        return tf.gather(tf.stack(filters), place)

    before = packed_functions()
    run(tf.constant(1))
    assert len(packed_functions()) == len(before) + 1
    with pytest.raises(tf.errors.InvalidArgumentError, match=pathlib.Path(__file__).name):
        run(tf.constant(COUNT))


def test_variables_that_are_kept_beside_one_that_is_written() -> None:
    filters = [tf.Variable(value) for value in Model().filters]
    total = tf.Variable(0.0)

    @tf.function
    def add(images: Any) -> Any:
        images = network([tf.sqrt(tf.abs(each)) for each in filters], images)
        return total.assign_add(tf.reduce_sum(images)), total.handle

    one = expected([tf.sqrt(tf.abs(each)) for each in filters]).sum()
    for count in (1, 2, 3):
        got, handle = add(tf.constant(IMAGES))
        np.testing.assert_allclose(got, count * one, rtol=1e-4)
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        np.testing.assert_array_equal(got, value)
    [report] = tf_interop.status().folded_graphs
    assert report.kept_count == COUNT
    # If TensorFlow does not accept the plugin's graph, it runs its own, which keeps nothing.
    filters[0].assign_add(tf.ones([1, 1, 4, 4]))
    with counted() as new:
        add(tf.constant(IMAGES))
    assert new.kept_computations == 1


def test_loops_branches_and_nested_functions() -> None:
    model = Model()

    def first(_: Any) -> Any:
        return tf.add_n(list(model.filters))[0, 0, 0]

    compiled = tf.function(first, jit_compile=True)
    before = packed_functions()
    assert_close(compiled(IMAGES), first(IMAGES))
    assert packed_functions() == before

    @tf.function
    def run(images: Any, repetitions: Any) -> Any:
        for _ in tf.range(repetitions):
            images = model(images)
        if repetitions > 1:
            model.filters[0].assign_add(tf.ones([1, 1, 4, 4]))
        return images + compiled(images)

    for repetitions in (0, 1, 3):
        value, images = model.filters[0].numpy(), IMAGES
        for _ in range(repetitions):
            images = expected(model.filters, images)
        got = run(IMAGES, repetitions)
        assert_close(model.filters[0], value + (repetitions > 1))
        assert_close(got, images + first(images))
    assert len(packed_functions()) > len(before)


def test_other_captures_and_arguments() -> None:
    model = Model()
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant([7]), tf.constant([2.0])), 0.0
    )
    offset = tf.constant(IMAGES * 0.5)
    dataset = tf.data.Dataset.from_tensors(IMAGES).repeat()

    @tf.function
    def run(iterator: Any, scale: Any) -> Any:
        return model(next(iterator) + offset) * scale * table.lookup(tf.constant(7))

    iterator = iter(dataset)
    for scale in (1.0, 3.0):
        got = run(iterator, tf.constant(scale))
        assert_close(got, expected(model.filters, IMAGES * 1.5) * 2 * scale)


def test_replaced_captures() -> None:
    model, other = Model(), Model()
    for each in other.filters:
        each.assign(each * 0.5)
    function = model.__call__.get_concrete_function()
    assert_close(function(IMAGES), expected(model.filters))
    function.set_external_captures([each.handle for each in other.filters])
    for _ in range(2):
        assert_close(function(IMAGES), expected(other.filters))


def test_saved_models(tmp_path: pathlib.Path) -> None:
    model = Model()
    model(IMAGES)
    tf.saved_model.save(model, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    before = len(packed_functions())
    assert_close(loaded(IMAGES), expected(model.filters))
    assert len(packed_functions()) == before + 1
    loaded.filters[0].assign(tf.zeros([1, 1, 4, 4]))
    assert_close(loaded(IMAGES), expected(loaded.filters))


def test_first_calls_by_several_threads() -> None:
    model = Model()
    before = len(packed_functions())
    for result in in_threads(lambda _: model(IMAGES), range(8)):
        assert_close(result, expected(model.filters))
    assert len(packed_functions()) == before + 1


def test_a_deleted_model_leaves_nothing() -> None:
    gc.collect()
    model = Model()
    kept_before = get_plugin().library.read_counters().kept_bytes
    before = packed_functions()
    for _ in range(3):
        model(IMAGES)
    variable = weakref.ref(model.filters[0])
    del model
    gc.collect()
    assert variable() is None
    assert packed_functions() == before
    assert get_plugin().library.read_counters().kept_bytes == kept_before


def test_what_cannot_be_packed_is_called(
    monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    def fail(*_: Any) -> None:
        raise TypeError("no such field")

    monkeypatch.setattr(packed_calls, "_copy", fail)
    model = Model()
    for _ in range(2):
        assert_close(model(IMAGES), expected(model.filters))
    assert len([text for text in logged if "no such field" in text]) == 1


@pytest.mark.parametrize("how", ["disable", "option"])
def test_turned_off_it_calls_as_before(how: str) -> None:
    model = Model()
    model(IMAGES)
    if how == "disable":
        tf_interop.disable()
    else:
        tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": False})
    before = packed_functions()
    for each in (model, Model()):
        assert_close(each(IMAGES), expected(each.filters))
    assert packed_functions() == before
