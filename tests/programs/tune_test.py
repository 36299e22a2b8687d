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
import tf_keras
from plan_values import measured_step
from planning_graphs import make_stage
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from unnoticed import assert_same

import tf_interop
from tf_interop import tensorflow_internals
from tf_interop.keras import Enable
from tf_interop.model.graphs import TracedGraph
from tf_interop.planning.types import XLA, ComparedStep, MeasuredStep, Plan, PlannedStage
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import PassReport, Settings
from tf_interop.tuning import tune as tune_module
from tf_interop.tuning.compare import _work_of, core_count
from tf_interop.tuning.timed_steps import measure

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
    monkeypatch.setattr(tune_module, "time_xla", lambda *_, **__: ComparedStep(XLA, 9.0, 0.5))


Choose = Callable[..., list[MeasuredStep]]


@pytest.fixture(name="choose")
def fixture_choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Makes up the ratio of every comparison, after measuring if asked; lists the comparisons."""
    found: list[MeasuredStep] = []

    def choose(
        ratio: float, *, measures: bool = False, other_load: float = 0.0
    ) -> list[MeasuredStep]:
        def compare(traced: TracedGraph, **_: Any) -> MeasuredStep:
            if measures:  # in this process, which takes less time than a new one
                measure(_work_of(traced, timed_s=0.0))
            found.append(measured_step(ratio, 0.01, cores=core_count(), other_load=other_load))
            return found[-1]

        monkeypatch.setattr(tune_module, "compare_with_stock", compare)
        return found

    return choose


Run = Callable[[Any], Any]


def infer(model: Any, images: np.ndarray = IMAGES[:BATCH]) -> np.ndarray:
    """Runs a new function, which TensorFlow optimizes again."""
    result: np.ndarray = tf.function(model)(tf.constant(images)).numpy()
    return result


def in_bfloat16() -> tf.keras.Model:
    """Grappler fuses its convolutions on CPUs with instructions for bfloat16."""
    image = tf.keras.Input((8, 8, 3))
    convolved = tf.keras.layers.Conv2D(4, 3, dtype="mixed_bfloat16")(image)
    return tf.keras.Model(image, tf.keras.layers.Conv2D(4, 1)(convolved))


@pytest.mark.parametrize(
    ("build", "tolerance"), [(branched_models.build, 1e-5), (in_bfloat16, 2.0**-6)]
)
def test_tuned_graphs_compute_what_stock_does(
    build: Callable[[], tf.keras.Model], tolerance: float, choose: Choose
) -> None:
    choose(1.5, measures=True)
    model = build()
    expected, weights = infer(model), model.get_weights()
    [graph] = tf_interop.tune(model, batch_sizes=(BATCH,), budget=BUDGET).graphs
    assert (graph.plan.mode, graph.plan.batch_size) == ("inference", BATCH)
    np.testing.assert_allclose(infer(model), expected, rtol=tolerance, atol=tolerance)
    status = tf_interop.status()
    assert status.failures == () and status.op_count > 0
    assert status.current_graphs[0].plan == graph.plan
    assert "1.50 ± 0.01" in str(status)
    assert_same(model.get_weights(), weights)


@pytest.mark.parametrize(
    ("ratio", "enable", "words"),
    [
        (1.5, True, "tf_interop.enable() is 1.50 times as fast"),
        (1.5, False, "tf_interop.enable() is 1.50 times as fast"),
        (1.0, True, "tf_interop.enable() gains nothing significant"),
        (0.5, True, "Stock TensorFlow is faster, so the graph stays as it is"),
    ],
)
def test_turns_on_what_is_faster(ratio: float, enable: bool, words: str, choose: Choose) -> None:
    choose(ratio)
    model = branched_models.build()
    tuning = tf_interop.tune(model, batch_sizes=(BATCH,), budget=BUDGET, enable=enable)
    assert words in str(tuning)
    assert tuning.is_faster == (ratio > 1)
    assert get_plugin().settings.plan == (tuning.plan if enable and ratio > 1 else None)
    is_left = ratio < 1
    tf_interop.enable(plan=tuning.plan)
    report = report_of(tf.function(model), model)
    assert report.is_in_plan and report.plan.as_stock == is_left
    assert bool(report.op_names) == bool(tf_interop.status().folded_graphs) == (not is_left)
    assert report.why_unchanged == ("tuned: stock TensorFlow is fastest" if is_left else "")


def report_of(run: Run, model: tf.keras.Model, images: np.ndarray = IMAGES[:BATCH]) -> PassReport:
    """Runs a function, and compares its result with stock TensorFlow's."""
    get_plugin().forget_reports()
    np.testing.assert_allclose(run(tf.constant(images)), model(images), rtol=1e-4, atol=1e-5)
    assert tf_interop.status().failures == ()
    [report] = tf_interop.status().graphs
    return report


