"""The status as text."""

from __future__ import annotations

import dataclasses

import tensorflow as tf
from unnoticed import IMAGE, branches, in_function

import tf_interop
from tf_interop.runtime.kernel_library import Counters, SelfTiming, TimedWay
from tf_interop.runtime.status import Status

OFF = Status(is_on=True, why_off="")


def test_counts_what_stages_did_on_each_of_several_devices() -> None:
    gpu = Counters(3, {"no memory": 2}, 5, 1, 4)
    devices = {"CPU:0": Counters(4, {}), "GPU:0": gpu}
    for counters, prefix in ((gpu, ""), (dataclasses.replace(gpu, devices=devices), "GPU:0: ")):
        said = str(dataclasses.replace(OFF, counters=counters))
        for words in (
            "stages run: 3",
            "filters transformed once: 5",
            "stages replayed: 4, of 1 CUDA graphs",
            f"  {prefix}fallback, 2 times: no memory",
        ):
            assert words in said
    assert "CPU:0, stages run: 4" in said


def test_names_the_functions_and_shows_what_was_measured_for_each(units_on_cpus: None) -> None:
    @tf.function
    def serve(image: tf.Tensor, size: int) -> tf.Tensor:
        return tf.nn.relu(tf.nn.conv2d(image, tf.ones([size, size, 3, 4]), 1, "SAME"))

    variables = [tf.Variable(0.0) for _ in range(20)]  # so that a copy of the function is called

    @tf.function
    def other(image: tf.Tensor) -> tf.Tensor:
        return serve(image, 5) + tf.add_n(variables)

    tf_interop.enable()
    serve(tf.ones([1, 8, 8, 3]), 3)
    other(tf.ones([2, 8, 8, 3]))
    status = tf_interop.status()
    assert [graph.function for graph in status.graphs] == ["other", "serve"]
    lines = str(status).splitlines()
    for name, size in (("serve", "1x8x8x3"), ("other", "2x8x8x3")):
        assert any(line.strip().startswith(f"{name}: input {size}: ") for line in lines), lines
    assert "tuned" not in str(status)


def test_says_how_often_each_way_ran() -> None:
    tried = (
        TimedWay("as stock TensorFlow", 2.0, 40),
        TimedWay("on 2 cores", 1.25, 960, 1.2),
        TimedWay("on 1 core", 0.0, 0),
    )
    timing = SelfTiming("a1", "1x8x8x3", "on 2 cores", False, 0.012, tried)
    assert str(timing) == (
        "input 1x8x8x3: runs on 2 cores (as stock TensorFlow 2.00 ms in 40 steps, on 2 cores "
        "1.25 ms (1.20 ms simulated) in 960 steps); trying took 1.2% of the time"
    )


def test_separates_graphs_of_earlier_settings(plugin_as_after_import: None) -> None:
    function = in_function(branches)()
    tf_interop.enable("always")
    function(IMAGE)
    made = tf_interop.status()
    assert made.op_count == 1
    assert made.current_graphs == made.graphs
    assert "1 stage, up to 2 lanes" in str(made)
    assert "earlier settings" not in str(made)

    tf_interop.enable(kept=False, self_timing=False)
    function(IMAGE)
    left = tf_interop.status()
    assert left.graphs == made.graphs
    assert left.current_graphs == ()
    assert "no plan is in effect" in left.why_off
    assert "under earlier settings, no longer in effect" in str(left)

    tf_interop.enable("always")
    assert tf_interop.status().current_graphs == made.graphs
