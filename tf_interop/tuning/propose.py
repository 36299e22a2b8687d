"""Which units of a graph to try as narrow ones, by what they were measured to take.

A unit is better narrow where it is no slower on one core, or where something else has the other
cores meanwhile. So the candidates are nested: all units, then those with more and more company or
less and less to lose. Each is judged by a simulated step; whole steps that are measured decide.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from tf_interop.graph.units import Unit
from tf_interop.graph.view import GraphView
from tf_interop.tuning.simulate import Item, Simulation, simulate

# More than all of its time: company alone makes no unit narrow then.
_LEAST_COMPANY = (0.2, 0.4, 0.6, 0.8, 0.95, 1.1)
_MOST_SLOWDOWN = (0.8, 0.95, 1.1, 1.3)
# Of the units' time: sets that differ by less are one candidate.
_LEAST_DIFFERENCE = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class UnitTimes:
    """What a unit was measured to take.

    Attributes:
        narrow_us: as one op on one core.
        stock_us: the sum of its operations in the graph as it is, on all cores.
    """

    narrow_us: float
    stock_us: float


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the executor has to run on.

    Attributes:
        cores: as many as threads inside of an operation.
        threads: inter-op threads.
    """

    cores: int
    threads: int


class StepModel:
    """Simulates a step of a graph in which some of its units are narrow."""

    def __init__(
        self,
        view: GraphView,
        units: Sequence[Unit],
        unit_times: Sequence[UnitTimes],
        op_times_us: Mapping[str, float],
        machine: Machine,
        *,
        unit_cores: float = 1.0,
    ) -> None:
        """Takes the measurements.

        Args:
            view: the graph.
            units: of the graph.
            unit_times: of each unit.
            op_times_us: what the graph's nodes take as they are, by name; a node that is not there
                takes nothing.
            machine: what it runs on.
            unit_cores: what a unit asks for; more than one where it is split.
        """
        self._view = view
        self._units = units
        self._unit_times = unit_times
        self._machine = machine
        self._unit_cores = unit_cores
        self._unit_of = {step: number for number, unit in enumerate(units) for step in unit.steps}
        self._op_times_us = [op_times_us.get(name, 0.0) for name in view.names]
        self._order = view.topological_order()

    def simulate(self, narrow: Collection[int]) -> Simulation:
        """Simulates a step with the given units narrow.

        Returns:
            The step; its `company` is that of each unit.
        """
        narrow = frozenset(narrow)
        view = self._view
        group = [
            unit if (unit := self._unit_of.get(index)) in narrow else None
            for index in range(len(view))
        ]
        number_of_unit: dict[int, int] = {}
        number_of: list[int] = [0] * len(view)
        members: list[list[int]] = []
        for index in self._order:
            unit = group[index]
            if unit is None:
                number_of[index] = len(members)
                members.append([index])
                continue
            if unit not in number_of_unit:
                number_of_unit[unit] = len(members)
                members.append([])
            number_of[index] = number_of_unit[unit]
            members[number_of[index]].append(index)
        items = []
        for number, nodes in enumerate(members):
            sources = {number_of[source] for index in nodes for source in view.sources(index)} - {
                number
            }
            items.append(self._item(nodes, group[nodes[0]], tuple(sorted(sources))))
        simulated = simulate(items, cores=self._machine.cores, threads=self._machine.threads)
        company = [0.0] * len(self._units)
        for number, each in enumerate(self._units):
            places = {number_of[step] for step in each.steps}
            company[number] = max(simulated.company[place] for place in places)
        return Simulation(simulated.step_us, tuple(company))

    def _item(self, nodes: Sequence[int], unit: int | None, sources: tuple[int, ...]) -> Item:
        if unit is not None:
            return Item(self._unit_times[unit].narrow_us, self._unit_cores, sources)
        (index,) = nodes
        cores = 1.0
        in_unit = self._unit_of.get(index)
        if in_unit is not None:
            times = self._unit_times[in_unit]
            if times.stock_us > 0:
                cores = min(float(self._machine.cores), max(1.0, times.narrow_us / times.stock_us))
        return Item(self._op_times_us[index], cores, sources)


def propose(model: StepModel, unit_times: Sequence[UnitTimes]) -> list[frozenset[int]]:
    """Sets of units to try as narrow, the most promising first.

    Args:
        model: simulates the graph.
        unit_times: of each unit.

    Returns:
        Non-empty sets of the units' numbers that differ by some of the units' time, and that of all
        units; by the simulated step, the shortest first.
    """
    everything = frozenset(range(len(unit_times)))
    company = model.simulate(everything).company
    candidates = {everything}
    for least_company in _LEAST_COMPANY:
        for most_slowdown in _MOST_SLOWDOWN:
            candidates.add(
                frozenset(
                    number
                    for number, times in enumerate(unit_times)
                    if company[number] >= least_company
                    or times.narrow_us <= most_slowdown * times.stock_us
                )
            )
    candidates.discard(frozenset())
    steps = {each: model.simulate(each).step_us for each in candidates}
    ordered = sorted(candidates, key=lambda each: (steps[each], -len(each), sorted(each)))
    least = _LEAST_DIFFERENCE * sum(times.narrow_us for times in unit_times)
    taken: list[frozenset[int]] = []
    for candidate in ordered:
        if candidate == everything or all(
            sum(unit_times[number].narrow_us for number in candidate ^ other) >= least
            for other in taken
        ):
            taken.append(candidate)
    return taken
