"""The Keras callback, with Keras 3 and with tf_keras, which goes on with Keras 2."""

from __future__ import annotations

import contextlib
import json
import logging
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_interop
from tf_interop import tensorflow_internals
from tf_interop.errors import LibraryError, PlanError
from tf_interop.keras import ConvStages
from tf_interop.planning.file import save_plan
from tf_interop.runtime import keras_internals
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import Policy, Settings
from tf_interop.runtime.tensorboard import StageValuesWriter

# Ten images in batches of four: Keras leaves the batch dimension open, and the last batch is
# smaller.
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.random((10, 8, 8, 3), dtype=np.float32)
LABELS = RANDOM.random((10, 2), dtype=np.float32)
BATCH_SIZE = 4

OPTION_VALUES = pytest.mark.parametrize("option", [None, True, False])


# TensorFlow's own convolutions on the CPU come from oneDNN, which adds up in another order than the
# host backend: the results differ by rounding. The sums have at most 8 * 8 * 4 terms of order one,
# so that a few of float32's 6e-8 are to be expected, and three steps carry them on.
def _assert_close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.fixture(params=[tf.keras, tf_keras], ids=["keras_3", "tf_keras"], name="keras")
def fixture_keras(request: pytest.FixtureRequest) -> Any:
    assert tf.keras.__version__.startswith("3.")
    return request.param


@pytest.fixture(autouse=True)
def fixture_plugin_as_at_the_start() -> Iterator[None]:
    plugin = get_plugin()
    plugin.settings = Settings()
    plugin.forget_reports()
    tensorflow_internals.set_plugin_optimizers_option(None)
    yield
    plugin.settings = Settings()
    tensorflow_internals.set_plugin_optimizers_option(None)


def _model(keras: Any, *, branches: int = 2, **compile_options: Any) -> Any:
    """A model with a 3x3 and a 5x5 convolution that are independent, the same every time."""
    # Named, because a plan goes by names, and Keras numbers what has none.
    images = keras.Input((8, 8, 3))
    outputs = [
        keras.layers.Conv2D(4, size, padding="same", activation="relu", name=f"{size}x{size}")(
            images
        )
        for size in (3, 5)[:branches]
    ]
    x = keras.layers.Concatenate()(outputs) if branches > 1 else outputs[0]
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(images, keras.layers.Dense(2)(x), name="branches")
    random = np.random.default_rng(1)
    model.set_weights([random.normal(0, 0.3, weight.shape) for weight in model.get_weights()])
    model.compile(optimizer="sgd", loss="mse", **compile_options)
    return model


def _fit(model: Any, *callbacks: Any, epochs: int = 1, **options: Any) -> dict[str, list[Any]]:
    history: dict[str, list[Any]] = model.fit(
        IMAGES,
        LABELS,
        batch_size=BATCH_SIZE,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
        **options,
    ).history
    return history


def _stages_run() -> int:
    return tf_interop.status().counters.stages_run


@contextlib.contextmanager
def _runs_stages(expected: bool) -> Iterator[None]:
    before = _stages_run()
    yield
    assert (_stages_run() > before) is expected


def _hook(keras: Any, name: str, function: Any) -> Any:
    """A callback that calls `function` in one of its hooks."""
    callback = keras.callbacks.Callback()
    setattr(callback, name, function)
    return callback


def test_fit_gives_the_same_losses_and_weights(keras: Any) -> None:
    plain, staged = _model(keras), _model(keras)
    expected = _fit(plain, epochs=2)
    with _runs_stages(True):
        history = _fit(staged, ConvStages("always"), epochs=2)
    _assert_close(history["loss"], expected["loss"])
    for weight, expected_weight in zip(staged.get_weights(), plain.get_weights(), strict=True):
        _assert_close(weight, expected_weight)


def test_evaluate_and_predict_give_the_same(keras: Any) -> None:
    model = _model(keras)
    options = {"batch_size": BATCH_SIZE, "verbose": 0}
    expected_loss = model.evaluate(IMAGES, LABELS, **options)
    expected = model.predict(IMAGES, **options)
    with _runs_stages(True):
        loss = model.evaluate(IMAGES, LABELS, callbacks=[ConvStages("always")], **options)
    with _runs_stages(True):
        outputs = model.predict(IMAGES, callbacks=[ConvStages("always")], **options)
    # A number, as without the callback: what it puts into the logs is no part of the result.
    _assert_close(loss, expected_loss)
    _assert_close(outputs, expected)


