"""`tf_interop.tune`: its result computes what stock TensorFlow does, and is cached."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import branched_models
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from unnoticed import assert_same

import tf_interop
from tf_interop.keras import ConvStages
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import Settings
from tf_interop.tuning import tune as tune_module
from tf_interop.tuning.cache import cache_folder
from tf_interop.tuning.search import SearchResult
from tf_interop.tuning.xla import XlaTimes

IMAGES = np.random.default_rng(0).random((8, 8, 8, 3), dtype=np.float32)
LABELS = np.zeros((8, 2), np.float32)
BATCH = 4
BUDGET = "300ms"


@pytest.fixture(autouse=True)
def fixture_cache_of_its_own(
    units_on_cpus: None, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    get_plugin().settings = Settings()
    # The real one starts a process, which takes seconds; tests/tuning has it.
    monkeypatch.setattr(tune_module, "time_xla", lambda *_, **__: XlaTimes(9.0, 0.5))


Choose = Callable[..., list[SearchResult]]


@pytest.fixture(name="choose")
def fixture_choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Makes every search choose all units narrow, or stock; lists the searches' results."""
    search = tune_module.search_units
    found: list[SearchResult] = []

    def choose(all_narrow: bool, cores: int = 1, other_load: float = 0.0) -> list[SearchResult]:
        def search_and_choose(*arguments: Any, **options: Any) -> SearchResult:
            result = search(*arguments, **options)
            best = result.variants[0]
            if all_narrow:
                best = next(each for each in result.variants if each.cores and not each.is_split)
                best = dataclasses.replace(best, cores=cores)
            found.append(dataclasses.replace(result, best=best, other_load=other_load))
            return found[-1]

        monkeypatch.setattr(tune_module, "search_units", search_and_choose)
        return found

    return choose


def infer(model: Any, images: np.ndarray = IMAGES[:BATCH]) -> np.ndarray:
    """Runs a new function, which TensorFlow optimizes again."""
    result: np.ndarray = tf.function(model)(tf.constant(images)).numpy()
    return result


def test_tuned_graphs_compute_what_stock_does(choose: Choose) -> None:
    choose(True)
    model = branched_models.build()
    expected, weights = infer(model), model.get_weights()
    tuning = tf_interop.tune(model, batch_sizes=(BATCH,), budget=BUDGET)
    (graph,) = tuning.graphs
    assert tuning.is_faster
    assert (graph.plan.mode, graph.plan.batch_size) == ("inference", BATCH)
    np.testing.assert_allclose(infer(model), expected, rtol=1e-5, atol=1e-6)
    status = tf_interop.status()
    assert status.failures == ()
    assert status.unit_node_count == graph.plan.unit_count > 0
    assert graph.plan.measured is not None
    assert f"{graph.plan.measured.ratio:.2f}" in str(status)
    assert_same(model.get_weights(), weights)


def test_turns_nothing_on_if_stock_is_fastest_or_enable_is_false(choose: Choose) -> None:
    choose(False)
    tuning = tf_interop.tune(branched_models.build(), budget=BUDGET)
    assert not tuning.is_faster
    assert "No significant gain over stock TensorFlow" in str(tuning)
    assert tuning.plan.graphs[0].why_no_stage
    choose(True)
    told_not_to = {"use_cache": False, "enable": False}
    assert tf_interop.tune(branched_models.build(), budget=BUDGET, **told_not_to).is_faster
    assert get_plugin().settings == Settings()


def test_a_second_call_measures_nothing(choose: Choose) -> None:
    found = choose(True, cores=2)
    model = branched_models.build()
    first = tf_interop.tune(model, budget=BUDGET)
    again = tf_interop.tune(branched_models.build(), budget=BUDGET)
    assert len(found) == 1
    assert str(again).endswith("From the cache.")
    assert again.plan == first.plan
    assert "units on 2 cores each" in str(again)
    infer(model, IMAGES[:1])
    [report] = tf_interop.status().graphs
    assert report.plan.unit_cores == 2
    # Another batch size is another graph, and so is another step.
    tf_interop.tune(model, batch_sizes=(2,), budget=BUDGET)
    tf_interop.tune(model, training=True, budget=BUDGET)
    assert len(found) == 3
    tf_interop.tune(model, budget=BUDGET, use_cache=False)
    assert len(found) == 4


def test_a_measurement_beside_other_programs_is_repeated(choose: Choose) -> None:
    found = choose(True, other_load=0.5)
    for count in (1, 2):
        tuning = tf_interop.tune(branched_models.build(), budget=BUDGET, enable=False)
        assert "Not reliable" in str(tuning)
        assert len(found) == count


