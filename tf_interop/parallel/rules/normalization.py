"""Divides fused batch normalizations: by channels as they are, otherwise as elementary ops.

Each channel has its own statistics. In inference all statistics are given, so the rule divides the
forward op along every axis. The pass first replaces a normalization in training, or a gradient,
that would run whole:

    x, scale, offset --> bn: FusedBatchNormV3 --> y, batch_mean, batch_variance, reserve spaces

    x --+--> Mean --+--> SquaredDifference --> Mean --> Rsqrt --> Mul (scale) --+
        |           |                                                           |
        +----------> Sub ------------------------------------------------------> Mul --> bn: AddV2

Statistics have the shape [1, 1, 1, C] or [1, C, 1, 1]. The parts of a Mean are addends, so the
statistics are those of the whole batch, as in training on one device.

Preconditions of a replacement:
  1. the image has rank 4 and a known shape;
  2. only gradients that are also replaced read the reserve spaces, in inference only the last one,
     and nothing reads the reserve spaces of a gradient;
  3. the node is in no loop, and only its first output is fetched.

Guaranteed: the last op takes over the node's name, and with it fetches, readers and outgoing
control dependencies; devices and incoming control dependencies stay. A second run finds nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.graph.ops import attribute_of
from tf_interop.graph.properties import GraphProperties, is_fully_known
from tf_interop.graph.view import GraphView, free_name
from tf_interop.parallel.node_maker import NodeMaker, own_attributes
from tf_interop.parallel.op_parts import Operation, OpPart, Rule, by_operand, outputs_of
from tf_interop.parallel.regions import Box, whole

FORWARD_OPS = frozenset({"FusedBatchNormV2", "FusedBatchNormV3"})
GRADIENT_OPS = frozenset({"FusedBatchNormGradV2", "FusedBatchNormGradV3"})
_CHANNELS = {"NHWC": 3, "NCHW": 1}

_COMPUTED = {"FusedBatchNormV2": 5, "FusedBatchNormGradV2": 3}
"""How many outputs parts compute. The others are reserve spaces that nothing needs."""


def _part_of_image(operation: Operation, box: Box) -> OpPart | None:
    """A part: the second version of the op, which has no last reserve space.

    So that space is not sent from a normalization to its gradient. All vectors are divided as the
    channels of the image are.
    """
    node, image = operation.node, operation.input_shapes[0]
    if len(image) != 4:
        return None
    axis = operation.layout.index("C")
    needs_all_pixels = "Grad" in node.op or attribute_of(node, "is_training").b
    if needs_all_pixels and whole(image) != (*box[:axis], (0, image[axis]), *box[axis + 1 :]):
        return None
    op = node.op.replace("V3", "V2")
    computed = _COMPUTED[op]

    def boxes(shapes: Sequence[tuple[int, ...]]) -> tuple[Box, ...]:
        return tuple(box if len(shape) == 4 else (box[axis],) for shape in shapes)

    unread = (None,) * (len(operation.input_shapes) - 5)
    gives = boxes(operation.output_shapes[:computed])
    gives += tuple(map(whole, operation.output_shapes[computed:]))
    emit = functools.partial(_normalize, operation, op)
    return OpPart((*boxes(operation.input_shapes[:5]), *unread), gives, emit)


def _normalize(
    operation: Operation, op: str, maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    name = maker(op, *inputs[:5], **own_attributes(operation.node))
    dtype = tf.as_dtype(operation.node.attr["U"].type)
    spaces = [
        maker.constant(np.zeros(shape), dtype) for shape in operation.output_shapes[_COMPUTED[op] :]
    ]
    return [*outputs_of(name, _COMPUTED[op]), *spaces]


RULES: dict[str, Rule] = dict.fromkeys(FORWARD_OPS | GRADIENT_OPS, by_operand(_part_of_image))


def find_normalizations(view: GraphView, properties: GraphProperties) -> frozenset[int]:
    """The nodes that meet precondition 1, and 2 except where it depends on their pairs."""
    return frozenset(
        node
        for node, op in enumerate(view.ops)
        if op in FORWARD_OPS | GRADIENT_OPS
        and _has_known_image(view, properties, node)
        and not _is_reserve_space_read(view, node)
    )


def is_with_its_pair(view: GraphView, nodes: Collection[int], node: int) -> bool:
    """Whether `nodes` contain a normalization with all gradients that read it.

    A gradient in inference reads nothing that only the forward op computes.
    """
    if view.ops[node] in FORWARD_OPS:
        return all(each in nodes for each in view.fanouts[node] if view.ops[each] in GRADIENT_OPS)
    forward = _forward_of(view, node)
    if forward is None:
        return not _is_training(view, node)
    return forward in nodes and is_with_its_pair(view, nodes, forward)


def expand_normalization(
    view: GraphView, properties: GraphProperties, nodes: Collection[int]
) -> graph_pb2.GraphDef:
    """Makes a new graph with elementary ops in place of normalizations.

    Args:
        view: the graph.
        properties: its shapes.
        nodes: nodes from `find_normalizations`, each with its pair.
    """
    new = view.with_nodes(())
    taken = set(view.names)
    instead: dict[str, str] = {}  # the tensors that replace outputs after a node's first
    statistics: dict[int | None, tuple[str, ...]] = {}  # in place of those of a forward node
    for node in view.topological_order():
        old = view.nodes[node]
        if node not in nodes:
            new.node.add().CopyFrom(old)
            continue
        image: Any = properties.input_shape(node, 0)
        reads = [instead.get(text, text) for text in old.input if not text.startswith("^")]
        is_forward = old.op in FORWARD_OPS
        if not is_forward and _is_training(view, node):
            reads[3:5] = statistics[_forward_of(view, node)]
        with tf.Graph().as_default() as graph:
            outputs, its_statistics = (_forward if is_forward else _gradient)(old, image)
        read_ports = [
            port
            for port in (1, 2)
            if any((node, port) in view.fanins[reader] for reader in view.fanouts[node])
        ]
        results = [outputs[port] for port in (0, *read_ports)]
        names = _inline(new, old, graph, [*results, *its_statistics], reads, taken)
        for port in read_ports:
            instead[f"{old.name}:{port}"] = names[outputs[port].op.name]
        statistics[node] = tuple(names[each.op.name] for each in its_statistics)
    for made in new.node:
        made.input[:] = [instead.get(text, text) for text in made.input]
    return new


def _inline(
    new: graph_pb2.GraphDef,
    old: node_def_pb2.NodeDef,
    graph: tf.Graph,
    results: Sequence[tf.Tensor],
    reads: Sequence[str],
    taken: set[str],
) -> dict[str, str]:
    """Adds the ops that `results` need in place of a node.

    The first result gets the node's name. Placeholders stand for the tensors that it reads.

    Returns:
        The name of each op in the new graph.
    """
    needed: set[str] = set()
    left = [each.op for each in results]
    while left:
        op = left.pop()
        if op.name not in needed:
            needed.add(op.name)
            left += [each.op for each in op.inputs]
    controls = [text for text in old.input if text.startswith("^")]
    names = {f"read_{place}": text for place, text in enumerate(reads)}
    for node in graph.as_graph_def(add_shapes=True).node:
        if node.op == "Placeholder" or node.name not in needed:
            continue
        made = new.node.add()
        made.CopyFrom(node)
        if node.name == results[0].op.name:
            made.name = old.name
        else:
            made.name = free_name(f"{old.name}/{node.name}", taken)
            taken.add(made.name)
        names[node.name] = made.name
        made.device = old.device
        made.input[:] = [*(names[text] for text in node.input), *controls]
    return names


def _is_training(view: GraphView, node: int) -> bool:
    is_training: bool = attribute_of(view.nodes[node], "is_training").b
    return is_training


def _forward_of(view: GraphView, gradient: int) -> int | None:
    """The node whose statistics a gradient in training reads; None if it reads others."""
    (source, port), second = view.fanins[gradient][3:5]
    is_pair = port == 3 and second == (source, 4) and view.ops[source] in FORWARD_OPS
    trains = _is_training(view, gradient) and is_pair and _is_training(view, source)
    return source if trains else None


def _has_known_image(view: GraphView, properties: GraphProperties, node: int) -> bool:
    shape: Any = properties.input_shape(node, 0)
    is_known = is_fully_known(shape) and len(shape) == 4 and 0 not in shape
    return is_known and _layout_of(view.nodes[node]) in _CHANNELS


def _layout_of(node: node_def_pb2.NodeDef) -> str:
    layout: str = attribute_of(node, "data_format").s.decode()
    return layout


def _is_reserve_space_read(view: GraphView, node: int) -> bool:
    """Whether any node but its own gradient reads an output that only the fused ops can use."""
    is_forward = view.ops[node] in FORWARD_OPS

    def may_read(reader: int, port: int) -> bool:
        if not is_forward or view.ops[reader] not in GRADIENT_OPS:
            return False
        is_unused = port == 5 and not _is_training(view, reader)
        return is_unused or _forward_of(view, reader) == node

    return any(
        source == node and port >= 3 and not may_read(reader, port)
        for reader in view.fanouts[node]
        for source, port in view.fanins[reader]
    )


def _forward(
    node: node_def_pb2.NodeDef, shape: tuple[int, ...]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """A normalization by the formulas of TensorFlow's fused_batch_norm_op.cc.

    Returns:
        Its first three outputs; the mean and 1 / sqrt(variance + epsilon) of its images.
    """
    axes, of_statistics = _statistics(node, shape)
    [image], [scale, offset, old_mean, old_variance] = _reads(node, shape, 1, 4)
    x = tf.cast(image, scale.dtype)
    if attribute_of(node, "is_training").b:
        mean = tf.reduce_mean(x, axes, keepdims=True)
        variance = tf.reduce_mean(tf.math.squared_difference(x, mean), axes, keepdims=True)
        count = math.prod(shape[axis] for axis in axes)
        unbiased = tf.reshape(variance, old_variance.shape) * (count / max(count - 1, 1))
        factor = attribute_of(node, "exponential_avg_factor").f
        new_mean = _averaged(old_mean, tf.reshape(mean, old_mean.shape), factor)
        new_variance = _averaged(old_variance, unbiased, factor)
    else:
        mean, variance = (tf.reshape(each, of_statistics) for each in (old_mean, old_variance))
        new_mean, new_variance = old_mean, old_variance
    inverse = tf.math.rsqrt(variance + attribute_of(node, "epsilon").f)
    scaling = inverse * tf.reshape(scale, of_statistics)
    y = (x - mean) * scaling + tf.reshape(offset, of_statistics)
    return [tf.cast(y, image.dtype), new_mean, new_variance], [mean, inverse]


def _averaged(old: tf.Tensor, new: tf.Tensor, factor: float) -> tf.Tensor:
    return new if factor == 1 else old * (1 - factor) + new * factor


def _gradient(
    node: node_def_pb2.NodeDef, shape: tuple[int, ...]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The gradient of a normalization, in inference by FusedBatchNormFreezeGrad of the same file.

    In training it reads the statistics that `_forward` returns.
    """
    axes, of_statistics = _statistics(node, shape)
    is_training = attribute_of(node, "is_training").b
    images, [scale, *statistics] = _reads(node, shape, 2, 1 if is_training else 3)
    dy, x = (tf.cast(each, scale.dtype) for each in images)
    if is_training:
        mean, inverse = (
            tf.compat.v1.placeholder(scale.dtype, of_statistics, f"read_{at}") for at in (3, 4)
        )
    else:
        mean, variance = (tf.reshape(each, of_statistics) for each in statistics)
        inverse = tf.math.rsqrt(variance + attribute_of(node, "epsilon").f)
    centered = x - mean
    scaling = inverse * tf.reshape(scale, of_statistics)
    if is_training:
        dy_mean, product_mean = (
            tf.reduce_mean(each, axes, keepdims=True) for each in (dy, dy * centered)
        )
        count = math.prod(shape[axis] for axis in axes)
        slope = product_mean * inverse
        dx = (dy - dy_mean - centered * (slope * inverse)) * scaling
        dscale, doffset = slope * count, dy_mean * count
    else:
        dx = dy * scaling
        dscale = tf.reduce_sum(dy * centered, axes, keepdims=True) * inverse
        doffset = tf.reduce_sum(dy, axes, keepdims=True)
    vectors = [tf.reshape(each, scale.shape) for each in (dscale, doffset)]
    return [tf.cast(dx, images[0].dtype), *vectors], []


def _statistics(node: node_def_pb2.NodeDef, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The axes of an image but the channels, and the shape in which statistics broadcast to it."""
    channel = _CHANNELS[_layout_of(node)]
    axes = [axis for axis in range(4) if axis != channel]
    return axes, [shape[axis] if axis == channel else 1 for axis in range(4)]


def _reads(
    node: node_def_pb2.NodeDef, shape: tuple[int, ...], image_count: int, vector_count: int
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Placeholders of the images that a node reads, and of the vectors after them."""
    vector = [shape[_CHANNELS[_layout_of(node)]]]
    dtypes = (tf.as_dtype(node.attr[name].type) for name in "TU")
    kinds = [*zip(dtypes, (shape, vector), strict=True)]
    kinds = [kinds[0]] * image_count + [kinds[1]] * vector_count
    reads = [tf.compat.v1.placeholder(*kind, f"read_{place}") for place, kind in enumerate(kinds)]
    return reads[:image_count], reads[image_count:]
