"""The Keras callback, with Keras 3 and with tf_keras, which continues Keras 2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from plan_values import landmarks_of
from planning_graphs import make_stage
from unnoticed import assert_same, stages_run

from tf_interop import tensorflow_internals
from tf_interop.errors import LibraryError, PlanError
from tf_interop.keras import Enable
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import Policy, Settings

# Keras leaves the batch dimension open, and the last batch is smaller.
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.random((10, 8, 8, 3), dtype=np.float32)
LABELS = RANDOM.random((10, 2), dtype=np.float32)
BATCH_SIZE = 4
VALIDATION = {"validation_data": (IMAGES[:5], LABELS[:5])}


# oneDNN, TensorFlow's own backend on CPUs, adds up in another order than the host backend. The sums
# have at most 8 * 8 * 4 terms of order one, so the results differ by a few of float32's 6e-8, which
# three steps accumulate.
def _assert_close(actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert_same(tf.nest.flatten(actual), tf.nest.flatten(expected), rtol=rtol, atol=atol)


@pytest.fixture(params=[tf.keras, tf_keras], ids=["keras_3", "tf_keras"], name="keras")
def fixture_keras(request: pytest.FixtureRequest) -> Any:
    assert tf.keras.__version__.startswith("3.")
    return request.param


@pytest.fixture(autouse=True)
def fixture_plugin_as_at_the_start(plugin_as_after_import: None) -> Iterator[None]:
    tensorflow_internals.set_plugin_optimizers_option(None)
    yield
    tensorflow_internals.set_plugin_optimizers_option(None)


def _model(keras: Any, **options: Any) -> Any:
    """A model with convolutions of sides 3 and 5 that are independent, the same every time."""
    # A plan uses names, and Keras numbers layers without one.
    layers = keras.layers
    inputs = keras.Input(IMAGES.shape[1:])
    outputs = [
        layers.Conv2D(4, size, padding="same", activation="relu", name=f"{size}x{size}")(inputs)
        for size in (3, 5)
    ]
    x = layers.GlobalAveragePooling2D()(layers.Concatenate()(outputs))
    model = keras.Model(inputs, layers.Dense(2)(x), name="branches")
    random = np.random.default_rng(1)
    model.set_weights([random.normal(0, 0.3, weight.shape) for weight in model.get_weights()])
    model.compile(optimizer="sgd", loss="mse", **options)
    return model


def _fit(model: Any, *callbacks: Any, epochs: int = 1, **options: Any) -> dict[str, list[Any]]:
    fixed = {"batch_size": BATCH_SIZE, "shuffle": False, "verbose": 0, "epochs": epochs}
    history: dict[str, list[Any]] = model.fit(
        IMAGES, LABELS, callbacks=list(callbacks), **fixed, **options
    ).history
    return history


def _predict(model: Any, *callbacks: Any, verbose: int = 0) -> Any:
    return model.predict(IMAGES, batch_size=BATCH_SIZE, verbose=verbose, callbacks=list(callbacks))


@contextlib.contextmanager
def _runs_stages(expected: bool) -> Iterator[None]:
    before = stages_run()
    yield
    assert (stages_run() > before) is expected


def _hook(keras: Any, name: str, function: Any) -> Any:
    """A callback that calls `function` in the hook `name`."""
    callback = keras.callbacks.Callback()
    setattr(callback, name, function)
    return callback


# An occasional rounding of a bfloat16 (8 significant bits), up or down.
@pytest.mark.parametrize(
    ("policy", "tolerance"),
    [("float32", 1e-5), ("mixed_bfloat16", 2.0**-7)],
)
def test_trains_and_predicts_as_without_stages(keras: Any, policy: str, tolerance: float) -> None:
    keras.mixed_precision.set_global_policy(policy)
    try:
        plain, staged = _model(keras), _model(keras)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    expected = _fit(plain, epochs=2)
    with _runs_stages(True):
        history = _fit(staged, Enable("always", verbose=0), epochs=2)
    assert all(not report.refusals for report in get_plugin().reports)
    _assert_close(history["loss"], expected["loss"], tolerance)
    _assert_close(staged.get_weights(), plain.get_weights(), tolerance, tolerance / 4)
    predicted = _predict(staged, Enable("always"))
    _assert_close(predicted, _predict(plain), tolerance, tolerance / 4)


def test_evaluate_gives_the_same_and_other_callbacks_see_the_op_count(keras: Any) -> None:
    model = _model(keras)
    expected = model.evaluate(IMAGES, LABELS, verbose=0)
    seen: list[Any] = []
    look = [
        _hook(keras, f"on_{what}_end", lambda logs=None: seen.append(logs["tf_interop_ops"]))
        for what in ("test", "predict")
    ]
    callbacks = [Enable("always"), *look]
    # A number, as without the callback: its own log entry is not part of the result.
    _assert_close(model.evaluate(IMAGES, LABELS, verbose=0, callbacks=callbacks), expected)
    _predict(model, *callbacks)
    assert seen == [1, 1]


def test_history_has_the_op_count_of_each_epoch(keras: Any) -> None:
    run: list[int] = [stages_run()]
    count = _hook(keras, "on_epoch_end", lambda epoch, logs=None: run.append(stages_run()))
    callback = Enable("always")
    history = _fit(_model(keras), callback, count, epochs=2, **VALIDATION)
    # Two in the training step, the convolutions and their gradients by filter; one in validation.
    assert history["tf_interop_ops"] == [3, 3]
    assert set(history) == {"loss", "val_loss", "tf_interop_ops"}
    assert callback.op_count == 3
    assert sorted(report.convolution_count for report in callback.graphs) == [2, 4]
    # Validation does not end the call: three steps of two stages each, two of one.
    assert np.diff(run).tolist() == [8, 8]


@pytest.mark.parametrize("option", [None, False])
def test_makes_stages_only_in_its_call_and_restores_everything(
    keras: Any, option: bool | None
) -> None:
    plugin, model = get_plugin(), _model(keras)
    plugin.settings = settings = Settings()
    tensorflow_internals.set_plugin_optimizers_option(option)
    _predict(model)
    functions = tensorflow_internals.model_functions(model)
    assert functions["predict_function"] is not None
    during: list[Any] = []

    def look(logs: Any = None) -> None:
        option = tensorflow_internals.plugin_optimizers_option()
        during.append((plugin.settings.policy, plugin.settings.workspace_limit_mb, option))

    with _runs_stages(True):
        callback = Enable("always", workspace_limit_mb=5)
        _fit(model, callback, _hook(keras, "on_train_begin", look))
    assert during == [(Policy.ALWAYS, 5, True)]
    assert plugin.settings is settings
    assert tensorflow_internals.plugin_optimizers_option() is option
    assert tensorflow_internals.model_functions(model) == functions
    assert functions["train_function"] is None
    with _runs_stages(False):
        _fit(model)
    # The previous fit's function was optimized without stages.
    with _runs_stages(True):
        _fit(model, Enable("always"))


@pytest.mark.parametrize("how", ["restore", "with", "next_use"])
def test_restores_everything_after_a_failed_call(keras: Any, how: str) -> None:
    plugin, model = get_plugin(), _model(keras)
    callback = Enable("always")
    with callback if how == "with" else contextlib.nullcontext():
        with pytest.raises(ZeroDivisionError):
            _fit(model, callback, _hook(keras, "on_train_batch_end", lambda *_, **__: 1 / 0))
        assert plugin.settings.policy is Policy.ALWAYS
        assert model.train_function is not None
    if how == "restore":
        callback.restore()
    elif how == "next_use":
        assert _fit(_model(keras), callback)["tf_interop_ops"] == [2]
    assert plugin.settings == Settings()
    assert tensorflow_internals.plugin_optimizers_option() is None
    assert model.train_function is None
    assert callback.op_count == 2
    plugin.settings = others = Settings(Policy.ALWAYS)
    callback.restore()
    assert plugin.settings is others


def _compile_anew(keras: Any, model: Any, **options: Any) -> Any:
    """A callback that compiles the model after an epoch."""
    return _hook(keras, "on_epoch_end", lambda *_, **__: model.compile(optimizer="sgd", **options))


def test_drops_functions_of_a_model_that_is_compiled_during_the_call(keras: Any) -> None:
    def fit_and_compile(model: Any, *callbacks: Any) -> Any:
        _fit(model)
        _fit(model, *callbacks, _compile_anew(keras, model, loss="mae"))
        return model

    model = fit_and_compile(_model(keras), Enable("always"))
    # The functions from before the call are for the old loss.
    assert model.train_function is None
    with _runs_stages(False):
        history = _fit(model)
    _assert_close(history["loss"], _fit(fit_and_compile(_model(keras)))["loss"])


def test_call_inside_a_hook_with_a_callback_of_its_own(keras: Any) -> None:
    model = _model(keras)
    inner, outer = Enable("always"), Enable("always")

    def predict(epoch: int, logs: Any = None) -> None:
        _predict(model, inner)
        assert get_plugin().settings.policy is Policy.ALWAYS

    _fit(model, outer, _hook(keras, "on_epoch_end", predict), epochs=2)
    assert (inner.op_count, outer.op_count) == (1, 3)
    assert get_plugin().settings == Settings()
    assert tensorflow_internals.plugin_optimizers_option() is None


@pytest.mark.parametrize("makes_stages", [True, False])
def test_in_functions_that_xla_compiles_it_makes_stages_and_no_units(
    makes_stages: bool,
    monkeypatch: pytest.MonkeyPatch,
    logged: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TF_INTEROP_HOST_STAGES", str(int(makes_stages)))
    # As on a machine with a GPU, where Keras turns "auto" into True.
    monkeypatch.setattr(tf.keras.Model, "_resolve_auto_jit_compile", lambda self: True)
    model = _model(tf.keras, jit_compile="auto")
    with _runs_stages(makes_stages):
        history = _fit(model, Enable("always"))
    assert history["tf_interop_ops"] == [2 if makes_stages else 0]
    assert model.jit_compile is True
    warnings = [each for each in logged if "XLA compiles the functions" in each]
    assert len(warnings) == (not makes_stages)
    assert all("jit_compile=False" in each for each in warnings)
    why = "XLA compiles the model's functions (jit_compile=True)"
    assert (why in capsys.readouterr().out) != makes_stages


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"plan": "/nowhere/plan.json"}, "/nowhere/plan.json"),
        ({"verbose": 2}, "verbose"),
        ({"tune": "1s", "policy": "always"}, "policy"),
        ({"tune": "1s", "plan": Plan(())}, "plan"),
        ({"tune": "at once"}, "at once"),
        ({"batch_size": 4}, "batch_size"),
        ({"tune": "1s", "batch_size": 0}, "batch_size"),
    ],
    ids=str,
)
def test_refuses_arguments_when_it_is_made(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, PlanError), match=message):
        Enable(**arguments)


def test_raises_when_the_library_is_missing(keras: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_library_error() -> None:
        raise LibraryError("Expected the compiled library, found none.")

    model = _model(keras)
    _fit(model)
    train_function = model.train_function
    callback = Enable("always")
    monkeypatch.setattr("tf_interop.keras.get_plugin", raise_library_error)
    with pytest.raises(LibraryError, match="Expected the compiled library"):
        _fit(model, callback)
    assert model.train_function is train_function
    assert tensorflow_internals.plugin_optimizers_option() is None


def test_prints_one_line(keras: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def lines() -> list[str]:
        return [line for line in capsys.readouterr().out.splitlines() if "Enable" in line]

    _fit(_model(keras), Enable("always"), epochs=2, **VALIDATION)
    assert lines() == ["Enable: 3 stages of 6 operations"]
    _predict(_model(keras), Enable("always"), verbose=1)
    assert lines() == ["Enable: 1 stage of 2 operations"]
    _fit(_model(keras), Enable("always", verbose=0))
    assert lines() == []
    # Without stages it says why.
    _fit(_model(keras), Enable())
    [line] = lines()
    assert line.startswith("Enable: no stages or units: policy 'profiled' needs a plan")
    _fit(_model(keras, run_eagerly=True), Enable("always"))
    [line] = lines()
    assert line.endswith("the model runs eagerly (run_eagerly=True)")
    plan = Plan((GraphPlan("0123456789abcdef", landmarks_of("a", "b"), (make_stage("a", "b"),)),))
    for _ in range(2):  # each call counts only its own failures
        _fit(_model(keras), Enable(plan=plan))
        [line] = lines()
        assert line.startswith("Enable: no stages or units: 1 graph unchanged: ")


def test_without_a_plan_it_names_what_is_in_the_way_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, logged: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TF_INTEROP_HOST_STAGES", "0")
    _fit(_model(tf.keras, run_eagerly=True), Enable())
    assert capsys.readouterr().out.endswith("the model runs eagerly (run_eagerly=True)\n")
    _fit(_model(tf.keras, jit_compile=True), Enable())
    assert any("XLA compiles the functions" in each for each in logged)


def test_has_no_batch_hooks(keras: Any) -> None:
    callbacks = keras.callbacks.CallbackList([Enable("always")])
    for name in ("train", "test", "predict"):
        if keras is tf_keras:
            assert not getattr(callbacks, f"_should_call_{name}_batch_hooks")
        getattr(callbacks, f"on_{name}_batch_begin")(0)
