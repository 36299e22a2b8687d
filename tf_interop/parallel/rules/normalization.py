"""Divides fused batch normalizations: by channels as they are, otherwise as elementary ops.

Channels have statistics of their own. In inference all statistics are given, so the rule divides
the forward op along every axis. Where a normalization in training, or a gradient, would have to
run whole, the pass first replaces it:

    x, scale, offset --> bn: FusedBatchNormV3 --> y, batch_mean, batch_variance, reserve spaces

    x --+--> Mean --+--> SquaredDifference --> Mean --> Rsqrt --> Mul (scale) --+
        |           |                                                           |
        +----------> Sub ------------------------------------------------------> Mul --> bn: AddV2

Statistics have the shape [1, 1, 1, C] or [1, C, 1, 1]. The parts of a Mean are addends, so the
statistics are those of the whole batch: training on several devices is training on one.

Preconditions of a replacement:
  1. the image has rank 4 and a known shape;
  2. nobody reads an output that only the fused ops can use: only gradients that are replaced too
     read `reserve_space_3`, and nobody reads the reserve spaces of a gradient;
  3. the node is in no loop, and only its first output is fetched.

Guaranteed: the last op takes over the node's name, and with it fetches, readers and control
dependencies; devices and control dependencies stay. The second reserve space is what the stock
kernel of the device makes of it: the variance on CPUs, 1 / sqrt(variance + epsilon) on GPUs. A
second run finds nothing.
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
from tf_interop.parallel.op_parts import BoxPart, Operation, Rule, by_operand, outputs_of
from tf_interop.parallel.regions import Box, whole

FORWARD_OPS = frozenset({"FusedBatchNormV2", "FusedBatchNormV3"})
GRADIENT_OPS = frozenset({"FusedBatchNormGradV2", "FusedBatchNormGradV3"})
_CHANNELS = {"NHWC": 3, "NCHW": 1}

_COMPUTED = {"FusedBatchNormV2": 5, "FusedBatchNormGradV2": 3}
"""How many outputs parts compute. The others are reserve spaces that nobody needs."""


def _part_of_image(operation: Operation, box: Box) -> BoxPart | None:
    """A part: the second version of the op, which leaves out the last reserve space.

    So nothing of that is sent from a normalization to its gradient. All vectors are divided as the
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
    return (*boxes(operation.input_shapes[:5]), *unread), gives, emit


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
    """The nodes that meet precondition 1, and 2 as far as it does not depend on their pairs."""
    return frozenset(
        node
        for node, op in enumerate(view.ops)
        if op in FORWARD_OPS | GRADIENT_OPS
        and _has_known_image(view, properties, node)
        and not _is_reserve_space_read(view, node)
    )


def is_with_its_pair(view: GraphView, nodes: Collection[int], node: int) -> bool:
    """Whether `nodes` contain the gradients of a normalization, or the forward op of a gradient."""
    if view.ops[node] in FORWARD_OPS:
        return all(each in nodes for each in view.fanouts[node] if view.ops[each] in GRADIENT_OPS)
    source, _ = view.fanins[node][3]
    return view.ops[source] not in FORWARD_OPS or source in nodes


def expand_normalization(
    view: GraphView, properties: GraphProperties, nodes: Collection[int]
) -> graph_pb2.GraphDef:
    """Makes a new graph with elementary ops in place of normalizations.

    Args:
        view: the graph.
        properties: its shapes.
        nodes: some that `find_normalizations` found, each with its pair.
    """
    return _Expansion(view, nodes).run(properties)


def _has_known_image(view: GraphView, properties: GraphProperties, node: int) -> bool:
    shape: Any = properties.input_shape(node, 0)
    is_known = is_fully_known(shape) and len(shape) == 4 and 0 not in shape
    return is_known and _layout_of(view.nodes[node]) in _CHANNELS


def _layout_of(node: node_def_pb2.NodeDef) -> str:
    layout: str = attribute_of(node, "data_format").s.decode()
    return layout


def _is_reserve_space_read(view: GraphView, node: int) -> bool:
    """Whether any node but a gradient reads an output that only the fused ops can use."""
    is_forward = view.ops[node] in FORWARD_OPS
    private = {5} if is_forward else {3, 4}
    return any(
        source == node and port in private
        for reader in view.fanouts[node]
        if not (is_forward and view.ops[reader] in GRADIENT_OPS)
        for source, port in view.fanins[reader]
    )


