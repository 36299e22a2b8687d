"""A graph as Grappler would hand it over for a device, made without running anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop import tensorflow_internals
from tf_interop.errors import GraphError
from tf_interop.graph.view import parse_input
from tf_interop.model.keras_functions import fill_shape

_SHAPE_ATTRIBUTES = ("_output_shapes", "_input_shapes", "_handle_shapes", "_handle_dtypes")


def graph_for_device(
    graph_def: graph_pb2.GraphDef,
    *,
    fetches: Collection[str],
    variables: Mapping[str, tf.TensorSpec],
    batch_size: int,
    image_size: tuple[int, int] | None,
    compute_capability: str | None,
) -> graph_pb2.GraphDef:
    """Runs Grappler's own passes on a graph, for a device that need not be here.

    Layouts and fused operations depend on the device: a list of convolutions for a GPU can be made
    on a machine without one.

    Args:
        graph_def: a flat graph; it is not changed.
        fetches: names of the nodes that it is run for; where there are none, those that no other
            reads.
        variables: shapes and dtypes of the variables, by the nodes that stand for them.
        batch_size: for placeholders whose first dimension is unknown.
        image_size: height and width, for placeholders of rank 4 that leave them open.
        compute_capability: of the GPU, such as `9.0`; None for a CPU.

    Returns:
        A new graph, whose nodes state the shapes of what they compute.

    Raises:
        ValueError: the shape of a placeholder stays open.
        GraphError: TensorFlow refuses the graph.
    """
    with_inputs = graph_pb2.GraphDef()
    with_inputs.CopyFrom(graph_def)
    for node in with_inputs.node:
        if node.name in variables:
            _become_variable(node, variables[node.name])
        elif node.op == "Placeholder":
            _fill_placeholder(node, batch_size, image_size)
    try:
        # Grappler chooses layouts by shapes: those of before may have left the batch open.
        shaped = with_inferred_shapes(with_inputs)
        optimized = tensorflow_internals.optimize_for_device(
            shaped, fetches or unread_nodes(graph_def), compute_capability
        )
    except (tf.errors.OpError, ValueError) as error:
        raise GraphError(
            f"Expected a graph that TensorFlow can optimize, got: {str(error).rstrip('.')}. Import "
            "what registers its ops first."
        ) from error
    return with_inferred_shapes(optimized)


def with_inferred_shapes(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """A graph whose nodes state the shapes that follow from its inputs, variables and constants.

    Args:
        graph_def: a flat graph, as traced, or as Grappler hands it over; it is not changed.

    Raises:
        ValueError: TensorFlow refuses the graph.
    """
    stripped = graph_pb2.GraphDef()
    stripped.CopyFrom(graph_def)
    for node in stripped.node:
        if node.op == "_Arg":
            _become_input(node)
        for name in _SHAPE_ATTRIBUTES:
            if name in node.attr:
                del node.attr[name]
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(stripped, name="")
    return graph.as_graph_def(add_shapes=True)


def unread_nodes(graph_def: graph_pb2.GraphDef) -> list[str]:
    """The names of the nodes that no other reads."""
    read = {parse_input(text)[0] for node in graph_def.node for text in node.input}
    return [node.name for node in graph_def.node if node.name not in read]


def _become_input(node: node_def_pb2.NodeDef) -> None:
    """Makes what stands for a function's argument into what stands for itself, its shape kept."""
    if node.attr["T"].type == tf.resource.as_datatype_enum:
        shapes = node.attr["_handle_shapes"].list.shape
        dtypes = node.attr["_handle_dtypes"].list.type
        if len(shapes) == len(dtypes) == 1:
            _become_variable(node, tf.TensorSpec(tf.TensorShape(shapes[0]), tf.as_dtype(dtypes[0])))
        return
    shapes = node.attr["_output_shapes"].list.shape
    shape = tf.TensorShape(shapes[0] if shapes else None)
    dtype = node.attr["T"].type
    node.op = "Placeholder"
    node.attr.clear()
    node.attr["dtype"].type = dtype
    node.attr["shape"].shape.CopyFrom(shape.as_proto())


def _become_variable(node: node_def_pb2.NodeDef, spec: tf.TensorSpec) -> None:
    node.op = "VarHandleOp"
    node.attr.clear()
    node.attr["dtype"].type = spec.dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(spec.shape.as_proto())
    node.attr["shared_name"].s = node.name.encode()


def _fill_placeholder(
    node: node_def_pb2.NodeDef, batch_size: int, image_size: tuple[int, int] | None
) -> None:
    dtype = tf.as_dtype(node.attr["dtype"].type)
    shape = tf.TensorShape(node.attr["shape"].shape)
    if dtype in (tf.resource, tf.variant) or shape.rank is None:
        return
    filled = fill_shape(tf.TensorSpec(shape, dtype, node.name), batch_size, image_size)
    node.attr["shape"].shape.CopyFrom(filled.shape.as_proto())
