"""Joins what a bounded search left apart: better stages by small changes to those that it found.

A beam follows few of the orders in which a wide graph can run, and forgets the others before it is
known what they were good for. So convolutions stay alone that would win together, far from each
other in the order that was found. Here the order comes last. With stages, and nodes alone, as the
units that run one after another, one change at a time,

    before:           [a] [b c] [d]          units, in the order in which they run
    two units join:   [a d] [b c]            or [a] [b c d]
    a node moves:     [a b] [c] [d]

and the change is legal where the units that come of it still have an order: where none of them
waits for itself by way of others. A node that joins may come after another in its lane. A change is
made where the sum of all latencies falls by more than the stages that come of it may be off. What
saves most is tried first, until nothing is left that saves. So the result is never slower than what
there was before.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from tf_interop.contraction import contract
from tf_interop.planning.search.space import SearchResult, Space, StageOption, bits_of, mask_of

# Changes whose stages are asked for, at most: seconds. InceptionResNetV2's training graph, of 731
# convolutions, has less than a tenth of that.
_MOST_ASKED = 1_000_000


def join_stages(space: Space, found: SearchResult, *, max_orders: int) -> SearchResult:
    """Joins units, and moves nodes between them, where that saves time.

    Args:
        space: what was searched. All stages are chosen for anew with a change, because more or less
            is alive beside them.
        found: a schedule of it.
        max_orders: changes for which an order is looked for, at most.

    Returns:
        Stages that take no longer than those given, with the changes that were made. Equal ones
        for equal input.
    """
    return _Joiner(space, found, max_orders).join()


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class _Change:
    """A change that may be worth it; those that save most come first. Units are bits."""

    loss_us: float  # Negative where there is memory for the fastest options and it saves.
    before: tuple[int, int]
    after: tuple[int, ...]  # The first is that which grows.


class _Joiner:
    def __init__(self, space: Space, found: SearchResult, max_orders: int) -> None:
        self._space = space
        self._found = found
        self._orders_left = max_orders
        self._asked_left = _MOST_ASKED
        self._order = [mask_of(itertools.chain(*lanes)) for lanes in found.stages]
        self._chosen = dict(zip(self._order, found.options, strict=True))
        self._changes = 0
        self._note_order()

    def join(self) -> SearchResult:
        # A change can make way for another that was tried before it.
        while self._has_work_left() and self._change_all():
            pass
        found = self._found
        if self._changes:
            units = ((unit, self._chosen[unit]) for unit in self._order)
            found = self._space.result(units, found.states, found.transitions)
        return dataclasses.replace(found, changes=self._changes, is_complete=self._has_work_left())

    def _has_work_left(self) -> bool:
        return self._orders_left > 0 and self._asked_left > 0

    def _note_order(self) -> None:
        """Takes down what follows from the order: places, sums, and which unit waits for which."""
        self._place = {unit: place for place, unit in enumerate(self._order)}
        self._latency_us = self._sum_us(self._order, self._chosen)
        unit_of = {node: unit for unit in self._order for node in bits_of(unit)}
        # For each unit all nodes that cannot run before it has, and all that have to.
        self._after = dict.fromkeys(self._order, 0)
        self._before = dict.fromkeys(self._order, 0)
        for unit in self._order if self._space.max_lane_length > 1 else ():
            for node in bits_of(unit):
                for other in self._space.predecessors[node]:
                    if not unit >> other & 1:
                        self._before[unit] |= self._before[unit_of[other]] | unit_of[other]
        for unit in reversed(self._order):
            for node in bits_of(unit):
                for reader in self._space.readers[node]:
                    if not unit >> reader & 1:
                        self._after[unit] |= self._after[unit_of[reader]] | unit_of[reader]

    def _change_all(self) -> bool:
        """Makes all changes that there are, the best first; returns whether there was one."""
        before = self._changes
        changes = [
            change
            for one, other in itertools.combinations(self._order, 2)
            for change in self._changes_of(one, other)
        ]
        heapq.heapify(changes)
        while changes and self._has_work_left():
            change = heapq.heappop(changes)
            if all(unit in self._place for unit in change.before) and self._make(change):
                for grown in change.after:
                    for other in self._order:
                        if other != grown:
                            for following in self._changes_of(grown, other):
                                heapq.heappush(changes, following)
        return self._changes > before

    def _changes_of(self, one: int, other: int) -> Iterator[_Change]:
        """The changes to two units that would save something if there was an order for them."""
        one, other = min(one, other), max(one, other)
        space = self._space
        most = space.max_lanes * space.max_lane_length
        afters: list[tuple[int, ...]] = []
        if one.bit_count() + other.bit_count() <= most and self._may_join(one, other):
            afters.append((one | other,))
        for source, target in ((one, other), (other, one)):
            if source & (source - 1) and target.bit_count() < most:
                for node in bits_of(source):
                    grown = target | 1 << node
                    if space.max_lane_length > 1 or space.are_independent(node, target):
                        afters.append((grown, *self._units_of(source & ~(1 << node))))
        now_us = self._chosen_option(one).latency_us + self._chosen_option(other).latency_us
        for after in afters:
            change = self._weigh(now_us, (one, other), after)
            if change is not None:
                yield change

    def _may_join(self, one: int, other: int) -> bool:
        """Whether nothing waits for one of two units that the other waits for."""
        for first, second in ((one, other), (other, one)):
            if self._after[first] & second:
                has_between = self._after[first] & self._before[second] & ~(first | second)
                return self._space.max_lane_length > 1 and not has_between
        return True

    def _weigh(
        self, now_us: float, before: tuple[int, int], after: tuple[int, ...]
    ) -> _Change | None:
        if self._asked_left <= 0:
            return None
        self._asked_left -= 1
        options = self._space.ask(after[0])
        if not options:
            return None
        chosen = [options[0], *(self._space.options(unit)[0] for unit in after[1:])]
        loss_us = sum(option.latency_us for option in chosen) - now_us
        if loss_us + _spread_us(after, chosen) >= 0:
            return None
        return _Change(loss_us, before, after)

    def _units_of(self, rest: int) -> tuple[int, ...]:
        """What is left of a stage: a smaller one, or each node by itself where that is faster."""
        options = self._space.options(rest)
        if options and options[0].latency_us <= self._space.alone_us(rest):
            return (rest,)
        return tuple(1 << node for node in bits_of(rest))

    def _make(self, change: _Change) -> bool:
        """Makes a change if there is an order for it, and memory; returns whether it did."""
        self._orders_left -= 1
        places = sorted(self._place[unit] for unit in change.before)
        # As late as what waits for it allows, or as early as what it waits for.
        for place in reversed(places):
            order = self._order_with(change, place)
            if order is None:
                return False
            chosen = self._choose(order)
            if chosen is None:
                continue
            spread_us = _spread_us(
                change.after, [self._space.options(unit)[chosen[unit]] for unit in change.after]
            )
            if self._sum_us(order, chosen) + spread_us < self._latency_us:
                self._order, self._chosen = order, chosen
                self._note_order()
                self._changes += 1
                return True
        return False

    def _order_with(self, change: _Change, place: int) -> list[int] | None:
        """The order with the changed units, the grown one near a place; None for a cycle."""
        grown, *rest = change.after
        # What is left of a unit stays where that was.
        wished = {unit: (at, 0) for unit, at in self._place.items() if unit not in change.before}
        wished[grown] = (place, len(rest))
        for number, unit in enumerate(rest):
            at = next(self._place[each] for each in change.before if each & unit)
            wished[unit] = (at, number)
        units = list(wished)
        sets = [tuple(bits_of(unit)) for unit in units]
        contraction = contract(self._space.readers, sets, wished=list(wished.values()))
        return None if contraction.cycle else [units[number] for number in contraction.order]

    def _choose(self, order: Sequence[int]) -> dict[int, int] | None:
        """For each unit its fastest option that fits; None where none does."""
        chosen: dict[int, int] = {}
        done = 0
        for unit in order:
            choice = self._space.choose(unit, self._space.available(done))
            if choice is None:
                return None
            chosen[unit] = choice[0]
            done |= unit
        return chosen

    def _sum_us(self, order: Sequence[int], chosen: Mapping[int, int]) -> float:
        # The same for the same units in any order: rounding is no gain.
        return math.fsum(self._space.options(unit)[chosen[unit]].latency_us for unit in order)

    def _chosen_option(self, unit: int) -> StageOption:
        return self._space.options(unit)[self._chosen[unit]]


def _spread_us(units: Sequence[int], options: Sequence[StageOption]) -> float:
    """How far the latencies of those units that are stages may be off."""
    return sum(
        option.spread_us
        for unit, option in zip(units, options, strict=True)
        if unit & (unit - 1)  # Two nodes or more.
    )
