"""The step of a divided graph, from the costs of its layers, and the search for a short one."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from tf_interop.errors import PlanError
from tf_interop.parallel.costs.box_tables import Booleans, Floats
from tf_interop.parallel.parted_graph import LayerDivision
from tf_interop.parallel.search.bounds import total_cost
from tf_interop.parallel.search.minimize import SearchProblem, SearchResult, minimize
from tf_interop.parallel.types import Degrees

PHASES = 2
"""Forward and backward."""
_MAX_WEIGHTS = 8
_FEW = 3
"""Changes of a layer that are tried: those that may shorten the step most."""
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
        low, high = np.full(PHASES, _NEGLIGIBLE), np.ones(PHASES)
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
