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
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.graph.ops import attribute_of
from tf_interop.graph.properties import GraphProperties, is_fully_known
from tf_interop.graph.view import GraphView
from tf_interop.parallel.node_maker import NodeMaker, own_attributes, without_nodes
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
    new, taken = without_nodes(view.graph_def), set(view.names)
    instead: dict[str, str] = {}
    statistics: dict[int | None, tuple[str, str]] = {}
    for node in view.topological_order():
        old = view.nodes[node]
        if node not in nodes:
            new.node.add().CopyFrom(old)
            continue
        first = len(new.node)
        maker = NodeMaker(new, old.device, old.name, taken)
        shape: Any = properties.input_shape(node, 0)
        normalization = _Normalization(view, node, maker, shape, instead)
        if old.op in FORWARD_OPS:
            statistics[node] = normalization.expand_forward()
        else:
            normalization.expand_gradient(statistics.get(_forward_of(view, node)))
        controls = [text for text in old.input if text.startswith("^")]
        for made in new.node[first:]:
            made.input.extend(controls)
        new.node[-1].name = old.name
    for made in new.node:
        made.input[:] = [instead.get(text, text) for text in made.input]
    return new


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


class _Normalization:
    """One node, and the ops that replace it. The last op computes the node's first output.

    New nodes compute in the dtype of the statistics, and state their shapes.
    """

    def __init__(
        self,
        view: GraphView,
        node: int,
        maker: NodeMaker,
        image: tuple[int, ...],
        instead: dict[str, str],
    ) -> None:
        """Prepares to add nodes.

        Args:
            view: the old graph.
            node: the node.
            maker: makes new nodes.
            image: shape of the image.
            instead: the tensors that replace outputs after a node's first.
        """
        self._maker, self._instead = maker, instead
        self._old = view.nodes[node]
        self._inputs = [instead.get(text, text) for text in self._old.input]
        self._read_ports = {
            port
            for reader in view.fanouts[node]
            for source, port in view.fanins[reader]
            if source == node
        }
        self._is_training = _is_training(view, node)
        channel = _CHANNELS[_layout_of(self._old)]
        self._axes = [axis for axis in range(4) if axis != channel]
        self._image = image
        self._vector = (image[channel],)
        self._statistics = tuple(1 if axis in self._axes else image[axis] for axis in range(4))
        self._image_dtype, self._dtype = (tf.as_dtype(self._old.attr[it].type) for it in "TU")
        self._count = math.prod(image) // image[channel]
        # Elementwise ops by the shape of their result.
        self._on_image, self._on_statistics, self._on_vector = (
            functools.partial(self._elementwise, shape)
            for shape in (image, self._statistics, self._vector)
        )

    def expand_forward(self) -> tuple[str, str]:
        """Adds the forward ops, by the formulas of TensorFlow's fused_batch_norm_op.cc.

        Returns:
            The mean and 1 / sqrt(variance + epsilon).
        """
        image, scale, offset, old_mean, old_variance = self._inputs[:5]
        image = self._cast(image, self._dtype)
        if self._is_training:
            mean = self._reduce("Mean", image)
            variance = self._reduce("Mean", self._on_image("SquaredDifference", image, mean))
            self._give(
                lambda: self._averaged(old_mean, self._as_vector(mean)),
                lambda: self._averaged(old_variance, self._unbiased(variance)),
            )
        else:
            mean, variance = self._spread(old_mean), self._spread(old_variance)
            self._give(lambda: old_mean, lambda: old_variance)
        inverse = self._inverse_deviation(variance)
        scaling = self._on_statistics("Mul", inverse, self._spread(scale))
        scaled = self._on_image("Mul", self._on_image("Sub", image, mean), scaling)
        self._cast(self._on_image("AddV2", scaled, self._spread(offset)), self._image_dtype)
        return mean, inverse

    def expand_gradient(self, statistics: tuple[str, str] | None) -> None:
        """Adds the gradient ops, by the same file, in inference by its FusedBatchNormFreezeGrad.

        Args:
            statistics: the result of `expand_forward`; None in inference.
        """
        gradient, image = (self._cast(text, self._dtype) for text in self._inputs[:2])
        if statistics is None:
            mean, variance = map(self._spread, self._inputs[3:5])
            statistics = mean, self._inverse_deviation(variance)
        mean, inverse = statistics
        centered = self._on_image("Sub", image, mean)
        product = self._on_image("Mul", gradient, centered)
        scaling = self._on_statistics("Mul", inverse, self._spread(self._inputs[2]))
        if not self._is_training:
            offset_sum, scale_sum = self._reduce("Sum", gradient), self._reduce("Sum", product)
            scale_sum = self._on_statistics("Mul", scale_sum, inverse)
            self._give(lambda: self._as_vector(scale_sum), lambda: self._as_vector(offset_sum))
            self._cast(self._on_image("Mul", gradient, scaling), self._image_dtype)
            return
        gradient_mean, product_mean = (self._reduce("Mean", each) for each in (gradient, product))
        slope = self._on_statistics("Mul", product_mean, inverse)
        self._give(
            lambda: self._as_vector(self._times_count(slope)),
            lambda: self._as_vector(self._times_count(gradient_mean)),
        )
        squared = self._on_statistics("Mul", slope, inverse)
        by_variance = self._on_image("Mul", centered, squared)
        difference = self._on_image("Sub", gradient, gradient_mean)
        difference = self._on_image("Sub", difference, by_variance)
        self._cast(self._on_image("Mul", difference, scaling), self._image_dtype)

    def _inverse_deviation(self, variance: str) -> str:
        epsilon = self._number(attribute_of(self._old, "epsilon").f)
        return self._on_statistics("Rsqrt", self._on_statistics("AddV2", variance, epsilon))

    def _give(self, *makers: Callable[[], str]) -> None:
        """Makes each output after the first that something reads."""
        for port, make in enumerate(makers, 1):
            if port in self._read_ports:
                self._instead[f"{self._old.name}:{port}"] = make()

    def _averaged(self, old: str, new: str) -> str:
        """The exponential average of an old and a new vector."""
        factor = attribute_of(self._old, "exponential_avg_factor").f
        if factor == 1:
            return new
        kept = self._on_vector("Mul", old, self._number(1 - factor))
        return self._on_vector("AddV2", kept, self._on_vector("Mul", new, self._number(factor)))

    def _unbiased(self, variance: str) -> str:
        bessel = self._number(self._count / max(self._count - 1, 1))
        return self._on_vector("Mul", self._as_vector(variance), bessel)

    def _times_count(self, mean: str) -> str:
        return self._on_statistics("Mul", mean, self._number(self._count))

    def _number(self, value: float) -> str:
        return self._maker.constant(value, self._dtype)

    def _elementwise(self, shape: tuple[int, ...], op: str, *inputs: str) -> str:
        return self._with_shape(shape, self._maker(op, *inputs, T=self._dtype))

    def _reduce(self, op: str, image: str) -> str:
        """A Mean or a Sum over all axes but the channels."""
        axes, types = self._maker.constant(self._axes), {"T": self._dtype, "Tidx": tf.int32}
        name = self._maker(op, image, axes, keep_dims=True, **types)
        return self._with_shape(self._statistics, name)

    def _spread(self, vector: str) -> str:
        """A vector in the shape of statistics."""
        return self._reshape(vector, self._statistics)

    def _as_vector(self, statistics: str) -> str:
        return self._reshape(statistics, self._vector)

    def _reshape(self, tensor: str, shape: tuple[int, ...]) -> str:
        return self._with_shape(shape, self._maker.reshape(tensor, shape, self._dtype))

    def _cast(self, image: str, dtype: tf.DType) -> str:
        """An image in its own dtype, or in that of the statistics."""
        if self._image_dtype == self._dtype:
            return image
        source = self._image_dtype if dtype == self._dtype else self._dtype
        return self._with_shape(self._image, self._maker("Cast", image, SrcT=source, DstT=dtype))

    def _with_shape(self, shape: tuple[int, ...], name: str) -> str:
        """States the shape of the last node."""
        stated = self._maker.graph_def.node[-1].attr["_output_shapes"].list.shape
        stated.append(tf.TensorShape(shape).as_proto())
        return name
