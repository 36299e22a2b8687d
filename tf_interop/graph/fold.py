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
  2. the nodes are on one device, without control dependencies, and of the type float32 or, on CPUs
     where oneDNN has it, bfloat16;
  3. factors and offsets have one value for each channel, or one for all;
  4. no factor follows the added shortcut. Offsets may, because sums have any order.

Keras' mixed precision normalizes in float32, between two Casts. Such a chain goes on after the
second Cast, and ends before the first one if there is no second.

An activation ends the chain; hard swish and gelu are several nodes. It, the offset and the shortcut
become part of the convolution where TensorFlow has a kernel for it; otherwise one BiasAdd remains.

Keras multiplies images by matrices as rows, and then gives the rows their places back. The chain
may follow such a Reshape: what changes each channel may as well do so before it.

Grappler moves an activation that all operands of a ConcatV2 have to its result. A chain that ends
at such a ConcatV2 applies the activation again; if all its operands do, the one after it goes.

Nothing else can become part of a cycle: whatever reads the convolution's result does so through
the chain, so the shortcut does not depend on it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, types_pb2

from tf_interop import tensorflow_internals
from tf_interop.convolution import Refusal, RefusalReason
from tf_interop.graph.batchwise import BatchOrigins
from tf_interop.graph.channel_changes import Change, ChannelChanges, Kind
from tf_interop.graph.ops import attribute_of
from tf_interop.graph.properties import is_fully_known
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import Tensor
from tf_interop.graph.xla import xla_mark


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
        end: the node that readers of the last absorbed one read instead: `node`, or the Reshape
            between a matrix product and what it absorbs.
        shortcut: a tensor that is added; None if there is none.
        activation: the op of the activation that ends the chain; empty if there is none.
        hoisted: the node with this activation after the ConcatV2 that reads the chain, if it was
            moved there; else None.
        fused_op: the op with bias, shortcut and activation; empty if TensorFlow has no kernel, so
            that a BiasAdd follows.
    """

    node: int
    absorbed: tuple[int, ...]
    changes: tuple[Change, ...]
    channel_count: int
    filter_axis: int | None
    end: int
    shortcut: Tensor | None = None
    activation: str = ""
    hoisted: int | None = None
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
    "Conv3D": _Linear(4, "_FusedConv3D"),
    "_FusedConv3D": _Linear(4, "_FusedConv3D"),
    "Conv2DBackpropInput": _Linear(2),
    "MatMul": _Linear(1, "_FusedMatMul"),
    "_FusedMatMul": _Linear(1, "_FusedMatMul"),
}
UNFUSED = {
    "_FusedConv2D": "Conv2D",
    "_FusedConv3D": "Conv3D",
    "_FusedDepthwiseConv2dNative": "DepthwiseConv2dNative",
    "_FusedMatMul": "MatMul",
}
"""The op without an epilogue of each fused op."""

ACTIVATIONS = frozenset({"Relu", "Relu6", "Elu", "LeakyRelu"})
"""The activations of fused ops that are ops, too."""

_IDEMPOTENT = frozenset({"Relu", "Relu6"})
"""The activations that change nothing when they are applied twice."""

SWISH, HARD_SWISH, GELU = "_MklSwish", "_FusedHardSwish", "GeluExact"
"""The names of oneDNN's activations in fused ops; of these only swish is an op."""

_GATES: dict[str, tuple[tuple[tuple[str, float | None], ...], float]] = {
    HARD_SWISH: ((("AddV2", 3.0), ("Relu6", None)), 1 / 6),
    GELU: ((("Neg", None), ("Mul", 0.5**0.5), ("Erfc", None)), 0.5),
}
"""The gate and the factor of `x * gate(x) * factor`; the gate as ops with their constants."""

_ONEDNN_ACTIVATIONS = {
    "_FusedConv2D": ACTIVATIONS | {SWISH, HARD_SWISH},
    "_FusedDepthwiseConv2dNative": ACTIVATIONS - {"LeakyRelu"} | {HARD_SWISH},
    "_FusedConv3D": ACTIVATIONS,
    "_FusedMatMul": ACTIVATIONS | {GELU},
}
_GROUPED_ACTIVATIONS = frozenset({SWISH, "LeakyRelu"})
"""With these a depthwise convolution becomes a convolution with one group for each channel.

oneDNN computes both alike. The depthwise kernel has no swish, and returns no result of LeakyRelu.
"""


