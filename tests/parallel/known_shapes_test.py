"""Functions whose shapes are unknown run as copies for the shapes of each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.shared_training import PROGRAM
from unnoticed import run_python

from tf_interop.parallel import kept_shares, known_shapes

KERAS = """
    import dataclasses

    class Watch(keras.callbacks.Callback):
        '''Records steps, and variables that devices have in shares, when Keras tells that.'''
        def on_train_begin(self, logs=None):
            self.seen = []
        def on_train_batch_end(self, batch, logs=None):
            self.seen.append((int(self.model.optimizer.iterations), held(self.model)))

    def run():
        steps = int(os.environ["STEPS"])
        model = make(keras.optimizers.Adam(0.005), steps_per_execution=steps)
        some = images[:84], labels[:84]  # five batches of 16, and one of 4
        pipeline = tf.data.Dataset.from_tensor_slices(some).batch(16)
        watch = Watch()
        return model, watch, [
            fit(model, 2, first=84, callbacks=[watch]),
            *model.evaluate(pipeline, verbose=0, return_dict=True).values(),
            model.predict(some[0], batch_size=16, verbose=0),
            fit(model, first=84, validation_data=pipeline),
            model.fit(pipeline, verbose=0).history["loss"],
            model.train_on_batch(images[:16], labels[:16]),
            *values_of(model),
        ]

    stock, _, expected = run()
    fresh = make(keras.optimizers.Adam(0.005))
    plans = [
        planned(lambda: fit(fresh)),
        planned(lambda: fresh.predict(images, batch_size=16, verbose=0)),
    ]
    graphs = [dataclasses.replace(its, batch_size=16) for each in plans for its in each.graphs]
    tf_interop.enable(parallel=dataclasses.replace(plans[0], graphs=tuple(graphs)))
    get_plugin().forget_reports()
    model, watch, ours = run()
    assert_close(ours, expected)

    # The first batch runs whole, the second divided, and from the third on devices keep shares.
    # The last one of an epoch runs whole.
    assert str(watch.seen) == os.environ["SEEN"], watch.seen
    status = tf_interop.status()
    assert [each.cause for each in status.failures] == [
        "The parallel plan is for batch size 16, but the graph has 4. Unless that is a smaller "
        "last batch, make a plan for it with tf-interop parallelize."
    ], status.failures
    whole, *divided = sorted(status.divided_graphs, key=lambda each: len(each.divided))
    assert whole.why_unchanged == (
        "no layer can be divided: its shapes are unknown (5 operations); later calls run copies "
        "for the shapes of their batches"
    ), str(whole)
    assert [len(each.divided) for each in divided] == [5, 5], divided

    tf_interop.disable()
    fit(model, first=84), fit(stock, first=84)
    assert_close(values_of(model), values_of(stock))
