"""Steps are timed as programs run them, in turns."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tuning_graphs import branches, training_step

from tf_interop.graph.program import UNIT_OP
from tf_interop.model.graphs import trace
from tf_interop.planning.types import OURS, STOCK
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.switch import disable
from tf_interop.tuning import compare, timed_steps
from tf_interop.tuning.timed_steps import Timed, Variant, measure


def measured(graph_def: graph_pb2.GraphDef, **options: float) -> Timed | str:
    try:
        return measure(compare._work_of(trace(graph_def), **{"timed_s": 0.1, **options}))
    finally:
        disable()


@pytest.mark.usefixtures("plugin_as_after_import", "units_on_cpus")
@pytest.mark.parametrize("graph_def", [branches(), training_step()], ids=["inference", "training"])
def test_the_changed_graph_is_timed_once_it_has_found_its_way(
    graph_def: graph_pb2.GraphDef,
) -> None:
    seen: list[set[str]] = []
    with get_plugin().observe(lambda graph, _: seen.append({node.op for node in graph.node})):
        found = measured(graph_def, trying_s=20.0)
    assert isinstance(found, Timed)
    assert [each.name for each in found.compared] == [STOCK, OURS]
    [name] = {report.timed_graph for report in get_plugin().reports}
    timings = get_plugin().library.read_self_timings()
    assert [each.way for each in timings if each.name == name] == [found.way]
    # Stock TensorFlow's graph, and then the changed one.
    assert [UNIT_OP in ops for ops in seen if ops] == [False, False, True]
    is_training = graph_def == training_step()
    assert all(("AssignSubVariableOp" in ops) == is_training for ops in seen)


@pytest.mark.usefixtures("plugin_as_after_import", "units_on_cpus")
def test_without_time_the_graph_is_still_trying() -> None:
    found = measured(branches((3, 7)), trying_s=0.0)
    assert isinstance(found, Timed) and found.way is None


@pytest.mark.usefixtures("plugin_as_after_import")
def test_gives_the_reason_if_xla_refuses_a_graph() -> None:
    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder(tf.float32, (2,), "image")
        where = tf.raw_ops.UniqueV2(x=image, axis=[0])
        tf.raw_ops.AsString(input=where.y, name="joined")
    assert "XLA cannot compile it" in measured(graph.as_graph_def(), is_compiled=True)


def test_the_first_round_does_not_count_and_ratios_are_to_stock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps_s = {"stock": [0.9, 0.02, 0.04], "other": [0.1, 0.01, 0.01]}
    monkeypatch.setattr(timed_steps, "_turn", lambda each, count: [steps_s[each.name].pop(0)])
    variants = Variant("stock", lambda: None), Variant("other", lambda: None)
    stock, other = timed_steps.compare_in_turns(variants, 0.0)
    assert dataclasses.astuple(stock) == pytest.approx(("stock", 30, 1, 0))
    # The quartiles of 2 and 4 are 2.5 and 3.5.
    assert dataclasses.astuple(other) == pytest.approx(("other", 10, 3, 1 / 2**0.5))