def only_units_run(node: node_def_pb2.NodeDef) -> bool:
    """Whether only a unit can run a fused op on a CPU.

    oneDNN's kernel that adds a shortcut is not safe to call by several threads at once. Where
    TensorFlow computes without oneDNN, it has no other kernel for some fused ops.
    """
    if node.op not in UNFUSED:
        return False
    fused = {each.decode() for each in attribute_of(node, "fused_ops").list.s}
    if tensorflow_internals.is_onednn_on():
        return "Add" in fused and node.op != "_FusedMatMul"
    is_of_onednn = node.op in ("_FusedDepthwiseConv2dNative", "_FusedConv3D")
    return is_of_onednn or not fused.isdisjoint({"Add", SWISH, HARD_SWISH, GELU})


def find_folds(
    changes: ChannelChanges,
) -> tuple[tuple[Fold, ...], tuple[Refusal, ...]]:
    """Finds the convolutions and products with parameters as filters that absorb something.

    Returns:
        The folds, which share no node, and the convolutions and products that do not absorb a
        factor or offset that follows them, each with the reason.
    """
    search, view = _Search(changes), changes.view
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
    def __init__(self, changes: ChannelChanges) -> None:
        self._view, self._properties = changes.view, changes.properties
        self._changes = changes

    def fold(self, index: int) -> Fold | Refusal | None:
        """What a node absorbs; a refusal if it cannot absorb what follows; None if nothing does."""
        view = self._view
        node, linear = view.nodes[index], _LINEAR[view.ops[index]]
        start = self._start(index)
        reader = self._changes.only_reader(start)
        if reader is not None and view.ops[reader[0]] == "Cast":
            reader = self._changes.only_reader(reader[0])
            if reader is None or not self._changes.is_change(*reader):
                return None
        elif reader is None:
            if self._gated(start) is None:
                return None
        elif (
            not self._changes.is_change(*reader)
            and view.ops[reader[0]] != SWISH
            and self._hoisted(reader[0]) is None
        ):
            return None

        def refuse(reason: RefusalReason, expected: str) -> Refusal:
            return view.refusal(index, reason, f"Not folded: expected {expected}.")

        if node.attr["T"].type not in self._changes.dtypes:
            return refuse(RefusalReason.DTYPE, "float32, or bfloat16 on a CPU that has it")
        if view.fanins[index][1][0] not in self._changes.parameters:
            return refuse(RefusalReason.NO_PARAMETER, "a filter that depends on variables alone")
        if view.control_fanins[index] or xla_mark(node) or attribute_of(node, "_kernel").s:
            return refuse(RefusalReason.CONTROL_DEPENDENCY, "a node without control dependencies")
        filter_shape = self._changes.shape(view.fanins[index][1])
        if not is_fully_known(filter_shape):
            return refuse(RefusalReason.SHAPE, "a filter of known shape")
        assert filter_shape is not None
        axis = linear.filter_axis
        if view.ops[index] in ("MatMul", "_FusedMatMul") and node.attr["transpose_b"].b:
            axis = 0
        channels: int = (
            filter_shape[-2] * filter_shape[-1] if axis is None else filter_shape[axis]  # type: ignore[assignment,operator]
        )
        if view.ops[index] == "Conv2DBackpropInput":
            result = self._properties.output_shape(index, 0)
            channel_axis = 1 if self._layout(index) == b"NCHW" else -1
            if not result or result[channel_axis] != channels:
                return refuse(RefusalReason.SHAPE, "a known number of channels, without groups")
        changes: list[Change] = []
        if view.ops[index] in UNFUSED:
            fused_ops = [op.decode() for op in node.attr["fused_ops"].list.s]
            bias = view.fanins[index][2] if len(view.fanins[index]) == 3 else None
            if fused_ops != ["BiasAdd"] or bias is None or self._changes.shape(bias) != (channels,):
                return refuse(RefusalReason.FUSED_OPS, "no epilogue but a bias")
            changes.append(Change(Kind.OFFSET, (bias,)))
        return self._follow(index, channels, axis, changes)

    def _follow(
        self, index: int, channels: int, axis: int | None, changes: list[Change]
    ) -> Fold | None:
        view = self._view
        layout = self._layout(index)
        last = start = self._start(index)
        absorbed, shortcut, activation, hoisted = list[int](), None, "", None
        before_shortcut = (0, 0)
        while not activation:
            reader = self._changes.only_reader(last)
            if reader is None:
                found = self._gated(last) if _has_offset(changes) else None
                if found and found[0] in self._activations(index, shortcut is not None):
                    activation = found[0]
                    absorbed.extend(found[1])
                break
            reader_index, position = reader
            op = view.ops[reader_index]
            after_concat = self._hoisted(reader_index)
            if after_concat is not None:
                moved = view.ops[after_concat]
                if moved in self._activations(index, shortcut is not None) and _has_offset(changes):
                    activation, hoisted = moved, after_concat
                break
            widened = self._widened(reader_index, channels, layout)
            if widened is not None:
                nodes, made = widened
                if shortcut is not None and _has_factor(made):
                    break
                absorbed.extend(nodes)
                changes.extend(made)
                last = nodes[-1]
                continue
            change = self._changes.change(reader_index, position, channels, layout)
            if change is not None:
                if shortcut is not None and change.kind in _FACTORS:
                    break
                if change.activation and change.activation not in self._activations(index, False):
                    break
                changes.append(change)
                activation = change.activation
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
        absorbs = bool(absorbed) or hoisted is not None
        if not absorbs or not (_has_factor(changes) or fused_op):
            return None
        self._changes.absorbed.update(absorbed)
        return Fold(
            node=index,
            absorbed=tuple(absorbed),
            changes=tuple(changes),
            channel_count=channels,
            filter_axis=axis,
            end=start,
            shortcut=shortcut,
            activation=activation,
            hoisted=hoisted,
            fused_op=fused_op,
        )

    def _widened(
        self, index: int, channels: int, layout: bytes
    ) -> tuple[tuple[int, ...], list[Change]] | None:
        """A Cast to float32, the one back, and what is between them; and the changes that it makes.

        None if node `index` is no such Cast, or if something else is between the two.
        """
        view = self._view
        if (
            view.ops[index] != "Cast"
            or attribute_of(view.nodes[index], "DstT").type != types_pb2.DT_FLOAT
        ):
            return None
        nodes, made = [index], list[Change]()
        narrow = attribute_of(view.nodes[index], "SrcT").type
        while (reader := self._changes.only_reader(nodes[-1])) is not None:
            nodes.append(reader[0])
            if view.ops[reader[0]] == "Cast":
                is_back = attribute_of(view.nodes[reader[0]], "DstT").type == narrow
                return (tuple(nodes), made) if is_back else None
            change = self._changes.change(*reader, channels, layout)
            if change is None or change.activation:
                return None
            made.append(change)
        return None

    def _start(self, index: int) -> int:
        """The node that the chain follows: a matrix product, or the Reshape of its rows."""
        if "MatMul" not in self._view.ops[index]:
            return index
        reader = self._changes.only_reader(index)
        if reader is None or self._view.ops[reader[0]] != "Reshape":
            return index
        rows, others = (self._properties.output_shape(each, 0) for each in (index, reader[0]))
        if not rows or not others or len(others) < 2:
            return index
        return reader[0] if rows[-1] == others[-1] is not None else index

    def _hoisted(self, index: int) -> int | None:
        """The activation that alone reads a ConcatV2; None if there is none, or it is no concat."""
        if self._view.ops[index] != "ConcatV2":
            return None
        reader = self._changes.only_reader(index)
        return reader[0] if reader and self._view.ops[reader[0]] in _IDEMPOTENT else None

    def _adds_shortcut(self, index: int, reader: int, position: int) -> bool:
        """Whether a reader adds another tensor of the same shape, in a way that has a kernel."""
        view = self._view
        if (
            # No stage adds shortcuts, and without oneDNN neither does a CPU.
            not self._changes.has_onednn
            or _LINEAR[view.ops[index]].fused_op != "_FusedConv2D"
            or self._layout(index) != b"NHWC"
            or len(view.fanins[reader]) != 2
            or view.fanins[reader][1 - position][0] in self._changes.parameters
        ):
            return False
        # AddN compares the shapes itself. The fused kernel does not.
        shapes = [self._properties.input_shape(reader, at) for at in (0, 1)]
        ops = ("Add", "AddV2", "AddN")
        if view.ops[reader] not in ops or shapes[0] != shapes[1] or not shapes[0]:
            return False
        if is_fully_known(shapes[0]):
            return True
        first, second = view.fanins[reader]
        origin = self._batch_origins.of
        return is_fully_known(shapes[0][1:]) and origin(first) == origin(second)

    @functools.cached_property
    def _batch_origins(self) -> BatchOrigins:
        return BatchOrigins(self._view, self._properties)

    def _activations(self, index: int, has_shortcut: bool) -> Collection[str]:
        """The activations that TensorFlow's kernel may apply."""
        if not self._fused_op(index, "Relu"):
            return ()
        if not self._changes.is_cpu or has_shortcut:
            return ("Relu",)
        if not self._changes.has_onednn:
            return ACTIVATIONS
        known = _ONEDNN_ACTIVATIONS[_LINEAR[self._view.ops[index]].fused_op]
        if not self._may_be_grouped(index):
            return known
        # TensorFlow's other kernel of _FusedConv2D has LeakyRelu, but no groups.
        return known | (_GROUPED_ACTIVATIONS if tensorflow_internals.is_onednn_on() else {SWISH})

    def _may_be_grouped(self, index: int) -> bool:
        """Whether a node is a depthwise convolution with one result for each channel."""
        if _LINEAR[self._view.ops[index]].filter_axis is not None:
            return False
        shape = self._changes.shape(self._view.fanins[index][1])
        return shape is not None and shape[-1] == 1 and self._layout(index) == b"NHWC"

    def _gated(self, index: int) -> tuple[str, tuple[int, ...]] | None:
        """The activation `x * gate(x) * factor` after x, and its nodes, each after those it reads.

        Nothing else reads x or a value between them. The three factors may come in any order.
        """
        view = self._view
        readers = [reader for reader, _ in self._changes.readers(index)]
        for activation, (gate, factor) in _GATES.items():
            ops = [view.ops[reader] for reader in readers]
            if sorted(ops) != sorted((gate[0][0], "Mul")):
                continue
            other = readers[ops.index("Mul")]
            length = len(gate)
            nodes = self._chain(readers[ops.index(gate[0][0])], length + 2)
            if other not in nodes:  # x * factor * gate(x)
                nodes = [*nodes[:length], other, *self._chain(other, 2)[1:]]
            if [view.ops[node] for node in nodes] != [*(op for op, _ in gate), "Mul", "Mul"]:
                continue
            reader = self._changes.only_reader(nodes[length - 1])
            if (
                reader is not None
                and reader[0] in nodes[length:]
                and all(
                    value is None or self._reads_constant(node, value)
                    for node, (_, value) in zip(nodes, gate, strict=False)
                )
                and any(self._reads_constant(node, factor) for node in nodes[length:])
            ):
                return activation, tuple(nodes)
        return None

    def _chain(self, index: int, length: int) -> list[int]:
        """A node and those after it, each the only reader of the one before."""
        nodes = [index]
        while len(nodes) < length and (reader := self._changes.only_reader(nodes[-1])) is not None:
            nodes.append(reader[0])
        return nodes

    def _reads_constant(self, index: int, value: float) -> bool:
        """Whether an operand of a node is a constant scalar of this value."""
        return any(
            self._view.ops[source] == "Const"
            and self._changes.shape((source, port)) == ()
            and (constant := tf.make_ndarray(self._view.nodes[source].attr["value"].tensor))
            == constant.dtype.type(value)
            for source, port in self._view.fanins[index]
        )

    def _fused_op(self, index: int, activation: str) -> str:
        """The op with a bias and an activation; empty if there is no kernel."""
        op = _LINEAR[self._view.ops[index]].fused_op
        if not self._changes.is_cpu:
            # A bias without an activation makes cuDNN use a single, slow algorithm.
            return op if op == "_FusedConv2D" and activation == "Relu" else ""
        if op == "_FusedMatMul" and attribute_of(self._view.nodes[index], "transpose_a").b:
            return ""
        is_depthwise = op == "_FusedDepthwiseConv2dNative"
        if is_depthwise and attribute_of(self._view.nodes[index], "padding").s == b"EXPLICIT":
            return ""
        if is_depthwise and activation in _GROUPED_ACTIVATIONS:
            return "_FusedConv2D"
        if op == "_FusedConv2D":
            # What TensorFlow's other kernel refuses only in a call, it would refuse in a unit, too.
            has_kernel = self._layout(index) != b"NCHW" and self._is_dense(index)
            return op if has_kernel or tensorflow_internals.is_onednn_on() else ""
        return op if op == "_FusedMatMul" or self._changes.has_onednn else ""

    def _is_dense(self, index: int) -> bool:
        """Whether each output channel of a convolution of NHWC reads all input channels."""
        image = self._properties.input_shape(index, 0)
        filter_shape = self._changes.shape(self._view.fanins[index][1])
        return bool(image and filter_shape) and image[-1] == filter_shape[-2]  # type: ignore[index]

    def _layout(self, index: int) -> bytes:
        is_matrix = "MatMul" in self._view.ops[index]
        return b"" if is_matrix else attribute_of(self._view.nodes[index], "data_format").s


_FACTORS = (Kind.FACTOR, Kind.DIVISOR, Kind.NORMALIZATION)


def _has_factor(changes: list[Change]) -> bool:
    return any(change.kind in _FACTORS for change in changes)


def _has_offset(changes: list[Change]) -> bool:
    return any(change.kind not in (Kind.FACTOR, Kind.DIVISOR) for change in changes)
