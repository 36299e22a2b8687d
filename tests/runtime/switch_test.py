"""What enabling and disabling reach: functions that have run, threads, pipelines, Sessions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from unnoticed import IMAGE, conv, in_function, stages_run, v1

import tf_interop
from tf_interop.planning.types import Plan

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


def branches(image: tf.Tensor) -> tf.Tensor:
    return conv(image, 0) + conv(image, 1)


EXPECTED = branches(tf.constant(IMAGE)).numpy()


def stages_of(call: Callable[[], Any]) -> int:
    """How many stages run in a call, whose result has to be that of `branches`."""
    before = stages_run()
    np.testing.assert_array_equal(call(), EXPECTED)
    return stages_run() - before


def test_a_change_reaches_functions_that_have_run() -> None:
    function = in_function(branches)()
    outer = in_function(lambda image: function(image) + 0)()
    for call in (lambda: function(IMAGE), lambda: outer(IMAGE)):
        tf_interop.enable("always")
        assert stages_of(call) == 1
        plan = tf_interop.status().plan
        tf_interop.enable()
        assert stages_of(call) == 0
        tf_interop.enable(plan=plan)
        assert stages_of(call) == 1
        tf_interop.enable(plan=Plan(()))
        assert stages_of(call) == 0
        tf_interop.disable()
        assert stages_of(call) == 0
        tf_interop.enable(plan=plan)
        assert stages_of(call) == 1


def test_turning_it_on_again_as_it_is_keeps_what_is_there() -> None:
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


class OtherThread:
    """A thread that lives as long as the test: TensorFlow keeps options by thread."""

    def __init__(self) -> None:
        self._call: Callable[[], Any] | None = None
        self._result: Any = None
        self._is_asked = threading.Semaphore(0)
        self._is_done = threading.Semaphore(0)
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self._is_asked.acquire()
            try:
                self._result = self._call()
            except BaseException as error:
                self._result = error
            self._is_done.release()

    def run(self, call: Callable[[], Any]) -> Any:
        self._call = call
        self._is_asked.release()
        assert self._is_done.acquire(timeout=60)
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


def test_a_change_reaches_functions_of_other_threads() -> None:
    tf_interop.enable("always")
    function = in_function(branches)()
    thread = OtherThread()
    assert stages_of(lambda: thread.run(lambda: function(IMAGE))) == 1
    tf_interop.enable()
    assert stages_of(lambda: thread.run(lambda: function(IMAGE))) == 0
    tf_interop.enable("always")
    assert stages_of(lambda: thread.run(lambda: function(IMAGE))) == 1
    tf_interop.disable()
    assert stages_of(lambda: thread.run(lambda: function(IMAGE))) == 0
    assert stages_of(lambda: thread.run(lambda: in_function(branches)()(IMAGE))) == 0


def run_pipeline() -> np.ndarray:
    [result] = tf.data.Dataset.from_tensors(IMAGE).map(branches)
    return result.numpy()


def run_session() -> np.ndarray:
    config = v1.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.use_plugin_optimizers = rewrites.ON
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        image = v1.placeholder(tf.float32, IMAGE.shape)
        return session.run(branches(image), {image: IMAGE})


@pytest.mark.parametrize("run", [run_pipeline, run_session])
def test_disabling_reaches(run: Callable[[], np.ndarray]) -> None:
    tf_interop.enable("always")
    with_stages = stages_of(run)
    tf_interop.disable()
    assert stages_of(run) == 0
    # Whether pipelines get stages depends on the option when TensorFlow's context was made.
    tf_interop.enable("always")
    assert stages_of(run) == with_stages
    assert run is run_pipeline or with_stages == 1


def test_a_thread_that_ran_while_it_was_off_keeps_its_option_as_the_limits_say() -> None:
    tf_interop.disable()
    thread = OtherThread()
    function = in_function(branches)()
    assert stages_of(lambda: thread.run(lambda: function(IMAGE))) == 0
    tf_interop.enable("always")
    assert stages_of(lambda: thread.run(lambda: function(IMAGE))) == 0
    assert stages_of(lambda: function(IMAGE)) == 1
    assert stages_of(lambda: OtherThread().run(lambda: function(IMAGE))) == 1
