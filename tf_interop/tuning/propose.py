"""Which units of a graph to try as narrow ones, by what they were measured to take.

A unit is better narrow where it is no slower on so few cores, or where something else has the other
cores meanwhile. So it takes the fewest cores with which one of the two holds. How much company and
how little to lose that takes differs from candidate to candidate. Each is judged by a simulated
step; whole steps that are measured decide.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

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
        narrow_us: as one op, by the number of cores that it runs on.
        stock_us: the sum of its operations in the graph as it is, on all cores.
    """

    narrow_us: Mapping[int, float]
    stock_us: float


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the executor has to run on.

    Attributes:
        cores: as many as threads inside an operation.
        threads: inter-op threads.
    """

    cores: int
    threads: int

    @property
    def widths(self) -> tuple[int, ...]:
        """On how many cores a unit may run: 1, and 2, 4 and so on below all of them."""
        return tuple(1 << power for power in range(max(1, (self.cores - 1).bit_length())))


class StepModel:
    """Simulates a step of a graph in which some of its units are narrow."""

    def __init__(
        self,
        view: GraphView,
        units: Sequence[Unit],
        unit_times: Sequence[UnitTimes],
        op_times_us: Mapping[str, float],
        machine: Machine,
    ) -> None:
        """Takes the measurements.

        Args:
            view: the graph.
            units: of the graph.
            unit_times: of each unit.
            op_times_us: what the graph's nodes take as they are, by name; a node that is not there
                takes nothing.
            machine: what it runs on.
        """
        self._view = view
        self._units = units
        self._unit_times = unit_times
        self._machine = machine
        self._unit_of = {step: number for number, unit in enumerate(units) for step in unit.steps}
        self._op_times_us = [op_times_us.get(name, 0.0) for name in view.names]
        self._order = view.topological_order()

    def simulate(self, unit_cores: Mapping[int, int]) -> Simulation:
        """Simulates a step.

        Args:
            unit_cores: how many cores each narrow unit has, by its number; all, where it is split.

        Returns:
            The step; its `company` is that of each unit.
        """
        view = self._view
        group = [
            unit if (unit := self._unit_of.get(index)) in unit_cores else None
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
            read = tuple(sorted(sources))
            unit = group[nodes[0]]
            if unit is None:
                items.append(self._stock_item(nodes[0], read))
            else:
                cores = unit_cores[unit]
                items.append(Item(self._unit_times[unit].narrow_us[cores], cores, read))
        simulated = simulate(items, cores=self._machine.cores, threads=self._machine.threads)
        company = [0.0] * len(self._units)
        for number, each in enumerate(self._units):
            places = {number_of[step] for step in each.steps}
            company[number] = max(simulated.company[place] for place in places)
        return Simulation(simulated.step_us, tuple(company))

    def _stock_item(self, index: int, sources: tuple[int, ...]) -> Item:
        cores = 1.0
        in_unit = self._unit_of.get(index)
        if in_unit is not None:
            times = self._unit_times[in_unit]
            if times.stock_us > 0:
                cores = min(
                    float(self._machine.cores), max(1.0, times.narrow_us[1] / times.stock_us)
                )
        return Item(self._op_times_us[index], cores, sources)


def propose(
    model: StepModel, unit_times: Sequence[UnitTimes], widths: Sequence[int]
) -> list[dict[int, int]]:
    """Sets of units to try as narrow, the most promising first.

    Args:
        model: simulates the graph.
        unit_times: of each unit.
        widths: the numbers of cores that each was measured on, ascending from 1.

    Returns:
        The cores of each narrow unit by its number, non-empty: sets that differ by some of the
        units' time, and all units on each of `widths`; by the simulated step, the shortest first.
    """
    uniform = [dict.fromkeys(range(len(unit_times)), width) for width in widths]
    company = {
        width: model.simulate(each).company for width, each in zip(widths, uniform, strict=True)
    }
    candidates = [*uniform]
    for least_company in _LEAST_COMPANY:
        for most_slowdown in _MOST_SLOWDOWN:
            candidate = {
                number: width
                for number, times in enumerate(unit_times)
                for width in reversed(widths)  # the last one that holds, so the least, stays
                if company[width][number] >= least_company
                or times.narrow_us[width] <= most_slowdown * times.stock_us
            }
            if candidate and candidate not in candidates:
                candidates.append(candidate)
    candidates.sort(
        key=lambda each: (model.simulate(each).step_us, -len(each), sorted(each.items()))
    )
    least = _LEAST_DIFFERENCE * sum(times.narrow_us[1] for times in unit_times)
    taken: list[dict[int, int]] = []
    for candidate in candidates:
        if candidate in uniform or all(
            sum(
                times.narrow_us[1]
                for number, times in enumerate(unit_times)
                if candidate.get(number) != other.get(number)
            )
            >= least
            for other in taken
        ):
            taken.append(candidate)
    return taken