def signature_of_a_saved_model(model: tf.keras.Model, folder: pathlib.Path) -> Run:
    model.export(str(folder / "saved"), verbose=False)
    serve = tf.saved_model.load(str(folder / "saved")).signatures["serving_default"]
    return lambda images: next(iter(serve(images).values()))


def in_a_function_with_a_scope(model: tf.keras.Model, folder: pathlib.Path) -> Run:
    model.save(folder / "model.keras")
    outer = tf.keras.Sequential(
        [tf.keras.Input((8, 8, 3)), tf.keras.models.load_model(folder / "model.keras")]
    )

    @tf.function
    def classify(images: tf.Tensor) -> tf.Tensor:
        with tf.name_scope("mine"):
            return tf.identity(outer(images * 255 / 255), name="classes")

    return classify


def predicted(model: tf.keras.Model, _: pathlib.Path) -> Run:
    return lambda images: model.predict(images, BATCH, verbose=0)


@pytest.mark.parametrize(
    "circumstances", [signature_of_a_saved_model, in_a_function_with_a_scope, predicted]
)
def test_a_plan_knows_the_network_wherever_it_runs(
    circumstances: Callable[[tf.keras.Model, pathlib.Path], Run],
    choose: Choose,
    tmp_path: pathlib.Path,
) -> None:
    choose(1.5)
    model = branched_models.build()
    plan = tf_interop.tune(model, batch_sizes=(BATCH,), budget=BUDGET).plan
    report = report_of(circumstances(model, tmp_path), model)
    assert report.is_in_plan and report.why_no_plan == ""
    assert report.plan.measured == plan.graphs[0].measured
    assert report.timed_graph and report.op_names


@pytest.mark.parametrize(
    ("batch", "stages", "why"),
    [
        (2, (), "The plan is for batch size 4, and this graph has 2."),
        (BATCH, (make_stage("a"),), "stages run on GPUs only"),
    ],
)
def test_another_graph_times_itself_and_says_why_the_plan_has_nothing(
    batch: int, stages: tuple[PlannedStage, ...], why: str, choose: Choose
) -> None:
    choose(1.5)
    model = branched_models.build()
    [graph] = tf_interop.tune(model, batch_sizes=(BATCH,), budget=BUDGET).plan.graphs
    tf_interop.enable(plan=Plan((dataclasses.replace(graph, stages=stages),)))
    report = report_of(tf.function(model), model, IMAGES[:batch])
    assert why in report.why_no_plan
    assert not report.is_in_plan and report.plan.measured is None
    assert report.timed_graph and report.op_names
    assert why in str(tf_interop.status())


def test_a_second_call_measures_nothing_even_under_other_names(choose: Choose) -> None:
    found = choose(1.5)
    # Keras numbers unnamed layers through all models of the process.
    first, second = branched_models.build_normalized(), branched_models.build_normalized()
    assert first.layers[1].name != second.layers[1].name
    plan = tf_interop.tune(first, budget=BUDGET).plan
    again = tf_interop.tune(second, budget=BUDGET)
    assert str(again).endswith("From the cache.")
    assert (again.plan, len(found)) == (plan, 1)
    # Another batch size is another graph, and so is another step.
    tf_interop.tune(second, batch_sizes=(2,), budget=BUDGET)
    tf_interop.tune(second, training=True, budget=BUDGET)
    assert len(found) == 3
    tf_interop.tune(second, budget=BUDGET, use_cache=False)
    assert len(found) == 4


def test_a_measurement_beside_other_programs_is_repeated(choose: Choose) -> None:
    found = choose(1.5, other_load=0.5)
    for count in (1, 2):
        tuning = tf_interop.tune(branched_models.build(), budget=BUDGET, enable=False)
        assert "Not reliable" in str(tuning)
        assert len(found) == count


