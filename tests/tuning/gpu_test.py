"""The way of a GPU, over the host backend: profile, then plan; no whole step is measured."""

from __future__ import annotations

import functools
import pathlib

import branched_models
import pytest

import tf_interop
from tf_interop import tensorflow_internals
from tf_interop.runtime.plugin import get_plugin
from tf_interop.tuning import tune as tune_module
from tf_interop.tuning.gpu import plan_by_profile
from tf_interop.tuning.xla import XlaTimes


@pytest.fixture(name="host")
def fixture_host(
    plugin_as_after_import: None, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """The host stands in for a GPU, as far as `tune` looks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    on_host = functools.partial(plan_by_profile, backend="host")
    monkeypatch.setattr(tune_module, "plan_by_profile", on_host)
    monkeypatch.setattr(tensorflow_internals, "may_have_gpus", lambda: True)
    monkeypatch.setattr(tune_module, "running_device", lambda backend: object())


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("training", [False, True])
def test_profiles_and_plans(training: bool) -> None:
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
    assert all(graph.plan.prediction and not graph.plan.narrow_units for graph in tuning.graphs)
    assert any("convolutions" in each for each in said)
    plan = get_plugin().settings.plan
    assert (plan is not None) == tuning.is_faster


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(("xla_ratio", "is_faster"), [(99.0, True), (1.0, False)])
def test_says_where_xla_saves_more_than_stages_are_predicted_to(
    xla_ratio: float, is_faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = XlaTimes(1e3, xla_ratio)
    monkeypatch.setattr(tune_module, "time_xla", lambda *_, **__: times)
    tuning = tf_interop.tune(branched_models.build(), budget="1s", enable=False)
    assert tuning.graphs[0].xla is times
    assert tuning.is_xla_faster is is_faster
    assert ("XLA is faster: 99.00 times" in str(tuning)) is is_faster
