"""Joins what a bounded search left apart: better stages by small changes to those that it found.

A beam follows few of the orders in which a wide graph can run, and forgets the others before it is
known what they were good for. So convolutions stay alone that would win together, far from each
other in the order that was found. Here the order comes last. One change at a time,

    before:           [a] [b c] [d]          steps, in the order in which they run
    two steps join:   [a d] [b c]            or [a] [b c d]
    a node moves:     [a b] [c] [d]

and the change is legal where the steps that come of it still have an order: where none of them
waits for itself by way of others. It is made where the sum of all latencies falls by more than the
stages that come of it may be off. What saves most is tried first, until nothing is left that saves.
So the result is never slower than what there was before.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from tf_interop.plan.search.beam import Nodes, SetOptions
from tf_interop.plan.search.bit_graph import topological_order
from tf_interop.plan.search.interface import AvailableBytes, SearchResult, StageOption

# Changes whose stages are asked for, at most: seconds. InceptionResNetV2's training graph, of 731
# convolutions, has less than a tenth of that.
_MOST_ASKED = 1_000_000
_ASKED_PER_REPORT = 1_000


@dataclasses.dataclass(frozen=True, slots=True)
class JoinResult:
    """What came of joining.

    Attributes:
        found: the stages; states and transitions as they were.
        changes: how many changes were made.
        is_complete: whether no change is left that saves anything; else a bound was reached.
    """

    found: SearchResult
    changes: int
    is_complete: bool


def join_stages(
    predecessors: Sequence[Sequence[int]],
    found: SearchResult,
    stage_options: SetOptions,
    *,
    available_bytes: AvailableBytes | None = None,
    max_lanes: int,
    max_orders: int,
    on_progress: Callable[[int], None] = lambda changes: None,
) -> JoinResult:
    """Joins steps, and moves nodes between them, where that saves time.

    Args:
        predecessors: for each node the nodes that it depends on.
        found: a schedule of them in which each node has a lane of its own.
        stage_options: as in `search_stages_bounded`, with spreads.
        available_bytes: of the options of a stage the fastest is taken that needs no more; None
            where memory does not matter. All stages are chosen for anew with a change, because
            more or less is alive beside them.
        max_lanes: the most nodes of a stage.
        max_orders: changes for which an order is looked for, at most.
        on_progress: told now and then how many changes were made.

    Returns:
        Stages that take no longer than those given. Equal ones for equal input.
    """
    joiner = _Joiner(
        predecessors, found, stage_options, available_bytes, max_lanes, max_orders, on_progress
    )
    return joiner.join()


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class _Change:
    """A change that may be worth it, to be made in this order.

    Attributes:
        loss_us: what the sum of latencies grows by where there is memory for the fastest options;
            negative where it falls.
        before: two steps as they are.
        after: the steps that would come of them; the first is that which grows.
    """

    loss_us: float
    before: tuple[Nodes, Nodes]
    after: tuple[Nodes, ...]


class _Joiner:
    def __init__(
        self,
        predecessors: Sequence[Sequence[int]],
        found: SearchResult,
        stage_options: SetOptions,
        available_bytes: AvailableBytes | None,
        max_lanes: int,
        max_orders: int,
        on_progress: Callable[[int], None],
    ) -> None:
        self._predecessors = predecessors
        self._found = found
        self._stage_options = stage_options
        self._available_bytes = available_bytes
        self._max_lanes = max_lanes
        self._orders_left = max_orders
        self._on_progress = on_progress
        self._asked_left = _MOST_ASKED
        self._options: dict[Nodes, Sequence[StageOption]] = {}
        self._related = _related(predecessors)
        self._order: list[Nodes] = [
            tuple(sorted(node for lane in lanes for node in lane)) for lanes in found.stages
        ]
        self._chosen: dict[Nodes, int] = dict(zip(self._order, found.options, strict=True))
        self._changes = 0
        self._note_order()

    def join(self) -> JoinResult:
        # A change can make way for another that was tried before it.
        while self._has_work_left() and self._change_all():
            pass
        found = self._found
        if self._changes:
            found = dataclasses.replace(
                found,
                stages=tuple(tuple((node,) for node in step) for step in self._order),
                options=tuple(self._chosen[step] for step in self._order),
                latency_us=self._latency_us,
            )
        return JoinResult(found, self._changes, self._has_work_left())

    def _has_work_left(self) -> bool:
        return self._orders_left > 0 and self._asked_left > 0

    def _note_order(self) -> None:
        """Takes down what follows from the order: places, sums, and which step waits for which."""
        self._place = {step: place for place, step in enumerate(self._order)}
        self._latency_us = self._sum_us(self._order, self._chosen)
        step_of = {node: step for step in self._order for node in step}
        # For each step all nodes that cannot run before it has.
        self._waiting = dict.fromkeys(self._order, 0)
        for step in reversed(self._order):
            behind = self._waiting[step] | _mask(step)
            for node in step:
                for predecessor in self._predecessors[node]:
                    self._waiting[step_of[predecessor]] |= behind

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
            if all(step in self._place for step in change.before) and self._make(change):
                for grown in change.after:
                    for other in self._order:
                        if other != grown:
                            for following in self._changes_of(grown, other):
                                heapq.heappush(changes, following)
        return self._changes > before

    def _changes_of(self, one: Nodes, other: Nodes) -> Iterator[_Change]:
        """The changes to two steps that would save something if there was an order for them."""
        one, other = min(one, other), max(one, other)
        is_order_open = not (self._waiting[one] & _mask(other) or self._waiting[other] & _mask(one))
        afters: list[tuple[Nodes, ...]] = []
        if len(one) + len(other) <= self._max_lanes and is_order_open:
            afters.append((tuple(sorted((*one, *other))),))
        for source, target in ((one, other), (other, one)):
            if len(source) > 1 and len(target) < self._max_lanes:
                for node in source:
                    if not self._related[node] & _mask(target):
                        rest = tuple(each for each in source if each != node)
                        afters.append((tuple(sorted((*target, node))), *self._steps_of(rest)))
        now_us = self._chosen_option(one).latency_us + self._chosen_option(other).latency_us
        for after in afters:
            change = self._weigh(now_us, (one, other), after)
            if change is not None:
                yield change

    def _weigh(
        self, now_us: float, before: tuple[Nodes, Nodes], after: tuple[Nodes, ...]
    ) -> _Change | None:
        if self._asked_left <= 0:
            return None
        self._asked_left -= 1
        if self._asked_left % _ASKED_PER_REPORT == 0:
            self._on_progress(self._changes)
        # There are far too many to remember what each could be.
        options = self._stage_options(after[0])
        if not options:
            return None
        chosen = [options[0], *(self._options_of(step)[0] for step in after[1:])]
        loss_us = sum(option.latency_us for option in chosen) - now_us
        if loss_us + _spread_us(after, chosen) >= 0:
            return None
        return _Change(loss_us, before, after)

    def _steps_of(self, rest: Nodes) -> tuple[Nodes, ...]:
        """What is left of a stage: a smaller one, or each node by itself where that is faster."""
        alone = tuple((node,) for node in rest)
        alone_us = sum(self._options_of(each)[0].latency_us for each in alone)
        options = self._options_of(rest)
        return (rest,) if options and options[0].latency_us <= alone_us else alone

    def _make(self, change: _Change) -> bool:
        """Makes a change if there is an order for it, and memory; returns whether it did."""
        self._orders_left -= 1
        places = sorted(self._place[step] for step in change.before)
        # As late as what waits for it allows, or as early as what it waits for.
        for place in reversed(places):
            order = self._order_with(change, place)
            if order is None:
                return False
            chosen = self._choose(order)
            if chosen is None:
                continue
            spread_us = _spread_us(
                change.after, [self._options_of(step)[chosen[step]] for step in change.after]
            )
            if self._sum_us(order, chosen) + spread_us < self._latency_us:
                self._order, self._chosen = order, chosen
                self._note_order()
                self._changes += 1
                return True
        return False

    def _order_with(self, change: _Change, place: int) -> list[Nodes] | None:
        """The order that there is, as far as it can stay, with the changed steps.

        Args:
            change: puts steps in the place of two others.
            place: where the step that grows is to be, if what it waits for is before it.

        Returns:
            The steps; None where one of them would wait for itself.
        """
        grown, *rest = change.after
        # What is left of a step stays where that was.
        wished = {step: (at, 0) for step, at in self._place.items() if step not in change.before}
        wished[grown] = (place, len(rest))
        for number, step in enumerate(rest):
            at = next(self._place[each] for each in change.before if step[0] in each)
            wished[step] = (at, number)
        return _order_near(wished, self._predecessors)

    def _choose(self, order: Sequence[Nodes]) -> dict[Nodes, int] | None:
        """For each step its fastest option that fits; None where none does."""
        chosen: dict[Nodes, int] = {}
        done = 0
        for step in order:
            available = None if self._available_bytes is None else self._available_bytes(done)
            for number, option in enumerate(self._options_of(step)):
                if available is None or option.memory_bytes <= available:
                    chosen[step] = number
                    break
            else:
                return None
            done |= _mask(step)
        return chosen

    def _sum_us(self, order: Sequence[Nodes], chosen: Mapping[Nodes, int]) -> float:
        # The same for the same steps in any order: rounding is no gain.
        return math.fsum(self._options_of(step)[chosen[step]].latency_us for step in order)

    def _chosen_option(self, step: Nodes) -> StageOption:
        return self._options_of(step)[self._chosen[step]]

    def _options_of(self, step: Nodes) -> Sequence[StageOption]:
        options = self._options.get(step)
        if options is None:
            options = self._options[step] = self._stage_options(step)
        return options


def _related(predecessors: Sequence[Sequence[int]]) -> list[int]:
    """For each node all that it depends on and all that depends on it, as bits."""
    order = topological_order(predecessors)
    ancestors = [0] * len(predecessors)
    descendants = [0] * len(predecessors)
    for node in order:
        for each in predecessors[node]:
            ancestors[node] |= ancestors[each] | 1 << each
    for node in reversed(order):
        for each in predecessors[node]:
            descendants[each] |= descendants[node] | 1 << node
    return [one | other for one, other in zip(ancestors, descendants, strict=True)]


def _order_near(
    wished: Mapping[Nodes, tuple[int, int]], predecessors: Sequence[Sequence[int]]
) -> list[Nodes] | None:
    """Steps by where they are wished, each behind what it waits for; None if there is a cycle."""
    step_of = {node: step for step in wished for node in step}
    waits_for = {
        step: {step_of[each] for node in step for each in predecessors[node]} for step in wished
    }
    readers: dict[Nodes, list[Nodes]] = {step: [] for step in wished}
    for step, others in waits_for.items():
        for other in others:
            readers[other].append(step)
    ready = [(at, step) for step, at in wished.items() if not waits_for[step]]
    heapq.heapify(ready)
    order: list[Nodes] = []
    while ready:
        _, step = heapq.heappop(ready)
        order.append(step)
        for reader in readers[step]:
            waits_for[reader].discard(step)
            if not waits_for[reader]:
                heapq.heappush(ready, (wished[reader], reader))
    return order if len(order) == len(wished) else None


def _spread_us(steps: Sequence[Nodes], options: Sequence[StageOption]) -> float:
    """How far the latencies of those steps that are stages may be off."""
    return sum(
        option.spread_us for step, option in zip(steps, options, strict=True) if len(step) > 1
    )


def _mask(nodes: Nodes) -> int:
    return sum(1 << node for node in nodes)
