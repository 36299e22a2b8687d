"""Recognizes operations that change each channel of a tensor by parameters.

A batch normalization in inference is such a change: a factor and an offset of each channel. Keras
computes it by Mul and AddV2, and `FusedBatchNormV3` is one too, which TensorFlow fuses with a Relu.
"""

from __future__ import annotations

import dataclasses
import enum

from tensorflow.core.framework import types_pb2

from tf_interop import tensorflow_internals
from tf_interop.convolution import Shape
from tf_interop.graph.ops import attribute_of
from tf_interop.graph.parameters import Parameters
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView, Tensor
from tf_interop.graph.xla import xla_mark


class Kind(enum.Enum):
    """How a parameter changes the values of a channel."""

    FACTOR = "factor"
    OFFSET = "offset"
    DIVISOR = "divisor"
    NEGATIVE_OFFSET = "negative offset"
    NORMALIZATION = "normalization"


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A change of each channel by parameters.

    Attributes:
        tensors: the parameter; of a normalization: scale, offset, mean and variance.
        epsilon: of a normalization.
        activation: the op of the activation that the same node applies; empty if there is none.
    """

    kind: Kind
    tensors: tuple[Tensor, ...]
    epsilon: float = 0.0
    activation: str = ""


_CHANGES = {
    "Mul": Kind.FACTOR,
    "Add": Kind.OFFSET,
    "AddV2": Kind.OFFSET,
    "BiasAdd": Kind.OFFSET,
    "RealDiv": Kind.DIVISOR,
    "Sub": Kind.NEGATIVE_OFFSET,
    "FusedBatchNorm": Kind.NORMALIZATION,
    "FusedBatchNormV2": Kind.NORMALIZATION,
    "FusedBatchNormV3": Kind.NORMALIZATION,
    "_FusedBatchNormEx": Kind.NORMALIZATION,
}

_ORDERED = frozenset({"Sub", "RealDiv", "BiasAdd"})
"""Their second operand alone may be the parameter."""

_CHANNELS_LAST = frozenset({b"NHWC", b"NDHWC"})


class ChannelChanges:
    """The changes in one graph, and who reads what.

    A chain of nodes that becomes one operation is *absorbed*; no other chain may have its nodes.

    Attributes:
        view: the graph.
        properties: the shapes of its tensors.
        parameters: the shape of each parameter, as in `Parameters`.
        is_cpu: whether the changes are of CPUs, else of GPUs.
        has_onednn: whether oneDNN computes what a CPU runs: in TensorFlow's own kernels, or in
            units, which then must have every node that only oneDNN can run.
        dtypes: TensorFlow's numbers of the dtypes of the changed tensors.
        absorbed: the nodes of all chains so far.
    """

    def __init__(
        self,
        view: GraphView,
        properties: GraphProperties,
        parameters: Parameters,
        device_type: str,
        *,
        has_onednn: bool,
    ) -> None:
        self.view, self.properties = view, properties
        self.parameters = parameters.shapes
        self.is_cpu = device_type == "CPU"
        self.has_onednn = self.is_cpu and has_onednn
        # Not half, whose range is too small for a filter that is multiplied by a factor.
        self.dtypes = {types_pb2.DT_FLOAT}
        if self.is_cpu and tensorflow_internals.has_onednn_bfloat16():
            self.dtypes.add(types_pb2.DT_BFLOAT16)
        self._is_waited_for = {each for controls in view.control_fanins for each in controls}
        self.absorbed: set[int] = set()

    def only_reader(self, index: int) -> tuple[int, int] | None:
        """The node and position that alone read a node, if both may be in one chain."""
        readers = self.readers(index)
        return readers[0] if len(readers) == 1 else None

    def readers(self, index: int) -> list[tuple[int, int]]:
        """The nodes and positions that read a node; none if one may not be in its chain."""
        view = self.view
        if view.names[index] in view.preserved or index in self._is_waited_for:
            return []
        readers = [
            (reader, position, port)
            for reader in view.fanouts[index]
            for position, (source, port) in enumerate(view.fanins[reader])
            if source == index
        ]
        device = view.nodes[index].device
        if any(port or not self.may_join(reader, device) for reader, _, port in readers):
            return []
        return [(reader, position) for reader, position, _ in readers]

    def may_join(self, index: int, device: str) -> bool:
        """Whether a node may be in a chain on a device."""
        node = self.view.nodes[index]
        type_names = ("SrcT", "DstT") if node.op == "Cast" else ("T",)
        return (
            index not in self.absorbed
            and node.name not in self.view.preserved
            and index not in self._is_waited_for
            and not self.view.control_fanins[index]
            and node.device == device
            and all(attribute_of(node, name).type in self.dtypes for name in type_names)
            and not attribute_of(node, "_kernel").s
            and xla_mark(node) is None
        )

    def is_change(self, index: int, position: int) -> bool:
        """Whether a node may change each channel by parameters; its shapes are not looked at."""
        op = self.view.ops[index]
        others = [tensor for at, tensor in enumerate(self.view.fanins[index]) if at != position]
        return op in _CHANGES and any(source in self.parameters for source, _ in others)

    def change(self, index: int, position: int, channels: int, layout: bytes) -> Change | None:
        """How a node changes the channels of what it reads at a position; None if it does not.

        The layout is that of an image or a volume; empty for a matrix.
        """
        view = self.view
        node, op, fanins = view.nodes[index], view.ops[index], view.fanins[index]
        kind = _CHANGES.get(op)
        if kind is Kind.NORMALIZATION:
            activation = attribute_of(node, "activation_mode").s.decode() or "Identity"
            if (
                position != 0
                or len(fanins) != 5  # the sixth of _FusedBatchNormEx is added
                or activation not in ("Identity", "Relu")
                or attribute_of(node, "is_training").b
                or attribute_of(node, "data_format").s != layout
                or any(self.shape(tensor) != (channels,) for tensor in fanins[1:])
                or view.reads_other_outputs(index)
            ):
                return None
            epsilon = attribute_of(node, "epsilon").f
            return Change(kind, fanins[1:], epsilon, activation.removeprefix("Identity"))
        if kind is None or len(fanins) != 2:
            return None
        tensor = fanins[1 - position]
        if tensor[0] not in self.parameters or (op in _ORDERED and position != 0):
            return None
        if op == "BiasAdd":
            is_last = layout in _CHANNELS_LAST or not layout
            if (attribute_of(node, "data_format").s == b"NHWC") != is_last:
                return None
        elif not self._is_per_channel(index, 1 - position, channels, layout):
            return None
        return Change(kind, (tensor,))

    def shape(self, tensor: Tensor) -> Shape | None:
        """The shape of a parameter; None if it is unknown, or if the tensor is no parameter."""
        source, port = tensor
        is_known = not port or self.view.ops[source] == "Unpack"
        return self.parameters.get(source) if is_known else None

    def _is_per_channel(self, index: int, position: int, channels: int, layout: bytes) -> bool:
        """Whether an operand has one value for each channel of the result, or one for all."""
        shape = self.shape(self.view.fanins[index][position])
        rank = len(layout) or 2
        if shape is None or len(shape) > rank:
            return False
        axis = rank - 1 if layout in _CHANNELS_LAST or not layout else 1
        padded = (1,) * (rank - len(shape)) + shape
        is_alone = all(size == 1 for at, size in enumerate(padded) if at != axis)
        return is_alone and padded[axis] in (1, channels)