class _Expansion:
    """A new graph in the making.

    Attributes:
        view: the old graph.
        instead: the tensors that replace outputs after a node's first.
        statistics: mean and 1 / sqrt(variance + epsilon) of forward nodes in training.
        new: the new graph.
    """

    def __init__(self, view: GraphView, nodes: Collection[int]) -> None:
        self.view = view
        self.instead: dict[str, str] = {}
        self.statistics: dict[int, tuple[str, str]] = {}
        self.new = without_nodes(view.graph_def)
        self._nodes = nodes

    def run(self, properties: GraphProperties) -> graph_pb2.GraphDef:
        view, taken = self.view, set(self.view.names)
        for node in view.topological_order():
            old = view.nodes[node]
            if node not in self._nodes:
                self.new.node.add().CopyFrom(old)
                continue
            first = len(self.new.node)
            maker = NodeMaker(self.new, old.device, old.name, taken)
            shape: Any = properties.input_shape(node, 0)
            normalization = _Normalization(self, node, maker, shape)
            if old.op in FORWARD_OPS:
                normalization.expand_forward()
            else:
                normalization.expand_gradient()
            controls = [text for text in old.input if text.startswith("^")]
            for made in self.new.node[first:]:
                made.input.extend(controls)
            self.new.node[-1].name = old.name
        for made in self.new.node:
            made.input[:] = [self.instead.get(text, text) for text in made.input]
        return self.new

    def forward_of(self, node: int) -> int | None:
        """The expanded node in training whose statistics an expanded gradient reads."""
        if node not in self._nodes or self.view.ops[node] not in GRADIENT_OPS:
            return None
        (source, port), (other, other_port) = self.view.fanins[node][3:5]
        is_forward = source in self._nodes and self.view.ops[source] in FORWARD_OPS
        is_pair = source == other and (port, other_port) == (3, 4)
        trains = all(
            attribute_of(self.view.nodes[each], "is_training").b for each in (node, source)
        )
        return source if is_forward and is_pair and trains else None


class _Normalization:
    """One node, and the ops that replace it. The last of them gives its first output.

    New nodes compute in the dtype of the statistics, and state their shapes.
    """

    def __init__(
        self, expansion: _Expansion, node: int, maker: NodeMaker, image: tuple[int, ...]
    ) -> None:
        self._expansion, self._node, self._maker = expansion, node, maker
        self._old = expansion.view.nodes[node]
        self._inputs = [expansion.instead.get(text, text) for text in self._old.input]
        self._is_training = attribute_of(self._old, "is_training").b
        self._is_on_gpu = "GPU" in self._old.device
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

    def expand_forward(self) -> None:
        """Follows the formulas of TensorFlow's kernel, fused_batch_norm_op.cc."""
        image, scale, offset, old_mean, old_variance = self._inputs[:5]
        image = self._cast(image, self._dtype)
        if self._is_training:
            mean = self._reduce("Mean", image)
            variance = self._reduce("Mean", self._on_image("SquaredDifference", image, mean))
            inverse = self._inverse_deviation(variance)
            self._expansion.statistics[self._node] = mean, inverse
            second = inverse if self._is_on_gpu else variance
            self._give(
                lambda: self._averaged(old_mean, self._as_vector(mean)),
                lambda: self._averaged(old_variance, self._unbiased(variance)),
                lambda: self._as_vector(mean),
                lambda: self._as_vector(second),
            )
        else:
            mean, variance = self._spread(old_mean), self._spread(old_variance)
            inverse = self._inverse_deviation(variance)
            self._give(*[lambda: old_mean, lambda: old_variance] * 2)
        scaling = self._on_statistics("Mul", inverse, self._spread(scale))
        scaled = self._on_image("Mul", self._on_image("Sub", image, mean), scaling)
        self._cast(self._on_image("AddV2", scaled, self._spread(offset)), self._image_dtype)

    def expand_gradient(self) -> None:
        """Follows the same file, and in inference its FusedBatchNormFreezeGrad."""
        gradient, image = (self._cast(text, self._dtype) for text in self._inputs[:2])
        mean, inverse = self._statistics_of_forward()
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

    def _statistics_of_forward(self) -> tuple[str, str]:
        """The mean and the inverse deviation, if possible directly from the forward ops."""
        source = self._expansion.forward_of(self._node)
        if source is not None:
            return self._expansion.statistics[source]
        mean, second = map(self._spread, self._inputs[3:5])
        is_inverse = self._is_training and self._is_on_gpu
        return mean, second if is_inverse else self._inverse_deviation(second)

    def _give(self, *makers: Callable[[], str]) -> None:
        """Makes those of the outputs after the first that anyone reads."""
        ports = self._read_ports()
        for port, make in enumerate(makers, 1):
            if port in ports:
                self._expansion.instead[f"{self._old.name}:{port}"] = make()

    def _read_ports(self) -> set[int]:
        """The outputs that anyone reads, apart from statistics for an expanded gradient."""
        view = self._expansion.view
        ports: set[int] = set()
        for reader in view.fanouts[self._node]:
            is_pair = self._expansion.forward_of(reader) == self._node
            tensors = view.fanins[reader][: 3 if is_pair else None]
            ports |= {port for source, port in tensors if source == self._node}
        return ports

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
        """An image in another of its two dtypes, its own and that of the statistics."""
        if self._image_dtype == self._dtype:
            return image
        source = self._image_dtype if dtype == self._dtype else self._dtype
        return self._with_shape(self._image, self._maker("Cast", image, SrcT=source, DstT=dtype))

    def _with_shape(self, shape: tuple[int, ...], name: str) -> str:
        """States the shape of the last node."""
        stated = self._expansion.new.node[-1].attr["_output_shapes"].list.shape
        stated.append(tf.TensorShape(shape).as_proto())
        return name
