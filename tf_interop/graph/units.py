"""Finds the units of a graph: chains of operations that may run as one op.

    scale --------v                      v-- scale
    x --> Conv2D --> Mul --> Relu --+--> Conv2D --> Mul --> Relu --> ...
                                    +--> MaxPool --> Conv2D --> ...

These are three units: the first ends where the graph branches. A unit begins at a *head* and grows
by readers of its steps, under three rules.

*No cycle.* A node's rank is its place in the order by level (the longest path that ends at it),
then by name. Outside its unit, a step only reads and waits for nodes that rank before the head; and
nodes outside only read the head or steps that rank after it. Then contracting any of the units
leaves no cycle. Proof: let an edge lead from a node `a` of unit A to a node `b` of another unit B,
where a node in no unit counts as its own unit. By the rule head(A) does not rank after `a`. If `b`
is the head of B, `a` ranks before it, because levels grow along edges. Otherwise `a` ranks before
head(B) by the rule. Either way head(A) ranks before head(B): ranks of heads grow along all edges.

*No wait.* Every node outside that reads a step of the unit, or waits for one, also depends on the
next step, so no node that could have run earlier waits for the unit's end. The addition after a
shortcut, and gradients that read the forward pass, come after the unit anyway. A step with a small
result (a mean of channels, a scale) is exempt: it takes less time than a dispatch.

*One place.* The steps of a unit are on one device, and in one control-flow region.

A unit has at most a few convolutions. At the end it takes in small steps that only it reads, such
as the scale of a normalization, which is computed from variables.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable

from tf_interop.convolution import Refusal, RefusalReason
from tf_interop.graph.control_flow import ControlFlow
from tf_interop.graph.independence import NodeIndependence
from tf_interop.graph.ops import (
    CONVOLUTION_KINDS,
    GRADIENT_OF,
    STEP_OPS,
    TRIVIAL_OPS,
    has_reference_outputs,
    why_no_step_node,
)
from tf_interop.graph.properties import (
    MOST_ELEMENTS,
    GraphProperties,
    find_small,
    is_fully_known,
)
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import GraphView, device_type_of, is_local
from tf_interop.graph.xla import xla_mark

MOST_ANCHORS = 4
"""The most convolutions and matrix products in a unit: two separable convolutions. With no limit, a
network without branches would be one unit, whose operations could not run beside others."""

ANCHOR_OPS = CONVOLUTION_KINDS.keys() | {
    *("_FusedDepthwiseConv2dNative", "MatMul", "_FusedMatMul", "Einsum"),
}
"""Convolutions and matrix products, the main work of a unit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """Operations that may run back to back.

    Attributes:
        steps: their places in the view, in running order.
        head: the step that it began with. Small steps may run before it.
        split: the inputs, as (node, port), that are divided with the batch; empty if the unit runs
            the whole batch at once.
    """

    steps: tuple[int, ...]
    head: int
    split: frozenset[tuple[int, int]] = frozenset()


def find_units(
    view: GraphView, properties: GraphProperties
) -> tuple[tuple[Unit, ...], tuple[Refusal, ...]]:
    """Finds the units of a graph on CPUs.

    Returns:
        The units, which share no node, and the nodes that cannot be steps, each with a reason.
        Both are in the order of their ranks, which do not depend on the order of the GraphDef.

    Raises:
        GraphError: the graph has a cycle.
    """
    order = view.by_rank(range(len(view)))
    regions, reasons = find_steps(view, order)
    refusals = tuple(
        view.refusal(index, reasons[index], f"In no unit: {reasons[index].value}.")
        for index in order
        if index in reasons
    )
    if not regions:
        return (), refusals
    units = _Growth(view, order, regions, properties).all_units()
    return tuple(
        unit for unit in units if any(view.ops[step] not in TRIVIAL_OPS for step in unit.steps)
    ), refusals


def find_steps(
    view: GraphView, order: Iterable[int], companions: Collection[int] = ()
) -> tuple[dict[int, str], dict[int, RefusalReason]]:
    """The control-flow region of each possible step, and why each other node cannot be one.

    `companions` are nodes of `COMPANION_OPS`, which may be steps with any dtype.
    """
    control_flow = ControlFlow(view)
    reference_ops = {op for op in view.op_types if has_reference_outputs(op)}
    regions: dict[int, str] = {}
    reasons: dict[int, RefusalReason] = {}
    for index in order:
        is_listed = index in companions or view.ops[index] in STEP_OPS
        reason = None if is_listed else RefusalReason.NOT_LISTED
        if reason is None:
            check_time_limit()
            node = view.nodes[index]
            if view.names[index] in view.preserved:
                reason = RefusalReason.PRESERVED
            elif control_flow.may_not_run(index):
                reason = RefusalReason.NOT_RUN
            # A node without a device yet may go to a GPU.
            elif device_type_of(node.device) != "CPU" or not is_local(node.device):
                reason = RefusalReason.DEVICE
            elif xla_mark(node) is not None:
                reason = RefusalReason.XLA
            elif reference_ops and any(
                view.ops[source] in reference_ops for source, _ in view.fanins[index]
            ):
                reason = RefusalReason.REFERENCE
            elif _is_paired(view, index):
                reason = RefusalReason.PAIRED
            elif index not in companions:
                reason = why_no_step_node(node)
        if reason is None:
            region = control_flow.region(index)
            if region is None:
                reason = RefusalReason.CONTROL_FLOW
            else:
                regions[index] = region
        if reason is not None:
            reasons[index] = reason
    return regions, reasons


