"""Programs whose parameters are folded and kept compute what stock TensorFlow computes."""

from __future__ import annotations

import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from unnoticed import in_session, run_python, v1

import tf_interop
from tf_interop.model.graphs import optimize_graph, trace, unread_nodes
from tf_interop.runtime.fold_pass import run_fold_pass
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import GraphItem

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(size=[8, 16, 16, 3]).astype(np.float32)
LABELS = np.arange(8) % 5
pytestmark = pytest.mark.usefixtures("enabled")


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


def test_outputs_are_stocks_at_any_batch_size_and_with_new_weights(tmp_path: pathlib.Path) -> None:
    model = small_model()
    run = tf.function(lambda images: model(images, training=False))
    model.save_weights(tmp_path / "some.weights.h5")
    for seed in range(4):
        assert_equal(model.predict(IMAGES, batch_size=3, verbose=0), stock_outputs(model))
        for count in (1, 5, 5):
            assert_equal(run(IMAGES[:count]), stock_outputs(model, IMAGES[:count]))
        set_random(model, seed)
    model.load_weights(tmp_path / "some.weights.h5")
    assert_equal(run(IMAGES[:5]), stock_outputs(model, IMAGES[:5]))
    assert_folded()


def test_saved_models_and_frozen_graphs(tmp_path: pathlib.Path) -> None:
    model = small_model()
    expected = stock_outputs(model)
    run = tf.function(lambda images: model(images, training=False))
    concrete = run.get_concrete_function(tf.TensorSpec([None, 16, 16, 3]))
    tf.saved_model.save(model, str(tmp_path), signatures=concrete)
    loaded = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    assert_equal(next(iter(loaded(tf.constant(IMAGES)).values())), expected)
    frozen = convert_variables_to_constants_v2(concrete)
    assert_equal(frozen(tf.constant(IMAGES))[0], expected)
    assert_folded()


def test_a_step_that_trains_only_the_head_has_stocks_loss() -> None:
    def losses_of_head() -> list[float]:
        model = small_model()
        for layer in model.layers[:-1]:
            layer.trainable = False
        model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
        return [float(model.train_on_batch(IMAGES, LABELS)) for _ in range(4)]

    tf_interop.disable()
    expected = losses_of_head()
    tf_interop.enable()
    losses = losses_of_head()
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_a_parameter_may_be_joined_to_the_images() -> None:
    """Such as the class token of a vision transformer, for a batch of known size."""
    kernel = tf.Variable(RANDOM.normal(size=[3, 3, 3, 8]).astype("f") / 4)
    token, weights = tf.Variable(tf.ones([1, 1, 8])), tf.Variable(tf.ones([8, 4]))

    def program(images: Any) -> Any:
        pixels = tf.nn.relu(tf.nn.conv2d(images, kernel, 2, "SAME"))
        first = tf.broadcast_to(2 * token, [len(IMAGES), 1, 8])
        rows = tf.concat([first, tf.reshape(pixels, [len(IMAGES), -1, 8])], 1)
        return tf.nn.relu(tf.einsum("btc,cd->btd", rows, weights))

    run = tf.function(program)
    for _ in range(3):
        assert_equal(run(IMAGES), program(tf.constant(IMAGES)))
    assert not get_plugin().failures
    assert tf_interop.status().op_count == 1


@pytest.mark.parametrize("is_in_loop", [False, True])
def test_a_variable_that_the_function_assigns_is_read_anew(is_in_loop: bool) -> None:
    kernel = tf.Variable(RANDOM.normal(size=[3, 3, 3, 4]).astype(np.float32))
    scale = tf.Variable(tf.ones([4]))

    @tf.function
    def run(images: Any, repetitions: Any) -> Any:
        before = tf.nn.conv2d(images, kernel, 1, "SAME") * scale
        for _ in tf.range(repetitions) if is_in_loop else [0]:
            scale.assign_add(tf.ones([4]))
        return before, tf.nn.conv2d(images, kernel, 1, "SAME") * scale

    plain = tf.nn.conv2d(IMAGES, kernel, 1, "SAME")
    for call in range(1, 4):
        before, after = run(IMAGES, tf.constant(1))
        assert_equal(before, plain * call)
        assert_equal(after, plain * (call + 1))


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


def test_keeps_nothing_without_room_or_permission() -> None:
    for arguments in ({"kept": False}, {"kept_mb": 0}):
        get_plugin().forget_reports()
        tf_interop.enable(**arguments)
        model = small_model()
        assert_equal(model.predict(IMAGES, verbose=0), stock_outputs(model))
        assert not get_plugin().fold_reports


