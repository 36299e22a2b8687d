"""Proposes units of a graph and their cores to try, from measured times and simulated steps.

A unit should have few cores if it is no slower on them, or if other work, its company, uses the
other cores meanwhile. It gets the fewest cores for which either is true; all cores if they are
fastest, and stay awake between its operations. Candidates differ in the company that they require
and the loss that they accept. A simulated step ranks them; measured whole
steps decide.

The simulation models TensorFlow's executor on a CPU. Items (narrow units, and single operations on
all cores) become ready when their inputs have run. They start in the order in which they became
ready, at most one for each inter-op thread. If the running items want more cores than there are,
each gets its share. A narrow item wants its cores. An operation on all cores wants the cores that
it makes use of: two if it is twice as fast as on one core, and one if it is no faster, since it
spends the rest of its time waking threads. The model ignores caches and memory bandwidth.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from tf_interop.graph.units import Unit
from tf_interop.graph.view import GraphView

# The last share exceeds a unit's whole time, so that company alone makes no unit narrow.
_LEAST_COMPANY = (0.2, 0.4, 0.6, 0.8, 0.95, 1.1)
_MOST_SLOWDOWN = (1.0, 1.1, 1.3)
# Sets that differ by a smaller share of the units' time are one candidate.
_LEAST_DIFFERENCE = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """One step of the executor.

    Attributes:
        latency_us: its time with the cores that it wants.
        cores: the number of cores that it wants, 1 or more.
        sources: the numbers of the items that it waits for.
    """

    latency_us: float
    cores: float
    sources: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Simulation:
    """A simulated step.

    Attributes:
        step_us: from the first item's start to the last item's end.
        company: the share of the remaining cores that others wanted while an item ran. On two cores
            it is the share of the item's time in which another item ran.
    """

    step_us: float
    company: tuple[float, ...]


def simulate(items: Sequence[Item], *, cores: int, threads: int) -> Simulation:
    """Simulates a step of acyclic items on a machine with these cores and inter-op threads."""
    waits = [len(set(item.sources)) for item in items]
    readers: list[list[int]] = [[] for _ in items]
    for number, item in enumerate(items):
        for source in set(item.sources):
            readers[source].append(number)
    ready = collections.deque(number for number, count in enumerate(waits) if not count)
    left = [item.latency_us for item in items]
    running: list[int] = []
    spent = [0.0] * len(items)
    accompanied = [0.0] * len(items)
    now = 0.0

    def finish(number: int) -> None:
        for reader in readers[number]:
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)

    while ready or running:
        while ready and len(running) < threads:
            number = ready.popleft()
            if left[number] > 0:
                running.append(number)
            else:
                finish(number)
        if not running:
            continue
        asked = sum(items[number].cores for number in running)
        speed = min(1.0, cores / asked)
        elapsed = min(left[number] for number in running) / speed
        now += elapsed
        still = []
        for number in running:
            spent[number] += elapsed
            own = items[number].cores
            accompanied[number] += elapsed * min(1.0, (asked - own) / max(1.0, cores - own))
            left[number] -= elapsed * speed
            if left[number] <= 1e-9:
                finish(number)
            else:
                still.append(number)
        running = still
    company = tuple(
        beside / whole if whole else 0.0 for beside, whole in zip(accompanied, spent, strict=True)
    )
    return Simulation(now, company)


@dataclasses.dataclass(frozen=True, slots=True)
class UnitTimes:
    """The measured times of a unit.

    Attributes:
        narrow_us: as one op, by its number of cores.
        stock_us: the sum of its operations in the unchanged graph, on all cores.
    """

    narrow_us: Mapping[int, float]
    stock_us: float

    @property
    def least_us(self) -> float:
        """The time of the fastest way to run it."""
        return min(self.stock_us, *self.narrow_us.values())


@dataclasses.dataclass(frozen=True)
class Machine:
    """The resources of the executor.

    Attributes:
        cores: the number of cores that the intra-op threads use.
        threads: the number of inter-op threads.
    """

    cores: int
    threads: int

    @property
    def widths(self) -> tuple[int, ...]:
        """The numbers of cores that a unit may have: 1, 2, 4 and so on, and all cores."""
        powers = range((self.cores - 1).bit_length())
        return (*(1 << power for power in powers), self.cores)


class StepModel:
    """Simulates steps of a graph in which some units are narrow."""

    def __init__(
        self,
        view: GraphView,
        units: Sequence[Unit],
        unit_times: Sequence[UnitTimes],
        op_times_us: Mapping[str, float],
        machine: Machine,
    ) -> None:
        """Stores the measurements; a node missing from `op_times_us` takes no time."""
        self._view = view
        self._units = units
        self._unit_times = unit_times
        self._machine = machine
        self._unit_of = {step: number for number, unit in enumerate(units) for step in unit.steps}
        self._op_times_us = [op_times_us.get(name, 0.0) for name in view.names]
        self._order = view.topological_order()

    def simulate(self, unit_cores: Mapping[int, int]) -> Simulation:
        """Simulates a step. The `company` is that of each unit.

        Args:
            unit_cores: the cores of each narrow unit, by its number; a split unit has all of them.
        """
        view = self._view
        members: dict[tuple[bool, int], list[int]] = {}
        for index in self._order:
            unit = self._unit_of.get(index, -1)
            key = (True, unit) if unit in unit_cores else (False, index)
            members.setdefault(key, []).append(index)
        number_of = {
            index: number for number, nodes in enumerate(members.values()) for index in nodes
        }
        items = []
        for number, nodes in enumerate(members.values()):
            sources = {number_of[source] for index in nodes for source in view.sources(index)}
            read = tuple(sorted(sources - {number}))
            unit = self._unit_of.get(nodes[0], -1)
            if unit in unit_cores:
                cores = unit_cores[unit]
                items.append(Item(self._unit_times[unit].narrow_us[cores], cores, read))
            else:
                items.append(self._stock_item(nodes[0], read))
        simulated = simulate(items, cores=self._machine.cores, threads=self._machine.threads)
        company = (
            max(simulated.company[number_of[step]] for step in each.steps) for each in self._units
        )
        return Simulation(simulated.step_us, tuple(company))

    def _stock_item(self, index: int, sources: tuple[int, ...]) -> Item:
        cores = 1.0
        if index in self._unit_of:
            times = self._unit_times[self._unit_of[index]]
            if times.stock_us > 0:
                cores = min(max(cores, times.narrow_us[1] / times.stock_us), self._machine.cores)
        return Item(self._op_times_us[index], cores, sources)


def propose(
    model: StepModel, unit_times: Sequence[UnitTimes], widths: Sequence[int]
) -> list[dict[int, int]]:
    """Proposes sets of narrow units, those with the shortest simulated step first.

    Args:
        model: simulates the graph.
        unit_times: one for each unit.
        widths: the measured numbers of cores, ascending from 1.

    Returns:
        Non-empty sets, as the cores of each narrow unit by its number. They include all units on
        each of `widths`; the others differ enough from each other.
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
                for width in reversed(widths)  # the last match, the smallest, stays
                if company[width][number] >= least_company
                or times.narrow_us[width] <= most_slowdown * times.least_us
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
