"""Stages and lanes in the traces of TensorFlow's profiler."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import pytest
import tensorflow as tf
from profiled_events import Event, profile

import tf_interop

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


@tf.function
def branches(image: Any) -> Any:
    left = tf.nn.conv2d(image, tf.ones([1, 1, 8, 8]), 1, "SAME", name="left")
    right = tf.nn.conv2d(image, tf.ones([3, 3, 8, 8]), 1, "SAME", name="right")
    return tf.concat([left, right], -1)


def trace(folder: pathlib.Path, image: tf.Tensor) -> list[Event]:
    branches(image)  # traces and optimizes

    def call() -> None:
        branches(image)
        time.sleep(0.2)  # the launching thread may end its span after the results are there

    return profile(folder, call)


def test_names_stages_and_lanes(tmp_path: pathlib.Path) -> None:
    tf_interop.enable(policy="always")
    events = trace(tmp_path, tf.ones([2, 16, 16, 8]))
    (stage,) = tf_interop.status().plan.graphs[0].stages
    assert set(stage.nodes) == {"left", "right"}

    ((stage_name, stage_thread, stage_details),) = [
        event for event in events if event[0].startswith("stage ")
    ]
    assert stage_name != "stage "
    assert stage_details["schedule"] == "for every batch size"
    assert (stage_details["convolutions"], stage_details["lanes"]) == ("2", "2")

    lanes = [event for event in events if event[0].startswith("lane ")]
    assert {name for name, _, _ in lanes} == {
        "lane 0: left [BUFFERED]",
        "lane 1: right [BUFFERED]",
    }
    assert [thread for _, thread, _ in lanes] == [stage_thread] * 2
    of_right = next(each for name, _, each in lanes if "right" in name)
    assert of_right["lane"] == "1"
    assert (of_right["convolutions"], of_right["algorithm"]) == ("right", "BUFFERED")