def test_an_unwritable_folder_is_no_error(choose: Choose, tmp_path: pathlib.Path) -> None:
    choose(1.5)
    (tmp_path / "tf_interop").write_text("a file in its place")
    assert tf_interop.tune(branched_models.build(), budget=BUDGET).is_faster


def test_a_call_while_the_plugin_is_on_adds_to_its_settings_even_without_a_gain(
    choose: Choose,
) -> None:
    model = branched_models.build()
    tf_interop.enable(kept=False)
    for training, ratio in ((False, 1.0), (True, 0.5)):
        choose(ratio)
        tf_interop.tune(model, training=training, budget=BUDGET)
    settings = get_plugin().settings
    plan = settings.plan
    assert plan is not None and settings.kept_mb == 0
    assert [(each.mode, each.as_stock) for each in plan.graphs] == [
        ("training", True),
        ("inference", False),
    ]
    tf_interop.disable()
    tf_interop.tune(model, training=True, budget=BUDGET)
    assert tensorflow_internals.plugin_optimizers_option() is False


def test_a_function_and_a_graph(choose: Choose) -> None:
    choose(1.5, measures=True)
    function = branched_models.function
    expected = infer(function)
    concrete = function.get_concrete_function()
    frozen = convert_variables_to_constants_v2(concrete)
    for subject in (function, concrete, concrete.graph.as_graph_def(), frozen):
        tuning = tf_interop.tune(subject, batch_sizes=(BATCH,), budget=BUDGET, use_cache=False)
        assert tuning.is_faster
        assert tuning.graphs[0].plan.mode is None
    np.testing.assert_allclose(infer(function), expected, rtol=1e-5)
    assert tf_interop.status().op_count > 0


