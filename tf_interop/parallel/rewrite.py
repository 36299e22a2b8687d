"""Replaces divided nodes by their parts, on their devices.

    x --> a: Conv2D --> b: Relu --> f              (sample 2, on devices 0 and 1; x and f on 0)

    x --+-> Slice --> a/part_0/Conv2D --> b/part_0/Relu --+
        |                                                 +--> ConcatV2 --> f
        +-> Slice ==> a/part_1/Conv2D --> b/part_1/Relu ==+                 (==> between devices)

A part reads boxes of tensors. A piece on another device is cut out there (Slice) and sent. The
reader's device concatenates pieces (ConcatV2) and adds addends (AddN). TensorFlow sends them:
Grappler's plugins run after placement and before the graph is partitioned, so a node put on another
device here runs there, with one _Send and one _Recv for each tensor and destination, however many
nodes read the tensor there. (Seen in the partitioned graphs of TensorFlow 2.21;
tests/parallel/sent_bytes_test.py compares the bytes of all _Send nodes with the transfers.)

Preconditions:
  1. divided nodes are in no loop, and only reads and assignments of variables have names that must
     stay, for which NoOps are left;
  2. the rules of all divided nodes are right (tests/parallel).

Guaranteed: whole nodes stay on their devices, with their names and attributes, and read gathered
tensors of divided nodes. A control dependency on a node becomes one on all of its parts. Nodes that
only divided nodes needed, such as sizes of gradients, disappear. The function library and the
versions stay. The same arguments give the same graph.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Collection, Mapping, Sequence

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop.errors import GraphError
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import Tensor, recolocate
from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.parted_graph import NodePart, PartedGraph, is_copied
from tf_interop.parallel.regions import Box, Piece, pieces_of, relative, sizes, volume
from tf_interop.parallel.rules.shares import READ_OP
from tf_interop.parallel.sending_order import Gathering, order_gatherings

PART_ATTRIBUTE = "_tf_interop_part_of"
"""The attribute of a part's nodes that names the divided node."""


def rewrite_divided(graph: PartedGraph, device_names: Sequence[str]) -> graph_pb2.GraphDef:
    """Makes the new graph; devices have names by their numbers.

    Raises:
        GraphError: the pieces of a box cannot be concatenated.
    """
    return _Rewriting(graph, device_names).run()


