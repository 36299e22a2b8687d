"""What counts as slower, the cache key, refused effects, and GPUs, over the host backend."""

from __future__ import annotations

import os
import pathlib
import types
from collections.abc import Callable
from typing import Any

import branched_models
import pytest
import tensorflow as tf
from plan_values import measured_step
from tensorflow.core.framework import graph_pb2
from tuning_graphs import branches

import tf_interop
from tf_interop import tensorflow_internals
from tf_interop.graph.landmarks import find_structure
from tf_interop.measure.device import this_cpu
from tf_interop.model.graphs import convolutions_of, optimize_graph, trace
from tf_interop.planning.types import XLA, ComparedStep
from tf_interop.runtime.plugin import get_plugin
from tf_interop.tuning import tune

Patch = pytest.MonkeyPatch
THREADING = tf.config.threading


def key_of(graph_def: graph_pb2.GraphDef) -> str:
    view, convolutions, _ = convolutions_of(graph_def)
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


def resized(size: int, pool: int = 2) -> graph_pb2.GraphDef:
    @tf.function(input_signature=[tf.TensorSpec([1, 64, 64, 3])], autograph=False)
    def network(image: tf.Tensor) -> tf.Tensor:
        image = tf.image.resize(image, [size, size])
        image = tf.nn.conv2d(image, tf.ones([3, 3, 3, 4]), 1, "SAME")
        return tf.nn.max_pool2d(image, pool, 1, "VALID")

    return optimize_graph(trace(network), None)


def test_attributes_and_sizes_are_part_of_the_key() -> None:
    graphs = [resized(32), resized(48), resized(32, 3), resized(32)]
    keys = [key_of(each) for each in graphs]
    assert keys[0] == keys[3] and len(set(keys)) == 3


@pytest.mark.parametrize(
    ("ratio", "error", "way", "is_slower"),
    [
        (0.9, 0.02, "on one core", True),
        (0.9, 0.12, "on one core", False),
        (0.97, 0.0, "on one core", False),
        (0.9, 0.02, None, False),
    ],
    ids=["slower", "within_the_error", "too_little", "still_trying"],
)
def test_a_graph_stays_as_it_is_if_stock_is_faster(
    ratio: float, error: float, way: str | None, is_slower: bool
) -> None:
    assert tune._is_slower(measured_step(ratio, error, way=way)) == is_slower


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(os, "sched_getaffinity", lambda _: {7}),
        lambda patch: patch.setattr(tune, "this_cpu", lambda: types.SimpleNamespace(name="7")),
        lambda patch: patch.setattr(tune, "version", lambda package: "another"),
        lambda patch: patch.setattr(tensorflow_internals, "tensorflow_version", lambda: "another"),
        lambda patch: patch.setenv("TF_ENABLE_ONEDNN_OPTS", "0"),
        lambda patch: patch.setenv("TF_INTEROP_SELF_TIMING", "0"),
        lambda patch: patch.setattr(tensorflow_internals, "is_op_determinism_on", lambda: True),
        lambda patch: patch.setattr(THREADING, "get_intra_op_parallelism_threads", lambda: 7),
        lambda patch: patch.setattr(THREADING, "get_inter_op_parallelism_threads", lambda: 7),
    ],
    ids=[
        *("cores", "cpu", "package", "tensorflow", "onednn", "self_timing"),
        *("determinism", "intra_op", "inter_op"),
    ],
)
def test_another_machine_or_setting_has_another_key(
    change: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    before = key_of(branches())
    change(monkeypatch)
    assert key_of(branches()) != before


def test_a_graphdef_that_does_more_than_compute_is_refused(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "written")

    def write(x: tf.Tensor) -> tf.Tensor:
        tf.io.write_file(path, "text")
        return x

    def harmless(x: tf.Tensor) -> Any:
        x = tf.nn.conv2d(x, tf.ones([1, 1, 3, 2]), 1, "SAME")
        return x + tf.random.uniform([])

    def in_branch(x: tf.Tensor) -> Any:
        return harmless(tf.cond(tf.reduce_sum(x) > 0, lambda: write(x), lambda: x))

    options: Any = {"budget": 0.1, "compare_xla": False, "use_cache": False, "enable": False}
    for program in (lambda x: harmless(write(x)), in_branch):
        function = tf.function(program, autograph=False)
        graph_def = function.get_concrete_function(tf.TensorSpec([1, 8, 8, 3])).graph.as_graph_def()
        with pytest.raises(ValueError, match=r"\(WriteFile\)\. tune would run them"):
            tf_interop.tune(graph_def, **options)
    function = tf.function(harmless, autograph=False)
    graph_def = function.get_concrete_function(tf.TensorSpec([1, 8, 8, 3])).graph.as_graph_def()
    assert tf_interop.tune(graph_def, **options).graphs
    assert not pathlib.Path(path).exists()


@pytest.fixture(name="host")
def fixture_host(
    plugin_as_after_import: None, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """The host backend stands in for a GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tune, "running_gpu", this_cpu)


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
    step = ComparedStep(XLA, 1e3, xla_ratio)
    monkeypatch.setattr(tune, "time_xla", lambda *_, **__: step)
    tuning = tf_interop.tune(branched_models.build(), budget="1s", enable=False)
    assert tuning.graphs[0].xla is step
    assert tuning.is_xla_faster is is_faster
    assert ("XLA is 99.00 times as fast as stock TensorFlow: compile" in str(tuning)) is is_faster
