"""The graph of a function as it was traced, flat: no calls, and nothing that is never run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop import tensorflow_internals
from tf_interop.errors import GraphError
from tf_interop.graph.view import parse_input


def graph_of_function(function: Any) -> graph_pb2.GraphDef:
    """The flat graph of a concrete function.

    Tracing leaves nodes behind that no output and no side effect needs, such as the gradient by
    the image of the first convolution. TensorFlow never runs them, so they are left out.

    Args:
        function: a concrete function; it is not run.
    """
    fetches = tensorflow_internals.function_fetches(function)
    return _needed_for(fetches, inline_calls(function.graph.as_graph_def(add_shapes=True), fetches))


def inline_calls(
    graph_def: graph_pb2.GraphDef, fetches: Collection[str] = ()
) -> graph_pb2.GraphDef:
    """Inlines the function calls of a graph.

    Args:
        graph_def: the graph; it is not changed.
        fetches: names of the nodes that it is run for; where there are none, those that no other
            reads.

    Returns:
        The graph itself if it has no functions, else a new one, whose library holds the functions
        that cannot be inlined.

    Raises:
        GraphError: TensorFlow refuses the graph.
    """
    if not graph_def.library.function:
        return graph_def
    if not fetches:
        read = {parse_input(text)[0] for node in graph_def.node for text in node.input}
        fetches = [node.name for node in graph_def.node if node.name not in read]
    try:
        return tensorflow_internals.inline_function_calls(graph_def, fetches)
    except (tf.errors.OpError, ValueError) as error:
        raise GraphError(
            "Expected a graph whose function calls TensorFlow can inline, got: "
            f"{str(error).rstrip('.')}. Import what registers its ops first, and check that every "
            "function is in its library."
        ) from error


def _needed_for(fetches: Collection[str], graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """The nodes of a graph that `fetches` depend on, in the order of the graph."""
    nodes = {node.name: node for node in graph_def.node}
    needed: set[str] = set()
    unseen = list(fetches)
    while unseen:
        name = unseen.pop()
        if name not in needed:
            needed.add(name)
            unseen += [parse_input(text)[0] for text in nodes[name].input]
    pruned = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    pruned.node.extend(node for name, node in nodes.items() if name in needed)
    return pruned
