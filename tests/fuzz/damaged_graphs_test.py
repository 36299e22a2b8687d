"""Damaged GraphDefs through the whole pass: it refuses them or leaves them legal."""

from __future__ import annotations

import random

import pytest
import tensorflow as tf
from graph_edits import damage_graph, whole_graph
from tensorflow.core.framework import graph_pb2

from tf_interop.errors import TfInteropError
from tf_interop.graph.check import check_rewrite
from tf_interop.graph.view import GraphView
from tf_interop.runtime.graph_pass import run_conv_stage_pass
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import Policy, Settings

GRAPHS = 2400
GRAPHS_PER_TEST = 300

ALWAYS = Settings(policy=Policy.ALWAYS)


def can_be_imported(graph_def: graph_pb2.GraphDef) -> bool:
    try:
        with tf.Graph().as_default():
            tf.import_graph_def(graph_def, name="")
    # What TensorFlow raises depends on what is wrong.
    except Exception:
        return False
    return True


def run_pass(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef | None:
    """Runs the pass and judges what comes out; None where nothing does.

    Raises:
        TfInteropError: the pass refuses the graph.
        AssertionError: what comes out is not legal, or the graph itself was changed.
    """
    before = graph_def.SerializeToString(deterministic=True)
    result = run_conv_stage_pass(graph_def, ALWAYS, "CPU", ("out",))
    assert graph_def.SerializeToString(deterministic=True) == before
    if result.graph_def is not None:
        check_rewrite(GraphView(graph_def), GraphView(result.graph_def), ("out",))
        assert can_be_imported(result.graph_def) or not can_be_imported(graph_def)
    return result.graph_def


def damaged_graph(seed: int) -> graph_pb2.GraphDef:
    numbers = random.Random(seed)
    graph_def = whole_graph()
    damage_graph(graph_def, numbers.randrange, numbers.randint(1, 4))
    return graph_def


def test_the_whole_graph_gets_stages_and_can_be_imported() -> None:
    result = run_conv_stage_pass(whole_graph(), ALWAYS, "CPU")
    assert result.report is not None
    assert sum(len(each.stage.lanes) for each in result.report.plan.stages) >= 4
    get_plugin()  # registers the op
    assert result.graph_def is not None
    assert can_be_imported(result.graph_def)
    assert "relu" not in {node.name for node in result.graph_def.node}


@pytest.mark.parametrize("first", range(0, GRAPHS, GRAPHS_PER_TEST))
def test_damaged_graphs_are_refused_or_stay_legal(first: int) -> None:
    get_plugin()
    refused = rewritten = 0
    for seed in range(first, first + GRAPHS_PER_TEST):
        try:
            rewritten += run_pass(damaged_graph(seed)) is not None
        except TfInteropError:
            refused += 1
    # Both happen often, or the edits have lost their teeth.
    assert refused > GRAPHS_PER_TEST // 10
    assert rewritten > GRAPHS_PER_TEST // 10
