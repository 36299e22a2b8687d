"""A step under XLA, and the reasons for a missing one."""

from __future__ import annotations

import tensorflow as tf
from tuning_graphs import FETCHES, branches

from tf_interop.child_process import Ended
from tf_interop.planning.types import XLA, ComparedStep
from tf_interop.tuning import xla
from tf_interop.tuning.xla import time_xla


def test_times_what_xla_compiles() -> None:
    step = time_xla(branches(), FETCHES, {}, limit_s=120)
    assert isinstance(step, ComparedStep)
    assert (step.name, step.error) == (XLA, None)
    assert step.step_ms > 0 and step.ratio > 0


def test_gives_the_reason_if_xla_refuses_a_graph() -> None:
    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder(tf.float32, (2,), "image")
        where = tf.raw_ops.UniqueV2(x=image, axis=[0])
        tf.raw_ops.AsString(input=where.y, name="joined")
    said = time_xla(graph.as_graph_def(), FETCHES, {}, limit_s=120)
    assert "XLA cannot compile it" in said


def test_a_process_that_ends_is_no_error(monkeypatch) -> None:
    monkeypatch.setattr(xla, "run_module", lambda *_: Ended(1, b"", ""))
    assert "process" in time_xla(branches(), FETCHES, {}, limit_s=10)
