"""Comparing a graph as the plugin changes it with stock TensorFlow."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tuning_graphs import FETCHES, branches, training_step

from tf_interop.graph.program import UNIT_OP, decode_node
from tf_interop.planning.types import ONE_THREAD, OURS, STOCK
from tf_interop.runtime.kernel_library import load_kernel_library
from tf_interop.tuning import compare
from tf_interop.tuning.compare import as_step, changed_graph, compare_with_stock


@pytest.fixture(autouse=True)
def on_several_cores(units_on_cpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "core_count", lambda: 3)


@pytest.mark.parametrize("is_training", [False, True])
def test_the_changed_graph_is_timed_once_it_has_found_its_way(is_training: bool) -> None:
    stock, fetches = (training_step(), ["update"]) if is_training else (branches(), FETCHES)
    changed, timed_graph = changed_graph(stock, fetches)
    units = [decode_node(node) for node in changed.node if node.op == UNIT_OP]
    assert {unit.timed_graph for unit in units} == {timed_graph} != {""}
    said: list[str] = []
    found = compare_with_stock(stock, fetches, budget_s=2.0, say=said.append)
    assert [each.name for each in found.compared] == [STOCK, OURS, ONE_THREAD]
    assert found.cores == 3 and said
    timings = load_kernel_library().read_self_timings()
    [ways] = [[way.way for way in each.tried] for each in timings if each.name == timed_graph]
    assert found.way in ways


def test_without_time_the_graph_is_still_trying() -> None:
    assert compare_with_stock(branches((3, 7)), FETCHES, budget_s=0.0).way is None


@pytest.mark.parametrize("cores", [1, 2])
def test_a_graph_that_does_not_change_is_compared_with_one_thread(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "core_count", lambda: cores)
    with tf.Graph().as_default() as graph:
        tf.identity(tf.compat.v1.placeholder(tf.float32, (2,)), "joined")
    found = compare_with_stock(graph.as_graph_def(), FETCHES, budget_s=0.0)
    assert [each.name for each in found.compared] == [STOCK, ONE_THREAD][:cores]
    assert found.way == ""


def test_a_step_runs_nodes_that_give_results_or_are_unread() -> None:
    graph_def = training_step()
    result = graph_def.node.add(name="result", op="_Retval", input=["relu"])
    result.attr["T"].type = tf.float32.as_datatype_enum
    graph_def.node.add(name="unused", op="Placeholder")
    step, fetches = as_step(graph_def)
    assert fetches == ["relu", "update"]
    assert "result" not in {node.name for node in step.node}
