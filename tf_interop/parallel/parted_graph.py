"""A graph whose layers are divided: the parts of every node, and what moves between devices.

The prediction of a division's cost and the rewriting both go by this, so that the bytes that are
predicted are those that are sent.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Mapping, Sequence

import tensorflow as tf

from tf_interop import tensorflow_internals
from tf_interop.graph.ops import input_dtypes, output_dtypes
from tf_interop.graph.view import GraphView
from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.layers.find import LayerGraph
from tf_interop.parallel.op_parts import OpPart, OpParts
from tf_interop.parallel.regions import Box, Part, PartedTensor, Piece, pieces_of, volume, whole

Tensor = tuple[int, int]
"""A tensor of the graph: the node and the port."""


@dataclasses.dataclass(frozen=True, slots=True)
class LayerDivision:
    """How a layer is divided, and where.

    Attributes:
        degrees: the parts of each axis of its work.
        devices: the number of the device of each part.
    """

    degrees: Degrees
    devices: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.devices) != self.degrees.count:
            raise ValueError(
                f"Expected {self.degrees.count} devices for the parts of '{self.degrees}', got "
                f"{len(self.devices)}. Name the device of each part."
            )


@dataclasses.dataclass(frozen=True, slots=True)
class NodePart:
    """A part of a node, on its device. A node that is whole has one.

    Attributes:
        device: its number.
        reads: for each data input the box that is read. None where nothing is, and where a whole
            node reads another as it did before.
        op_part: what it computes; None where the node is whole.
    """

    device: int
    reads: tuple[Box | None, ...]
    op_part: OpPart | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """A box of one part of a tensor that is sent to another device, once in a step.

    Attributes:
        tensor: the tensor.
        part: the part's place in the PartedTensor.
        box: in coordinates of the whole tensor.
        source: the number of the device that has it.
        destination: the number of the device that reads it.
        byte_count: how many bytes that are.
    """

    tensor: Tensor
    part: int
    box: Box
    source: int
    destination: int
    byte_count: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PartedGraph:
    """A graph whose layers are divided. What nothing needs any more is not in it.

    Attributes:
        layers: of the graph.
        parts: the parts of each node that is needed.
        tensors: those that divided nodes give or read. Their parts are in the order of those of
            the node. Constants that divided nodes read are not among them: a device that reads a
            box of one has it as a constant of its own.
        dtypes: of those tensors.
        transfers: all that is sent between devices, but for what a whole node reads of another.
    """

    layers: LayerGraph
    parts: Mapping[int, tuple[NodePart, ...]]
    tensors: Mapping[Tensor, PartedTensor]
    dtypes: Mapping[Tensor, tf.DType]
    transfers: tuple[Transfer, ...]

    @property
    def sent_bytes(self) -> dict[tuple[int, int], int]:
        """The bytes that are sent in a step, by source and destination."""
        counter: collections.Counter[tuple[int, int]] = collections.Counter()
        for each in self.transfers:
            counter[each.source, each.destination] += each.byte_count
        return dict(sorted(counter.items()))

    def is_divided(self, node: int) -> bool:
        """Whether a node that is needed has parts that are made for it."""
        return self.parts[node][0].op_part is not None


def part_graph(
    layers: LayerGraph,
    division: Mapping[int, LayerDivision],
    device_of_node: Sequence[int],
    nodes_to_preserve: Collection[str] = (),
) -> PartedGraph:
    """Divides the layers of a graph.

    Args:
        layers: of the graph.
        division: how layers are divided, by their places; all others are whole.
        device_of_node: the number of each node's own device, where it runs if it is whole.
        nodes_to_preserve: names of nodes that have to stay.

    Returns:
        What runs where, and what is sent.
    """
    return _Parting(layers, division, device_of_node, nodes_to_preserve).run()


def is_copied(view: GraphView, node: int, nodes_to_preserve: Collection[str]) -> bool:
    """Whether divided nodes have what they read of a node as constants of their own."""
    return view.ops[node] == "Const" and view.names[node] not in nodes_to_preserve


class _Parting:
    """Finds the parts that are needed, from the last node to the first."""

    def __init__(
        self,
        layers: LayerGraph,
        division: Mapping[int, LayerDivision],
        device_of_node: Sequence[int],
        nodes_to_preserve: Collection[str],
    ) -> None:
        self._layers, self._view = layers, layers.view
        self._device_of_node = device_of_node
        self._preserved = nodes_to_preserve
        self._divided: dict[int, OpParts] = {}
        self._devices: dict[int, tuple[int, ...]] = {}
        for node, layer in layers.layer_of.items():
            if layer in division:
                op_parts = layers.parts(node, division[layer].degrees)
                if op_parts is not None:
                    self._divided[node] = op_parts
                    self._devices[node] = division[layer].devices
        self._dtypes: dict[Tensor, tf.DType] = {}
        self._all_tensors = self._find_tensors()

    def run(self) -> PartedGraph:
        view = self._view
        needed: dict[int, set[int]] = {}  # by node the places of its parts
        parts: dict[int, tuple[NodePart, ...]] = {}
        for node in reversed(view.topological_order()):
            all_parts = self._all_parts(node)
            if self._is_kept(node):
                needed[node] = set(range(len(all_parts)))
            if node not in needed:
                continue
            places = sorted(needed[node])
            parts[node] = tuple(all_parts[place] for place in places)
            for part in parts[node]:
                self._mark_what_it_reads(node, part, needed)
            for source in view.control_fanins[node]:
                needed.setdefault(source, set()).update(range(len(self._all_parts(source))))
        tensors = {
            tensor: self._only(all_of_it, sorted(needed[tensor[0]]))
            for tensor, all_of_it in self._all_tensors.items()
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
        """The tensors that divided nodes give or read, with all of their parts."""
        view, layers = self._view, self._layers
        tensors: dict[Tensor, PartedTensor] = {}
        for node, op_parts in self._divided.items():
            dtypes = output_dtypes(view.nodes[node])
            for port, is_sum in enumerate(op_parts.are_sums):
                self._dtypes[node, port] = tf.as_dtype(dtypes[port])
                boxes = [
                    Part(self._devices[node][part.place], part.gives[port])
                    for part in op_parts.parts
                ]
                tensors[node, port] = PartedTensor(layers.shape(node, port), tuple(boxes), is_sum)
        for node in self._divided:
            shapes = layers.operation(node).input_shapes
            dtypes = input_dtypes(view.nodes[node])
            for tensor, shape, dtype in zip(view.fanins[node], shapes, dtypes, strict=True):
                if tensor not in tensors and not is_copied(view, tensor[0], self._preserved):
                    part = Part(self._device_of_node[tensor[0]], whole(shape))
                    tensors[tensor] = PartedTensor(shape, (part,))
                    self._dtypes[tensor] = tf.as_dtype(dtype)
        return tensors

    def _all_parts(self, node: int) -> tuple[NodePart, ...]:
        if node in self._divided:
            return tuple(
                NodePart(self._devices[node][part.place], part.reads, part)
                for part in self._divided[node].parts
            )
        reads = (self._all_tensors.get(tensor) for tensor in self._view.fanins[node])
        boxes = tuple(None if each is None else whole(each.shape) for each in reads)
        return (NodePart(self._device_of_node[node], boxes),)

    def _is_kept(self, node: int) -> bool:
        """Whether a node stays though nothing may read it."""
        view = self._view
        return node not in self._divided and (
            not view.fanouts[node]
            or view.names[node] in self._preserved
            or tensorflow_internals.is_stateful(view.ops[node]) is not False
        )

    def _mark_what_it_reads(self, node: int, part: NodePart, needed: dict[int, set[int]]) -> None:
        for tensor, box in zip(self._view.fanins[node], part.reads, strict=True):
            source = tensor[0]
            if tensor in self._all_tensors:
                if box is not None:
                    pieces = pieces_of(self._all_tensors[tensor], box, part.device)
                    needed.setdefault(source, set()).update(piece.part for piece in pieces)
            elif node not in self._divided:
                needed.setdefault(source, set()).add(0)

    def _only(self, tensor: PartedTensor, places: Sequence[int]) -> PartedTensor:
        return dataclasses.replace(tensor, parts=tuple(tensor.parts[place] for place in places))

    def _transfers(
        self, parts: Mapping[int, tuple[NodePart, ...]], tensors: Mapping[Tensor, PartedTensor]
    ) -> tuple[Transfer, ...]:
        """What is sent, each box of a part once to a device."""
        transfers: dict[tuple[Tensor, Piece, int], Transfer] = {}
        for node in sorted(parts):
            for part in parts[node]:
                for tensor, box in zip(self._view.fanins[node], part.reads, strict=True):
                    if box is None or tensor not in tensors:
                        continue
                    if node not in self._divided and tensor[0] not in self._divided:
                        continue
                    for piece in pieces_of(tensors[tensor], box, part.device):
                        source = tensors[tensor].parts[piece.part].device
                        if source != part.device:
                            transfers[tensor, piece, part.device] = Transfer(
                                tensor,
                                piece.part,
                                piece.box,
                                source,
                                part.device,
                                volume(piece.box) * self._dtypes[tensor].size,
                            )
        return tuple(transfers.values())
