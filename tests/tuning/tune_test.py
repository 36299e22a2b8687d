"""What was tuned is found again for the same graph on the same machine, and for no other."""

from __future__ import annotations

import os
import types
from collections.abc import Callable

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tuning_graphs import FETCHES, branches

import tf_interop
from tf_interop import tensorflow_internals
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.units import find_units
from tf_interop.graph.view import GraphView
from tf_interop.tuning import tune

Patch = pytest.MonkeyPatch
THREADING = tf.config.threading


def key_of(graph_def: graph_pb2.GraphDef) -> str:
    view = GraphView(graph_def)
    properties = GraphProperties(view)
    units, _ = find_units(view, properties, nodes_to_preserve=FETCHES)
    convolutions, _ = find_convolutions(view, properties)
    return tune.cache_key(view, units, convolutions)


def test_one_graph_has_one_key() -> None:
    assert key_of(branches()) == key_of(branches())


def test_another_graph_has_another_key() -> None:
    longer, larger = branches(), branches()
    longer.node.add(name="more", op="Relu", input=["joined"], device="/device:CPU:0")
    longer.node[-1].attr["T"].type = tf.float32.as_datatype_enum
    longer.node.add(name="end", op="Relu", input=["more"], device="/device:CPU:0")
    longer.node[-1].attr["T"].type = tf.float32.as_datatype_enum
    other = larger.node.add(name="other_input", op="Placeholder")
    other.attr["dtype"].type = tf.float32.as_datatype_enum
    keys = [key_of(each) for each in (branches(), branches((1, 5)), longer, larger)]
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(os, "sched_getaffinity", lambda _: {7}),
        lambda patch: patch.setattr(tune, "this_cpu", lambda: types.SimpleNamespace(name="7")),
        lambda patch: patch.setattr(tf_interop, "__version__", "another"),
        lambda patch: patch.setattr(tensorflow_internals, "tensorflow_version", lambda: "another"),
        lambda patch: patch.setenv("TF_ENABLE_ONEDNN_OPTS", "0"),
        lambda patch: patch.setattr(THREADING, "get_intra_op_parallelism_threads", lambda: 7),
        lambda patch: patch.setattr(THREADING, "get_inter_op_parallelism_threads", lambda: 7),
    ],
    ids=["cores", "cpu", "package", "tensorflow", "onednn", "intra_op", "inter_op"],
)
def test_another_machine_or_setting_has_another_key(
    change: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    before = key_of(branches())
    change(monkeypatch)
    assert key_of(branches()) != before