def unit_results(view: GraphView, unit: Unit) -> tuple[tuple[int, int], ...]:
    """The results of a unit: the step outputs that other nodes read, as (step's place, port).

    Those of the last such step come first, then the others in running order. If no output is read,
    the result is the first output of the last step.
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
    """The name of a unit, and of its node: the name of its first result's step."""
    return view.names[unit.steps[unit_results(view, unit)[0][0]]]


def is_small_unit(view: GraphView, properties: GraphProperties, unit: Unit) -> bool:
    """Whether a unit has no convolution or product, and small results of known shapes."""
    shapes = [
        properties.output_shape(unit.steps[place], port) for place, port in unit_results(view, unit)
    ]
    return ANCHOR_OPS.isdisjoint(view.ops[step] for step in unit.steps) and all(
        is_fully_known(shape) and math.prod(shape or ()) <= MOST_ELEMENTS  # type: ignore[arg-type]
        for shape in shapes
    )


def _is_paired(view: GraphView, index: int) -> bool:
    """Whether oneDNN joins a node with its gradient, or the gradient with its operation."""
    op = view.ops[index]
    gradient = GRADIENT_OF.get(op)
    if gradient is not None:
        return any(view.ops[reader] == gradient for reader in view.readers[index])
    return op in GRADIENT_OF.values() and any(
        GRADIENT_OF.get(view.ops[source]) == op for source, _ in view.fanins[index]
    )


class _Growth:
    def __init__(
        self,
        view: GraphView,
        order: list[int],
        regions: dict[int, str],
        properties: GraphProperties,
    ) -> None:
        self._view = view
        self._order = order
        self._regions = regions
        self._rank = [0] * len(view)
        for rank, index in enumerate(order):
            self._rank[index] = rank
        self._small = find_small(view, regions, properties)
        self._ancestors = NodeIndependence(view, order).ancestors  # by rank
        self._heads: list[int] = []
        self._steps: list[list[int]] = []
        self._unit_of: dict[int, int] = {}

    def all_units(self) -> list[Unit]:
        """All units, by the ranks of their heads."""
        small = self._small
        self._grow_from(head for head in self._order if not small[head])
        self._take_in_small()
        self._grow_from(self._order)
        units = [
            Unit(tuple(sorted(steps, key=self._rank.__getitem__)), head)
            for steps, head in zip(self._steps, self._heads, strict=True)
        ]
        return sorted(units, key=lambda unit: self._rank[unit.head])

    def _grow_from(self, heads: Iterable[int]) -> None:
        for head in heads:
            if head in self._regions and head not in self._unit_of:
                check_time_limit()
                unit = len(self._heads)
                self._heads.append(head)
                self._steps.append([head])
                self._unit_of[head] = unit
                self._grow(unit)

    def _grow(self, unit: int) -> None:
        view, steps = self._view, self._steps[unit]
        outside = set(view.readers[steps[0]])
        while (reader := self._next_step(unit, outside)) is not None:
            steps.append(reader)
            self._unit_of[reader] = unit
            outside.remove(reader)
            outside.update(
                other for other in view.readers[reader] if self._unit_of.get(other) != unit
            )

    def _next_step(self, unit: int, outside: Collection[int]) -> int | None:
        """Picks the next step of a unit from the nodes `outside` that wait for its steps."""
        for reader in sorted(outside, key=self._rank.__getitem__):
            if (
                reader not in self._unit_of
                and any(self._unit_of.get(each) == unit for each, _ in self._view.fanins[reader])
                and self._may_join(reader, unit)
                and not (self._is_anchor(reader) and self._anchor_count(unit) >= MOST_ANCHORS)
                and (self._small[reader] or self._is_needed_by_all(reader, outside))
            ):
                return reader
        return None

    def _is_anchor(self, index: int) -> bool:
        return self._view.ops[index] in ANCHOR_OPS and not self._small[index]

    def _anchor_count(self, unit: int) -> int:
        return sum(map(self._is_anchor, self._steps[unit]))

    def _take_in_small(self) -> None:
        """Gives each small node in no unit to the unit that alone reads it."""
        for index in reversed(self._order):
            if index in self._unit_of or not self._small[index] or index not in self._regions:
                continue
            readers = {self._unit_of.get(reader) for reader in self._view.readers[index]}
            unit = readers.pop() if len(readers) == 1 else None
            if unit is not None and self._may_join(index, unit):
                self._steps[unit].append(index)
                self._unit_of[index] = unit

    def _may_join(self, index: int, unit: int) -> bool:
        """Whether the rules of cycles and places let a node into a unit."""
        head = self._heads[unit]
        return (
            self._regions.get(index) == self._regions[head]
            and self._view.nodes[index].device == self._view.nodes[head].device
            and all(
                self._unit_of.get(source) == unit or self._rank[source] < self._rank[head]
                for source in self._view.sources(index)
            )
        )

    def _is_needed_by_all(self, reader: int, outside: Collection[int]) -> bool:
        """Whether all other nodes of `outside` that anyone reads depend on `reader`."""
        bit = 1 << self._rank[reader]
        return all(
            other == reader
            or self._ancestors[self._rank[other]] & bit
            or not self._view.readers[other]
            for other in outside
        )