def test_history_holds_the_number_of_stages_for_each_epoch(keras: Any) -> None:
    callback = ConvStages("always")
    validation_data = (IMAGES[:5], LABELS[:5])
    history = _fit(_model(keras), callback, epochs=2, validation_data=validation_data)
    # Two in the training step, the convolutions and their gradients by filter; one in validation.
    assert history["conv_stages"] == [3, 3]
    assert set(history) == {"loss", "val_loss", "conv_stages"}
    assert len(history["val_loss"]) == 2
    assert callback.stage_count == 3
    assert sorted(report.convolution_count for report in callback.graphs) == [2, 4]


def test_other_callbacks_see_the_number_of_stages_of_evaluate_and_predict(keras: Any) -> None:
    model = _model(keras)
    seen: list[Any] = []
    see_test = _hook(keras, "on_test_end", lambda logs=None: seen.append(logs["conv_stages"]))
    see_predict = _hook(keras, "on_predict_end", lambda logs=None: seen.append(logs["conv_stages"]))
    stages = ConvStages("always")
    result = model.evaluate(
        IMAGES, LABELS, verbose=0, callbacks=[stages, see_test], return_dict=True
    )
    model.predict(IMAGES, verbose=0, callbacks=[stages, see_predict])
    assert seen == [1, 1]
    assert set(result) == {"loss"}


def test_counts_only_graphs_of_the_call(keras: Any) -> None:
    callback = ConvStages("always")
    model = _model(keras)
    assert _fit(model, callback)["conv_stages"] == [2]
    # The same graph again: made and counted anew.
    assert _fit(model, callback)["conv_stages"] == [2]
    assert _fit(_model(keras, branches=1), callback)["conv_stages"] == [2]
    assert _fit(model, ConvStages())["conv_stages"] == [0]


def test_plan_of_an_earlier_run_gives_the_same_stages(keras: Any) -> None:
    always = ConvStages("always", verbose=0)
    validation_data = (IMAGES, LABELS)
    expected = _fit(_model(keras), always, validation_data=validation_data)
    plan = tf_interop.status().plan
    get_plugin().forget_reports()
    planned = ConvStages(plan=plan, verbose=0)
    history = _fit(_model(keras), planned, validation_data=validation_data)
    assert history["conv_stages"] == expected["conv_stages"] == [3]
    assert history["loss"] == expected["loss"]
    assert {report.plan.fingerprint for report in planned.graphs} == {
        report.plan.fingerprint for report in always.graphs
    }


@OPTION_VALUES
def test_restores_settings_option_and_functions(keras: Any, option: bool | None) -> None:
    plugin = get_plugin()
    model = _model(keras)
    plugin.settings = settings = Settings()
    tensorflow_internals.set_plugin_optimizers_option(option)
    model.predict(IMAGES, verbose=0)
    functions = keras_internals.functions_of(model)
    assert functions["predict_function"] is not None
    during: list[Any] = []

    def look(logs: Any = None) -> None:
        during.append((plugin.settings.policy, tensorflow_internals.plugin_optimizers_option()))

    _fit(model, ConvStages("always"), _hook(keras, "on_train_begin", look))
    assert during == [(Policy.ALWAYS, True)]
    assert plugin.settings is settings
    assert tensorflow_internals.plugin_optimizers_option() is option
    assert keras_internals.functions_of(model) == functions
    assert functions["train_function"] is None


@pytest.mark.parametrize("option", [None, True])
def test_makes_stages_in_its_call_alone(keras: Any, option: bool | None) -> None:
    tensorflow_internals.set_plugin_optimizers_option(option)
    model = _model(keras)
    with _runs_stages(False):
        _fit(model)
    # The function of the first fit has been optimized without stages.
    with _runs_stages(True):
        _fit(model, ConvStages("always"))
    with _runs_stages(False):
        _fit(model)
        model.evaluate(IMAGES, LABELS, verbose=0)


