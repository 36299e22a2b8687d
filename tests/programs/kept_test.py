"""Programs whose parameters are folded and kept compute what stock TensorFlow computes."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_interop
from tf_interop.runtime.plugin import get_plugin

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(size=[8, 16, 16, 3]).astype(np.float32)
LABELS = np.arange(8) % 5

pytestmark = pytest.mark.usefixtures("units_on_cpus")


@pytest.fixture(autouse=True)
def enabled(units_on_cpus: None) -> Iterator[None]:
    tf_interop.enable()
    yield
    tf_interop.disable()


def small_model() -> Any:
    """Has every kind of fold: plain, depthwise, with bias and shortcut, and a matrix product."""
    layers = keras.layers
    given = keras.Input([16, 16, 3])
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(given)
    x = short = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
    x = layers.BatchNormalization()(layers.Conv2D(8, 1)(x))
    x = layers.ReLU()(layers.Add()([x, short]))
    x = layers.GlobalAveragePooling2D()(layers.SeparableConv2D(64, 3)(x))
    x = layers.BatchNormalization()(layers.Dense(64, use_bias=False)(x))
    model = keras.Model(given, layers.Dense(5, activation="softmax")(x))
    set_random(model, 1)
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    return model


def set_random(model: Any, seed: int) -> None:
    """Sets weights with which outputs depend on all of them."""
    random = np.random.default_rng(seed)
    for variable in model.variables:
        leaf = variable.path.split("/")[-1]
        if leaf in ("gamma", "moving_variance"):
            variable.assign(random.uniform(0.5, 1.5, variable.shape))
        elif len(variable.shape) > 1:
            size = np.prod(variable.shape[:-1])
            variable.assign(random.normal(0, size**-0.5, variable.shape))
        elif len(variable.shape) == 1 and "seed" not in leaf:
            variable.assign(random.normal(0, 0.3, variable.shape))


def stock_outputs(model: Any, images: Any = IMAGES) -> Any:
    """What eager TensorFlow computes, which the plugin never sees."""
    return model(images, training=False).numpy()


def assert_equal(got: Any, expected: Any) -> None:
    # Sums of up to 100 terms, rounded in another order.
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


def assert_folded(least: int = 4) -> None:
    assert not get_plugin().failures
    assert max((each.fold_count for each in get_plugin().fold_reports), default=0) >= least


def test_outputs_are_stocks_at_any_batch_size() -> None:
    model = small_model()
    assert_equal(model.predict(IMAGES, batch_size=3, verbose=0), stock_outputs(model))
    for count in (1, 5):
        assert_equal(model.predict(IMAGES[:count], verbose=0), stock_outputs(model, IMAGES[:count]))
    fixed = tf.function(lambda images: model(images, training=False))
    assert_equal(fixed(IMAGES), stock_outputs(model))
    assert_folded()


def test_weights_may_change_between_calls(tmp_path: pathlib.Path) -> None:
    model = small_model()
    run = tf.function(lambda images: model(images, training=False))
    run(IMAGES)
    before = model.get_weights()
    for seed in range(6):
        set_random(model, seed)
        assert_equal(run(IMAGES), stock_outputs(model))
        assert_equal(run(IMAGES), stock_outputs(model))
    model.set_weights(before)
    assert_equal(run(IMAGES), stock_outputs(model))
    model.save_weights(tmp_path / "some.weights.h5")
    set_random(model, 9)
    run(IMAGES)
    model.load_weights(tmp_path / "some.weights.h5")
    assert_equal(run(IMAGES), stock_outputs(model))
    model.layers[1].kernel.assign_add(np.ones(model.layers[1].kernel.shape, np.float32))
    assert_equal(run(IMAGES), stock_outputs(model))
    assert_folded()


def test_a_step_that_trains_only_the_head_has_stocks_loss() -> None:
    tf_interop.disable()
    expected_model = small_model()
    for layer in expected_model.layers[:-1]:
        layer.trainable = False
    expected_model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    expected = [float(expected_model.train_on_batch(IMAGES, LABELS)) for _ in range(4)]
    tf_interop.enable()
    model = small_model()
    for layer in model.layers[:-1]:
        layer.trainable = False
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    losses = [float(model.train_on_batch(IMAGES, LABELS)) for _ in range(4)]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_a_variable_that_the_function_assigns_is_read_anew() -> None:
    kernel = tf.Variable(RANDOM.normal(size=[3, 3, 3, 4]).astype(np.float32))
    scale = tf.Variable(tf.ones([4]))

    @tf.function
    def run(images: Any) -> Any:
        before = tf.nn.conv2d(images, kernel, 1, "SAME") * scale
        scale.assign_add(tf.ones([4]))
        return before, tf.nn.conv2d(images, kernel, 1, "SAME") * scale

    plain = tf.nn.conv2d(IMAGES, kernel, 1, "SAME")
    for call in range(1, 4):
        before, after = run(IMAGES)
        assert_equal(before, plain * call)
        assert_equal(after, plain * (call + 1))


def test_branches_and_loops() -> None:
    kernel = tf.Variable(RANDOM.normal(size=[1, 1, 3, 3]).astype(np.float32) / 2)
    scale = tf.Variable(tf.constant([1.5, 0.5, 2.0]))

    def layer(images: Any) -> Any:
        return tf.nn.relu(tf.nn.conv2d(images, kernel, 1, "SAME") * scale + scale)

    @tf.function
    def run(images: Any, count: Any) -> Any:
        images = layer(images)
        for _ in tf.range(count):
            images = layer(images)
        return layer(images) if count > 1 else images

    for count in (0, 1, 2):
        expected = layer(IMAGES)
        for _ in range(count):
            expected = layer(expected)
        if count > 1:
            expected = layer(expected)
        assert_equal(run(IMAGES, tf.constant(count)), expected)
    assert not get_plugin().failures


def test_folds_where_outputs_wait_for_the_reads_of_others() -> None:
    """Outputs of a function wait for all of its reads; loops keep Grappler from changing that."""
    kernels = [tf.Variable(RANDOM.normal(size=[1, 1, 3, 3]).astype("f") / 4) for _ in range(3)]
    scale = tf.Variable(tf.constant([1.5, 0.5, 2.0]))

    def layers(images: Any) -> list[Any]:
        results = [images]
        for kernel in kernels:
            results.append(tf.nn.conv2d(results[-1], kernel, 1, "SAME") * scale)
        return results[1:]

    def looping(images: Any) -> Any:
        loop = tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, x / 2), (0, images))
        return layers(loop[1])[-1]

    for program in (layers, looping):
        get_plugin().forget_reports()
        run = tf.function(program)
        for _ in range(3):
            for one, other in zip(run(IMAGES), program(tf.constant(IMAGES)), strict=True):
                assert_equal(one, other)
            scale.assign_add([0.5, 0.5, 0.5])
        assert_folded(least=3)


def test_saved_models_and_frozen_graphs(tmp_path: pathlib.Path) -> None:
    from tensorflow.python.framework.convert_to_constants import (
        convert_variables_to_constants_v2,
    )

    model = small_model()
    expected = stock_outputs(model)
    run = tf.function(lambda images: model(images, training=False))
    concrete = run.get_concrete_function(tf.TensorSpec([None, 16, 16, 3]))
    tf.saved_model.save(model, str(tmp_path), signatures=concrete)
    loaded = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    assert_equal(next(iter(loaded(tf.constant(IMAGES)).values())), expected)
    frozen = convert_variables_to_constants_v2(concrete)
    assert_equal(frozen(tf.constant(IMAGES))[0], expected)
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        name = concrete.inputs[0].op.name
        output = frozen.outputs[0].name
        tf.import_graph_def(frozen.graph.as_graph_def(), name="")
        assert_equal(session.run(output, {f"{name}:0": IMAGES}), expected)
    assert not get_plugin().failures


def test_keeps_nothing_without_room_or_permission() -> None:
    for arguments in ({"kept": False}, {"kept_mb": 0}):
        get_plugin().forget_reports()
        tf_interop.enable(**arguments)
        model = small_model()
        assert_equal(model.predict(IMAGES, verbose=0), stock_outputs(model))
        assert not get_plugin().fold_reports


def test_graphs_of_one_session_keep_values_of_their_own() -> None:
    """A Session shares the kernels of ops with state by name, and each run has a graph."""
    v1 = tf.compat.v1
    random = np.random.default_rng(3)
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.use_plugin_optimizers = 1  # a Session's own option
    config.graph_options.rewrite_options.min_graph_nodes = -1
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        image = v1.placeholder(tf.float32, [None, 16, 16, 3])
        outputs, variables, plain = [], [], []
        for number in range(3):
            kernel = random.normal(size=[3, 3, 3, 2 + number]).astype(np.float32)
            scale = v1.get_variable(f"scale{number}", initializer=np.ones([2 + number], np.float32))
            product = tf.nn.conv2d(image, kernel, 1, "SAME")
            # Later graphs keep more values.
            outputs.append(product * scale + (scale if number else 0))
            variables.append(scale)
            plain.append(product)
        update = [each.assign_add(tf.ones_like(each)) for each in variables]
        session.run(v1.global_variables_initializer())
        for scale_now in (1, 2, 3):
            for number, output in enumerate(outputs):
                expected = session.run(plain[number], {image: IMAGES}) * scale_now
                expected = expected + (scale_now if number else 0)
                assert_equal(session.run(output, {image: IMAGES}), expected)
            session.run(update)
    assert len(get_plugin().fold_reports) >= 3 and not get_plugin().failures


def test_keeps_each_of_several_results() -> None:
    weight = tf.Variable([0.5, -1.0, 2.0])
    filters = [tf.Variable(RANDOM.normal(size=[3, 3, 3, 8]).astype(np.float32)) for _ in range(3)]

    @tf.function(jit_compile=False)
    def weighted(images: tf.Tensor) -> tf.Tensor:
        factors = tf.unstack(tf.sigmoid(weight))
        convolved = [tf.nn.conv2d(images, filter_, 1, "SAME") for filter_ in filters]
        return tf.add_n([image * factor for image, factor in zip(convolved, factors, strict=True)])

    def expected() -> np.ndarray:
        convolved = [tf.nn.conv2d(IMAGES, filter_, 1, "SAME") for filter_ in filters]
        factors = 1 / (1 + np.exp(-weight.numpy()))
        return sum(image * factor for image, factor in zip(convolved, factors, strict=True))

    np.testing.assert_allclose(weighted(tf.constant(IMAGES)), expected(), rtol=1e-4, atol=1e-4)
    [report] = tf_interop.status().folded_graphs
    assert report.refusals == ()
    assert report.folded_count >= 3  # the products
    weight.assign([1.0, 0.0, -2.0])
    np.testing.assert_allclose(weighted(tf.constant(IMAGES)), expected(), rtol=1e-4, atol=1e-4)


def test_a_variable_that_is_passed_on_may_be_another_in_each_call() -> None:
    first, second, folded = (
        tf.Variable(RANDOM.normal(size=[3, 3, 3, 8]).astype(np.float32)) for _ in range(3)
    )
    scale = tf.Variable(RANDOM.normal(size=[8]).astype(np.float32))

    @tf.function(jit_compile=False)
    def convolve(images: tf.Tensor, filter_: tf.Variable) -> tf.Tensor:
        scaled = tf.nn.conv2d(images, folded, 1, "SAME") * scale
        return scaled - tf.nn.conv2d(images, filter_, 1, "SAME")

    for filter_ in (first, first, first, second, first):
        expected = tf.nn.conv2d(IMAGES, folded, 1, "SAME") * scale
        expected -= tf.nn.conv2d(IMAGES, filter_, 1, "SAME")
        got = convolve(tf.constant(IMAGES), filter_)
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    [report] = tf_interop.status().folded_graphs
    assert report.folded_count == 1 and report.refusals == ()
