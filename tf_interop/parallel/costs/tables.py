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
import itertools
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_interop.errors import PlanError
from tf_interop.graph.ops import input_dtypes, output_dtypes
from tf_interop.graph.view import Tensor
from tf_interop.parallel.costs.box_tables import Booleans, BoxTable, BoxTables, Floats, Links
from tf_interop.parallel.costs.devices import DeviceGraph
from tf_interop.parallel.costs.part_tables import MeasuredParts, PartTables, find_parts
from tf_interop.parallel.layers.find import Layer, LayerGraph, legal_degrees
from tf_interop.parallel.op_parts import Operation, box_at, divide, extents_of
from tf_interop.parallel.parted_graph import LayerDivision, is_copied
from tf_interop.parallel.regions import volume, whole
from tf_interop.parallel.search.bounds import total_cost
from tf_interop.parallel.search.minimize import SearchProblem, SearchResult, minimize
from tf_interop.parallel.types import Degrees

_SHAPE_OPS = frozenset({"Shape", "ShapeN"})
_PHASES = 2  # forward and backward
_MAX_WEIGHTS = 8
_FEW = 3
_NEGLIGIBLE = 1e-3
"""A step that is longer by a smaller share counts as no longer."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LayerCosts:
    """The costs of one layer, by configuration.

    Attributes:
        name: name of the layer.
        configurations: the ways to divide it, the whole layer first.
        compute_s: time of the busiest device, or of the busiest pool; by phase, forward and
            backward, and configuration.
        inner_s: time of messages within the layer, and to and from nodes in no layer that are
            between layers.
        parameters_s: time of messages with parameters and their gradients, and to and from other
            nodes in no layer; by phase and configuration.
        copying_s: time in which cores copy these messages; by phase and configuration.
        memory: bytes by configuration and device, at the graph's peak.
        are_measured: whether the convolutions of all parts were measured.
    """

    name: str
    configurations: tuple[Degrees, ...]
    compute_s: Floats
    inner_s: Floats
    parameters_s: Floats
    copying_s: Floats
    memory: Floats
    are_measured: Booleans

    def place_of(self, degrees: Degrees) -> int:
        """The index of a configuration."""
        return self.configurations.index(degrees)


@dataclasses.dataclass(frozen=True, slots=True)
class StepTimes:
    """The times that a step consists of.

    Attributes:
        compute_s: time of computing, and of copying parameters and their gradients, by phase.
        parameters_s: time of messages with parameters and their gradients, by phase. They travel
            while devices compute.
        phases_s: time until both are over, by phase.
        awaited_s: time of messages that a layer waits for.
        call_s: see `DeviceGraph`; 0 if no layer is divided.
    """

    compute_s: Floats
    parameters_s: Floats
    phases_s: Floats
    awaited_s: float
    call_s: float

    @property
    def step_s(self) -> float:
        """The time of the step."""
        return self.call_s + self.awaited_s + float(self.phases_s.sum())


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class DivisionCosts:
    """The costs of all layers and of all pairs of neighbours.

    Attributes:
        layers: in the order of the graph's layers.
        edges: seconds by the configurations of two layers, the lower number first.
        call_s: see `DeviceGraph`.
    """

    layers: tuple[LayerCosts, ...]
    edges: Mapping[tuple[int, int], Floats]
    call_s: float

    def scaled_to(self, step_s: float) -> DivisionCosts:
        """The same with times of computing scaled so that one device takes `step_s` for all."""
        factor = step_s / sum(float(layer.compute_s[:, 0].sum()) for layer in self.layers)
        scaled = (
            dataclasses.replace(layer, compute_s=layer.compute_s * factor) for layer in self.layers
        )
        return dataclasses.replace(self, layers=tuple(scaled))

    def minimize(self, memory_limits: Sequence[float] | None = None) -> SearchResult:
        """Finds a choice with a short step, with limits in bytes by device.

        The search adds up costs, but each phase of a step takes at least the longer of two sums. A
        weighted mean of the two is a bound of the step, and so is its least value, for any weights
        of the phases (Lagrange multipliers). Bisection finds weights with a high bound. There one
        choice computes longer and another sends longer. Between them are those that are like one in
        the first layers, and like the other in the last ones. Others use fewer devices. The best of
        all is then improved layer by layer.

        Raises:
            PlanError: the search found no choice within the memory limits.
        """
        bound, found = 0.0, []
        ends: dict[bool, tuple[int, ...]] = {}  # by whether sending takes longer
        # Of steps in which computing takes longer, the one that sends least is found.
        low, high = np.full(_PHASES, _NEGLIGIBLE), np.ones(_PHASES)
        for attempt in range(_MAX_WEIGHTS):
            weights = (low, high, (low + high) / 2)[min(attempt, 2)]
            result = minimize(self._problem(weights, memory_limits))
            found.append(result.choice)
            times = self.times(result.choice)
            bound = max(bound, result.bound + self.call_s)
            ends[bool(times.parameters_s.sum() > times.compute_s.sum())] = result.choice
            if bound >= times.step_s * (1 - _NEGLIGIBLE):
                return dataclasses.replace(result, cost=times.step_s, bound=times.step_s)
            sends_longer = times.parameters_s > times.compute_s
            low, high = np.where(sends_longer, (weights, high), (low, weights))
        between = [
            (*one[:place], *other[place:])
            for one, other in itertools.permutations(ends.values(), 2)
            for place in range(1, len(one))
        ]
        choices = [*found, *between, *self._with_fewer_devices(memory_limits)]
        fitting = [each for each in choices if self.fits(each, memory_limits)]
        choice = self._improved(min(fitting, key=self.seconds), memory_limits)
        cost = self.seconds(choice)
        return dataclasses.replace(result, choice=choice, cost=cost, bound=min(bound, cost))

    def _with_fewer_devices(self, memory_limits: Sequence[float] | None) -> list[tuple[int, ...]]:
        """The choice that is found if no layer uses all devices, if there is one."""
        most = max(each.count for layer in self.layers for each in layer.configurations)
        if most <= 2:
            return []
        kept = [
            np.flatnonzero([each.count < most for each in layer.configurations])
            for layer in self.layers
        ]
        layers = [
            LayerCosts(
                layer.name,
                tuple(layer.configurations[each] for each in its),
                layer.compute_s[:, its],
                layer.inner_s[its],
                layer.parameters_s[:, its],
                layer.copying_s[:, its],
                layer.memory[its],
                layer.are_measured[its],
            )
            for layer, its in zip(self.layers, kept, strict=True)
        ]
        edges = {
            (a, b): seconds[np.ix_(kept[a], kept[b])] for (a, b), seconds in self.edges.items()
        }
        try:
            result = DivisionCosts(tuple(layers), edges, self.call_s).minimize(memory_limits)
        except PlanError:
            return []  # too little memory
        return [tuple(int(its[each]) for its, each in zip(kept, result.choice, strict=True))]

    def _improved(
        self, choice: Sequence[int], memory_limits: Sequence[float] | None
    ) -> tuple[int, ...]:
        """Changes layer after layer for a shorter step, until no change of one layer helps."""
        edges_of: dict[int, list[tuple[int, Floats]]] = collections.defaultdict(list)
        for (first, second), seconds in self.edges.items():
            edges_of[first].append((second, seconds.T))
            edges_of[second].append((first, seconds))
        best, times = [*choice], self.times(choice)
        places = itertools.cycle(range(len(self.layers)))
        in_vain = 0
        while in_vain < len(self.layers):
            in_vain += 1
            place = next(places)
            layer, old = self.layers[place], best[place]
            enough_s = times.step_s * (1 - _NEGLIGIBLE / len(self.layers))
            compute_s, parameters_s = layer.compute_s + layer.copying_s, layer.parameters_s
            phases_s = np.maximum(
                (times.compute_s - compute_s[:, old])[:, np.newaxis] + compute_s,
                (times.parameters_s - parameters_s[:, old])[:, np.newaxis] + parameters_s,
            ).sum(axis=0)
            awaited_s = layer.inner_s + sum(its[best[other]] for other, its in edges_of[place])
            seconds = times.awaited_s - awaited_s[old] + awaited_s + phases_s
            for new in np.argsort(seconds, kind="stable")[:_FEW]:
                if seconds[new] >= enough_s:
                    break
                changed = [*best[:place], int(new), *best[place + 1 :]]
                its = self.times(changed)
                if its.step_s < enough_s and self.fits(changed, memory_limits):
                    best, times, in_vain = changed, its, 0
                    break
        return tuple(best)

    def fits(self, choice: Sequence[int], limits: Sequence[float] | None) -> bool:
        """Whether a choice keeps to limits in bytes by device."""
        return limits is None or all(
            need <= limit for need, limit in zip(self.memory(choice), limits, strict=True)
        )

    def _problem(self, weights: Floats, memory_limits: Sequence[float] | None) -> SearchProblem:
        """The problem of the search with weights of what nothing waits for, by phase."""
        return SearchProblem(
            tuple(
                layer.inner_s
                + (1 - weights) @ (layer.compute_s + layer.copying_s)
                + weights @ layer.parameters_s
                for layer in self.layers
            ),
            self.edges,
            tuple(layer.memory for layer in self.layers),
            None if memory_limits is None else np.asarray(memory_limits, np.float64),
        )

    def times(self, choice: Sequence[int]) -> StepTimes:
        """The times of a step with a choice of configurations."""
        awaited_s = total_cost([layer.inner_s for layer in self.layers], self.edges, choice)
        pairs = list(zip(self.layers, choice, strict=True))
        compute_s = np.array(
            [each.compute_s[:, its] + each.copying_s[:, its] for each, its in pairs]
        )
        parameters_s = np.array([layer.parameters_s[:, its] for layer, its in pairs])
        # Forward, a layer waits for its parameters, which follow those of the layers before it.
        # Backward, gradients wait for their layer and for those of the layers after it. Both times
        # are the longest sum of the messages up to a layer and the computing from it on.
        left_s = compute_s.sum(axis=0) - np.cumsum(compute_s, axis=0) + compute_s
        return StepTimes(
            compute_s.sum(axis=0),
            parameters_s.sum(axis=0),
            np.max(np.cumsum(parameters_s, axis=0) + left_s, axis=0),
            awaited_s,
            self.call_s if any(layer.configurations[its].count > 1 for layer, its in pairs) else 0,
        )

    def seconds(self, choice: Sequence[int]) -> float:
        """The time of a step with a choice of configurations."""
        return self.times(choice).step_s

    def memory(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The bytes that each device needs."""
        of_layers = [layer.memory[its] for layer, its in zip(self.layers, choice, strict=True)]
        return tuple(map(int, np.sum(of_layers, axis=0)))

    def choice_of(self, degrees: Sequence[Degrees]) -> tuple[int, ...]:
        """The indices of the layers' configurations."""
        return tuple(layer.place_of(its) for layer, its in zip(self.layers, degrees, strict=True))

    def division(self, choice: Sequence[int]) -> dict[str, LayerDivision]:
        """The layers that a choice divides, by name."""
        chosen = {
            layer.name: layer.configurations[its]
            for layer, its in zip(self.layers, choice, strict=True)
        }
        return {
            name: LayerDivision(degrees, tuple(range(degrees.count)))
            for name, degrees in chosen.items()
            if degrees.count > 1
        }


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
        seconds = np.zeros((_PHASES, len(configurations), self._count))
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