def test_validation_does_not_end_the_call(keras: Any) -> None:
    run: list[int] = []
    count = _hook(keras, "on_epoch_end", lambda epoch, logs=None: run.append(_stages_run()))
    before = _stages_run()
    validation_data = (IMAGES[:5], LABELS[:5])
    _fit(_model(keras), ConvStages("always"), count, epochs=2, validation_data=validation_data)
    # Three training steps of two stages each, two validation steps of one.
    assert [run[0] - before, run[1] - run[0]] == [8, 8]


class _BatchError(Exception):
    pass


def _fail(*_: Any, **__: Any) -> None:
    raise _BatchError


def _failed_fit(keras: Any, model: Any, callback: ConvStages) -> None:
    with pytest.raises(_BatchError):
        _fit(model, callback, _hook(keras, "on_train_batch_end", _fail))


@pytest.mark.parametrize("how", ["restore", "with", "next_use"])
def test_puts_back_what_a_failed_call_has_left(keras: Any, how: str) -> None:
    plugin = get_plugin()
    model = _model(keras)
    with ConvStages("always") if how == "with" else contextlib.nullcontext() as entered:
        callback = entered or ConvStages("always")
        _failed_fit(keras, model, callback)
        assert plugin.settings.policy is Policy.ALWAYS
        assert model.train_function is not None
    if how == "restore":
        callback.restore()
    elif how == "next_use":
        assert _fit(_model(keras), callback)["conv_stages"] == [2]
    assert plugin.settings == Settings()
    assert tensorflow_internals.plugin_optimizers_option() is None
    assert model.train_function is None
    assert callback.stage_count == 2
    plugin.settings = others = Settings(Policy.ALWAYS)
    callback.restore()
    assert plugin.settings is others


def test_drops_functions_of_a_model_that_is_compiled_during_the_call(keras: Any) -> None:
    def fit_and_compile(model: Any, *callbacks: Any) -> Any:
        def compile_anew(epoch: int, logs: Any = None) -> None:
            model.compile(optimizer="sgd", loss="mae")

        _fit(model)
        _fit(model, *callbacks, _hook(keras, "on_epoch_end", compile_anew))
        return model

    model = fit_and_compile(_model(keras), ConvStages("always"))
    # The functions that were laid aside are for the loss that was there before.
    assert model.train_function is None
    with _runs_stages(False):
        history = _fit(model)
    expected = _fit(fit_and_compile(_model(keras)))
    _assert_close(history["loss"], expected["loss"])


def test_call_inside_a_hook_with_a_callback_of_its_own(keras: Any) -> None:
    model = _model(keras)
    inner, outer = ConvStages("always"), ConvStages("always")

    def predict(epoch: int, logs: Any = None) -> None:
        model.predict(IMAGES, verbose=0, callbacks=[inner])
        assert get_plugin().settings.policy is Policy.ALWAYS

    _fit(model, outer, _hook(keras, "on_epoch_end", predict), epochs=2)
    assert (inner.stage_count, outer.stage_count) == (1, 3)
    assert get_plugin().settings == Settings()
    assert tensorflow_internals.plugin_optimizers_option() is None


def test_calls_in_two_threads_at_once_run(keras: Any) -> None:
    models = [_model(keras), _model(keras)]
    expected = _fit(_model(keras), epochs=3)["loss"]
    losses: list[list[float]] = []

    def fit(model: Any) -> None:
        losses.append(_fit(model, ConvStages("always", verbose=0), epochs=3)["loss"])

    threads = [threading.Thread(target=fit, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(losses) == 2
    _assert_close(losses, [expected, expected])


def test_turns_xla_off_where_auto_has_turned_it_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As on a machine with a GPU, where `jit_compile="auto"` becomes True.
    monkeypatch.setattr(tf.keras.Model, "_resolve_auto_jit_compile", lambda self: True)
    model = _model(tf.keras)
    assert model.jit_compile is True
    during: list[bool] = []
    look = _hook(tf.keras, "on_train_begin", lambda logs=None: during.append(model.jit_compile))
    with _runs_stages(True):
        assert _fit(model, ConvStages("always"), look)["conv_stages"] == [2]
    assert during == [False]
    assert model.jit_compile is True
    assert model.train_function is None
    assert capsys.readouterr().out.count("XLA is off for model") == 1


def test_model_compiled_during_the_call_keeps_its_jit_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keras_internals, "resolves_auto_to_xla", lambda model: True)
    model = _model(tf.keras, jit_compile=True)

    def compile_anew(epoch: int, logs: Any = None) -> None:
        model.compile(optimizer="sgd", loss="mse", jit_compile=False)

    _fit(model, ConvStages("always"), _hook(tf.keras, "on_epoch_end", compile_anew))
    assert model.jit_compile is False


def test_leaves_xla_on_where_nothing_could_be_made_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keras_internals, "resolves_auto_to_xla", lambda model: True)
    model = _model(tf.keras, jit_compile=True)
    during: list[bool] = []
    look = _hook(tf.keras, "on_train_begin", lambda logs=None: during.append(model.jit_compile))
    _fit(model, ConvStages(), look)
    assert during == [True]


