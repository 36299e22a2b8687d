"""A plan of what was measured on a CPU: it knows the network wherever and however it runs."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import branched_models
import numpy as np
import pytest
import tensorflow as tf
from plan_values import measured_step
from planning_graphs import make_stage

import tf_interop
from tf_interop.planning.types import Plan
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import PassReport
from tf_interop.tuning import tune as tune_module
from tf_interop.tuning.compare import core_count

BATCH = 4
IMAGES = np.random.default_rng(0).random((BATCH, 16, 16, 3), dtype=np.float32)

build = branched_models.build_normalized
"""A network without names: Keras numbers the layers through all models of the process."""

Run = Callable[[np.ndarray], Any]


@pytest.fixture(autouse=True)
def fixture_off_at_the_end(units_on_cpus: None) -> Iterator[None]:
    yield
    tf_interop.disable()


@pytest.fixture(name="model")
def fixture_model() -> tf.keras.Model:
    return build()


@pytest.fixture(name="plan")
def fixture_plan(
    model: tf.keras.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> Plan:
    """The plan that `tune` makes, with made-up times."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compared = measured_step(1.5, 0.01, cores=core_count())
    monkeypatch.setattr(tune_module, "compare_with_stock", lambda *_, **__: compared)
    return tf_interop.tune(model, batch_sizes=(BATCH,), compare_xla=False, enable=False).plan


def report_of(plan: Plan, run: Run, expected: Any, images: np.ndarray = IMAGES) -> PassReport:
    """Runs a new function under a plan, and compares its result with stock TensorFlow's."""
    get_plugin().forget_reports()
    tf_interop.enable(plan=plan)
    np.testing.assert_allclose(run(images), expected, rtol=1e-4, atol=1e-5)
    assert tf_interop.status().failures == ()
    [report] = tf_interop.status().graphs
    return report


def from_a_file(model: tf.keras.Model, folder: pathlib.Path) -> Run:
    model.save(folder / "model.keras")
    return tf.function(tf.keras.models.load_model(folder / "model.keras"))


def signature_of_a_saved_model(model: tf.keras.Model, folder: pathlib.Path) -> Run:
    model.export(str(folder / "saved"), verbose=False)
    serve = tf.saved_model.load(str(folder / "saved")).signatures["serving_default"]
    return lambda images: next(iter(serve(tf.constant(images)).values()))


def in_a_function_with_a_scope(model: tf.keras.Model, _: pathlib.Path) -> Run:
    @tf.function
    def classify(images: tf.Tensor) -> tf.Tensor:
        with tf.name_scope("mine"):
            return tf.identity(model(images * 255 / 255), name="classes")

    return classify


def in_another_model(model: tf.keras.Model, _: pathlib.Path) -> Run:
    return tf.function(tf.keras.Sequential([tf.keras.Input((16, 16, 3)), model]))


def predicted(model: tf.keras.Model, _: pathlib.Path) -> Run:
    return lambda images: model.predict(images, BATCH, verbose=0)


@pytest.mark.parametrize(
    "circumstances",
    [
        *(from_a_file, signature_of_a_saved_model, in_a_function_with_a_scope),
        *(in_another_model, predicted),
    ],
)
def test_one_plan_is_used_for_the_same_network(
    circumstances: Callable[[tf.keras.Model, pathlib.Path], Run],
    model: tf.keras.Model,
    plan: Plan,
    tmp_path: pathlib.Path,
) -> None:
    report = report_of(plan, circumstances(model, tmp_path), model(IMAGES))
    assert report.is_in_plan and report.why_no_plan == ""
    assert report.plan.measured == plan.graphs[0].measured
    assert report.timed_graph and report.unit_names
    assert "1.50 ± 0.01" in str(tf_interop.status())


def as_it_is(model: tf.keras.Model) -> Run:
    return tf.function(model)


def wider(model: tf.keras.Model) -> Run:
    """The same with one more convolution beside it, which changes nothing."""
    more = tf.keras.layers.Conv2D(3, 1)(model.input)
    more = tf.keras.layers.GlobalAveragePooling2D()(more) * 0.0
    return tf.function(tf.keras.Model(model.input, model.output + more))


def differentiated(model: tf.keras.Model) -> Run:
    def run(images: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            result = model(images)
        gradients = tape.gradient(result, model.trainable_variables)
        return result + 0 * tf.add_n([tf.reduce_sum(each) for each in gradients])

    return tf.function(run)


@pytest.mark.parametrize(
    ("change", "batch", "fields", "why"),
    [
        (as_it_is, 2, {}, "The plan is for batch size 4, and this graph has 2."),
        (wider, BATCH, {}, "network: it has 4 convolutions, and this graph has 5"),
        (differentiated, BATCH, {}, "for inference, but this graph is for training. Tune or plan"),
        (as_it_is, BATCH, {"stages": (make_stage("a"),)}, "stages run on GPUs only"),
    ],
)
def test_another_graph_times_itself_and_says_why_the_plan_has_nothing(
    change: Callable[[tf.keras.Model], Run],
    batch: int,
    fields: dict[str, Any],
    why: str,
    model: tf.keras.Model,
    plan: Plan,
) -> None:
    plan = Plan((dataclasses.replace(plan.graphs[0], **fields),))
    images = IMAGES[:batch]
    report = report_of(plan, change(model), model(images), images)
    assert why in report.why_no_plan
    assert not report.is_in_plan and report.plan.measured is None
    assert report.timed_graph and report.unit_names
    assert why in str(tf_interop.status())


@pytest.mark.parametrize(
    ("entries", "is_batch_known", "is_in_plan", "is_left"),
    [
        ({None: True}, True, True, True),
        ({BATCH: True, 8: False}, True, True, True),
        ({BATCH: False, 8: True}, True, True, False),
        ({8: True}, True, False, False),
        ({BATCH: True, 8: True}, False, True, True),
        ({BATCH: True, 8: False}, False, True, False),
    ],
    ids=str,
)
def test_a_graph_that_is_fastest_in_stock_stays_as_it_is(
    entries: dict[int | None, bool],
    is_batch_known: bool,
    is_in_plan: bool,
    is_left: bool,
    model: tf.keras.Model,
    plan: Plan,
) -> None:
    [graph] = plan.graphs
    several = Plan(
        tuple(
            dataclasses.replace(graph, batch_size=size, as_stock=as_stock)
            for size, as_stock in entries.items()
        )
    )
    shape = [BATCH if is_batch_known else None, 16, 16, 3]
    run = tf.function(model, input_signature=[tf.TensorSpec(shape)])
    report = report_of(several, run, model(IMAGES))
    assert report.is_in_plan == is_in_plan
    assert bool(report.unit_names) == bool(tf_interop.status().folded_graphs) == (not is_left)
    assert report.why_unchanged == ("tuned: stock TensorFlow is fastest" if is_left else "")
    # Times of several batch sizes are not the graph's.
    assert (report.plan.measured is not None) == (is_in_plan and is_batch_known)
