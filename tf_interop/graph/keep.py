"""Folds arithmetic into filters, and replaces parameters by Kept nodes.

    before                                    after

    h --> ReadVariableOp --> Mul --> Conv2D   h --+--> kept: Kept --:0--> Conv2D
    g --> ReadVariableOp --> Rsqrt --^        g --^    steps Rsqrt, Mul

Guaranteed: a node that absorbs others keeps its name and device; nodes that neither absorb nor read
a parameter or an absorbed node, nor wait for a read, keep their bytes; names that must be preserved
stay. The same arguments give the same graph.

The caller ensures that parameters and folds are those of the view. `check_fusions` checks the
result.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2, types_pb2

from tf_interop.convolution import Refusal, RefusalReason, Shape
from tf_interop.graph.channel_changes import Change, ChannelChanges, Kind
from tf_interop.graph.fold import UNFUSED, Fold
from tf_interop.graph.ops import (
    UNIT_FILTER_POSITIONS,
    attribute_of,
    make_node,
    output_dtypes,
    set_attributes,
)
from tf_interop.graph.padding import Padding
from tf_interop.graph.program import KEPT_OP, RESCALES, make_operation, serialized
from tf_interop.graph.properties import (
    is_fully_known,
    shape_protos,
    state_shapes,
)
from tf_interop.graph.rescale import Rescaling
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import Tensor, parse_input, recolocate, tensor_text

_UNKNOWN_TO_FUSED = {
    "_FusedDepthwiseConv2dNative": ("explicit_paddings",),
    "_FusedMatMul": ("grad_a", "grad_b"),
}
"""Attributes of an op that its fused op lacks, so that TensorFlow would log an error."""

_LARGEST_CONSTANT_STEP = 1024
"""Bytes of a constant that becomes a step of its own; larger ones are inputs, and exist once."""


@dataclasses.dataclass(frozen=True)
class Rewriting:
    """A graph with folds and Kept nodes.

    Attributes:
        made: the folds and rescalings that were made.
        kept_bytes: the size of all values that are computed and kept.
        refusals: folds and parameters that were left out because of their size.
    """

    graph_def: graph_pb2.GraphDef
    made: tuple[Fold | Rescaling, ...]
    kept_bytes: int
    refusals: tuple[Refusal, ...]


def rewrite_folds(
    changes: ChannelChanges,
    folds: Sequence[Fold],
    rescalings: Sequence[Rescaling],
    paddings: Sequence[Padding],
    *,
    most_bytes: int,
) -> Rewriting | None:
    """Makes folds, and one Kept node on each device for all parameters that other nodes read.

    Args:
        changes: those of the graph.
        folds: found in them, as are the others.
        rescalings: chains that no fold has.
        paddings: those that the folded convolutions do, too.
        most_bytes: limit for all values that are computed and kept. Small ones go first.

    Returns:
        The new graph; None if it would not change.
    """
    view = changes.view
    made: list[Fold | Rescaling] = []
    refusals, used_bytes = [], 0

    def size_of(each: Fold | Rescaling) -> int:
        if isinstance(each, Rescaling):
            return 8 * each.channel_count
        shape = changes.parameters[view.fanins[each.node][1][0]]
        bytes_each = tf.as_dtype(view.nodes[each.node].attr["T"].type).size
        return int(bytes_each * math.prod(shape or ()))  # type: ignore[arg-type]

    found: tuple[Fold | Rescaling, ...] = (*folds, *rescalings)
    for each in sorted(found, key=size_of):
        size = size_of(each)
        if used_bytes + size <= most_bytes:
            made.append(each)
            used_bytes += size
        else:
            refusals.append(
                _refuse_size(view.names[each.node], view.ops[each.node], size, most_bytes)
            )
    made.sort(key=lambda each: each.node)
    rewriter = _Rewriter(changes, most_bytes)
    for each in made:
        check_time_limit()
        if isinstance(each, Fold):
            rewriter.fold(each)
        else:
            rewriter.rescale(each)
    hoisted = (each.hoisted for each in made if isinstance(each, Fold))
    for index, count in collections.Counter(hoisted).items():
        if index is not None:
            rewriter.drop_hoisted(index, count)
    for padding in paddings:
        rewriter.pad(padding)
    graph_def, kept_bytes = rewriter.graph(used_bytes)
    if graph_def is None:
        return None
    return Rewriting(graph_def, tuple(made), kept_bytes, (*refusals, *rewriter.refusals))


def _refuse_size(name: str, op: str, size: int, most_bytes: int) -> Refusal:
    detail = (
        f"Not kept: it takes {size / 2**20:.1f} MiB, and all kept values together may take "
        f"{most_bytes / 2**20:.0f} MiB. Pass a larger kept_mb to enable()."
    )
    return Refusal(name, op, RefusalReason.SIZE, detail)


class _Rewriter:
    """A graph in the making. Tensors are the texts of inputs."""

    def __init__(self, changes: ChannelChanges, most_bytes: int) -> None:
        self._view = view = changes.view
        self._properties, self._most_bytes = changes.properties, most_bytes
        self._shapes = changes.parameters
        self._order = [
            view.names[index] for index in view.topological_order() if index in self._shapes
        ]
        self._parameters = set(self._order)
        self._made: dict[str, node_def_pb2.NodeDef] = {}  # parameters that are no nodes yet
        self._made_shapes: dict[str, Shape] = {}
        self._constants: dict[tuple[object, ...], str] = {}
        self._replaced: dict[str, node_def_pb2.NodeDef] = {}  # by the old node's name
        self._absorbed: set[str] = set()
        self._redirected: dict[str, str] = {}
        self._prefix = "tf_interop/kept"
        while any(name.startswith(self._prefix) for name in view.index_of):
            self._prefix += "_"
        self.refusals: list[Refusal] = []

    def fold(self, fold: Fold) -> None:
        """Replaces the fold's node, and its last absorbed node if a BiasAdd remains."""
        view = self._view
        old = view.nodes[fold.node]
        dtype = old.attr["T"].type
        scale, offset = self._scale_and_offset(fold)
        if offset is not None:
            offset = self._cast(offset, dtype)
        new = node_def_pb2.NodeDef()
        new.CopyFrom(old)
        new.op = UNFUSED.get(old.op, old.op)
        for name in ("num_args", "num_host_args", "TArgs", "fused_ops", "epsilon"):
            new.attr.pop(name, None)
        new.attr.pop("leakyrelu_alpha", None)
        new.attr.pop("filter_format", None)
        if new.op != old.op:
            del new.input[2:]
        if scale is not None:
            new.input[1] = self._scaled_filter(fold, old.input[1], scale)
        absorbed = [view.nodes[index] for index in fold.absorbed]
        self._absorbed.update(node.name for node in absorbed)
        end = view.names[fold.end]
        last = absorbed[-1].name if absorbed else end  # if only a hoisted activation follows
        if offset is None:
            self._redirect(last, end)
        elif fold.fused_op:
            self._fuse(new, fold, self._vector_of(fold, offset))
            self._redirect(last, end)
        else:
            layout = attribute_of(old, "data_format").s
            bias_add = make_node(
                "BiasAdd",
                last,
                [end, self._vector_of(fold, offset)],
                old.device,
                T=dtype,
                data_format=b"NCHW" if layout[:2] == b"NC" else b"NHWC",
            )
            _copy_output_shapes(absorbed[-1], bias_add)
            self._replaced[last] = bias_add
        names = [old.name, *(node.name for node in absorbed)]
        new.experimental_debug_info.original_node_names.extend(names)
        self._replaced[old.name] = new

    def rescale(self, rescaling: Rescaling) -> None:
        """Replaces the last node of a rescaling, and drops the others."""
        absorbed = [self._view.nodes[index] for index in rescaling.absorbed]
        old = absorbed[-1]
        scale, offset = self._scale_and_offset(rescaling)
        channels = rescaling.channel_count
        filter_ = self._vector_of(rescaling, scale or self._constant(np.float32(1)))
        bias = self._vector_of(rescaling, offset or self._constant(np.float32(0)))
        new = make_node(
            "_FusedDepthwiseConv2dNative",
            old.name,
            [self._view.text(rescaling.image), self._reshaped(filter_, (1, 1, channels, 1)), bias],
            old.device,
            T=types_pb2.DT_FLOAT,
            strides=[1] * 4,
            dilations=[1] * 4,
            padding=b"VALID",
            data_format=b"NHWC",
            num_args=1,
            fused_ops=[op.encode() for op in ("BiasAdd", rescaling.activation) if op],
        )
        new.attr[RESCALES].b = True
        _copy_output_shapes(old, new)
        names = [node.name for node in absorbed]
        new.experimental_debug_info.original_node_names.extend(names)
        self._absorbed.update(names)
        self._replaced[old.name] = new

    def pad(self, padding: Padding) -> None:
        """Drops a Pad; the convolutions that read it, folded or not, pad themselves."""
        pad = self._view.nodes[padding.node]
        for index in padding.readers:
            old = self._view.nodes[index]
            new = self._replaced.get(old.name)
            if new is None:
                new = self._replaced[old.name] = node_def_pb2.NodeDef()
                new.CopyFrom(old)
            new.input[0] = pad.input[0]
            if "Depthwise" in new.op:
                set_attributes(new, padding=b"SAME")
            else:
                amounts = [0, 0, *padding.amounts, 0, 0]
                set_attributes(new, padding=b"EXPLICIT", explicit_paddings=amounts)
            new.experimental_debug_info.original_node_names.append(pad.name)
            shapes, of_pad = (attribute_of(each, "_input_shapes").list.shape for each in (new, pad))
            if shapes and of_pad:
                shapes[0].CopyFrom(of_pad[0])
            else:
                new.attr.pop("_input_shapes", None)
        self._absorbed.add(pad.name)

    def drop_hoisted(self, index: int, applied: int) -> None:
        """Drops an activation after a ConcatV2, if it was applied to all operands."""
        name = self._view.names[index]
        [(concat, _)] = self._view.fanins[index]
        if applied == len(self._view.fanins[concat]) - 1:  # the last operand is the axis
            self._absorbed.add(name)
            self._redirect(name, self._view.names[concat])

    def _redirect(self, old: str, new: str) -> None:
        self._redirected |= dict.fromkeys((old, f"{old}:0"), new)

    def _fuse(self, new: node_def_pb2.NodeDef, fold: Fold, bias: str) -> None:
        new.op = fold.fused_op
        if fold.fused_op == "_FusedConv2D" and fold.filter_axis is None:
            shape = self._shape(new.input[1])
            assert shape is not None
            grouped = (*shape[:2], 1, fold.channel_count)
            new.input[1] = self._reshaped(new.input[1], grouped)
            if len(new.attr["_input_shapes"].list.shape) >= 2:
                new.attr["_input_shapes"].list.shape[1].CopyFrom(tf.TensorShape(grouped).as_proto())
        arguments = [bias]
        fused_ops = [b"BiasAdd"]
        if fold.shortcut is not None:
            arguments.append(self._view.text(fold.shortcut))
            fused_ops.append(b"Add")
        if fold.activation:
            fused_ops.append(fold.activation.encode())
        new.input.extend(arguments)
        set_attributes(new, num_args=len(arguments), fused_ops=fused_ops, epsilon=0.0)
        if fold.activation == "LeakyRelu":
            activation = self._view.nodes[fold.absorbed[-1]]
            set_attributes(new, leakyrelu_alpha=attribute_of(activation, "alpha").f)
        for name in _UNKNOWN_TO_FUSED.get(fold.fused_op, ()):
            new.attr.pop(name, None)
        if fold.fused_op == "_FusedConv2D":
            set_attributes(new, TArgs=[new.attr["T"].type] * len(arguments))
        shapes = new.attr["_input_shapes"].list.shape
        if len(shapes) >= 2:
            del shapes[2:]
            shapes.add().CopyFrom(tf.TensorShape([fold.channel_count]).as_proto())
            if fold.shortcut is not None:
                shape = self._properties.output_shape(fold.node, 0)
                shapes.add().CopyFrom(tf.TensorShape(shape).as_proto())
        else:
            del new.attr["_input_shapes"]

    def _scale_and_offset(self, fold: Fold | Rescaling) -> tuple[str | None, str | None]:
        scale: str | None = None
        offset: str | None = None
        for change in fold.changes:
            factor, added = self._terms(fold, change)
            if factor is not None:
                scale = self._product(scale, factor)
                if offset is not None:
                    offset = self._product(offset, factor)
            if added is not None:
                offset = self._sum(offset, added)
        return scale, offset

    def _terms(self, fold: Fold | Rescaling, change: Change) -> tuple[str | None, str | None]:
        """The factor and the offset of a change, each a vector, a scalar or None."""
        vectors = [self._vector(fold, tensor) for tensor in change.tensors]
        if change.kind is Kind.FACTOR:
            return vectors[0], None
        if change.kind is Kind.DIVISOR:
            return self._make("RealDiv", self._constant(np.float32(1)), vectors[0]), None
        if change.kind is Kind.OFFSET:
            return None, vectors[0]
        if change.kind is Kind.NEGATIVE_OFFSET:
            return None, self._make("Neg", vectors[0])
        scale, offset, mean, variance = vectors
        epsilon = self._constant(np.float32(change.epsilon))
        inverse = self._make("Rsqrt", self._make("AddV2", variance, epsilon))
        factor = self._make("Mul", inverse, scale)
        return factor, self._make("Sub", offset, self._make("Mul", mean, factor))

    def _product(self, first: str | None, second: str) -> str:
        return second if first is None else self._make("Mul", first, second)

    def _sum(self, first: str | None, second: str) -> str:
        return second if first is None else self._make("AddV2", first, second)

    def _vector(self, fold: Fold | Rescaling, tensor: Tensor) -> str:
        """A parameter as a vector of the channels or as a scalar, in float32."""
        text = self._widened(self._view.text(tensor))
        shape = self._shape(text)
        assert shape is not None
        if len(shape) == 1 and shape[0] == fold.channel_count:
            return text
        size = math.prod(shape)  # type: ignore[arg-type]
        return self._reshaped(text, () if size == 1 else (fold.channel_count,))

    def _vector_of(self, fold: Fold | Rescaling, value: str) -> str:
        """A vector of the channels, from one or from a scalar."""
        if self._shape(value) == (fold.channel_count,):
            return value
        sizes = self._constant(np.array([fold.channel_count], np.int32))
        return self._make("BroadcastTo", value, sizes, shape=(fold.channel_count,))

    def _scaled_filter(self, fold: Fold, text: str, scale: str) -> str:
        shape = self._shape(text)
        assert shape is not None
        if self._shape(scale) != ():
            if fold.filter_axis is None:
                scale = self._reshaped(scale, shape[-2:])
            elif (after := len(shape) - fold.filter_axis - 1) > 0:
                scale = self._reshaped(scale, (fold.channel_count, *(1,) * after))
        dtype = self._view.nodes[fold.node].attr["T"].type
        return self._cast(self._make("Mul", self._widened(text), scale), dtype)

    def _widened(self, text: str) -> str:
        """A parameter in float32: the one that it was cast from, if there is one."""
        node = self._node(text)
        if node.op == "Cast" and node.attr["SrcT"].type == types_pb2.DT_FLOAT:
            return str(node.input[0])
        return self._cast(text, types_pb2.DT_FLOAT)

    def _cast(self, text: str, dtype: int) -> str:
        before = self._dtype(text)
        if before == dtype:
            return text
        shape = self._shape(text)
        assert shape is not None
        return self._add("Cast", [text], shape, SrcT=before, DstT=dtype)

    def _dtype(self, text: str) -> int:
        return output_dtypes(self._node(text))[parse_input(text)[1]]

    def _reshaped(self, text: str, shape: Shape) -> str:
        if self._shape(text) == shape:
            return text
        sizes = self._constant(np.array(shape, np.int32))
        return self._make("Reshape", text, sizes, shape=shape)

    def _constant(self, value: np.ndarray | np.float32) -> str:
        key = (value.dtype, value.shape, value.tobytes())
        if key not in self._constants:
            tensor = tf.make_tensor_proto(value)
            self._constants[key] = self._add(
                "Const", [], np.shape(value), dtype=tensor.dtype, value=tensor
            )
        return self._constants[key]

    def _make(self, op: str, *operands: str, shape: Shape | None = None) -> str:
        """Adds a parameter; its shape is that of its operands, broadcast, if not given."""
        if shape is None:
            shape = np.broadcast_shapes(*(self._shape(each) for each in operands))  # type: ignore[arg-type]
        return self._add(op, operands, shape, T=self._dtype(operands[0]))

    def _add(self, op: str, inputs: Sequence[str], shape: Shape, **attributes: Any) -> str:
        name = f"{self._prefix}/{len(self._made)}"
        self._made[name] = make_node(op, name, inputs, **attributes)
        self._made_shapes[name] = tuple(shape)
        return name

    def _shape(self, text: str) -> Shape | None:
        name, port = parse_input(text)
        if name in self._made_shapes:
            return self._made_shapes[name]
        index = self._view.index_of[name]
        if not port or self._view.ops[index] == "Unpack":
            shape = self._shapes[index]
            if is_fully_known(shape):
                return shape
        return self._properties.output_shape(index, port)

    def graph(self, used_bytes: int) -> tuple[graph_pb2.GraphDef | None, int]:
        """The new graph and the size of what it keeps; None if nothing is worth keeping.

        `used_bytes` is the size of the folded filters.
        """
        others = [
            self._replaced.get(node.name, node)
            for node in self._view.nodes
            if node.name not in self._parameters
            and (node.name not in self._absorbed or node.name in self._replaced)
        ]
        read: dict[str, dict[str, None]] = {}  # by device, in the order of the readers
        is_worthwhile = False
        for node in others:
            for position, text in enumerate(node.input):
                tensor = _canonical(text)
                if tensor.startswith("^") or not self._is_kept(tensor):
                    continue
                # All readers of a parameter are on its device, so it is kept there alone.
                read.setdefault(node.device, {})[tensor] = None
                is_worthwhile = (
                    is_worthwhile
                    or not self._is_read(tensor)
                    or position == UNIT_FILTER_POSITIONS.get(node.op)
                )
        if not is_worthwhile:
            return None, 0
        kept_nodes = []
        places: dict[str, str] = {}
        for number, device in enumerate(sorted(read)):
            check_time_limit()
            tensors = []
            for tensor in read[device]:
                size, op = self._size(tensor), self._node(tensor).op
                if size is None:
                    detail = "Not kept: its shape is unknown."
                    self.refusals.append(Refusal(tensor, op, RefusalReason.SHAPE, detail))
                    continue
                if used_bytes + size > self._most_bytes:
                    self.refusals.append(_refuse_size(tensor, op, size, self._most_bytes))
                    continue
                used_bytes += size
                tensors.append(tensor)
            if not tensors:
                continue
            name = f"{self._prefix}_{number}"
            kept_nodes.append(self._kept(name, device, tensors))
            for each in self._ancestors(parse_input(tensor)[0] for tensor in tensors):
                if self._is_read(each):
                    places[f"^{each}"] = f"^{name}"
            for port, tensor in enumerate(tensors):
                places[tensor] = tensor_text(name, port)
        return self._assemble(others, kept_nodes, places), used_bytes

    def _is_kept(self, tensor: str) -> bool:
        """Whether a tensor is a parameter, and no constant that already is one value."""
        name = parse_input(tensor)[0]
        if name in self._made:
            return True
        return name in self._parameters and str(self._node(tensor).op) != "Const"

    def _is_read(self, tensor: str) -> bool:
        return str(self._node(tensor).op) == "ReadVariableOp"

    def _node(self, tensor: str) -> node_def_pb2.NodeDef:
        name = parse_input(tensor)[0]
        return self._made.get(name) or self._view.nodes[self._view.index_of[name]]

    def _size(self, tensor: str) -> int | None:
        """The bytes that keeping a tensor adds; None if unknown. Folds are counted already."""
        if self._is_read(tensor) or parse_input(tensor)[0] in self._made:
            return 0
        shape = self._shape(tensor)
        if not is_fully_known(shape):
            return None
        return int(math.prod(shape or ()) * tf.as_dtype(self._dtype(tensor)).size)  # type: ignore[arg-type]

    def _kept(self, name: str, device: str, tensors: Sequence[str]) -> node_def_pb2.NodeDef:
        needed = self._ancestors(parse_input(tensor)[0] for tensor in tensors)
        order = [each for each in (*self._order, *self._made) if each in needed]
        reads = [each for each in order if self._is_read(each)]
        constants = [each for each in order if self._is_large_constant(each)]
        operands = {each: f"inputs:{place}" for place, each in enumerate((*reads, *constants))}
        steps: list[node_def_pb2.NodeDef] = []
        for each in order:
            if each not in operands:
                node = self._node(each)
                inputs = [_operand(operands, text) for text in node.input]
                operands[each] = f"steps:{len(steps)}"
                steps.append(make_operation(node, inputs))
        shapes = list(map(self._shape, tensors))
        read_steps = (make_operation(self._node(each), ["inputs:0"]) for each in reads)
        # As AttrValues, because only the compiled library registers the op. Planning needs none.
        kept = make_node(
            KEPT_OP,
            name,
            [*(self._node(each).input[0] for each in reads), *constants],
            device,
            P=attr_value_pb2.AttrValue(i=0),
            N=attr_value_pb2.AttrValue(i=len(reads)),
            handles=_list(i=range(len(reads))),
            Tin=_list(type=list(map(self._dtype, constants))),
            Tout=_list(type=list(map(self._dtype, tensors))),
            reads=_list(s=serialized(read_steps)),
            steps=_list(s=serialized(steps)),
            results=_list(s=[_operand(operands, tensor).encode() for tensor in tensors]),
            output_shapes=_list(shape=shape_protos(shapes)),
        )
        state_shapes(kept, *shapes)  # TensorFlow reads one attribute, the pass the other
        return kept

    def _is_large_constant(self, name: str) -> bool:
        node = self._node(name)
        return str(node.op) == "Const" and int(node.ByteSize()) > _LARGEST_CONSTANT_STEP

    def _ancestors(self, names: Iterable[str]) -> set[str]:
        """The parameters of these names, and all that they depend on."""
        found: set[str] = set()
        pending = list(names)
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                node = self._node(name)
                if node.op != "ReadVariableOp":
                    pending += [parse_input(text)[0] for text in node.input]
        return found

    def _assemble(
        self,
        others: Sequence[node_def_pb2.NodeDef],
        kept_nodes: Sequence[node_def_pb2.NodeDef],
        places: Mapping[str, str],
    ) -> graph_pb2.GraphDef:
        view = self._view
        graph_def = view.with_nodes([*kept_nodes, *others])
        still_read: set[str] = set()
        for node in graph_def.node:
            inputs = list[str]()
            for text in node.input:
                text = self._redirected.get(text, text)
                text = places.get(_canonical(text), text)
                if text.startswith("^") and text in inputs:
                    continue
                inputs.append(text)
                if parse_input(text)[0] in self._parameters:
                    still_read.add(parse_input(text)[0])
            node.input[:] = inputs
        remaining = self._ancestors(still_read)
        graph_def.node.extend(
            view.nodes[view.index_of[each]] for each in self._order if each in remaining
        )
        gone = view.index_of.keys() - {node.name for node in graph_def.node}
        recolocate(graph_def.node, dict.fromkeys(gone))
        return graph_def


def _canonical(text: str) -> str:
    return text.removesuffix(":0")


def _list(**values: Any) -> attr_value_pb2.AttrValue:
    """An attribute that is a list, which is written even if it is empty."""
    return attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(**values))


def _operand(operands: Mapping[str, str], text: str) -> str:
    name, port = parse_input(text)
    operand = operands[name]
    return f"{operand}:{port}" if operand.startswith("steps") else operand


def _copy_output_shapes(old: node_def_pb2.NodeDef, new: node_def_pb2.NodeDef) -> None:
    if "_output_shapes" in old.attr:
        new.attr["_output_shapes"].CopyFrom(old.attr["_output_shapes"])
