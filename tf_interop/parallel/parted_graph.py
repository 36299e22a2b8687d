"""A graph with divided layers: the parts of every node, and the transfers between devices.

The prediction and the rewriting both use it, so the predicted bytes are the bytes sent.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_interop import tensorflow_internals
from tf_interop.graph.ops import input_dtypes, output_dtypes
from tf_interop.graph.view import Tensor
from tf_interop.parallel.layers.find import LayerGraph
from tf_interop.parallel.op_parts import OpPart, are_addends
from tf_interop.parallel.regions import Box, Part, PartedTensor, Piece, pieces_of, volume, whole
from tf_interop.parallel.types import Degrees


@dataclasses.dataclass(frozen=True, slots=True)
class LayerDivision:
    """The degrees of a layer, and the number of the device of each part."""

    degrees: Degrees
    devices: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class NodePart:
    """A part of a node. A whole node has one.

    Attributes:
        device: the number of its device.
        reads: the box that it reads of each data input; None for an input that it does not read,
            or that one whole node reads from another as before.
        op_part: its computation; None if the node is whole.
    """

    device: int
    reads: tuple[Box | None, ...]
    op_part: OpPart | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """A box of one part of a tensor, which is sent once in a step.

    Attributes:
        tensor: the tensor.
        box: in coordinates of the whole tensor.
        source: the number of the device that has it.
        destination: the number of the device that reads it.
        byte_count: the size of the box.
    """

    tensor: Tensor
    box: Box
    source: int
    destination: int
    byte_count: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PartedGraph:
    """A graph with divided layers, without the nodes that nothing needs any longer.

    Attributes:
        layers: the layers of the graph.
        parts: the parts of each needed node.
        tensors: the tensors that divided nodes compute or read, with parts in the order of the
            node's parts. Constants are not included: a device has its own constant for each box.
        dtypes: the dtypes of these tensors.
        transfers: all messages between devices, except from one whole node to another.
    """

    layers: LayerGraph
    parts: Mapping[int, tuple[NodePart, ...]]
    tensors: Mapping[Tensor, PartedTensor]
    dtypes: Mapping[Tensor, tf.DType]
    transfers: tuple[Transfer, ...]

    @property
    def sent_bytes(self) -> dict[tuple[int, int], int]:
        """The bytes sent in a step, by source and destination."""
        counter: collections.Counter[tuple[int, int]] = collections.Counter()
        for each in self.transfers:
            counter[each.source, each.destination] += each.byte_count
        return dict(sorted(counter.items()))

    def is_divided(self, node: int) -> bool:
        """Whether parts replace a node."""
        return self.parts[node][0].op_part is not None


def part_graph(
    layers: LayerGraph,
    division: Mapping[str, LayerDivision],
    device_of_node: Sequence[int],
) -> PartedGraph:
    """Divides the layers of a graph.

    Args:
        layers: the layers.
        division: the divided layers by name; all others are whole.
        device_of_node: the number of each node's own device, which runs it if it is whole.
    """
    return _Parting(layers, division, device_of_node).run()


def is_copied(layers: LayerGraph, node: int) -> bool:
    """Whether divided nodes read copies of a node: a constant that cannot be fed."""
    return layers.view.ops[node] == "Const" and layers.view.names[node] not in layers.preserved


class _Parting:
    """Finds the needed parts, from the last node to the first."""

    def __init__(
        self,
        layers: LayerGraph,
        division: Mapping[str, LayerDivision],
        device_of_node: Sequence[int],
    ) -> None:
        self._layers, self._view = layers, layers.view
        self._device_of_node = device_of_node
        self._parts: dict[int, tuple[NodePart, ...]] = {}
        for node, layer in layers.layer_of.items():
            if its := division.get(layers.layers[layer].name):
                self._parts[node] = tuple(
                    NodePart(its.devices[part.place], part.reads, part)
                    for part in layers.parts(node, its.degrees) or ()
                )
        self._divided = frozenset(node for node, parts in self._parts.items() if parts)
        self._dtypes: dict[Tensor, tf.DType] = {}
        self._tensors = self._find_tensors()
        for node in set(range(len(self._view))) - self._divided:
            reads = (self._tensors.get(tensor) for tensor in self._view.fanins[node])
            boxes = tuple(None if each is None else whole(each.shape) for each in reads)
            self._parts[node] = (NodePart(device_of_node[node], boxes),)

    def run(self) -> PartedGraph:
        view = self._view
        needed: dict[int, set[int]] = {}  # the indices of a node's needed parts
        parts: dict[int, tuple[NodePart, ...]] = {}
        for node in reversed(view.topological_order()):
            if self._is_kept(node):
                needed[node] = set(range(len(self._parts[node])))
            if node not in needed:
                continue
            parts[node] = tuple(self._parts[node][place] for place in sorted(needed[node]))
            for part in parts[node]:
                self._mark_what_it_reads(node, part, needed)
            for source in view.control_fanins[node]:
                needed.setdefault(source, set()).update(range(len(self._parts[source])))
        tensors = {
            tensor: dataclasses.replace(
                its, parts=tuple(its.parts[place] for place in sorted(needed[tensor[0]]))
            )
            for tensor, its in self._tensors.items()
            if tensor[0] in needed
        }
        return PartedGraph(
            self._layers,
            dict(sorted(parts.items())),
            tensors,
            {tensor: self._dtypes[tensor] for tensor in tensors},
            self._transfers(parts, tensors),
        )

    def _find_tensors(self) -> dict[Tensor, PartedTensor]:
        """The tensors that divided nodes compute or read, with all their parts."""
        view, layers = self._view, self._layers
        tensors: dict[Tensor, PartedTensor] = {}
        for node in layers.layer_of:
            if node not in self._divided:
                continue
            devices = [part.device for part in self._parts[node]]
            op_parts = [part.op_part for part in self._parts[node] if part.op_part is not None]
            is_sum = are_addends(op_parts)
            shapes = layers.operations[node].output_shapes
            dtypes = output_dtypes(view.nodes[node])
            for port, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
                boxes = [part.gives[port] for part in op_parts]
                parts = tuple(map(Part, devices, boxes))
                tensors[node, port] = PartedTensor(shape, parts, is_sum)
                self._dtypes[node, port] = tf.as_dtype(dtype)
        for node in self._divided:
            shapes = layers.operations[node].input_shapes
            dtypes = input_dtypes(view.nodes[node])
            for tensor, shape, dtype in zip(view.fanins[node], shapes, dtypes, strict=True):
                if tensor not in tensors and not is_copied(layers, tensor[0]):
                    part = Part(self._device_of_node[tensor[0]], whole(shape))
                    tensors[tensor] = PartedTensor(shape, (part,))
                    self._dtypes[tensor] = tf.as_dtype(dtype)
        return tensors

    def _is_kept(self, node: int) -> bool:
        """Whether a node stays even if nothing reads it."""
        view = self._view
        if node in self._divided:
            is_assignment = self._layers.operations[node].is_assignment
            return is_assignment or view.names[node] in self._layers.preserved
        return (
            not view.readers[node]
            or view.names[node] in self._layers.preserved
            or tensorflow_internals.may_be_stateful(view.ops[node])
        )

    def _mark_what_it_reads(self, node: int, part: NodePart, needed: dict[int, set[int]]) -> None:
        for tensor, box in zip(self._view.fanins[node], part.reads, strict=True):
            if box is not None and tensor in self._tensors:
                pieces = pieces_of(self._tensors[tensor], box)
                needed.setdefault(tensor[0], set()).update(piece.part for piece in pieces)
            elif part.op_part is None:
                needed.setdefault(tensor[0], set()).add(0)

    def _transfers(
        self, parts: Mapping[int, tuple[NodePart, ...]], tensors: Mapping[Tensor, PartedTensor]
    ) -> tuple[Transfer, ...]:
        """The transfers; a device receives each piece once."""
        transfers: dict[tuple[Tensor, Piece, int], Transfer] = {}
        for node, part in ((each, part) for each in sorted(parts) for part in parts[each]):
            for tensor, box in zip(self._view.fanins[node], part.reads, strict=True):
                is_sent = node in self._divided or tensor[0] in self._divided
                if box is None or tensor not in tensors or not is_sent:
                    continue
                for piece in pieces_of(tensors[tensor], box):
                    source = tensors[tensor].parts[piece.part].device
                    if source != part.device:
                        sent_bytes = volume(piece.box) * self._dtypes[tensor].size
                        transfers[tensor, piece, part.device] = Transfer(
                            tensor, piece.box, source, part.device, sent_bytes
                        )
        return tuple(transfers.values())