def test_rewrites_a_damaged_file_of_the_cache(choose: Choose) -> None:
    found = choose(True)
    model = branched_models.build()
    tf_interop.tune(model, budget=BUDGET)
    (path,) = cache_folder().glob("*.json")
    good = path.read_text()
    for damaged in ("", "{", good.replace('"landmarks"', '"other"'), good[:-20]):
        path.write_text(damaged)
        count = len(found)
        assert not tf_interop.tune(model, budget=BUDGET).graphs[0].is_cached
        assert len(found) == count + 1
    assert tf_interop.tune(model, budget=BUDGET).graphs[0].is_cached


def test_an_unwritable_folder_is_no_error(choose: Choose, tmp_path: pathlib.Path) -> None:
    choose(True)
    (tmp_path / "tf_interop").write_text("a file in its place")
    assert tf_interop.tune(branched_models.build(), budget=BUDGET).is_faster


def test_a_later_call_keeps_the_earlier_plan(choose: Choose) -> None:
    choose(True)
    model = branched_models.build()
    for training in (False, True):
        tf_interop.tune(model, training=training, budget=BUDGET)
    plan = get_plugin().settings.plan
    assert plan is not None
    assert [graph.mode for graph in plan.graphs] == ["training", "inference"]


@tf.function(input_signature=[tf.TensorSpec((None, 8, 8, 3))])
def branches(image: tf.Tensor) -> tf.Tensor:
    sides = [tf.nn.conv2d(image, tf.fill((side, side, 3, 4), 0.1), 1, "SAME") for side in (1, 3)]
    return tf.concat([tf.nn.relu(each) for each in sides], 3)


def test_a_function_and_a_graph(choose: Choose) -> None:
    choose(True)
    expected = infer(branches)
    concrete = branches.get_concrete_function()
    frozen = convert_variables_to_constants_v2(concrete)
    for subject in (branches, concrete, concrete.graph.as_graph_def(), frozen):
        tuning = tf_interop.tune(subject, batch_sizes=(BATCH,), budget=BUDGET, use_cache=False)
        assert tuning.is_faster
        assert tuning.graphs[0].plan.mode is None
    np.testing.assert_allclose(infer(branches), expected, rtol=1e-5)
    assert tf_interop.status().unit_node_count > 0


def test_a_function_of_strings_keeps_its_variables() -> None:
    runs = tf.Variable(0)

    @tf.function(input_signature=[tf.TensorSpec((1, 1, 1, 1), tf.string)])
    def convolve_lengths(texts: tf.Tensor) -> tf.Tensor:
        runs.assign_add(1)
        lengths = tf.cast(tf.strings.length(texts), tf.float32)
        return tf.nn.conv2d(lengths, tf.ones((1, 1, 1, 4)), 1, "SAME")

    assert tf_interop.tune(convolve_lengths, budget=BUDGET).graphs
    assert runs.numpy() == 0


# Grappler fuses them on CPUs with instructions for bfloat16.
def test_convolutions_in_bfloat16(choose: Choose) -> None:
    choose(True)
    image = tf.keras.Input((8, 8, 3))
    convolved = tf.keras.layers.Conv2D(4, 3, dtype="mixed_bfloat16")(image)
    model = tf.keras.Model(image, tf.keras.layers.Conv2D(4, 1)(convolved))
    expected = infer(model)
    assert tf_interop.tune(model, batch_sizes=(BATCH,), budget=BUDGET).is_faster
    np.testing.assert_allclose(infer(model), expected, rtol=2.0**-6, atol=2.0**-6)
    assert tf_interop.status().unit_node_count > 0


@tf.function(input_signature=[tf.TensorSpec((1, 8, 8, 3))], jit_compile=True)
def compiled(image: tf.Tensor) -> tf.Tensor:
    return tf.nn.conv2d(image, tf.ones((3, 3, 3, 4)), 1, "SAME")


@tf.function(input_signature=[tf.TensorSpec((), tf.resource, name="variable")])
def of_a_resource(variable: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=variable, dtype=tf.float32)


def looks_up() -> tf.keras.Model:
    word = tf.keras.Input((1,), dtype="string")
    number = tf.keras.layers.StringLookup(vocabulary=["a"])(word)
    embedded = tf.keras.layers.Embedding(2, 4)(number)
    return tf.keras.Model(word, tf.keras.layers.Conv1D(2, 1)(embedded))


def dense() -> tf.keras.Model:
    image = tf.keras.Input((8, 8, 3))
    flat = tf.keras.layers.Flatten()(image)
    return tf.keras.Model(image, tf.keras.layers.Dense(2)(flat), name="dense")


