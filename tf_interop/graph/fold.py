"""Finds arithmetic after convolutions and matrix products that their filter and bias can absorb.

    before                                             after

    filter ──v                                         filter * scale ──v
    x ──> Conv2D ──> Mul ──> AddV2 ──> AddV2 ──> Relu  x ──> _FusedConv2D (BiasAdd, Add, Relu)
    scale ───────────^         ^         ^             offset ──^     ^
    offset ────────────────────+         |             shortcut ──────+
    shortcut ────────────────────────────+

Scale, offset and filter are *parameters* (`graph/parameters.py`), so what becomes of them is
computed once and kept. Keras computes a batch normalization in inference as such a factor and
offset of each channel; `FusedBatchNormV3` in inference is one too. The algebra is exact, but its
rounding is not that of the separate operations.

The chain after a convolution is followed as long as:
  1. exactly one operand of one node reads each value, and no Session may feed or fetch it;
  2. the nodes are on one device, without control dependencies, and of the type float32;
  3. factors and offsets have one value for each channel, or one for all;
  4. no factor follows the added shortcut. Offsets may, because sums have any order.

An activation ends the chain. It, the offset and the shortcut become part of the convolution where
TensorFlow has a kernel for it; otherwise one BiasAdd remains.

Nothing else can become part of a cycle: whatever reads the convolution's result does so through
the chain, so the shortcut does not depend on it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Collection

from tensorflow.core.framework import types_pb2

from tf_interop import tensorflow_internals
from tf_interop.convolution import Refusal, RefusalReason, Shape
from tf_interop.graph.batch_origin import BatchOrigins
from tf_interop.graph.ops import attribute_of
from tf_interop.graph.parameters import Parameters
from tf_interop.graph.properties import GraphProperties, is_fully_known
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import GraphView
from tf_interop.graph.xla import xla_mark

Tensor = tuple[int, int]
"""A tensor of the graph: the node and the port."""


class Kind(enum.Enum):
    """How a parameter changes the values of a channel."""

    FACTOR = "factor"
    OFFSET = "offset"
    NEGATIVE_OFFSET = "negative offset"
    NORMALIZATION = "normalization"


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A change of each channel by parameters.

    Attributes:
        tensors: the parameter; of a normalization: scale, offset, mean and variance.
        epsilon: of a normalization.
    """

    kind: Kind
    tensors: tuple[Tensor, ...]
    epsilon: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Fold:
    """A convolution or matrix product and the nodes after it that it absorbs.

    Attributes:
        node: the convolution or product.
        absorbed: the nodes after it, in order. Readers of the last one read the new node.
        changes: of the channels, in order; the first may be the bias of a fused `node`.
        channel_count: channels of the result.
        filter_axis: the filter's axis of these channels; None if its last two axes are the
            channels, as in a depthwise convolution.
        shortcut: a tensor that is added; None if there is none.
        activation: the op of the activation that ends the chain; empty if there is none.
        fused_op: the op with bias, shortcut and activation; empty if TensorFlow has no kernel, so
            that a BiasAdd follows.
    """

    node: int
    absorbed: tuple[int, ...]
    changes: tuple[Change, ...]
    channel_count: int
    filter_axis: int | None
    shortcut: Tensor | None = None
    activation: str = ""
    fused_op: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Linear:
    """What an op that is linear in its filter offers."""

    filter_axis: int | None
    fused_op: str = ""


_LINEAR = {
    "Conv2D": _Linear(3, "_FusedConv2D"),
    "_FusedConv2D": _Linear(3, "_FusedConv2D"),
    "DepthwiseConv2dNative": _Linear(None, "_FusedDepthwiseConv2dNative"),
    "_FusedDepthwiseConv2dNative": _Linear(None, "_FusedDepthwiseConv2dNative"),
    "Conv3D": _Linear(4),
    "Conv2DBackpropInput": _Linear(2),
    "MatMul": _Linear(1, "_FusedMatMul"),
    "_FusedMatMul": _Linear(1, "_FusedMatMul"),
}
UNFUSED = {
    "_FusedConv2D": "Conv2D",
    "_FusedDepthwiseConv2dNative": "DepthwiseConv2dNative",
    "_FusedMatMul": "MatMul",
}
"""The op without an epilogue of each fused op."""

