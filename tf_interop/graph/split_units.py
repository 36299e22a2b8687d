"""Finds what of a graph may run once for each part of the batch, each part on a core of its own.

                                    on 2 cores      x[:4] ── Conv2D ── Relu ── … ──┐
    x ── Conv2D ── Relu ── …       ────────────>                                   ├── …
                                                    x[4:] ── Conv2D ── Relu ── … ──┘

TensorFlow divides every operation over all cores, and all cores wait for each other after every
operation. Images of a batch do not need each other in inference, so the batch may be divided once
for a whole network: it is the dimension *sample* of Jia et al. (ICML 2018, section 4).

A node is a *member* if it is batchwise (`graph/batchwise.py`) and one of its images comes from a
member, or if it is a convolution. Small parameters that only members read go along. So do
*companions* of members: what makes the sizes of a Reshape of a member's shape, and small constants
that wait for a member, as Grappler makes them.

Members are contracted by generation. A node's generation is the largest of those of its sources,
plus one after each step out of a member: to a node that is none, or to one on another device or in
another control-flow region. Members of one generation, device and region are one unit. Contracting
them leaves no cycle: generations do not fall along edges, and they rise on every edge that leads
out of a unit; so no path that leaves a unit comes back to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

from tf_interop.graph.batchwise import CONVOLUTIONS, Operation
from tf_interop.graph.ops import COMPANION_OPS
from tf_interop.graph.properties import PARAMETER_OPS, GraphProperties, find_small
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.units import ANCHOR_OPS, Unit, find_steps
from tf_interop.graph.view import GraphView


def find_split_units(
    view: GraphView,
    properties: GraphProperties,
    *,
    nodes_to_preserve: Collection[str] = (),
    fetches: Collection[str] = (),
) -> tuple[Unit, ...]:
    """Finds the units of a graph on CPUs whose batch may be split.

    They are not those of `find_units`, whose arguments these are: a node may be in one of each.

    Raises:
        GraphError: the graph has a cycle.
    """
    levels = view.levels
    order = sorted(range(len(view)), key=lambda index: (levels[index], view.names[index]))
    companions = _find_companions(view, order, properties)
    preserved = frozenset(nodes_to_preserve)
    while True:
        regions, _ = find_steps(view, order, preserved, fetches, companions=companions)
        search = _Search(view, order, regions, companions, properties, preserved)
        units = search.units()
        # Sizes of a part, and constants, are for no other unit.
        astray = search.find_astray(units)
        if not astray:
            return units
        companions -= astray


def _find_companions(
    view: GraphView, order: Iterable[int], properties: GraphProperties
) -> set[int]:
    """Nodes that make nothing but sizes for Reshapes, and small constants that wait for a node."""
    companions: set[int] = set()
    for index in reversed([*order]):
        op, readers = view.ops[index], view.readers[index]
        if op == "Const":
            shape = properties.output_shape(index, 0)
            is_companion = bool(view.control_fanins[index]) and shape in ((), (1,))
        else:
            is_companion = op in COMPANION_OPS and all(
                reader in companions
                or (view.ops[reader] == "Reshape" and view.fanins[reader][0][0] != index)
                for reader in readers
            )
        if is_companion and readers:
            companions.add(index)
    return companions


@dataclasses.dataclass
class _Search:
    """One search for members."""

    _view: GraphView
    _order: list[int]
    _regions: dict[int, str]
    _companions: Collection[int]
    _properties: GraphProperties
    _preserved: Collection[str]

    def __post_init__(self) -> None:
        self._images: dict[int, tuple[int, ...]] = {}  # of each member, positions of its operands
        self._members: set[int] = set()  # with their companions
        self._is_parameter = [False] * len(self._view)
        self._generation = [0] * len(self._view)

    def units(self) -> tuple[Unit, ...]:
        members: dict[tuple[int, str, str], list[int]] = {}
        for index in self._order:
            check_time_limit()
            self._find_kind(index)
            if index in self._members:
                members.setdefault(self._key(index), []).append(index)
        key_of: dict[int, tuple[int, str, str]] = {
            index: key for key, indices in members.items() for index in indices
        }
        small = find_small(self._view, self._regions, self._properties)
        for index in reversed(self._order):
            if self._is_parameter[index] and small[index] and index in self._regions:
                keys = {key_of.get(reader) for reader in self._view.readers[index]}
                key = keys.pop() if len(keys) == 1 else None
                if key is not None and self._place(index) == key[1:]:
                    key_of[index] = key
                    members[key].append(index)
        rank = {index: place for place, index in enumerate(self._order)}
        made = (self._unit(sorted(members[key], key=rank.__getitem__)) for key in sorted(members))
        return tuple(unit for unit in made if unit is not None)

    def find_astray(self, units: Iterable[Unit]) -> set[int]:
        """The companions in a unit that are read outside of it, or that read what is outside."""
        astray = set()
        for unit in units:
            inside = set(unit.steps)
            for step in inside & set(self._companions):
                neighbours = {
                    *self._view.readers[step],
                    *(each for each in self._view.sources(step) if not self._is_parameter[each]),
                }
                if not neighbours <= inside:
                    astray.add(step)
        return astray

    def _unit(self, steps: list[int]) -> Unit | None:
        view = self._view
        inside = set(steps)
        split: set[tuple[int, int]] = set()
        shared: set[tuple[int, int]] = set()
        for index in steps:
            images = self._images.get(index, ())
            for position, tensor in enumerate(view.fanins[index]):
                if tensor[0] not in inside:
                    (split if position in images else shared).add(tensor)
        if split & shared:  # such as an image that is a filter, too
            return None
        head = next((each for each in steps if view.ops[each] in ANCHOR_OPS), None)
        return None if head is None else Unit(tuple(steps), head, frozenset(split))

    def _find_kind(self, index: int) -> None:
        """Finds whether a node is a member, a parameter or neither, and its generation."""
        view = self._view
        sources = view.sources(index)
        is_step = index in self._regions
        if index in self._companions and is_step and not self._members.isdisjoint(sources):
            self._members.add(index)
        elif view.ops[index] in PARAMETER_OPS or (
            is_step and sources and all(self._is_parameter[source] for source in sources)
        ):
            self._is_parameter[index] = True
        elif is_step and (images := self._images_of(index)) is not None:
            self._images[index] = images
            self._members.add(index)
        generation = 0
        for source in sources:
            leaves = source in self._members and (
                index not in self._members or self._place(source) != self._place(index)
            )
            generation = max(generation, self._generation[source] + leaves)
        self._generation[index] = generation

    def _place(self, index: int) -> tuple[str, str]:
        return self._view.nodes[index].device, self._regions[index]

    def _key(self, index: int) -> tuple[int, str, str]:
        return (self._generation[index], *self._place(index))

    def _images_of(self, index: int) -> tuple[int, ...] | None:
        """The positions of a step's images; None where it is no member."""
        view = self._view
        fanins = view.fanins[index]
        comes_in = [source in self._images for source, _ in fanins]
        if view.ops[index] not in CONVOLUTIONS and not any(comes_in):
            return None
        images = Operation(view, self._properties, index, preserved=self._preserved).images()
        if images is None or any(
            is_member and position not in images for position, is_member in enumerate(comes_in)
        ):
            return None
        if any(self._is_parameter[fanins[position][0]] for position in images):
            return None
        return images
