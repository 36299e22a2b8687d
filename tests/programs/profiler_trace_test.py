"""Stages and lanes in the traces of TensorFlow's profiler."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import pytest
import tensorflow as tf
from profiled_events import profile

import tf_interop

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


def test_names_stages_and_lanes(tmp_path: pathlib.Path) -> None:
    @tf.function
    def branches(image: Any) -> Any:
        left = tf.nn.conv2d(image, tf.ones([1, 1, 8, 8]), 1, "SAME", name="left")
        right = tf.nn.conv2d(image, tf.ones([3, 3, 8, 8]), 1, "SAME", name="right")
        return tf.concat([left, right], -1)

    def call() -> None:
        branches(tf.ones([2, 16, 16, 8]))
        time.sleep(0.2)  # the launching thread may end its span after the results are there

    tf_interop.enable(policy="always")
    call()
    events = profile(tmp_path, call)
    [stage] = [event for event in events if event.name.startswith("stage ")]
    assert stage.name != "stage "
    assert stage.details["schedule"] == "for every batch size"
    assert (stage.details["convolutions"], stage.details["lanes"]) == ("2", "2")
    for lane, name in enumerate(("left", "right")):
        spans = [event for event in events if event.name == f"lane {lane}: {name} [BUFFERED]"]
        # On the launching thread and the lane's.
        assert len(spans) == 2
        assert stage.thread in {span.thread for span in spans}
        details = [spans[0].details[key] for key in ("lane", "convolutions", "algorithm")]
        assert details == [str(lane), name, "BUFFERED"]
