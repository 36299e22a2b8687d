"""Finds a network in inference as one unit, whose batch may be divided.

                                    on 2 cores      x[:4] ── Conv2D ── Relu ── … ──┐
    x ── Conv2D ── Relu ── …       ────────────>                                   ├── …
                                                    x[4:] ── Conv2D ── Relu ── … ──┘

TensorFlow divides every operation over all cores, and after each one all cores wait for each other.
In inference the images of a batch do not depend on each other, so the batch may be divided once for
a whole network: the dimension *sample* of Jia et al. (ICML 2018, section 4).

*Members* are the convolutions and products, and all steps that depend on them. So are their
*companions*: nodes that make sizes from a member's shape, because each part of the batch has its
own, and small constants that wait for a member, which Grappler makes. Small parameters and steps
that only members read join them, but for those that give images one size: they would hide the other
sizes from the unit, which times itself for each.

Members are contracted by generation. A node's generation is the largest of its sources', plus one
on each edge out of a member to another kind of node, device or control-flow region. Members of one
generation, device and region form a unit. Contracting them leaves no cycle: generations never fall
along edges and rise on every edge out of a unit, so no path that leaves a unit returns to it. What
joins for its readers has only edges into their unit.

The batch may be divided if all members but companions are batchwise (`batchwise.py`). Of the steps
that only members read, those that are not batchwise then stay outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tf_interop.graph.batchwise import Positions, find_images
from tf_interop.graph.ops import COMPANION_OPS
from tf_interop.graph.program import KEPT_OP
from tf_interop.graph.properties import PARAMETER_OPS, GraphProperties, find_small, is_fully_known
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.units import ANCHOR_OPS, Unit, find_steps
from tf_interop.graph.view import GraphView, Tensor

_SIZES_POSITIONS = {"Reshape": 1, "Conv2DBackpropInput": 0, "Conv3DBackpropInputV2": 0}
"""The input of an op with the sizes of its result, possibly for the whole batch."""

_Key = tuple[int, str, str]
"""The generation, device and region of a unit."""


def find_whole_unit(view: GraphView, properties: GraphProperties) -> Unit | None:
    """Finds the largest unit of any steps: in inference, the whole network.

    Raises:
        GraphError: the graph has a cycle.
    """
    order = view.by_rank(range(len(view)))
    companions = _find_companions(view, order, properties)
    while True:
        search = _Search(view, properties, order, companions)
        steps = search.largest_unit()
        # Another unit must not read the sizes of a part, nor its constants.
        astray = search.astray_companions(steps)
        if not astray:
            break
        companions -= astray
    if not steps:
        return None
    head = next(step for step in steps if view.ops[step] in ANCHOR_OPS)
    return search.divided(steps, head) or Unit(tuple(steps), head)


def _find_companions(
    view: GraphView, order: Sequence[int], properties: GraphProperties
) -> set[int]:
    companions: set[int] = set()
    for index in reversed(order):
        op, readers = view.ops[index], view.readers[index]
        if op == "Const":
            shape = properties.output_shape(index, 0)
            is_companion = bool(view.control_fanins[index]) and shape in ((), (1,))
        else:
            is_companion = op in COMPANION_OPS and all(
                reader in companions or _reads_as_sizes(view, reader, index) for reader in readers
            )
        if is_companion and readers:
            companions.add(index)
    return companions


def _reads_as_sizes(view: GraphView, reader: int, index: int) -> bool:
    """Whether `reader` reads node `index` only as the sizes of its result."""
    positions = [place for place, (source, _) in enumerate(view.fanins[reader]) if source == index]
    return positions == [_SIZES_POSITIONS.get(view.ops[reader])]


class _Search:
    """The members of a graph, for some choice of companions."""

    def __init__(
        self,
        view: GraphView,
        properties: GraphProperties,
        order: Sequence[int],
        companions: set[int],
    ) -> None:
        self._view, self._properties, self._order = view, properties, order
        self._regions, _ = find_steps(view, order, companions)
        self._companions = companions
        self._computing: set[int] = set()  # the members but companions
        self._members: set[int] = set()
        self._parameters: set[int] = set()
        self._generation = [0] * len(view)
        for index in order:
            check_time_limit()
            self._classify(index)
            self._set_generation(index)

    def largest_unit(self) -> list[int]:
        """The steps of the largest unit, in running order; none if no member is a product."""
        view = self._view
        units: dict[_Key, list[int]] = {}
        key_of: dict[int, _Key] = {}
        for index in self._order:
            if index in self._members:
                key_of[index] = self._key(index)
                units.setdefault(key_of[index], []).append(index)
        small = find_small(view, self._regions, self._properties)
        for index in reversed(self._order):
            keys = {key_of.get(reader) for reader in view.readers[index]}
            key = keys.pop() if len(keys) == 1 else None
            if (
                key is not None
                and index in self._regions
                and index not in key_of
                and self._place(index) == key[1:]
                and (small[index] if index in self._parameters else self._has_one_size(index))
            ):
                key_of[index] = key
                units[key].append(index)
        with_products = [
            steps
            for _, steps in sorted(units.items())
            if any(view.ops[step] in ANCHOR_OPS for step in steps)
        ]
        rank = {index: place for place, index in enumerate(self._order)}
        largest: list[int] = max(with_products, key=len, default=[])
        return sorted(largest, key=rank.__getitem__)

    def astray_companions(self, steps: Iterable[int]) -> set[int]:
        """The companions in a unit that are read outside it or read a node outside."""
        inside = set(steps)
        return {
            step
            for step in inside & self._companions
            if not inside.issuperset(self._view.readers[step])
            or not inside.issuperset(set(self._view.sources(step)) - self._parameters)
        }

    def divided(self, steps: Sequence[int], head: int) -> Unit | None:
        """A unit of these steps whose batch may be divided, perhaps without some; None if none."""
        view = self._view
        images: dict[int, Positions] = {}
        for step in self._computing.intersection(steps):
            found = find_images(view, self._properties, step)
            if found is None:
                return None
            images[step] = found
        inside = self._members.intersection(steps)
        for step in reversed(steps):
            if step in inside or not inside.issuperset(view.readers[step]):
                continue
            if step in self._parameters:
                inside.add(step)
            elif self._read_as_images(step, images):
                found = find_images(view, self._properties, step)
                if found and not any(self._is_parameter(view.fanins[step][at][0]) for at in found):
                    images[step] = found
                    inside.add(step)
        split: set[Tensor] = set()
        shared: set[Tensor] = set()
        for step in inside:
            for position, tensor in enumerate(view.fanins[step]):
                source, is_image = tensor[0], position in images.get(step, ())
                is_filter_of_images = step in images and source in images and not is_image
                if is_filter_of_images or (is_image and self._is_parameter(source)):
                    return None
                if source not in inside:
                    (split if is_image else shared).add(tensor)
        # Such as an image that is a filter, too.
        if not split or split & shared or self.astray_companions(inside):
            return None
        return Unit(tuple(step for step in steps if step in inside), head, frozenset(split))

    def _is_parameter(self, source: int) -> bool:
        return source in self._parameters or self._view.ops[source] == KEPT_OP

    def _classify(self, index: int) -> None:
        """Decides whether a node is a companion, a parameter, another member or neither."""
        view = self._view
        sources = view.sources(index)
        is_step = index in self._regions
        if is_step and index in self._companions and not self._members.isdisjoint(sources):
            self._members.add(index)
        elif view.ops[index] in PARAMETER_OPS or (
            is_step and sources and self._parameters.issuperset(sources)
        ):
            self._parameters.add(index)
        elif is_step and (
            view.ops[index] in ANCHOR_OPS
            or any(source in self._computing for source, _ in view.fanins[index])
        ):
            self._computing.add(index)
            self._members.add(index)

    def _set_generation(self, index: int) -> None:
        for source in self._view.sources(index):
            leaves = source in self._members and (
                index not in self._members or self._place(source) != self._place(index)
            )
            generation = self._generation[source] + leaves
            self._generation[index] = max(self._generation[index], generation)

    def _place(self, index: int) -> tuple[str, str]:
        return self._view.nodes[index].device, self._regions[index]

    def _key(self, index: int) -> _Key:
        return (self._generation[index], *self._place(index))

    def _has_one_size(self, index: int) -> bool:
        """Whether a step's operands have one size, whatever the batch is."""
        shapes = (
            self._properties.input_shape(index, position)
            for position in range(len(self._view.fanins[index]))
        )
        return all(shape is not None and is_fully_known(shape[1:]) for shape in shapes)

    def _read_as_images(self, index: int, images: dict[int, Positions]) -> bool:
        """Whether all that read a node read it as one of their images."""
        return all(
            position in images.get(reader, ())
            for reader in self._view.readers[index]
            for position, (source, _) in enumerate(self._view.fanins[reader])
            if source == index
        )
