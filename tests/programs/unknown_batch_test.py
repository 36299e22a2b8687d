"""Functions whose batch size is not known when they are optimized, with plans for several."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from planning_graphs import make_stage
from unnoticed import counted

import tf_interop
from tf_interop.planning.types import GraphPlan, Plan, PlannedStage
from tf_interop.runtime.plugin import get_plugin

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")

RANDOM = np.random.default_rng(1)
FILTERS = {name: RANDOM.integers(-2, 3, [3, 3, 3, 4]).astype(np.float32) for name in "abc"}


def make_branches() -> tf.types.experimental.GenericFunction:
    @tf.function(input_signature=[tf.TensorSpec([None, 9, 9, 3])])
    def branches(image: tf.Tensor) -> list[tf.Tensor]:
        return [tf.nn.conv2d(image, each, 1, "SAME", name=name) for name, each in FILTERS.items()]

    return branches


def images(batch_size: int) -> np.ndarray:
    return np.random.default_rng(batch_size).integers(-2, 3, [batch_size, 9, 9, 3]).astype("f")


def plan_for(stages: dict[int, PlannedStage]) -> Plan:
    """A plan for these batch sizes."""
    tf_interop.enable("always")
    make_branches()(images(1))
    [report] = tf_interop.status().graphs
    get_plugin().forget_reports()
    fingerprint = report.plan.fingerprint
    return Plan(tuple(GraphPlan(fingerprint, 3, (each,), size) for size, each in stages.items()))


TWO = {2: make_stage("a:DIRECT", "b:DIRECT", "c"), 5: make_stage("a b:BUFFERED", "c")}


def fallbacks_of(batch_size: int) -> set[str]:
    """What falls back in a call with so many images, whose results are right."""
    with counted() as new:
        results = make_branches()(images(batch_size))
    assert new.stages_run == 1
    for result, filter_ in zip(results, FILTERS.values(), strict=True):
        own = tf.nn.conv2d(images(batch_size), filter_, 1, "SAME")
        np.testing.assert_array_equal(result, own)
    return set(new.fallbacks)


def test_one_batch_size_merges_and_the_plan_that_was_made_gives_the_same_again(
    tmp_path: pathlib.Path,
) -> None:
    merging = {2: TWO[2], 3: make_stage("b:DIRECT", "+c:DIRECT a:DIRECT"), 5: TWO[5]}
    tf_interop.enable(plan=plan_for(merging))
    make_branches()(images(3))
    made = tf_interop.status().plan
    [only] = made.graphs[0].stages
    assert [schedule.batch_size for schedule in only.schedules] == [2, 3, 5]
    merged = [[lane.merged for lane in schedule.stage.lanes] for schedule in only.schedules]
    assert merged == [[False] * 3, [False, True], [False] * 2]

    tf_interop.save_plan(made, tmp_path / "plan.json")
    get_plugin().forget_reports()
    tf_interop.enable(plan=tmp_path / "plan.json")
    for batch_size in (2, 3, 5):
        assert fallbacks_of(batch_size) == set()
    [reason] = fallbacks_of(4)
    assert "batch size 4 is not in the plan (2, 3, 5)" in reason
    assert tf_interop.status().plan == made
    # Without memory for joined filters the lanes are not merged, and the numbers are the same.
    tf_interop.enable(plan=tmp_path / "plan.json", workspace_limit_mb=0)
    assert fallbacks_of(3) == {
        "no memory for the workspaces of a stage: its merged lanes ran unmerged"
    }