"""


@pytest.mark.parametrize(
    ("steps", "seen"),
    [
        (1, [*enumerate([0, 0, 6, 6, 6, 0, 6, 6, 6, 6, 6, 0], 1)]),
        (4, [(4, 6), (6, 0), (10, 6), (12, 0)]),
    ],
)
def test_keras_divides_full_batches_and_runs_smaller_ones_whole(
    steps: int, seen: list[tuple[int, int]]
) -> None:
    run_python(PROGRAM + KERAS, STEPS=str(steps), SEEN=str(seen))


@pytest.fixture(autouse=True)
def _on() -> Iterator[None]:
    kept_shares.turn_on()
    known_shapes.turn_on()
    yield
    known_shapes.turn_off()
    kept_shares.turn_off()


def asked(function: Any, *inputs: Any) -> Any:
    """The ConcreteFunction of inputs, whose copies are asked for."""
    concrete = function.get_concrete_function(*inputs)
    known_shapes.ask(concrete.name.decode())
    return concrete


def definitions(concrete: Any) -> list[Any]:
    """The FunctionDef of each copy."""
    copies = concrete.__dict__["_tf_interop_known_shapes"]._copies.values()
    return [copy.inference_fn.definition for copy in copies]


def shapes_of_copies(concrete: Any) -> list[list[tuple[int | None, ...]]]:
    """The shapes of the arguments of each copy, as TensorFlow knows them."""
    return [
        [
            tuple(tf.TensorShape(shape))
            for _, its in sorted(definition.arg_attr.items())
            for shape in its.attr["_output_shapes"].list.shape
        ]
        for definition in definitions(concrete)
    ]


def batches(*sizes: int, first: int = 0) -> tf.data.Dataset:
    """Batches of numbers from `first` on, whose sizes TensorFlow does not know."""

    def generate() -> Iterator[np.ndarray]:
        start = first
        for size in sizes:
            yield np.arange(start, start + size, dtype=np.float32)
            start += size

    return tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([None]))


def values_until_end(step: Callable[[], tf.Tensor]) -> list[float]:
    """The results of a step until its iterator ends."""
    values = []
    with pytest.raises(tf.errors.OutOfRangeError):
        while True:
            values.append(float(step()))
    return values


def test_each_batch_of_an_iterator_is_passed_with_its_shape() -> None:
    total = tf.Variable(0.0)

    @tf.function(autograph=False)
    def step(scale: tf.Tensor, iterator: Any) -> tf.Tensor:
        return scale * total.assign_add(tf.reduce_sum(iterator.get_next()))

    def run(function: Callable[..., tf.Tensor]) -> list[float]:
        total.assign(0)
        iterator = iter(batches(4, 4, 2, 4))
        return values_until_end(lambda: function(tf.constant(2.0), iterator))

    expected = run(step)
    concrete = asked(step, tf.constant(2.0), iter(batches(4)))
    assert run(step) == expected == [12, 56, 90, 182]
    assert shapes_of_copies(concrete) == [[(), (4,)], [(), (2,)]]
    before = concrete.inference_fn.definition
    for after in definitions(concrete):
        assert [each.name for each in after.signature.input_arg] == [
            *(each.name for each in before.signature.input_arg),
            "tf_interop_batch_0",
        ]
        assert set(before.control_ret) - set(after.control_ret) == {"IteratorGetNext"}
        assert set(after.control_ret) == set(after.signature.control_output)


def test_a_captured_iterator_is_read() -> None:
    iterator = iter(batches(4, 4, 2))
    offset = tf.Variable(1.0)

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        return offset + tf.reduce_sum(iterator.get_next())

    concrete = asked(step)
    assert values_until_end(step) == [7, 23, 18]
    assert shapes_of_copies(concrete) == [[(4,)], [(2,)]]


def test_iterators_are_read_in_the_order_of_the_function() -> None:
    @tf.function(autograph=False)
    def step(first: Any, second: Any) -> tf.Tensor:
        one = first.get_next()
        other = second.get_next()
        later = first.get_next()  # it waits for the first read, so it stays in the function
        return tf.reduce_sum(one) + 100 * tf.reduce_sum(other) + 10000 * tf.reduce_sum(later)

    def run() -> list[float]:
        iterators = iter(batches(1, 2, 1, 2)), iter(batches(3, 1, first=7))
        return values_until_end(lambda: step(*iterators))

    expected = run()
    concrete = asked(step, iter(batches(1)), iter(batches(1)))
    run()
    assert run() == expected
    assert shapes_of_copies(concrete) == [[(1,), (1,)], [(1,), (3,)]]


def test_a_batch_that_is_returned_comes_back() -> None:
    def take(iterator: tf.Tensor) -> Any:
        return tf.raw_ops.IteratorGetNext(
            iterator=iterator, output_types=[tf.float32], output_shapes=[[None]]
        )

    # Unlike tf.function, it returns the node's own output.
    wrapped = tf.compat.v1.wrap_function(take, [tf.TensorSpec([], tf.resource)])
    known_shapes.ask(wrapped.name.decode())
    iterator = iter(batches(2, 3, 1))
    taken = [wrapped(iterator._iterator_resource)[0].numpy().tolist() for _ in range(3)]
    assert taken == [[0, 1], [2, 3, 4], [5]]
    assert shapes_of_copies(wrapped) == [[(3,)], [(1,)]]


def test_many_shapes_share_a_copy_of_unknown_shapes() -> None:
    @tf.function(autograph=False)
    def step(iterator: Any, scale: tf.Tensor) -> tf.Tensor:
        return scale * tf.size(iterator.get_next())

    iterator = iter(batches(*range(1, 9), 2, 8))
    concrete = asked(step, iterator, tf.constant(3))
    sizes = [value / 3 for value in values_until_end(lambda: step(iterator, tf.constant(3)))]
    assert sizes == [*range(1, 9), 2, 8]
    assert shapes_of_copies(concrete) == [*([(), (size,)] for size in range(2, 6)), [(), (None,)]]


def test_a_tape_records_the_function_itself() -> None:
    scale = tf.Variable(3.0)

    @tf.function(autograph=False)
    def step(iterator: Any) -> tf.Tensor:
        return scale * tf.reduce_sum(tf.stop_gradient(iterator.get_next()))

    iterator = iter(batches(2, 2, 2, 2))
    asked(step, iterator)
    assert [float(step(iterator)), float(step(iterator))] == [3, 15]
    with tf.GradientTape() as tape:
        result = step(iterator)
    assert float(tape.gradient(result, scale)) == 9
    assert float(step(iterator)) == 39
