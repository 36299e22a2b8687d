"""Times under XLA, and the reasons for missing ones."""

from __future__ import annotations

import tensorflow as tf
from tuning_graphs import FETCHES, branches

from tf_interop.child_process import Ended
from tf_interop.tuning import xla
from tf_interop.tuning.xla import time_xla


def test_times_what_xla_compiles() -> None:
    times = time_xla(branches(), FETCHES, {}, limit_s=120)
    assert times.why_not == ""
    assert times.median_ms > 0 and times.ratio > 0


def test_ends_at_the_limit() -> None:
    times = time_xla(branches(), FETCHES, {}, limit_s=0.01)
    assert (times.median_ms, times.ratio) == (None, None)
    assert "longer than" in times.why_not


def test_gives_the_reason_if_xla_refuses_a_graph() -> None:
    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder(tf.float32, (2,), "image")
        where = tf.raw_ops.UniqueV2(x=image, axis=[0])
        tf.raw_ops.AsString(input=where.y, name="joined")
    times = time_xla(graph.as_graph_def(), FETCHES, {}, limit_s=120)
    assert times.median_ms is None
    assert "XLA cannot compile it" in times.why_not


def test_a_process_that_ends_is_no_error(monkeypatch) -> None:
    monkeypatch.setattr(xla, "run_module", lambda *_: Ended(1, b"", ""))
    assert "process" in time_xla(branches(), FETCHES, {}, limit_s=10).why_not
