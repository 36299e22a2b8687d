"""How programs are put together: gradients, checkpoints, saving, threads, tools that look on."""

from __future__ import annotations

import pathlib
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from unnoticed import (
    FILTERS,
    IMAGE,
    Program,
    assert_unnoticed,
    conv,
    digits,
    gradients,
    in_function,
    run_python,
    stages_run,
)

import tf_interop

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


def branches(image: tf.Tensor) -> tf.Tensor:
    return conv(image, 0) + conv(image, 1)


def small(tensor: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(tensor, -2, 2)


def recomputed_with_variables(image: tf.Tensor) -> list[tf.Tensor]:
    """Two checkpoints in a row, computed again in the backward pass."""
    filters = [tf.constant(each) for each in FILTERS[:2]]

    def block(x: tf.Tensor) -> tf.Tensor:
        return small(tf.add_n([tf.nn.conv2d(x, each, 1, "SAME") for each in filters]))

    checkpoint = tf.recompute_grad(block)
    with tf.GradientTape() as tape:
        tape.watch(image)
        loss = tf.reduce_sum(checkpoint(checkpoint(image)))
    return [loss, tape.gradient(loss, image)]


def persistent_tape(image: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(image)
        first, second = small(conv(image, 0)), small(conv(image, 1))
    return [tape.gradient(each, image) for each in (first, second)]


def tape_in_a_tape(image: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as outer:
        outer.watch(image)
        with tf.GradientTape() as inner:
            inner.watch(image)
            first = tf.reduce_sum(tf.nn.conv2d(image, FILTERS[0], 1, "SAME") ** 2)
            second = tf.reduce_sum(tf.nn.conv2d(image, FILTERS[1], 1, "SAME") ** 2)
            loss = first + second
        gradient = inner.gradient(loss, image)
    return [gradient, outer.gradient(gradient, image)]


def forward_mode(image: tf.Tensor) -> list[tf.Tensor]:
    with tf.autodiff.ForwardAccumulator(image, tf.ones_like(image)) as accumulator:
        result = branches(image)
    return [result, accumulator.jvp(result)]


def jacobian(image: tf.Tensor) -> tf.Tensor:
    """pfor makes one batched convolution of many."""
    part = image[:1, :3, :3]
    with tf.GradientTape() as tape:
        tape.watch(part)
        result = small(branches(part))[0, 0]
    return tape.jacobian(result, part)


def tensor_array(image: tf.Tensor) -> tf.Tensor:
    array = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[2, 6, 6, 4])
    for number in range(3):
        array = array.write(number, conv(image, number))
    return array.stack()


def ragged(image: tf.Tensor) -> tf.Tensor:
    rows = tf.RaggedTensor.from_row_lengths(tf.reshape(image, [-1, 6, 4]), [5, 3, 4])
    return branches(rows.to_tensor()[:, :3])


def mapped_in_parallel(image: tf.Tensor) -> tf.Tensor:
    return tf.map_fn(
        lambda each: branches(each[None])[0], tf.tile(image, [4, 1, 1, 1]), parallel_iterations=8
    )


def gradient_of_a_map(image: tf.Tensor) -> list[tf.Tensor]:
    return gradients(lambda x: tf.map_fn(lambda each: branches(each[None])[0], x))(image)


def gradient_of_nested_functions(image: tf.Tensor) -> list[tf.Tensor]:
    inner = tf.function(branches, autograph=False)
    middle = tf.function(lambda x: inner(small(inner(x))) + conv(x, 2), autograph=False)
    return gradients(middle)(image)


def loop_in_a_cond_in_a_loop(image: tf.Tensor) -> tf.Tensor:
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, branches(y)), (0, x))[1]

    def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, tf.cond(i % 2 == 0, lambda: inner(x), lambda: branches(x))

    return tf.while_loop(lambda i, _: i < 3, body, (0, image))[1]


PROGRAMS: dict[str, Program] = {
    each.__name__: each
    for each in (
        recomputed_with_variables,
        persistent_tape,
        tape_in_a_tape,
        forward_mode,
        jacobian,
        tensor_array,
        ragged,
        mapped_in_parallel,
        gradient_of_a_map,
        gradient_of_nested_functions,
        loop_in_a_cond_in_a_loop,
    )
}
PROGRAMS["gradient_of_a_loop_in_a_cond_in_a_loop"] = gradients(loop_in_a_cond_in_a_loop)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_program(program: Program) -> None:
    assert_unnoticed(in_function(program))