ACTIVATIONS = frozenset({"Relu", "Relu6", "Elu", "LeakyRelu"})
"""The activations of fused ops."""

_CHANNELS_LAST = frozenset({b"NHWC", b"NDHWC"})


def find_folds(
    view: GraphView,
    properties: GraphProperties,
    parameters: Parameters,
    *,
    device_type: str,
    nodes_to_preserve: Collection[str] = (),
) -> tuple[tuple[Fold, ...], tuple[Refusal, ...]]:
    """Finds the convolutions and products with parameters as filters that absorb something.

    Returns:
        The folds, which share no node, and the convolutions and products that do not absorb a
        factor or offset that follows them, each with the reason.
    """
    search = _Search(view, properties, parameters, device_type, frozenset(nodes_to_preserve))
    folds, refusals = [], []
    # Later ones first: of two convolutions whose results are added, the one that ends later should
    # add the other's.
    for index in reversed(view.by_rank(i for i, op in enumerate(view.ops) if op in _LINEAR)):
        check_time_limit()
        fold = search.fold(index)
        if isinstance(fold, Refusal):
            refusals.append(fold)
        elif fold is not None:
            folds.append(fold)
    return tuple(reversed(folds)), tuple(reversed(refusals))


class _Search:
    def __init__(
        self,
        view: GraphView,
        properties: GraphProperties,
        parameters: Parameters,
        device_type: str,
        preserved: frozenset[str],
    ) -> None:
        self._view, self._properties = view, properties
        self._parameters = parameters.shapes
        self._preserved = preserved
        self._absorbed: set[int] = set()
        self._is_cpu = device_type == "CPU"
        self._is_waited_for = {each for controls in view.control_fanins for each in controls}

    def fold(self, index: int) -> Fold | Refusal | None:
        """What a node absorbs; a refusal if it cannot absorb what follows; None if nothing does."""
        view = self._view
        node, linear = view.nodes[index], _LINEAR[view.ops[index]]
        reader = self._only_reader(index)
        if reader is None or not self._is_change(*reader):
            return None
        refuse = _refuser(view, index)
        if node.attr["T"].type != types_pb2.DT_FLOAT:
            return refuse(RefusalReason.DTYPE, "float32")
        if view.fanins[index][1][0] not in self._parameters:
            return refuse(RefusalReason.NO_PARAMETER, "a filter that depends on variables alone")
        if view.control_fanins[index] or xla_mark(node) or attribute_of(node, "_kernel").s:
            return refuse(RefusalReason.CONTROL_DEPENDENCY, "a node without control dependencies")
        filter_shape = self._shape(view.fanins[index][1])
        if not is_fully_known(filter_shape):
            return refuse(RefusalReason.SHAPE, "a filter of known shape")
        assert filter_shape is not None
        axis = linear.filter_axis
        if view.ops[index] in ("MatMul", "_FusedMatMul") and node.attr["transpose_b"].b:
            axis = 0
        channels: int = (
            filter_shape[-2] * filter_shape[-1] if axis is None else filter_shape[axis]  # type: ignore[assignment,operator]
        )
        changes: list[Change] = []
        if view.ops[index] in UNFUSED:
            fused_ops = [op.decode() for op in node.attr["fused_ops"].list.s]
            bias = view.fanins[index][2] if len(view.fanins[index]) == 3 else None
            if fused_ops != ["BiasAdd"] or bias is None or self._shape(bias) != (channels,):
                return refuse(RefusalReason.FUSED_OPS, "no epilogue but a bias")
            changes.append(Change(Kind.OFFSET, (bias,)))
        return self._follow(index, channels, axis, changes)

    def _follow(
        self, index: int, channels: int, axis: int | None, changes: list[Change]
    ) -> Fold | None:
        view = self._view
        layout = self._layout(index)
        last, absorbed, shortcut, activation = index, list[int](), None, ""
        before_shortcut = (0, 0)
        while not activation and (reader := self._only_reader(last)) is not None:
            reader_index, position = reader
            op = view.ops[reader_index]
            change = self._change(reader_index, position, channels, layout)
            if change is not None:
                if shortcut is not None and change.kind in _FACTORS:
                    break
                changes.append(change)
            elif op in self._activations(index, shortcut is not None) and _has_offset(changes):
                activation = op
            elif shortcut is None and self._adds_shortcut(index, reader_index, position):
                before_shortcut = len(absorbed), len(changes)
                shortcut = view.fanins[reader_index][1 - position]
            else:
                break
            absorbed.append(reader_index)
            last = reader_index
        if shortcut is not None and not _has_offset(changes):
            # TensorFlow has no kernel that adds a shortcut without a bias.
            del absorbed[before_shortcut[0] :], changes[before_shortcut[1] :]
            shortcut, activation = None, ""
        fused_op = self._fused_op(index, activation)
        has_factor = any(change.kind in _FACTORS for change in changes)
        if not absorbed or not (has_factor or fused_op):
            return None
        self._absorbed.update(absorbed)
        return Fold(
            index, tuple(absorbed), tuple(changes), channels, axis, shortcut, activation, fused_op
        )

    def _only_reader(self, index: int) -> tuple[int, int] | None:
        """The node and position that alone read a node, if they may become part of a fold."""
        view = self._view
        node = view.nodes[index]
        if node.name in self._preserved or index in self._is_waited_for:
            return None
        readers = [
            (reader, position, tensor[1])
            for reader in view.fanouts[index]
            for position, tensor in enumerate(view.fanins[reader])
            if tensor[0] == index
        ]
        if len(readers) != 1 or readers[0][2] != 0:
            return None
        reader, position, _ = readers[0]
        other = view.nodes[reader]
        may_join = (
            reader not in self._absorbed
            and other.name not in self._preserved
            and reader not in self._is_waited_for
            and not view.control_fanins[reader]
            and other.device == node.device
            and attribute_of(other, "T").type == types_pb2.DT_FLOAT
            and not attribute_of(other, "_kernel").s
            and xla_mark(other) is None
        )
        return (reader, position) if may_join else None

    def _is_change(self, index: int, position: int) -> bool:
        """Whether a node may change each channel by parameters; its shapes are not looked at."""
        op = self._view.ops[index]
        others = [tensor for at, tensor in enumerate(self._view.fanins[index]) if at != position]
        return op in _CHANGES and any(source in self._parameters for source, _ in others)

    def _change(self, index: int, position: int, channels: int, layout: bytes) -> Change | None:
        view = self._view
        node, op, fanins = view.nodes[index], view.ops[index], view.fanins[index]
        if op in ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"):
            if (
                position != 0
                or attribute_of(node, "is_training").b
                or attribute_of(node, "data_format").s != layout
                or any(self._shape(tensor) != (channels,) for tensor in fanins[1:])
                or self._reads_other_outputs(index)
            ):
                return None
            return Change(Kind.NORMALIZATION, fanins[1:], attribute_of(node, "epsilon").f)
        kind = _CHANGES.get(op)
        if kind is None or len(fanins) != 2:
            return None
        tensor = fanins[1 - position]
        if tensor[0] not in self._parameters or (op in ("Sub", "BiasAdd") and position != 0):
            return None
        if op == "BiasAdd":
            is_last = layout in _CHANNELS_LAST or not layout
            if (attribute_of(node, "data_format").s == b"NHWC") != is_last:
                return None
        elif not self._is_per_channel(index, 1 - position, channels, layout):
            return None
        return Change(kind, (tensor,))

    def _shape(self, tensor: Tensor) -> Shape | None:
        """The shape of a parameter; None if it is unknown, or if the tensor is no parameter."""
        source, port = tensor
        return None if port else self._parameters.get(source)

    def _is_per_channel(self, index: int, position: int, channels: int, layout: bytes) -> bool:
        """Whether an operand has one value for each channel of the result, or one for all."""
        shape = self._shape(self._view.fanins[index][position])
        rank = len(layout) or 2
        if shape is None or len(shape) > rank:
            return False
        axis = rank - 1 if layout in _CHANNELS_LAST or not layout else 1
        padded = (1,) * (rank - len(shape)) + shape
        is_alone = all(size == 1 for at, size in enumerate(padded) if at != axis)
        return is_alone and padded[axis] in (1, channels)

    def _reads_other_outputs(self, index: int) -> bool:
        view = self._view
        return any(
            source == index and port
            for reader in view.fanouts[index]
            for source, port in view.fanins[reader]
        )

    def _adds_shortcut(self, index: int, reader: int, position: int) -> bool:
        """Whether a reader adds another tensor of the same shape, in a way that has a kernel."""
        view = self._view
        if (
            # No stage adds shortcuts, and without oneDNN neither does a CPU.
            not (self._is_cpu and tensorflow_internals.is_onednn_on())
            or _LINEAR[view.ops[index]].fused_op != "_FusedConv2D"
            or self._layout(index) != b"NHWC"
            or len(view.fanins[reader]) != 2
            or view.fanins[reader][1 - position][0] in self._parameters
        ):
            return False
        if view.ops[reader] == "AddN":  # its operands always have one shape
            return True
        shapes = [self._properties.input_shape(reader, at) for at in (0, 1)]
        if view.ops[reader] not in ("Add", "AddV2") or shapes[0] != shapes[1] or not shapes[0]:
            return False
        if is_fully_known(shapes[0]):
            return True
        first, second = view.fanins[reader]
        origin = self._batch_origins.of
        return is_fully_known(shapes[0][1:]) and origin(first) == origin(second)

    @functools.cached_property
    def _batch_origins(self) -> BatchOrigins:
        return BatchOrigins(self._view, self._properties, self._preserved)

    def _activations(self, index: int, has_shortcut: bool) -> Collection[str]:
        """The activations that TensorFlow's kernel may apply."""
        if not self._fused_op(index, "Relu"):
            return ()
        if not self._is_cpu or has_shortcut:
            return ("Relu",)
        # oneDNN's kernel returns no result of LeakyRelu after a depthwise convolution.
        is_depthwise = _LINEAR[self._view.ops[index]].filter_axis is None
        return ACTIVATIONS - {"LeakyRelu"} if is_depthwise else ACTIVATIONS

    def _fused_op(self, index: int, activation: str) -> str:
        """The op with a bias and an activation; empty if there is no kernel."""
        op = _LINEAR[self._view.ops[index]].fused_op
        if not self._is_cpu:
            # A bias without an activation makes cuDNN use a single, slow algorithm.
            return op if op == "_FusedConv2D" and activation == "Relu" else ""
        if op == "_FusedMatMul" and attribute_of(self._view.nodes[index], "transpose_a").b:
            return ""
        is_depthwise = op == "_FusedDepthwiseConv2dNative"
        if is_depthwise and attribute_of(self._view.nodes[index], "padding").s == b"EXPLICIT":
            return ""
        needs_onednn = is_depthwise or self._layout(index) == b"NCHW"
        return "" if needs_onednn and not tensorflow_internals.is_onednn_on() else op

    def _layout(self, index: int) -> bytes:
        """The layout of the result; empty for a matrix."""
        is_matrix = "MatMul" in self._view.ops[index]
        return b"" if is_matrix else attribute_of(self._view.nodes[index], "data_format").s


_CHANGES = {
    "Mul": Kind.FACTOR,
    "Add": Kind.OFFSET,
    "AddV2": Kind.OFFSET,
    "BiasAdd": Kind.OFFSET,
    "Sub": Kind.NEGATIVE_OFFSET,
    "FusedBatchNorm": Kind.NORMALIZATION,
    "FusedBatchNormV2": Kind.NORMALIZATION,
    "FusedBatchNormV3": Kind.NORMALIZATION,
}
_FACTORS = (Kind.FACTOR, Kind.NORMALIZATION)


def _has_offset(changes: list[Change]) -> bool:
    return any(change.kind is not Kind.FACTOR for change in changes)


def _refuser(view: GraphView, index: int) -> Callable[[RefusalReason, str], Refusal]:
    name, op = view.names[index], view.ops[index]

    def refuse(reason: RefusalReason, expected: str) -> Refusal:
        return Refusal(name, op, reason, f"Not folded: expected {expected}.")

    return refuse
