"""Decides whether sets of a graph's nodes may be contracted, and in what order they then run.

    a --> x --> b      {a, b}: the set waits for x, and x for the set. Not legal.

    a --> b            {a, b}: legal if a and b are steps of one lane, a before b.

    a --> d            {a, b} and {c, d}: the first waits for c, the second for a. Each set is
    c --> b            legal alone; the two together are not.

A graph is given by the readers of each node. A node runs after everything that it waits for; a set
runs once all its nodes could run. If everything runs, contracting each set to one node leaves no
cycle. Time is linear in nodes and edges.
"""

from __future__ import annotations

import dataclasses
import graphlib
from collections.abc import Collection, Iterable, Sequence

from tf_interop.stage import Stage

Edge = tuple[int, int]
"""A node, and a node that waits for it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Contraction:
    """A graph whose sets of nodes each run as one unit.

    A unit is a set, or a node in no set. Sets are numbered first.

    Attributes:
        order: the units in a possible running order; empty if there is a cycle.
        cycle: units that each wait for the previous one. The first is also the last. Empty if there
            is none.
    """

    order: tuple[int, ...]
    cycle: tuple[int, ...]


def contract(readers: Sequence[Iterable[int]], sets: Sequence[Collection[int]]) -> Contraction:
    """Contracts sets of nodes.

    Edges inside a set are ignored; `misplaced_step` checks whether they are legal.

    Args:
        readers: for each node, the nodes that wait for it, without back edges of loops.
        sets: disjoint sets of nodes. Unit `k` is set `k`; the other nodes follow in order.
    """
    unit_of = {node: number for number, nodes in enumerate(sets) for node in nodes}
    count = len(sets)
    for node in range(len(readers)):
        if node not in unit_of:
            unit_of[node] = count
            count += 1
    sources: dict[int, set[int]] = {unit: set() for unit in range(count)}
    for node, followers in enumerate(readers):
        for reader in followers:
            if unit_of[reader] != unit_of[node] or reader == node:
                sources[unit_of[reader]].add(unit_of[node])
    try:
        return Contraction(tuple(graphlib.TopologicalSorter(sources).static_order()), ())
    except graphlib.CycleError as error:
        return Contraction((), tuple(error.args[1]))


def misplaced_step(readers: Sequence[Collection[int]], stage: Stage[int]) -> Edge | None:
    """Finds a step that waits for another step that does not come before it in its lane.

    Returns:
        The other step, and the step that waits for it; None if every step is well placed. All steps
        of a merged lane run together.
    """
    place = {
        node: (lane, 0 if each.merged else number)
        for lane, each in enumerate(stage.lanes)
        for number, node in enumerate(each.operations)
    }
    for node, (lane, number) in place.items():
        for reader in readers[node]:
            other = place.get(reader)
            if other is not None and (other[0] != lane or other[1] <= number):
                return node, reader
    return None