def test_retracing_for_other_shapes_types_and_values() -> None:
    def compute(image: tf.Tensor, filters: int) -> tf.Tensor:
        return tf.add_n(
            [
                tf.nn.conv2d(image, tf.cast(each, image.dtype), 1, "SAME")
                for each in FILTERS[:filters]
            ]
        )

    tf_interop.enable("always")
    function = tf.function(compute, autograph=False)
    for _ in range(2):
        for height in (1, 5, 6):
            for dtype in (tf.float32, tf.bfloat16):
                for filters in (2, 3):
                    image = tf.cast(digits(height, 2, height, 6, 4), dtype)
                    before = stages_run()
                    result = function(image, filters)
                    assert stages_run() == before + 1
                    np.testing.assert_array_equal(
                        tf.cast(result, tf.float32), tf.cast(compute(image, filters), tf.float32)
                    )
    assert function.experimental_get_tracing_count() == 12
    assert tf_interop.status().failures == ()


def test_check_numerics_sees_what_a_stage_gives() -> None:
    """It puts its own ops after each output of a traced function."""
    tf_interop.enable("always")
    tf.debugging.enable_check_numerics()
    try:
        function = in_function(branches)()
        before = stages_run()
        np.testing.assert_array_equal(function(tf.constant(IMAGE)), branches(tf.constant(IMAGE)))
        assert stages_run() > before
        huge = tf.function(
            lambda x: (
                tf.nn.conv2d(x, FILTERS[0] * 3e38, 1, "SAME")
                + tf.nn.conv2d(x, FILTERS[1] * 3e38, 1, "SAME")
            ),
            autograph=False,
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?i)inf|nan"):
            huge(tf.constant(IMAGE))
    finally:
        tf.debugging.disable_check_numerics()


def keras_model(seed: int) -> Any:
    tf.keras.utils.set_random_seed(seed)
    image = tf.keras.Input((6, 6, 4))
    outputs = [tf.keras.layers.Conv2D(3, size, padding="same")(image) for size in (1, 3, 5)]
    x = tf.keras.layers.GlobalAveragePooling2D()(tf.keras.layers.Concatenate()(outputs))
    model = tf.keras.Model(image, tf.keras.layers.Dense(2)(x))
    model.compile("sgd", "mse", jit_compile=False)
    return model


# Keras' random weights are no whole numbers: TensorFlow's convolutions round in another order.
def assert_close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("models", [1, 2])
def test_predict_in_two_threads_at_once(models: int) -> None:
    images = np.random.default_rng(0).random((24, 6, 6, 4), np.float32)
    tf_interop.disable()
    ours = [keras_model(seed) for seed in range(models)] * (2 // models)
    expected = [model.predict(images, batch_size=5, verbose=0) for model in ours]
    tf_interop.enable("always")
    for model in ours:
        model.make_predict_function(force=True)
    before = stages_run()
    wrong: list[BaseException] = []

    def predict(model: Any, outputs: np.ndarray) -> None:
        try:
            for batch_size in (5, 8, 3, 5):
                result = model.predict(images, batch_size=batch_size, verbose=0)
                assert_close(result, outputs)
        except BaseException as error:
            wrong.append(error)

    threads = [
        threading.Thread(target=predict, args=arguments, daemon=True)
        for arguments in zip(ours, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not wrong, wrong[0]
    assert stages_run() > before
    assert tf_interop.status().failures == ()


def test_what_is_saved_with_the_plugin_loads_where_it_is_not_installed(
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
    assert stages_run() > before
    np.save(tmp_path / "image.npy", IMAGE)
    np.save(tmp_path / "result.npy", result)
    tf.saved_model.save(module, str(tmp_path / "model"))
    assert b"ConvStage" not in (tmp_path / "model" / "saved_model.pb").read_bytes()
    run_python(
        """
    import sys
    sys.modules["tf_interop"] = None  # importing it fails
    import numpy as np
    import tensorflow as tf
    module = tf.saved_model.load("model")
    result = module.compute(tf.constant(np.load("image.npy")))
    np.testing.assert_array_equal(result, np.load("result.npy"))
    """,
        tmp_path,
    )
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    before = stages_run()
    np.testing.assert_array_equal(loaded.compute(tf.constant(IMAGE)), result)
    assert stages_run() > before
