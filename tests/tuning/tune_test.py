"""The cache key, the plan of a comparison, and tuning for a GPU, over the host backend."""

from __future__ import annotations

import os
import pathlib
import types
from collections.abc import Callable

import branched_models
import pytest
import tensorflow as tf
from plan_values import landmarks_of
from tensorflow.core.framework import graph_pb2
from tuning_graphs import branches

import tf_interop
from tf_interop import tensorflow_internals
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.landmarks import find_structure
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.measure.device import this_cpu
from tf_interop.planning.types import OURS, STOCK, XLA
from tf_interop.runtime.plugin import get_plugin
from tf_interop.structure import Structure
from tf_interop.tuning import tune
from tf_interop.tuning.compare import Comparison
from tf_interop.tuning.step_bench import StepTimes
from tf_interop.tuning.xla import XlaTimes

Patch = pytest.MonkeyPatch
THREADING = tf.config.threading


def key_of(graph_def: graph_pb2.GraphDef) -> str:
    view = GraphView(graph_def)
    convolutions, _ = find_convolutions(view, GraphProperties(view))
    return tune.cache_key(view, find_structure(view, convolutions))


def test_another_graph_has_another_key_and_the_same_graph_the_same() -> None:
    assert key_of(branches()) == key_of(branches())
    longer, larger = branches(), branches()
    longer.node.add(name="more", op="Relu", input=["joined"], device="/device:CPU:0")
    longer.node[-1].attr["T"].type = tf.float32.as_datatype_enum
    longer.node.add(name="end", op="Relu", input=["more"], device="/device:CPU:0")
    longer.node[-1].attr["T"].type = tf.float32.as_datatype_enum
    other = larger.node.add(name="other_input", op="Placeholder")
    other.attr["dtype"].type = tf.float32.as_datatype_enum
    keys = [key_of(each) for each in (branches(), branches((1, 5)), longer, larger)]
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    ("ratio", "error", "as_stock"),
    [(0.9, 0.02, True), (0.9, 0.12, False), (0.97, 0.0, False), (1.2, 0.0, False), (0, 0, False)],
    ids=["slower", "within_the_error", "too_little", "faster", "unchanged"],
)
def test_a_graph_stays_as_it_is_if_stock_is_faster(
    ratio: float, error: float, as_stock: bool
) -> None:
    structure = Structure("f", landmarks_of("a"))
    times = {STOCK: StepTimes(2.0, 1.0, 0.0)}
    if ratio:
        times[OURS] = StepTimes(2.0 / ratio, 7.0, error)  # the medians count
    for is_settled in (True, False):
        found = Comparison(times, "on one core", is_settled, cores=2, other_load=0.1)
        plan = tune._plan_of(found, structure, XlaTimes(1.0, 2.0))
        assert (plan.structure, plan.as_stock) == (structure, as_stock and is_settled)
        measured = plan.measured
        assert measured is not None
        assert [each.name for each in measured.compared] == [*times, XLA]
        assert measured.ours.ratio == pytest.approx(ratio or 1)
        assert (measured.variant(XLA).ratio, measured.variant(XLA).error) == (2, None)
        assert measured.way == ("on one core" if is_settled else "")


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(os, "sched_getaffinity", lambda _: {7}),
        lambda patch: patch.setattr(tune, "this_cpu", lambda: types.SimpleNamespace(name="7")),
        lambda patch: patch.setattr(tune, "version", lambda package: "another"),
        lambda patch: patch.setattr(tensorflow_internals, "tensorflow_version", lambda: "another"),
        lambda patch: patch.setenv("TF_ENABLE_ONEDNN_OPTS", "0"),
        lambda patch: patch.setattr(THREADING, "get_intra_op_parallelism_threads", lambda: 7),
        lambda patch: patch.setattr(THREADING, "get_inter_op_parallelism_threads", lambda: 7),
    ],
    ids=["cores", "cpu", "package", "tensorflow", "onednn", "intra_op", "inter_op"],
)
def test_another_machine_or_setting_has_another_key(
    change: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    before = key_of(branches())
    change(monkeypatch)
    assert key_of(branches()) != before


@pytest.fixture(name="host")
def fixture_host(
    plugin_as_after_import: None, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """The host backend stands in for a GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tensorflow_internals, "may_have_gpus", lambda: True)
    monkeypatch.setattr(tune, "running_device", lambda backend: this_cpu())


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("training", [False, True])
def test_a_gpu_is_profiled_and_planned_for(training: bool) -> None:
    said: list[str] = []
    tuning = tf_interop.tune(
        branched_models.build(),
        batch_sizes=(1, 2),
        training=training,
        budget="1s",
        compare_xla=False,
        say=said.append,
    )
    assert [graph.plan.batch_size for graph in tuning.graphs] == [1, 2]
    assert {graph.plan.mode for graph in tuning.graphs} == {"training" if training else "inference"}
    assert str(tuning).count("No whole step was measured") == 2
    assert all(graph.plan.prediction and graph.plan.measured is None for graph in tuning.graphs)
    assert any("convolutions" in each for each in said)
    plan = get_plugin().settings.plan
    assert (plan is not None) == tuning.is_faster


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(("xla_ratio", "is_faster"), [(99.0, True), (1.0, False)])
def test_says_where_xla_saves_more_than_stages_are_predicted_to(
    xla_ratio: float, is_faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = XlaTimes(1e3, xla_ratio)
    monkeypatch.setattr(tune, "time_xla", lambda *_, **__: times)
    tuning = tf_interop.tune(branched_models.build(), budget="1s", enable=False)
    assert tuning.graphs[0].xla is times
    assert tuning.is_xla_faster is is_faster
    assert ("XLA is 99.00 times as fast as stock TensorFlow: compile" in str(tuning)) is is_faster
