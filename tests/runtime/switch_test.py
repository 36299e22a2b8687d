"""Enabling and disabling reach functions that have run, threads, pipelines and Sessions."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from unnoticed import IMAGE, Program, branches, in_function, in_session, stages_run_by, v1

import tf_interop
from tf_interop.planning.types import Plan

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


stages_of = functools.partial(stages_run_by, expected=branches(tf.constant(IMAGE)).numpy())
"""Counts the stages of a call, and checks that its result is that of `branches`."""


def test_a_change_reaches_functions_that_have_run() -> None:
    function = in_function(branches)()
    outer = in_function(lambda image: function(image) + 0)()
    tf_interop.enable("always")
    function(IMAGE)
    plan = tf_interop.status().plan
    for call in (lambda: function(IMAGE), lambda: outer(IMAGE)):
        for change, stages in (
            (lambda: tf_interop.enable("always"), 1),
            (tf_interop.enable, 0),
            (lambda: tf_interop.enable(plan=plan), 1),
            (lambda: tf_interop.enable(plan=Plan(())), 0),
            (tf_interop.disable, 0),
            (lambda: tf_interop.enable(plan=plan), 1),
            (lambda: set_option(False), 0),
            (lambda: set_option(True), 1),
        ):
            change()
            assert stages_of(call) == stages


def set_option(is_on: bool) -> None:
    """Turns the plugin off or on as a program may without it."""
    tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": is_on})
    assert tf_interop.status().is_on == is_on
    assert ("use_plugin_optimizers" in tf_interop.status().why_off) != is_on


def test_enabling_again_with_the_same_settings_changes_nothing() -> None:
    tf_interop.enable("always")
    random = tf.function(lambda: tf.random.uniform([], seed=1))
    first = float(random())
    tf_interop.enable("always")
    assert float(random()) != first, "the generator began again"
    reports = tf_interop.status().graphs
    function = in_function(branches)()
    function(IMAGE)
    made = tf_interop.status().graphs
    assert len(made) == len(reports) + 1
    tf_interop.enable("always")
    function(IMAGE)
    assert all(a is b for a, b in zip(made, tf_interop.status().graphs, strict=True))


def stages_in(thread: concurrent.futures.Executor, function: Program) -> int:
    return stages_of(lambda: thread.submit(function, IMAGE).result(60))


def test_a_change_reaches_functions_of_other_threads() -> None:
    function = in_function(branches)()
    # TensorFlow keeps options by thread.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        for change, stages in (
            (lambda: tf_interop.enable("always"), 1),
            (tf_interop.enable, 0),
            (lambda: tf_interop.enable("always"), 1),
            (tf_interop.disable, 0),
        ):
            change()
            assert stages_in(thread, function) == stages
        assert stages_in(thread, in_function(branches)()) == 0


def test_only_a_thread_that_ran_while_it_was_off_stays_off() -> None:
    tf_interop.disable()
    function = in_function(branches)()
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        assert stages_in(thread, function) == 0
        tf_interop.enable("always")
        assert stages_in(thread, function) == 0
        with concurrent.futures.ThreadPoolExecutor(1) as new_thread:
            assert stages_in(new_thread, function) == 1


def run_pipeline() -> np.ndarray:
    [result] = tf.data.Dataset.from_tensors(IMAGE).map(branches)
    return result.numpy()


def run_session() -> np.ndarray:
    def run(session: Any) -> Any:
        image = v1.placeholder(tf.float32, IMAGE.shape)
        return session.run(branches(image), {image: IMAGE})

    return in_session(run)()(IMAGE)


@pytest.mark.parametrize("run", [run_pipeline, run_session])
def test_disabling_reaches(run: Callable[[], np.ndarray]) -> None:
    tf_interop.enable("always")
    with_stages = stages_of(run)
    tf_interop.disable()
    assert stages_of(run) == 0
    # Pipelines keep the option as it was when TensorFlow's context was made.
    tf_interop.enable("always")
    assert stages_of(run) == with_stages
    assert run is run_pipeline or with_stages == 1