@pytest.mark.parametrize(
    ("subject", "options", "why"),
    [
        (dense, {}, "convolution"),
        (lambda: compiled, {}, "jit_compile=False"),
        (lambda: of_a_resource, {}, "The input 'variable' is a resource"),
        (looks_up, {}, "lookup table"),
        (branched_models.build, {"batch_sizes": ()}, "batch size"),
        (branched_models.build, {"budget": "soon"}, "'soon'"),
        (branched_models.build, {"budget": 0}, "0"),
        (lambda: branched_models.function, {"training": True}, "training=True"),
        (lambda: len, {}, "builtin_function_or_method"),
    ],
    ids=[
        *("no_convolution", "xla", "resource", "table", "no_batch", "no_time", "zero_time"),
        *("trains", "no_model"),
    ],
)
def test_refuses(subject: Callable[[], Any], options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        tf_interop.tune(subject(), **{"budget": BUDGET, **options})


def test_a_plan_for_training_leaves_validation_alone_without_a_failure(choose: Choose) -> None:
    choose(True)
    model = branched_models.build()
    plan = tf_interop.tune(model, training=True, budget=BUDGET, enable=False).plan
    tf_interop.enable(plan=plan)
    get_plugin().forget_reports()
    infer(model, IMAGES)
    status = tf_interop.status()
    assert (status.unit_node_count, status.failures) == (0, ())
    assert status.graphs[0].timed_graph
    tf_interop.enable(plan=plan, self_timing=False)
    infer(model, IMAGES)
    assert "for training only" in tf_interop.status().graphs[0].why_unchanged


def trained(**options: Any) -> list[np.ndarray]:
    model = branched_models.build()
    random = np.random.default_rng(1)
    model.set_weights([random.normal(0, 0.3, each.shape) for each in model.get_weights()])
    model.compile("sgd", "mse")
    model.fit(IMAGES, LABELS, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, **options)
    weights: list[np.ndarray] = model.get_weights()
    return weights


def test_the_callback_tunes_before_the_first_batch(
    choose: Choose, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tf_interop.terminal._SECONDS_BETWEEN_LINES", 0)
    found = choose(True)
    expected = trained(validation_data=(IMAGES, LABELS))
    callback = ConvStages(tune=BUDGET, batch_size=BATCH)
    weights = trained(validation_data=(IMAGES, LABELS), callbacks=[callback])
    assert_same(weights, expected, rtol=1e-5, atol=1e-6)
    said, progress = capsys.readouterr()
    assert "measuring stock TensorFlow" in progress
    assert f"training step with SGD, batch {BATCH}: " in said
    assert "narrow units of" in said
    assert "pass it as ConvStages" not in said
    assert "failed" not in said
    assert sum(report.plan.unit_count for report in callback.graphs) > 0
    assert len(found) == 1
    assert get_plugin().settings == Settings()
    # Prediction is another graph.
    model = branched_models.build()
    callback = ConvStages(tune=BUDGET, batch_size=BATCH, verbose=0)
    model.predict(IMAGES, batch_size=BATCH, verbose=0, callbacks=[callback])
    assert len(found) == 2
    assert capsys.readouterr() == ("", "")
    assert get_plugin().settings == Settings()


@pytest.mark.parametrize("fastest", ["stock", "XLA"])
def test_the_callback_leaves_xla_on_if_units_are_not_the_fastest(
    fastest: str,
    choose: Choose,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choose(fastest == "XLA")
    if fastest == "XLA":
        monkeypatch.setattr(tune_module, "time_xla", lambda *_, **__: XlaTimes(0.1, 99.0))
    model = branched_models.build()
    model.compile("sgd", "mse", jit_compile=True)
    monkeypatch.setattr(type(model), "_resolve_auto_jit_compile", lambda self: True)
    compiled_by_xla = []

    class Look(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
            compiled_by_xla.append(self.model.jit_compile)

    model.fit(
        IMAGES, LABELS, batch_size=BATCH, verbose=0, callbacks=[ConvStages(tune=BUDGET), Look()]
    )
    said = capsys.readouterr().out
    expected = "XLA is faster: 99.00 times" if fastest == "XLA" else "No significant gain"
    assert expected in said
    assert "This is for batch size 32, because Keras does not tell callbacks yours" in said
    assert "no stages" not in said
    assert set(compiled_by_xla) == {True}


def test_the_callback_says_why_a_model_cannot_be_tuned(capsys: pytest.CaptureFixture[str]) -> None:
    model = dense()
    model.compile("sgd", "mse")
    model.fit(IMAGES, LABELS, verbose=0, callbacks=[ConvStages(tune=BUDGET)])
    assert "not tuned, runs as stock TensorFlow: Grappler hands over" in capsys.readouterr().out


def test_warns_of_a_plan_that_was_tuned_elsewhere(
    choose: Choose, caplog: pytest.LogCaptureFixture
) -> None:
    choose(True)
    plan = tf_interop.tune(branched_models.build(), budget=BUDGET, enable=False).plan
    tf_interop.enable(plan=plan)
    assert caplog.messages == []
    other = dataclasses.replace(plan, made_with=plan.made_with | {"device": "another CPU"})
    tf_interop.enable(plan=other)
    assert "tuned on another CPU with" in caplog.messages[0]
