"""Finds the units of a graph: chains of operations that may run back to back as one op.

    x --> Conv2D --> BiasAdd --> Relu --+--> Conv2D --> Relu --> ...
                                        +--> MaxPool --> Conv2D --> ...

Here are three units: the first ends where the graph branches. A unit begins at a *head* and is
extended by a reader of its last step. What may be extended is a matter of three rules.

*No cycle.* Nodes have a rank: their place in the order by level (the longest path that ends at a
node), then by name. Beside steps of its own unit, a step after the head reads and waits for only
what ranks before the head. Then contracting any of the units leaves no cycle. Proof: let an edge
lead from a node `a` of unit A to a node `b` of another unit B, where a node in no unit counts as a
unit of its own. No step ranks before its head, so head(A) does not rank after `a`. If `b` is the
head of B, `a` ranks before it, as levels grow along edges. If not, `a` ranks before head(B) by the
rule. Either way head(A) ranks before head(B): ranks of heads grow along all edges.

*No wait.* Everything outside that reads a step of the unit, or waits for one, depends on the next
step as well, so nothing that could have run earlier waits for the unit's end. What a shortcut adds
at the end of a block, and what gradients read of the forward pass, come after it anyway.

*One place.* The steps of a unit are on one device, and in one control-flow region.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

from tf_interop.graph.control_flow import ControlFlow
from tf_interop.graph.device_names import device_type_of
from tf_interop.graph.independence import NodeIndependence
from tf_interop.graph.session_feeds import find_fed, find_run
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.unit_ops import (
    TRIVIAL_OPS,
    UnitRefusalReason,
    has_reference_outputs,
    why_no_step_op,
    why_no_step_types,
    xla_mark,
)
from tf_interop.graph.view import GraphView


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """A chain of operations that may run back to back.

    Attributes:
        steps: their places in the view, in the order in which they run. The first is the head;
            every other one reads the one before it.
    """

    steps: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class UnitRefusal:
    """A node that is no step of a unit.

    Attributes:
        node: the node's name.
        op: its op type.
        reason: why.
    """

    node: str
    op: str
    reason: UnitRefusalReason


def find_units(
    view: GraphView,
    *,
    nodes_to_preserve: Collection[str] = (),
    fetches: Collection[str] = (),
) -> tuple[tuple[Unit, ...], tuple[UnitRefusal, ...]]:
    """Finds the units of a graph on CPUs.

    Args:
        view: the graph.
        nodes_to_preserve: names that have to stay in the graph.
        fetches: what the graph is run for, names of nodes or tensors; none where that is not known.

    Returns:
        The units, no node in two of them, and the nodes that are no steps, each with the reason.
        Both are in the order of their ranks, so that they do not depend on the order of the nodes
        in the GraphDef.

    Raises:
        GraphError: the graph has a cycle.
    """
    levels = view.levels
    order = sorted(range(len(view)), key=lambda index: (levels[index], view.names[index]))
    regions, reasons = _find_steps(view, order, frozenset(nodes_to_preserve), fetches)
    refusals = tuple(
        UnitRefusal(view.names[index], view.ops[index], reasons[index])
        for index in order
        if index in reasons
    )
    growth = _Growth(view, order, regions)
    units: list[Unit] = []
    taken: set[int] = set()
    for head in order:
        if head in regions and head not in taken:
            check_time_limit()
            steps = growth.grow(head)
            taken.update(steps)
            if any(view.ops[step] not in TRIVIAL_OPS for step in steps):
                units.append(Unit(steps))
    return tuple(units), refusals


def unit_results(view: GraphView, unit: Unit) -> tuple[tuple[int, int], ...]:
    """The outputs of a unit's steps that are results of the unit.

    Args:
        view: the graph.
        unit: a unit of it.

    Returns:
        (step's place in the unit, port) of all that other nodes read, those of the last step that
        is read first, then in running order; the first output of the last step where none is read.
    """
    inside = set(unit.steps)
    place_of = {step: place for place, step in enumerate(unit.steps)}
    read = {
        (place_of[source], port)
        for step in unit.steps
        for reader in view.fanouts[step]
        if reader not in inside
        for source, port in view.fanins[reader]
        if source in inside
    }
    if not read:
        return ((len(unit.steps) - 1, 0),)
    last = max(place for place, _ in read)
    return tuple(sorted(read, key=lambda result: (result[0] != last, result)))


def unit_name(view: GraphView, unit: Unit) -> str:
    """The name of a unit, and of the node that takes its place: that of its first result's step."""
    return view.names[unit.steps[unit_results(view, unit)[0][0]]]


def _find_steps(
    view: GraphView, order: Iterable[int], preserved: Collection[str], fetches: Collection[str]
) -> tuple[dict[int, str], dict[int, UnitRefusalReason]]:
    """The region of each node that may be a step, and why each other node may not."""
    fed = find_fed(view, preserved, fetches)
    runs = find_run(view, fed, fetches)
    why_op = {op: why_no_step_op(op) for op in view.op_types}
    reference_ops = {op for op in view.op_types if has_reference_outputs(op)}
    control_flow: ControlFlow | None = None
    regions: dict[int, str] = {}
    reasons: dict[int, UnitRefusalReason] = {}
    for index in order:
        reason = why_op[view.ops[index]]
        if reason is None:
            check_time_limit()
            node = view.nodes[index]
            if view.names[index] in preserved:
                reason = UnitRefusalReason.PRESERVED
            elif runs is not None and not runs[index]:
                reason = UnitRefusalReason.NOT_RUN
            elif device_type_of(node.device) not in ("", "CPU"):
                reason = UnitRefusalReason.DEVICE
            elif xla_mark(node) is not None:
                reason = UnitRefusalReason.XLA
            elif reference_ops and any(
                view.ops[source] in reference_ops for source, _ in view.fanins[index]
            ):
                reason = UnitRefusalReason.RESOURCE
            else:
                reason = why_no_step_types(node)
        if reason is None:
            if control_flow is None:
                control_flow = ControlFlow(view, fed)
            region = control_flow.region(index)
            if region is None:
                reason = UnitRefusalReason.CONTROL_FLOW
            else:
                regions[index] = region
        if reason is not None:
            reasons[index] = reason
    return regions, reasons


class _Growth:
    """Extends units step by step."""

    def __init__(self, view: GraphView, order: list[int], regions: dict[int, str]) -> None:
        self._view = view
        self._regions = regions
        self._rank = [0] * len(view)
        for rank, index in enumerate(order):
            self._rank[index] = rank
        # Who depends on whom is asked of readers of what has several.
        after_branches = {
            reader
            for index in regions
            if len(view.readers[index]) > 1
            for reader in view.readers[index]
        }
        chosen = [index for index in order if index in after_branches]
        self._position = {index: position for position, index in enumerate(chosen)}
        self._ancestors = NodeIndependence(view, chosen).ancestors

    def grow(self, head: int) -> tuple[int, ...]:
        """The longest unit that begins with `head`."""
        steps = [head]
        outside = set(self._view.readers[head])
        while (reader := self._next_step(steps, outside)) is not None:
            steps.append(reader)
            outside.remove(reader)
            outside.update(self._view.readers[reader])
        return tuple(steps)

    def _next_step(self, steps: list[int], outside: Collection[int]) -> int | None:
        """The step that extends a unit of `steps`, which the nodes `outside` wait for."""
        view, rank = self._view, self._rank
        head, last = steps[0], steps[-1]
        readers = view.readers[last]
        if not readers:
            return None
        # All others depend on the one that is taken, so it ranks before them.
        reader = min(readers, key=rank.__getitem__)
        if (
            self._regions.get(reader) != self._regions[head]
            or view.nodes[reader].device != view.nodes[head].device
            or all(source != last for source, _ in view.fanins[reader])
        ):
            return None
        if any(
            rank[source] >= rank[head] and source not in steps for source in view.sources(reader)
        ):
            return None
        # Where `last` has one reader, whatever depends on `last` depends on that.
        if len(readers) > 1:
            bit = 1 << self._position[reader]
            if any(
                other != reader and not self._ancestors[self._position[other]] & bit
                for other in outside
            ):
                return None
        return reader