class _Rewriting:
    """A new graph in the making."""

    def __init__(self, graph: PartedGraph, device_names: Sequence[str]) -> None:
        self._graph = graph
        self._view = graph.layers.view
        self._device_names = tuple(device_names)
        old = self._view.graph_def
        self._new = graph_pb2.GraphDef(versions=old.versions, library=old.library)
        taken = set(self._view.names)
        self._makers = [NodeMaker(self._new, device, "", taken) for device in device_names]
        self._outputs: dict[Tensor, list[str]] = {}  # of divided nodes, by part
        # The last nodes of each divided node, by the place of the part.
        self._last: dict[int, dict[int, list[str]]] = {}
        self._boxes: dict[tuple[Tensor, Box, int], str] = {}
        self._slices: dict[tuple[Tensor, Piece], str] = {}

    def run(self) -> graph_pb2.GraphDef:
        view = self._view
        stay = {view.names[node] for node in self._graph.parts if not self._graph.is_divided(node)}
        gone = dict.fromkeys(view.index_of.keys() - stay)
        for count, node in enumerate(view.topological_order()):
            if count % 100 == 0:
                check_time_limit()
            if node not in self._graph.parts:
                continue
            if self._graph.is_divided(node):
                self._add_divided(node)
            else:
                self._add_whole(node, gone)
        self._leave_names()
        makers = dict(zip(self._device_names, self._makers, strict=True))
        order_gatherings(self._new, self._gatherings(), makers)
        return self._new

    def _add_whole(self, node: int, gone: Mapping[str, None]) -> None:
        old = self._view.nodes[node]
        new = self._new.node.add()
        new.CopyFrom(old)
        [part] = self._graph.parts[node]
        fanins = self._view.fanins[node]
        texts = [
            self._gather(tensor, box, part.device)
            if box is not None and tensor in self._outputs
            else text
            for tensor, box, text in zip(fanins, part.reads, old.input, strict=False)
        ]
        if texts != old.input[: len(fanins)] or self._view.control_fanins[node]:
            new.input[:] = [*texts, *self._control_inputs(node)]
        recolocate([new], gone)

    def _add_divided(self, node: int) -> None:
        self._last[node] = {}
        for part in self._graph.parts[node]:
            self._add_part(node, part)

    def _leave_names(self) -> None:
        """Leaves a NoOp in place of each divided node whose name must stay.

        It waits for all divided assignments, because one message from each device tells that.
        """
        view = self._view
        names = [
            (view.names[node], view.nodes[node].device)
            for node in self._last
            if view.names[node] in self._graph.layers.preserved
        ]
        if not names:
            return
        operations = self._graph.layers.operations
        assigned = [node for node in self._last if operations[node].is_assignment]
        controls = self._controls_of(assigned, names[0][1], None)
        for name, device in names:
            self._new.node.add(name=name, op="NoOp", device=device, input=controls)

    def _gatherings(self) -> list[Gathering]:
        """The parameters whose shares devices send each other, in the order of their use."""
        graph, update_of = self._graph, self._graph.layers.update_of
        device_of = {node.name: node.device for node in self._new.node}
        gathered: dict[Tensor, dict[str, list[str]]] = {}
        sizes_of: collections.Counter[Tensor] = collections.Counter()
        for (tensor, box, device), text in self._boxes.items():
            node, name = tensor[0], text.partition(":")[0]
            # A read that waits for something may depend on what reads a later parameter.
            is_free = node in update_of and not self._view.control_fanins[node]
            if is_free and self._view.ops[node] == READ_OP and graph.is_divided(node):
                own = self._device_names[device]
                if device_of[name] == own and len(pieces_of(graph.tensors[tensor], box)) > 1:
                    gathered.setdefault(tensor, {}).setdefault(own, []).append(name)
                    sizes_of[tensor] = max(sizes_of[tensor], volume(box))
        found = []
        for tensor, by_device in gathered.items():
            reads: dict[str, list[str]] = {}
            for part in graph.parts[tensor[0]]:
                assert part.op_part is not None
                names = self._last[tensor[0]][part.op_part.place]
                reads.setdefault(self._device_names[part.device], []).extend(names)
            byte_count = sizes_of[tensor] * graph.dtypes[tensor].size
            found.append(Gathering(reads, by_device, byte_count))
        return found

    def _add_part(self, node: int, part: NodePart) -> None:
        assert part.op_part is not None
        controls = self._control_inputs(node, part)
        name = self._view.names[node]
        maker = self._makers[part.device].named(f"{name}/part_{part.op_part.place}")
        reads = [
            "" if box is None else self._gather(tensor, box, part.device)
            for tensor, box in zip(self._view.fanins[node], part.reads, strict=True)
        ]
        first = len(self._new.node)
        outputs = list(part.op_part.emit(maker, reads))
        # The output of a part must be on the part's device.
        outputs = [
            maker("Identity", text, T=self._graph.dtypes[node, port]) if text in reads else text
            for port, text in enumerate(outputs)
        ]
        for new in self._new.node[first:]:
            new.attr[PART_ATTRIBUTE].s = name.encode()
            if new.op not in ("Const", "VarHandleOp"):  # which parts share
                new.input.extend(controls)
        for port, text in enumerate(outputs):
            self._outputs.setdefault((node, port), []).append(text)
        last = [text.partition(":")[0] for text in outputs] or [self._new.node[-1].name]
        self._last[node][part.op_part.place] = last

    def _control_inputs(self, node: int, part: NodePart | None = None) -> list[str]:
        """The control inputs of a whole node, or of a part.

        Within an update a part waits only for the parts at its place, because no other part touches
        its shares.
        """
        view, update_of = self._view, self._graph.layers.update_of
        if part is None or part.op_part is None:
            return self._controls_of(view.control_fanins[node], view.nodes[node].device, None)
        device, place = self._device_names[part.device], part.op_part.place
        update = update_of.get(node)
        within = [
            source
            for source in view.control_fanins[node]
            if update is not None and update_of.get(source) is update
        ]
        others = [source for source in view.control_fanins[node] if source not in within]
        controls = self._controls_of(within, device, place)
        return [*controls, *self._controls_of(others, device, None)]

    def _controls_of(self, sources: Collection[int], device: str, place: int | None) -> list[str]:
        """Control inputs that wait for nodes, or for their parts at a place.

        Several on another device are collected by a NoOp there, which sends one message.
        """
        view = self._view
        names: dict[str, dict[str, None]] = {}  # by device
        for source in sources:
            of_parts = self._last.get(source)
            if of_parts is None:
                names.setdefault(view.nodes[source].device, {})[view.names[source]] = None
                continue
            for part in self._graph.parts[source]:
                assert part.op_part is not None
                if place is None or part.op_part.place == place:
                    its = names.setdefault(self._device_names[part.device], {})
                    its |= dict.fromkeys(of_parts[part.op_part.place])
        controls = []
        for of_device, its in names.items():
            if len(its) > 1 and of_device != device and of_device in self._device_names:
                maker = self._makers[self._device_names.index(of_device)].named("collected")
                its = dict.fromkeys([maker("NoOp", *(f"^{name}" for name in its))])
            controls += [f"^{name}" for name in its]
        return controls

    def _gather(self, tensor: Tensor, box: Box, device: int) -> str:
        """The name of a tensor on a device with this box of `tensor`."""
        key = tensor, box, device
        if key not in self._boxes:
            self._boxes[key] = self._make_box(tensor, box, device)
        return self._boxes[key]

    def _make_box(self, tensor: Tensor, box: Box, device: int) -> str:
        node = tensor[0]
        maker = self._makers[device].named(f"{self._view.names[node]}/box")
        if tensor not in self._graph.tensors:
            assert is_copied(self._graph.layers, node)
            value = tf.make_ndarray(self._view.nodes[node].attr["value"].tensor)
            return maker.constant(value[tuple(itertools.starmap(slice, box))], value.dtype)
        dtype = self._graph.dtypes[tensor]
        addends: dict[Box, list[str]] = {}
        for piece in pieces_of(self._graph.tensors[tensor], box):
            addends.setdefault(piece.box, []).append(self._slice(tensor, piece))
        texts = {
            at: each[0] if len(each) == 1 else maker("AddN", *each, T=dtype, N=len(each))
            for at, each in addends.items()
        }
        return self._concatenate(maker, dtype, texts, 0)

    def _slice(self, tensor: Tensor, piece: Piece) -> str:
        """The name of a tensor with a piece of a part, cut out on the part's device."""
        node, port = tensor
        part = self._graph.tensors[tensor].parts[piece.part]
        name = self._view.names[node]
        texts = self._outputs.get(tensor)
        text = (f"{name}:{port}" if port else name) if texts is None else texts[piece.part]
        if piece.box == part.box:
            return text
        key = tensor, piece
        if key not in self._slices:
            maker = self._makers[part.device].named(f"{name}/piece")
            at = relative(piece.box, part.box)
            begin = [begin for begin, _ in at]
            self._slices[key] = maker.slice(text, begin, sizes(at), self._graph.dtypes[tensor])
        return self._slices[key]

    def _concatenate(
        self, maker: NodeMaker, dtype: tf.DType, texts: dict[Box, str], axis: int
    ) -> str:
        """Concatenates boxes that together fill a box, along `axis` and the axes after it."""
        if len(texts) == 1:
            [text] = texts.values()
            return text
        if axis == len(next(iter(texts))):
            raise GraphError(f"Expected boxes that can be concatenated, got {sorted(texts)}.")
        slabs = [self._concatenate(maker, dtype, slab, axis + 1) for slab in _slabs(texts, axis)]
        if len(slabs) == 1:
            return slabs[0]
        return maker("ConcatV2", *slabs, maker.constant(axis), N=len(slabs), T=dtype, Tidx=tf.int32)


def _slabs(texts: dict[Box, str], axis: int) -> list[dict[Box, str]]:
    """Divides boxes into groups along an axis that no box crosses."""
    slabs: list[dict[Box, str]] = []
    end = 0
    for box, text in sorted(texts.items(), key=lambda item: item[0][axis]):
        begin, until = box[axis]
        if not slabs or begin >= end:
            slabs.append({})
        slabs[-1][box] = text
        end = max(end, until)
    return slabs


def was_divided(graph_def: graph_pb2.GraphDef) -> bool:
    """Whether a graph was divided before."""
    return any(PART_ATTRIBUTE in node.attr for node in graph_def.node)