def test_a_function_with_a_loop_has_an_entry_for_each_batch_size(choose: Choose) -> None:
    choose(1.5)
    filters = tf.Variable(tf.random.normal([3, 3, 4, 4]))

    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 4], tf.float32)])
    def repeated(images: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            images = tf.nn.relu(tf.nn.conv2d(images, filters, 1, "SAME"))
        return images

    plan = tf_interop.tune(repeated, batch_sizes=(2, 5), budget=BUDGET).plan
    assert [graph.batch_size for graph in plan.graphs] == [2, 5]
    repeated(tf.zeros([3, 8, 8, 4]))
    [report] = tf_interop.status().current_graphs
    assert report.is_in_plan and report.plan.measured is None  # of no batch size


def test_a_function_of_strings_keeps_its_variables() -> None:
    runs = tf.Variable(0)

    @tf.function(input_signature=[tf.TensorSpec((1, 1, 1, 1), tf.string)])
    def convolve_lengths(texts: tf.Tensor) -> tf.Tensor:
        runs.assign_add(1)
        lengths = tf.cast(tf.strings.length(texts), tf.float32)
        return tf.nn.conv2d(lengths, tf.ones((1, 1, 1, 4)), 1, "SAME")

    assert tf_interop.tune(convolve_lengths, budget=BUDGET).graphs
    assert runs.numpy() == 0


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


@tf.function(input_signature=[tf.TensorSpec((2, 3))])
def dense(vectors: tf.Tensor) -> tf.Tensor:
    return vectors @ tf.ones((3, 4))


@pytest.mark.parametrize(
    ("subject", "options", "why"),
    [
        (lambda: dense, {}, "convolution"),
        (lambda: compiled, {}, "jit_compile=False"),
        (lambda: of_a_resource, {}, "The input 'variable' is a resource"),
        (looks_up, {}, "lookup table"),
        (branched_models.build, {"batch_sizes": ()}, "batch size"),
        (branched_models.build, {"budget": "soon"}, "'soon'"),
        (branched_models.build, {"budget": 0}, "0"),
        (lambda: branched_models.function, {"training": True}, "training=True"),
        (lambda: branched_models.function, {"image_size": (12, 12)}, "does not accept image_size"),
        (
            lambda: dense.get_concrete_function().graph.as_graph_def(),
            {"image_size": (12, 12)},
            "The GraphDef does not accept image_size",
        ),
        (lambda: len, {}, "builtin_function_or_method"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refuses(subject: Callable[[], Any], options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        tf_interop.tune(subject(), **{"budget": BUDGET, **options})


class Subclassed(tf.keras.Model):
    """States no inputs before its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.network = branched_models.build()

    def call(self, image: Any) -> Any:
        return self.network(image)


@pytest.mark.parametrize("make", [branched_models.build, Subclassed])
def test_the_callback_tunes(
    make: Callable[[], tf.keras.Model], choose: Choose, capsys: pytest.CaptureFixture[str]
) -> None:
    def trained(**options: Any) -> list[np.ndarray]:
        tf.keras.utils.set_random_seed(1)
        model = make()
        model.compile("sgd", "mse")
        fixed = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
        model.fit(IMAGES, LABELS, validation_data=(IMAGES, LABELS), **fixed, **options)
        weights: list[np.ndarray] = model.get_weights()
        return weights

    found = choose(1.5)
    expected = trained()
    callback = Enable(tune=BUDGET, batch_size=BATCH)
    assert_same(trained(callbacks=[callback]), expected, rtol=1e-5, atol=1e-6)
    said, progress = capsys.readouterr()
    assert f"tracing batch {BATCH}" in progress
    assert f"training step with SGD, batch {BATCH}: " in said and " units of " in said
    assert "pass it as Enable" not in said and "failed" not in said
    assert callback.op_count > 0
    assert {report.is_in_plan for report in callback.graphs} == {True, False}  # of validation
    assert len(found) == 1
    # Prediction is another graph.
    model, callback = make(), Enable(tune=BUDGET, batch_size=BATCH, verbose=0)
    results = model.predict(IMAGES, batch_size=BATCH, verbose=0, callbacks=[callback])
    expected = model.predict(IMAGES, batch_size=BATCH, verbose=0)
    assert_same([results], [expected], rtol=1e-5, atol=1e-6)
    assert len(found) == 2 and callback.op_count > 0
    assert capsys.readouterr() == ("", "")
    assert get_plugin().settings == Settings()


def test_the_callback_tunes_a_subclassed_model_of_tf_keras(choose: Choose) -> None:
    class OfKeras2(tf_keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.convolution = tf_keras.layers.Conv2D(2, 8)

        def call(self, image: Any) -> Any:
            return self.convolution(image)[:, 0, 0]

    found = choose(1.5)
    model = OfKeras2()
    model.compile("sgd", "mse")
    callback = Enable(tune=BUDGET, batch_size=BATCH)
    model.fit(IMAGES, LABELS, batch_size=BATCH, verbose=0, callbacks=[callback])
    assert len(found) == 1 and callback.op_count > 0


def test_the_callback_leaves_xla_on_if_units_are_not_the_fastest(
    choose: Choose, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(1.5)
    monkeypatch.setattr(tune_module, "time_xla", lambda *_, **__: ComparedStep(XLA, 0.1, 99.0))
    model = branched_models.build()
    model.compile("sgd", "mse", jit_compile=True)
    monkeypatch.setattr(type(model), "_resolve_auto_jit_compile", lambda self: True)
    model.fit(IMAGES, LABELS, batch_size=BATCH, verbose=0, callbacks=[Enable(tune=BUDGET)])
    said = capsys.readouterr().out
    assert "XLA is 99.00 times as fast as stock TensorFlow: compile" in said
    assert "This is for batch size 32, because Keras does not tell callbacks yours" in said
    assert "no stages or units" not in said
    assert model.jit_compile is True


def test_with_the_callback_a_model_that_cannot_be_tuned_times_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    callback = Enable(tune=BUDGET)
    looks_up().predict(tf.constant([["a"]]), verbose=0, callbacks=[callback])
    said = capsys.readouterr().out
    assert "not tuned, but on as without tune: " in said and "lookup table" in said
    assert callback.op_count > 0 and callback.graphs[0].timed_graph


def test_warns_of_a_plan_that_was_tuned_elsewhere(
    choose: Choose, caplog: pytest.LogCaptureFixture
) -> None:
    choose(1.5)
    plan = tf_interop.tune(branched_models.build(), budget=BUDGET, enable=False).plan
    tf_interop.enable(plan=plan)
    assert caplog.messages == []
    other = dataclasses.replace(plan, made_with=plan.made_with | {"device": "another CPU"})
    tf_interop.enable(plan=other)
    assert "tuned on another CPU with" in caplog.messages[0]
