"""Functions whose batch size is not known when they are optimized, with plans for several."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from planning_graphs import make_stage

import tf_interop
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.runtime.plugin import get_plugin

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


def make_branches() -> tf.types.experimental.GenericFunction:
    random = np.random.default_rng(1)
    filters = {
        name: random.integers(-2, 3, [3, 3, 3, 4]).astype(np.float32) for name in ("a", "b", "c")
    }

    @tf.function(input_signature=[tf.TensorSpec([None, 9, 9, 3])])
    def branches(image: tf.Tensor) -> list[tf.Tensor]:
        return [tf.nn.conv2d(image, each, 1, "SAME", name=name) for name, each in filters.items()]

    return branches


def images(batch_size: int) -> np.ndarray:
    return np.random.default_rng(batch_size).integers(-2, 3, [batch_size, 9, 9, 3]).astype("f")


def plan_for_two_batch_sizes() -> Plan:
    tf_interop.enable("always")
    make_branches()(images(1))
    [report] = tf_interop.status().graphs
    get_plugin().forget_reports()
    return Plan(
        (
            GraphPlan(report.plan.fingerprint, 3, (make_stage("a:DIRECT", "b:DIRECT", "c"),), 2),
            GraphPlan(report.plan.fingerprint, 3, (make_stage("a b:IM2COL_GEMM", "c"),), 5),
        )
    )


def new_fallbacks(batch_size: int, branches: tf.types.experimental.GenericFunction) -> set[str]:
    """What falls back in a call with so many images, whose results are right."""
    before = tf_interop.status().counters
    results = branches(images(batch_size))
    after = tf_interop.status().counters
    assert after.stages_run == before.stages_run + 1
    tf_interop.disable()
    for result, own in zip(results, make_branches()(images(batch_size)), strict=True):
        np.testing.assert_array_equal(result, own)
    return {
        reason
        for reason, count in after.fallbacks.items()
        if count != before.fallbacks.get(reason, 0)
    }


@pytest.mark.parametrize(
    ("batch_size", "fallback"),
    [(2, ""), (5, ""), (7, "batch size 7 is not in the plan (2, 5)")],
)
def test_a_call_goes_by_its_batch_size(batch_size: int, fallback: str) -> None:
    plan = plan_for_two_batch_sizes()
    tf_interop.enable(plan=plan)
    fallbacks = new_fallbacks(batch_size, make_branches())
    assert len(fallbacks) == bool(fallback)
    assert all(fallback in reason for reason in fallbacks)


def test_the_plan_that_was_made_gives_the_same_stages_again(tmp_path: pathlib.Path) -> None:
    tf_interop.enable(plan=plan_for_two_batch_sizes())
    make_branches()(images(2))
    made = tf_interop.status().plan
    [graph] = made.graphs
    [only] = graph.stages
    assert [schedule.batch_size for schedule in only.schedules] == [2, 5]
    assert [len(schedule.stage.lanes) for schedule in only.schedules] == [3, 2]
    tf_interop.save_plan(made, tmp_path / "plan.json")
    tf_interop.disable()
    get_plugin().forget_reports()

    tf_interop.enable(plan=tmp_path / "plan.json")
    branches = make_branches()
    assert new_fallbacks(5, branches) == set()
    assert tf_interop.status().plan == made


def test_one_batch_size_merges_where_others_do_not(tmp_path: pathlib.Path) -> None:
    [first, second] = plan_for_two_batch_sizes().graphs
    merged = make_stage("b:DIRECT", "+c:DIRECT a:DIRECT")
    merging = dataclasses.replace(first, stages=(merged,), batch_size=3)
    tf_interop.enable(plan=Plan((first, merging, second)))
    make_branches()(images(3))
    made = tf_interop.status().plan
    [only] = made.graphs[0].stages
    assert [[lane.merged for lane in schedule.stage.lanes] for schedule in only.schedules] == [
        [False] * 3,
        [False, True],
        [False] * 2,
    ]
    tf_interop.save_plan(made, tmp_path / "plan.json")
    assert tf_interop.load_plan(tmp_path / "plan.json") == made
    for batch_size in (2, 3, 5):
        tf_interop.enable(plan=tmp_path / "plan.json")
        assert new_fallbacks(batch_size, make_branches()) == set()
    # Without memory for joined filters the lanes are not merged, and the numbers are the same.
    tf_interop.enable(plan=tmp_path / "plan.json", workspace_limit_mb=0)
    assert new_fallbacks(3, make_branches()) == {
        "no memory for the workspaces of a stage: its merged lanes ran unmerged"
    }
    tf_interop.enable()  # without a limit


def test_the_last_batch_of_an_epoch_falls_back_and_is_counted() -> None:
    # predict's functions know no batch size; ten images in batches of four leave two.
    model = tf.keras.Sequential(
        [tf.keras.Input([9, 9, 3]), tf.keras.layers.Conv2D(4, 3, name="only")]
    )
    model.compile(jit_compile=False)
    data = images(10)
    own = model.predict(data, batch_size=4, verbose=0)
    with tf_interop.keras.ConvStages("always", verbose=0) as always:
        model.predict(data, batch_size=4, verbose=0, callbacks=[always])
    [report] = [each for each in tf_interop.status().graphs if each.plan.stages]
    [planned] = report.plan.stages
    plan = Plan((GraphPlan(report.plan.fingerprint, 1, (planned,), 4),))
    before = tf_interop.status().counters
    with tf_interop.keras.ConvStages(plan=plan, verbose=0) as planned_stages:
        result = model.predict(data, batch_size=4, verbose=0, callbacks=[planned_stages])
    counters = tf_interop.status().counters
    np.testing.assert_allclose(result, own, rtol=1e-5, atol=1e-6)
    assert counters.stages_run == before.stages_run + 3
    [reason] = [reason for reason in counters.fallbacks if "is not in the plan (4)" in reason]
    assert "batch size 2" in reason