def test_leaves_explicit_xla_alone(
    keras: Any, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    model = _model(keras, jit_compile=True)
    with caplog.at_level(logging.WARNING, "absl"), _runs_stages(False):
        assert _fit(model, ConvStages("always"))["conv_stages"] == [0]
    assert model.jit_compile is True
    (warning,) = [each for each in caplog.messages if "jit_compile=True" in each]
    assert "Compile it with jit_compile=False" in warning
    assert "XLA compiles the model's functions (jit_compile=True)" in capsys.readouterr().out


def _summaries(log_dir: pathlib.Path) -> list[tuple[int, str, str, Any]]:
    """Step, tag, TensorBoard's plugin and value of everything in the one event file, in order."""
    (file,) = (log_dir / "conv_stages").iterdir()
    events = [
        tf.compat.v1.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset([file])
    ]
    return [
        (
            event.step,
            value.tag,
            value.metadata.plugin_data.plugin_name,
            tf.make_ndarray(value.tensor).item(),
        )
        for event in events
        for value in event.summary.value
    ]


def test_writes_values_of_each_epoch(keras: Any, tmp_path: pathlib.Path) -> None:
    before = _stages_run()
    _fit(_model(keras), ConvStages("always", log_dir=tmp_path), epochs=2)
    # Forward, and the filters' gradients: three batches an epoch.
    assert _stages_run() - before == 12
    summaries = _summaries(tmp_path)
    scalars = [each for each in summaries if each[2] == "scalars"]
    assert scalars == [
        (epoch, f"conv_stages/{name}", "scalars", value)
        for epoch in (0, 1)
        for name, value in [
            ("stages", 2.0),
            ("convolutions_in_stages", 4.0),
            ("stages_run", 6.0),
            ("fallbacks", 0.0),
        ]
    ]
    (text,) = [each for each in summaries if each[2] == "text"]
    assert text[:2] == (0, "conv_stages/status")
    assert b"tf_interop is on, policy always" in text[3]


def test_counts_fallbacks_of_an_epoch(tmp_path: pathlib.Path) -> None:
    model = _model(tf.keras)
    _fit(model, ConvStages("always"))
    path = tmp_path / "plan.json"
    save_plan(tf_interop.status().plan, path)
    plan = json.loads(path.read_text())
    for graph in plan["graphs"]:
        for stage in graph["stages"]:
            for lane in stage["stage"]["lanes"]:
                for step in lane["steps"]:
                    step["algorithm"] = "FFT"  # which the host backend does not have
    path.write_text(json.dumps(plan))
    _fit(_model(tf.keras), ConvStages(plan=path, log_dir=tmp_path))
    (fallbacks,) = [each[3] for each in _summaries(tmp_path) if each[1].endswith("fallbacks")]
    assert fallbacks > 0


def test_writes_values_of_a_prediction(keras: Any, tmp_path: pathlib.Path) -> None:
    callback = ConvStages("always", log_dir=tmp_path, verbose=0)
    _model(keras).predict(IMAGES, verbose=0, callbacks=[callback])
    values = {tag: value for step, tag, _, value in _summaries(tmp_path) if step == 0}
    assert values["conv_stages/stages"] == 1
    assert values["conv_stages/stages_run"] > 0


def test_puts_everything_back_where_the_values_cannot_be_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: StageValuesWriter) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(StageValuesWriter, "close", fail)
    plugin, model = get_plugin(), _model(tf.keras)
    callback = ConvStages("always", log_dir=tmp_path, verbose=0)
    with pytest.raises(OSError, match="no space left"):
        _fit(model, callback)
    assert plugin.settings == Settings()
    assert tensorflow_internals.plugin_optimizers_option() is None
    with _runs_stages(False):
        _fit(model)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"policy": "fastest"}, ValueError, "fastest"),
        ({"policy": "always", "plan": "plan.json"}, ValueError, "plan"),
        ({"plan": "/nowhere/plan.json"}, PlanError, "/nowhere/plan.json"),
        ({"verbose": 2}, ValueError, "verbose"),
    ],
    ids=["policy", "plan_with_always", "missing_plan", "verbose"],
)
def test_refuses_arguments_when_it_is_made(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ConvStages(**arguments)


def test_raises_when_the_library_is_missing(keras: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_library_error() -> None:
        raise LibraryError("Expected the compiled library, found none.")

    model = _model(keras)
    _fit(model)
    train_function = model.train_function
    callback = ConvStages("always")
    monkeypatch.setattr("tf_interop.keras.get_plugin", raise_library_error)
    with pytest.raises(LibraryError, match="found none"):
        _fit(model, callback)
    assert model.train_function is train_function
    assert tensorflow_internals.plugin_optimizers_option() is None


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if "ConvStages" in line]


def test_prints_one_line(keras: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _fit(_model(keras), ConvStages("always"), epochs=2, validation_data=(IMAGES, LABELS))
    assert _lines(capsys) == ["ConvStages: 3 stages from 6 convolutions"]
    _model(keras).predict(IMAGES, verbose=1, callbacks=[ConvStages("always")])
    assert _lines(capsys) == ["ConvStages: 1 stage from 2 convolutions"]
    _fit(_model(keras), ConvStages("always", verbose=0))
    assert _lines(capsys) == []


def test_prints_what_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    images = tf.keras.Input((8, 8, 3))
    x = tf.keras.layers.Conv2D(2, 3)(images)
    x = tf.keras.layers.Lambda(
        lambda x: tf.nn.conv2d(tf.cast(x, tf.int32), tf.ones((3, 3, 2, 2), tf.int32), 1, "SAME")
    )(x)
    model = tf.keras.Model(images, x)
    model.predict(IMAGES, verbose=0, callbacks=[ConvStages("always")])
    assert _lines(capsys) == [
        "ConvStages: 1 stage from 1 convolution (1 left alone: 1 dtype)",
    ]


def test_prints_why_there_are_no_stages(keras: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _fit(_model(keras), ConvStages())
    (line,) = _lines(capsys)
    assert line.startswith("ConvStages: no stages: policy 'profiled' makes none without a plan")

    _fit(_model(keras, run_eagerly=True), ConvStages("always"))
    (line,) = _lines(capsys)
    assert line.endswith("the model runs eagerly (run_eagerly=True)")

    _model(keras).predict(IMAGES, verbose=0, callbacks=[ConvStages("always", verbose=0)])
    _fit(_model(keras), ConvStages(plan=tf_interop.status().plan))  # of prediction alone
    (line,) = _lines(capsys)
    assert "PlanError: Expected a plan for this graph" in line


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_trains_as_without_stages(keras: Any, policy: str) -> None:
    keras.mixed_precision.set_global_policy(policy)
    try:
        stock, model = _model(keras), _model(keras)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    expected = _fit(stock, epochs=2)
    with _runs_stages(expected=True):
        history = _fit(model, ConvStages("always", verbose=0), epochs=2)
    assert all(not report.refusals for report in get_plugin().reports)
    # One rounding of a bfloat16 (8 significant bits) or a half (11) either way, now and then.
    tolerance = 2.0**-7 if policy == "mixed_bfloat16" else 2.0**-10
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=tolerance)
    for ours, theirs in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance / 4)


def test_has_no_batch_hooks_to_wait_for(keras: Any) -> None:
    callbacks = keras.callbacks.CallbackList([ConvStages("always")])
    if keras is tf_keras:
        assert not callbacks._should_call_train_batch_hooks
        assert not callbacks._should_call_test_batch_hooks
        assert not callbacks._should_call_predict_batch_hooks
    for name in ("train", "test", "predict"):
        getattr(callbacks, f"on_{name}_batch_begin")(0)
