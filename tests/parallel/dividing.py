"""Counts the bytes that TensorFlow sends between devices."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.eager import context

from tf_interop.graph.ops import output_dtypes
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView, parse_input
from tf_interop.model.graphs import with_inferred_shapes
from tf_interop.parallel.rewrite import was_divided
from tf_interop.runtime.plugin import get_plugin


def sent_bytes(call: Callable[[], Any]) -> collections.Counter[tuple[str, str]]:
    """The bytes that TensorFlow sends in the first call of a divided function, by device pair."""
    divided: list[graph_pb2.GraphDef] = []

    def look(graph_def: graph_pb2.GraphDef, _: str) -> None:
        if was_divided(graph_def):
            divided.append(graph_def)

    context.context().enable_run_metadata()
    context.context().export_run_metadata()  # of calls before
    with get_plugin().observe(look):
        call()
    metadata = context.context().export_run_metadata()
    context.context().disable_run_metadata()
    view = GraphView(with_inferred_shapes(divided[-1]))
    properties = GraphProperties(view)
    counter: collections.Counter[tuple[str, str]] = collections.Counter()
    for partition in metadata.partition_graphs:
        nodes = {node.name: node for node in partition.node}
        for node in partition.node:
            if node.op == "_Send":
                source, destination = (
                    node.attr[name].s.decode() for name in ("send_device", "recv_device")
                )
                counter[source, destination] += _byte_count(
                    *parse_input(node.input[0]), nodes, view, properties
                )
    return +counter


def _byte_count(
    name: str, port: int, sent_from: Mapping[str, Any], view: GraphView, properties: GraphProperties
) -> int:
    if name not in view.index_of:
        # It stands for a control dependency.
        assert sent_from[name].op == "Const", name
        assert tf.make_ndarray(sent_from[name].attr["value"].tensor).size == 0, name
        return 0
    node = view.index_of[name]
    shape = properties.output_shape(node, port)
    assert shape is not None, name
    assert None not in shape, name
    return math.prod(shape) * tf.as_dtype(output_dtypes(view.nodes[node])[port]).size