def test_a_graph_that_is_written_down_has_no_ops_of_ours() -> None:
    kernel, bias = tf.Variable(tf.ones([3, 3, 3, 4])), tf.Variable(tf.ones([4]))

    @tf.function(input_signature=[tf.TensorSpec(IMAGES.shape)])
    def run(images: tf.Tensor) -> tf.Tensor:
        with tf.device("/CPU:0"):
            return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, kernel, 1, "SAME"), bias))

    frozen = convert_variables_to_constants_v2(run.get_concrete_function())
    assert not [node.op for node in frozen.graph.as_graph_def().node if "TfInterop" in node.op]
    assert_equal(frozen(tf.constant(IMAGES))[0], run(IMAGES))


MANY_TRACES = """
import time

import numpy as np, tensorflow as tf
import tf_interop
from tf_interop.runtime.plugin import get_plugin

tf_interop.enable()
filter_ = tf.Variable(tf.random.normal([3, 3, 64, 256]))  # 576 KiB; three times that is held
scale = tf.Variable(tf.fill([256], 2.0))

def network(image):
    return tf.nn.conv2d(image, filter_, 1, "SAME") * scale

run = tf.function(network)
kept = []
for size in (8, 9, 10, 8):
    image = tf.random.normal([1, size, size, 64])
    for _ in range(3):
        result = run(image)
    np.testing.assert_allclose(result, network(image), rtol=1e-3, atol=1e-3)
    kept.append(get_plugin().library.read_counters().kept_bytes)
    time.sleep(1.1)
assert run.experimental_get_tracing_count() == 3
assert kept == [3 * 3 * 64 * 256 * 4] * 4, kept
"""


def test_traces_that_are_not_called_any_more_give_up_what_they_hold() -> None:
    run_python(MANY_TRACES, TF_INTEROP_HELD_MB="2")


def test_a_filter_without_room_is_computed_in_each_call() -> None:
    large = tf.Variable(tf.ones([3, 3, 256, 256]))
    traced = trace(
        tf.function(
            lambda x: tf.nn.conv2d(x, tf.sqrt(tf.abs(large)), 1, "SAME"),
            input_signature=[tf.TensorSpec([1, 4, 4, 256])],
        )
    )
    graph_def = optimize_graph(traced, None)
    item = GraphItem("CPU", unread_nodes(graph_def))
    folded, report = run_fold_pass(graph_def, item, kept_mb=1, has_onednn=True)
    assert report is not None and "MiB" in report.refusals[0].detail
    assert "TfInterop>Kept" not in {node.op for node in (folded or graph_def).node}


def test_graphs_of_one_session_keep_values_of_their_own() -> None:
    """A Session shares the kernels of ops with state by name, and each run has a graph."""
    random = np.random.default_rng(3)

    def build_and_run(session: Any) -> None:
        image = v1.placeholder(tf.float32, [None, 16, 16, 3])
        outputs, variables, plain = [], [], []
        for number in range(3):
            kernel = random.normal(size=[3, 3, 3, 2 + number]).astype(np.float32)
            scale = v1.get_variable(f"scale{number}", initializer=np.ones([2 + number], np.float32))
            plain.append(tf.nn.conv2d(image, kernel, 1, "SAME"))
            # Later graphs keep more values.
            outputs.append(plain[-1] * scale + (scale if number else 0))
            variables.append(scale)
        update = [each.assign_add(tf.ones_like(each)) for each in variables]
        session.run(v1.global_variables_initializer())
        for scale_now in (1, 2, 3):
            for number, output in enumerate(outputs):
                expected = session.run(plain[number], {image: IMAGES}) * scale_now
                expected = expected + (scale_now if number else 0)
                assert_equal(session.run(output, {image: IMAGES}), expected)
            session.run(update)

    in_session(build_and_run)()(IMAGES)
    assert len(get_plugin().fold_reports) >= 3 and not get_plugin().failures


def test_keeps_each_of_several_results() -> None:
    weight = tf.Variable([0.5, -1.0, 2.0])
    filters = [tf.Variable(RANDOM.normal(size=[3, 3, 3, 8]).astype(np.float32)) for _ in range(3)]

    def weighted(images: Any) -> tf.Tensor:
        factors = tf.unstack(tf.sigmoid(weight))
        convolved = [tf.nn.conv2d(images, filter_, 1, "SAME") for filter_ in filters]
        return tf.add_n([image * factor for image, factor in zip(convolved, factors, strict=True)])

    run = tf.function(weighted)
    for values in ([0.5, -1.0, 2.0], [1.0, 0.0, -2.0]):
        weight.assign(values)
        np.testing.assert_allclose(run(IMAGES), weighted(IMAGES), rtol=1e-4, atol=1e-4)
    [report] = get_plugin().fold_reports
    assert report.refusals == ()
    assert report.folded_count >= 3  # the products
