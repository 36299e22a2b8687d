"""The costs of dividing a graph, layer by layer: the problem that the search solves.

The model is that of Jia et al., "Exploring Hidden Dimensions in Parallelizing Convolutional Neural
Networks" (ICML 2018), section 4: layers run one after another, each takes the time of its busiest
device, and messages between them add to that. Messages with parameters travel while devices compute
the layers before, forward, and messages with gradients while they compute the layers that follow,
backward. The messages follow from boxes; nothing here knows any op type.

Parameters are read and updated where they are, as in the rewritten graph: each device has its share
of a large one, and all other parameters are on one device.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_interop.graph.ops import input_dtypes, output_dtypes
from tf_interop.graph.view import Tensor
from tf_interop.parallel.costs.box_tables import Booleans, BoxTable, BoxTables, Floats, Links
from tf_interop.parallel.costs.devices import DeviceGraph
from tf_interop.parallel.costs.part_tables import MeasuredParts, PartTables, find_parts
from tf_interop.parallel.costs.step import PHASES, DivisionCosts, LayerCosts
from tf_interop.parallel.layers.find import Layer, LayerGraph, legal_degrees
from tf_interop.parallel.op_parts import Operation, box_at, divide, extents_of
from tf_interop.parallel.parted_graph import is_copied
from tf_interop.parallel.regions import volume, whole
from tf_interop.parallel.types import Degrees

_SHAPE_OPS = frozenset({"Shape", "ShapeN"})


def configurations_of(layer: Layer, device_count: int) -> tuple[Degrees, ...]:
    """The configurations of a layer that a search considers, the whole layer first.

    The number of parts divides the number of devices. Parts are on the first devices.
    """
    return tuple(
        degrees
        for count in range(1, device_count + 1)
        if device_count % count == 0
        for degrees in legal_degrees(layer, count)
    )


def find_costs(
    layers: LayerGraph,
    devices: DeviceGraph,
    device_of_node: Sequence[int],
    measured: MeasuredParts | None = None,
    everywhere: Collection[int] = (),
) -> DivisionCosts:
    """Finds the costs of all configurations of all layers of a graph.

    Args:
        layers: the layers.
        devices: the devices to divide them over.
        device_of_node: the number of each node's own device. A device outside `devices` counts as
            the first.
        measured: measured times of convolutions. All others follow from the rates of the devices.
        everywhere: nodes in no layer whose results are where they are read, such as a batch of
            which each host reads its own part.
    """
    return _Costing(layers, devices, device_of_node, measured, everywhere).run()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _NodeTable:
    """The parts of a node and their times, by configuration of its layer.

    Attributes:
        parts: the parts.
        seconds: by configuration and device.
        are_measured: by configuration.
    """

    parts: PartTables
    seconds: Floats
    are_measured: Booleans


class _Costing:
    """Adds up costs, computing each repeated table once."""

    def __init__(
        self,
        layers: LayerGraph,
        devices: DeviceGraph,
        device_of_node: Sequence[int],
        measured: MeasuredParts | None,
        everywhere: Collection[int],
    ) -> None:
        self._layers, self._view = layers, layers.view
        self._count = len(devices.devices)
        self._device_of_node = [each if each < self._count else 0 for each in device_of_node]
        self._rates = np.array([each.multiply_adds_per_s for each in devices.devices])
        self._memory_rates = np.array([each.memory_bytes_per_s for each in devices.devices])
        self._measured, self._everywhere = measured, everywhere
        self._slowdowns, self._call_s = (devices.slowdown, devices.memory_slowdown), devices.call_s
        self._links = Links(devices)
        self._tables = BoxTables()
        self._pools = np.array(devices.pools)
        # Found once for all layers of the same extents.
        known = {tuple(layer.extents.values()): layer for layer in layers.layers}
        found = {sizes: configurations_of(layer, self._count) for sizes, layer in known.items()}
        self._configurations = [found[tuple(each.extents.values())] for each in layers.layers]
        self._of_signature: dict[tuple[object, ...], _NodeTable] = {}
        self._seconds: dict[tuple[object, ...], Floats] = {}
        self._times: dict[tuple[int, ...], tuple[Floats, Floats]] = {}
        self._node_tables = {node: self._node_table(node) for node in layers.layer_of}
        self._after_layers, self._before_layers = self._find_whole()
        self._readers = self._find_readers()
        self._alive = self._alive_at_peak()

    def run(self) -> DivisionCosts:
        edges: dict[tuple[int, int], Floats] = {}
        sums = tuple(map(self._computing, self._layers.layers, self._configurations))
        self._add_variables(sums)
        for tensor, by_layer in self._readers.items():
            self._add_tensor(tensor, by_layer, sums, edges)
        return DivisionCosts(sums, edges, self._call_s)

    def _computing(self, layer: Layer, configurations: tuple[Degrees, ...]) -> LayerCosts:
        """The costs of a layer, without sending or keeping tensors."""
        seconds = np.zeros((PHASES, len(configurations), self._count))
        for node in layer.nodes:
            seconds[self._phase(node)] += self._node_tables[node].seconds
        of_pools = [seconds[..., self._pools == pool].sum(axis=2) for pool in set(self._pools)]
        compute_s = np.max(of_pools, axis=0)
        return LayerCosts(
            layer.name,
            configurations,
            compute_s,
            np.zeros(len(configurations)),
            np.zeros_like(compute_s),
            np.zeros_like(compute_s),
            np.zeros_like(seconds[0]),
            np.all([self._node_tables[node].are_measured for node in layer.nodes], axis=0),
        )

    def _phase(self, node: int) -> int:
        """The phase in which a node is computed, and what it gives is sent."""
        update_of, operations = self._layers.update_of, self._layers.operations
        is_assignment = node in update_of and operations[node].is_assignment
        return int(is_assignment or node in self._layers.gradients)

    def _find_whole(self) -> tuple[set[int], set[int]]:
        """The nodes in no layer that need what a layer computes, and those that a layer needs."""
        view, layer_of = self._view, self._layers.layer_of
        after: set[int] = set()
        before: set[int] = set()
        order = view.topological_order()
        for node in order:
            sources = [source for source, _ in view.fanins[node]]
            if node not in layer_of and any(each in layer_of or each in after for each in sources):
                after.add(node)
        for node in reversed(order):
            if node in layer_of or node in before:
                before |= {source for source, _ in view.fanins[node] if source not in layer_of}
        return after, before

    def _add_variables(self, sums: Sequence[LayerCosts]) -> None:
        """Adds the memory of the variables of which devices have shares."""
        known: set[int] = set()
        for node in self._layers.update_of:
            variable = next(source for source, _ in self._view.fanins[node])
            if self._layers.operations[node].is_assignment and variable not in known:
                known.add(variable)
                shares = self._node_tables[node].parts.reads[1]
                item_bytes = tf.as_dtype(input_dtypes(self._view.nodes[node])[1]).size
                memory = sums[self._layers.layer_of[node]].memory
                memory += item_bytes * shares.volumes_of_devices(self._count)

    def _find_readers(self) -> dict[Tensor, dict[int | None, list[tuple[int, int]]]]:
        """The readers, node and input, of each tensor that layers compute or read, by layer."""
        view, layer_of = self._view, self._layers.layer_of
        readers: dict[Tensor, dict[int | None, list[tuple[int, int]]]] = collections.defaultdict(
            lambda: collections.defaultdict(list)
        )
        for node in range(len(view)):
            layer = layer_of.get(node)
            for place, tensor in enumerate(view.fanins[node]):
                is_of_layer = layer is not None or tensor[0] in layer_of
                if not is_of_layer or is_copied(self._layers, tensor[0]):
                    continue
                if layer is None and view.ops[node] in _SHAPE_OPS:
                    continue  # of gradients, whose parts do not need it
                # Parts read nothing of vectors of sizes.
                if layer is None or self._node_tables[node].parts.reads[place].volumes.any():
                    readers[tensor][layer].append((node, place))
        return readers

    def _add_tensor(
        self,
        tensor: Tensor,
        by_layer: Mapping[int | None, Sequence[tuple[int, int]]],
        sums: Sequence[LayerCosts],
        edges: dict[tuple[int, int], Floats],
    ) -> None:
        """Adds the costs of sending and keeping a tensor."""
        owner = self._layers.layer_of.get(tensor[0])
        shape, item_bytes = self._described(tensor)
        home = self._device_of_node[tensor[0]]
        if owner is None:
            given = self._tables.make_whole(shape, [home])
        else:
            given = self._node_tables[tensor[0]].parts.gives[tensor[1]]
            if tensor in self._alive and not self._is_parameter(tensor):
                sums[owner].memory[:] += item_bytes * given.volumes_of_devices(self._count)
        for layer, readers in by_layer.items():
            if layer is None:
                assert owner is not None
                places = {self._device_of_node[node] for node, _ in readers}
                read = self._tables.make_whole(shape, places)
                if any(node in self._before_layers for node, _ in readers):
                    sums[owner].inner_s[:] += self._send(given, read, item_bytes)[:, 0]
                else:
                    self._send_aside(tensor, given, read, item_bytes, sums[owner])
                continue
            read = self._tables.join(
                self._node_tables[node].parts.reads[at] for node, at in readers
            )
            if layer == owner:
                updates = self._layers.update_of.keys()
                if tensor[0] in updates or any(node in updates for node, _ in readers):
                    # As other parameters, they travel while other layers compute.
                    self._send_aside(tensor, given, read, item_bytes, sums[layer])
                    self._add_gathered(tensor, readers, item_bytes, sums[layer])
                elif given is not read:
                    sums[layer].inner_s[:] += np.diagonal(self._send(given, read, item_bytes))
            elif owner is None:
                held = item_bytes * read.volumes_of_devices(self._count)
                if tensor[0] not in self._everywhere:
                    if tensor[0] in self._after_layers:
                        sums[layer].inner_s[:] += self._send(given, read, item_bytes)[0]
                    else:
                        self._send_aside(tensor, given, read, item_bytes, sums[layer])
                    held[:, home] = 0
                sums[layer].memory[:] += held
            else:
                seconds = self._send(given, read, item_bytes)
                pair = (owner, layer) if owner < layer else (layer, owner)
                seconds = seconds if owner < layer else seconds.T
                edges[pair] = edges[pair] + seconds if pair in edges else seconds
                if tensor in self._alive:
                    sums[layer].memory[:] += self._gathered(read, layer, shape, item_bytes)
        if owner is None and tensor[0] not in self._everywhere:
            # The tensor also stays on its own device, however it is divided.
            first = next(layer for layer in by_layer if layer is not None)
            sums[first].memory[:, home] += volume(whole(shape)) * item_bytes

    def _send(self, given: BoxTable, read: BoxTable, item_bytes: int) -> Floats:
        key = id(given), id(read), item_bytes
        if key not in self._seconds:
            self._seconds[key] = self._links.awaited_s(given, read, item_bytes)
        return self._seconds[key]

    def _send_aside(
        self, tensor: Tensor, given: BoxTable, read: BoxTable, item_bytes: int, costs: LayerCosts
    ) -> None:
        """Adds the times of messages for which nothing waits to the costs of their layer."""
        key = id(given), id(read), item_bytes
        if key not in self._times:
            self._times[key] = self._links.times(given, read, item_bytes)
        for sums, times in zip(
            (costs.parameters_s, costs.copying_s), self._times[key], strict=True
        ):
            # A node in no layer has one configuration.
            count = len(costs.configurations)
            sums[self._phase(tensor[0])] += np.diagonal(np.broadcast_to(times, (count, count)))

    def _add_gathered(
        self,
        tensor: Tensor,
        readers: Sequence[tuple[int, int]],
        item_bytes: int,
        costs: LayerCosts,
    ) -> None:
        """Adds the memory of a parameter that devices put together from shares."""
        if tensor in self._alive and self._is_parameter(tensor):
            read = self._tables.join(
                self._node_tables[node].parts.reads[at]
                for node, at in readers
                if node not in self._layers.update_of
            ).volumes_of_devices(self._count)
            given = self._node_tables[tensor[0]].parts.gives[tensor[1]]
            is_gathered = read > given.volumes_of_devices(self._count)
            costs.memory[:] += item_bytes * np.where(is_gathered, read, 0)

    def _gathered(
        self, read: BoxTable, layer: int, shape: tuple[int, ...], item_bytes: int
    ) -> Floats:
        """The bytes that devices receive beyond their shares of a tensor."""
        held = item_bytes * read.volumes_of_devices(self._count)
        layout = self._layers.layers[layer].layout
        if extents := extents_of(shape, layout):
            key = "own", shape, layout, self._configurations[layer]
            if key not in self._seconds:
                own = np.zeros_like(held)
                for number, degrees in enumerate(self._configurations[layer]):
                    places = divide(extents, degrees.with_channels_together)
                    for device, place in places.items():
                        own[number, device] = volume(box_at(place, shape, layout))
                self._seconds[key] = own
            held -= item_bytes * self._seconds[key]
        return np.maximum(held, 0)

    def _node_table(self, node: int) -> _NodeTable:
        operation, home = self._layers.operations[node], self._device_of_node[node]
        configurations = self._configurations[self._layers.layer_of[node]]
        update = self._layers.update_of.get(node)
        signature = _signature(operation)
        if update is not None:
            # The boxes of an update depend on nothing else.
            gradient = _signature(self._layers.operations[update.gradient])
            types = *input_dtypes(operation.node), *output_dtypes(operation.node)
            signature = operation.input_shapes, operation.output_shapes, types, gradient
        key = signature, configurations, home
        if key not in self._of_signature:
            self._of_signature[key] = self._new_node_table(node, configurations, home)
        return self._of_signature[key]

    def _new_node_table(
        self, node: int, configurations: tuple[Degrees, ...], home: int
    ) -> _NodeTable:
        operation = self._layers.operations[node]
        tables = find_parts(
            operation,
            functools.partial(self._layers.parts, node),
            configurations,
            home,
            self._count,
            self._tables,
        )
        of_convolutions = tables.multiply_adds / self._rates
        are_measured: Booleans = np.logical_not(tables.multiply_adds.any(axis=1))
        if self._measured is not None and not are_measured.all():
            for number, degrees in enumerate(configurations):
                are_measured[number] = self._measure(node, degrees, of_convolutions[number])
        moved = self._moved_bytes(tables.reads, input_dtypes(operation.node))
        moved += self._moved_bytes(tables.gives, output_dtypes(operation.node))
        are_divided = np.array([[each.count > 1] for each in configurations])
        slowdown, memory_slowdown = (np.where(are_divided, its, 1) for its in self._slowdowns)
        seconds = np.maximum(
            of_convolutions * slowdown, moved / self._memory_rates * memory_slowdown
        )
        return _NodeTable(tables, seconds, are_measured)

    def _measure(self, node: int, degrees: Degrees, seconds: Floats) -> bool:
        """Writes measured times to `seconds`, by device. Returns whether all parts have one."""
        assert self._measured is not None
        op_parts = self._layers.parts(node, degrees)
        parts = [part for part in op_parts or () if part.multiply_adds]
        found = [self._measured.seconds(self._layers.operations[node], part) for part in parts]
        for part, each in zip(parts, found, strict=True):
            if each is not None:
                seconds[part.place] = each
        return op_parts is not None and None not in found

    def _moved_bytes(self, tables: Sequence[BoxTable], dtypes: Sequence[int]) -> Floats:
        """The bytes that are read or written, by configuration and device."""
        return sum(
            (
                table.volumes_of_devices(self._count) * tf.as_dtype(dtype).size
                for table, dtype in zip(tables, dtypes, strict=True)
            ),
            start=np.zeros((1, self._count)),
        )

    def _described(self, tensor: Tensor) -> tuple[tuple[int, ...], int]:
        """The shape of a tensor, and the bytes of one value."""
        node, at = tensor
        if node in self._layers.layer_of:
            shapes, dtypes = self._layers.operations[node].output_shapes, output_dtypes
        else:
            by_layer = self._readers[tensor].items()
            node, at = next(readers[0] for layer, readers in by_layer if layer is not None)
            shapes, dtypes = self._layers.operations[node].input_shapes, input_dtypes
        return shapes[at], int(tf.as_dtype(dtypes(self._view.nodes[node])[at]).size)

    def _alive_at_peak(self) -> set[Tensor]:
        """The tensors of layers in memory at their peak, in topological order.

        A parameter is one that layers compute with then. Its memory is that of its variable, unless
        devices put it together.
        """
        rank = {node: place for place, node in enumerate(self._view.topological_order())}
        spans: dict[Tensor, tuple[int, int]] = {}
        changes = np.zeros(len(rank) + 1)
        for tensor, by_layer in self._readers.items():
            if tensor[0] not in self._layers.layer_of:
                continue
            is_parameter = self._is_parameter(tensor)
            uses = [
                rank[node]
                for readers in by_layer.values()
                for node, _ in readers
                if not (is_parameter and node in self._layers.update_of)
            ]
            if not uses:
                continue
            spans[tensor] = rank[tensor[0]], max(uses)
            if not is_parameter:
                shape, item_bytes = self._described(tensor)
                held = volume(whole(shape)) * item_bytes
                changes[rank[tensor[0]]] += held
                changes[max(uses) + 1] -= held
        peak = int(np.argmax(np.cumsum(changes)))
        return {tensor for tensor, (first, last) in spans.items() if first <= peak <= last}

    def _is_parameter(self, tensor: Tensor) -> bool:
        """Whether a tensor is what is read of a variable of which devices have shares."""
        update = self._layers.update_of.get(tensor[0])
        first = next((source for source, _ in self._view.fanins[tensor[0]]), None)
        return update is not None and first in update.variables


def _signature(operation: Operation) -> tuple[object, ...]:
    """Everything that a rule depends on."""
    node = operation.node
    return (
        node.op,
        tuple(
            (name, node.attr[name].SerializeToString())
            for name in sorted(node.attr)
            if not name.startswith("_")
        ),
        operation.input_shapes,
        operation.output_shapes,
        tuple(None if each is None else each.tobytes() for each in operation.input_values),
        operation.layout,
        operation.role,
    )
