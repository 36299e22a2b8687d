"""Recognizes a graph by its structure, whatever its nodes are called.

The same network has other names in every program: Keras numbers layers as they are built, and a
function, a SavedModel or another Keras version adds its own scopes. So a plan knows a graph by its
*landmarks*: convolutions, say, each with its form (everything that must be equal) and with the
earlier landmarks whose results it computes from.

Landmarks get places that depend on nothing else (McKay and Piperno, Practical graph isomorphism II,
Journal of Symbolic Computation 60, 2014). They are sorted by their depth, form and height, and then
*refined*: landmarks in one place that read, or are read by, landmarks in different places are
separated, until nothing changes. Landmarks that still share a place are alike. One of them, the
first by name, gets a place of its own, and refining goes on. Two graphs are the same network if
their landmarks in the same places have the same form and read the same places.
"""

from __future__ import annotations

import collections
import dataclasses
import graphlib
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

Read = tuple[int, str]
"""The number of another part, and in what way its result is used."""


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a graph that may be a landmark.

    Attributes:
        form: everything of the part itself by which it is recognized.
        reads: the parts that it computes from, without cycles.
    """

    name: str
    form: str
    reads: tuple[Read, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Landmark:
    """A part of a graph as a plan knows it.

    Attributes:
        name: in the graph that the plan was made for; only for people.
        form: everything of the part itself by which it is recognized.
        origin: a digest of the part and of all that it is computed from.
    """

    name: str
    form: str
    origin: str


@dataclasses.dataclass(frozen=True, slots=True)
class Structure:
    """What a plan knows of a graph.

    Attributes:
        fingerprint: 16 hexadecimal digits, the same for every graph of the same network.
        landmarks: in their places.
    """

    fingerprint: str
    landmarks: tuple[Landmark, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the landmarks."""
        return tuple(each.name for each in self.landmarks)


NOTHING = Structure("", ())
"""The structure of a graph without landmarks."""


def structure_of(parts: Sequence[Part]) -> Structure:
    """Gives the parts of a graph their places; the order of `parts` does not matter."""
    origins = origins_of(parts)
    order = _Places(parts).order()
    place_of = {number: place for place, number in enumerate(order)}
    rows = [
        (parts[number].form, sorted((place_of[each], how) for each, how in parts[number].reads))
        for number in order
    ]
    landmarks = (Landmark(parts[each].name, parts[each].form, origins[each]) for each in order)
    return Structure(_digest(rows), tuple(landmarks))


def origins_of(parts: Sequence[Part]) -> list[str]:
    """For each part a digest of it and of all that it is computed from."""
    origins = [""] * len(parts)
    for number in _running_order(parts):
        reads = sorted((origins[each], how) for each, how in parts[number].reads)
        origins[number] = _digest([parts[number].form, reads])
    return origins


def likeness(planned: Sequence[Landmark], found: Sequence[Landmark]) -> int:
    """How many planned landmarks compute what others do, from the inputs on."""
    shared = collections.Counter(each.origin for each in planned)
    shared &= collections.Counter(each.origin for each in found)
    return shared.total()


def describe_difference(planned: Sequence[Landmark], found: Sequence[Landmark], what: str) -> str:
    """Names the first landmark that differs between two graphs, in words.

    `what` are the landmarks in words, such as `convolutions`.
    """
    known = {each.origin for each in planned}
    there = {each.origin for each in found}
    lacking = next((each for each in planned if each.origin not in there), None)
    new = next((each for each in found if each.origin not in known), None)
    if len(planned) != len(found):
        counts = f"it has {len(planned)} {what}, and this graph has {len(found)}"
        first = new or lacking
        if first is None:
            return counts
        where = "only this graph has" if new is not None else "this graph lacks"
        return f"{counts}; {where} '{first.name}' ({first.form})"
    if lacking is None or new is None:
        return f"its {what} have other readers"
    if lacking.form == new.form:
        return (
            f"'{new.name}' ({new.form}) computes from other {what} than '{lacking.name}' of the "
            "plan"
        )
    return f"'{new.name}' is {new.form}, but '{lacking.name}' of the plan is {lacking.form}"


class _Places:
    """Landmarks in cells, which are split until each has one.

    The number of a cell is the place of its first member. Splitting a cell changes no other
    number.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._names = [_natural(part.name) for part in parts]
        self._reads = [part.reads for part in parts]
        self._readers: list[list[Read]] = [[] for _ in parts]
        depths = [0] * len(parts)
        heights = [0] * len(parts)
        order = _running_order(parts)
        for number in order:
            for each, how in self._reads[number]:
                self._readers[each].append((number, how))
                depths[number] = max(depths[number], depths[each] + 1)
        for number in reversed(order):
            for each, _ in self._reads[number]:
                heights[each] = max(heights[each], heights[number] + 1)
        self._cell_of = [0] * len(parts)
        self._members: dict[int, list[int]] = {0: list(range(len(parts)))}
        first = [
            (depth, part.form, height)
            for depth, part, height in zip(depths, parts, heights, strict=True)
        ]
        self._split(0, first)
        self._refine(range(len(parts)))

    def order(self) -> list[int]:
        """The parts by their places."""
        for place in range(len(self._cell_of)):
            while len(members := self._members.get(place, ())) > 1:
                first = min(members, key=self._names.__getitem__)
                self._refine(self._split(place, {each: each != first for each in members}))
        return [self._members[place][0] for place in range(len(self._cell_of))]

    def _split(self, cell: int, keys: Any) -> list[int]:
        """Splits a cell by its members' keys; returns those whose cell changed."""
        groups: dict[Any, list[int]] = {}
        for each in self._members[cell]:
            groups.setdefault(keys[each], []).append(each)
        moved: list[int] = []
        place = cell
        for key in sorted(groups):
            self._members[place] = groups[key]
            if place != cell:
                moved += groups[key]
                for each in groups[key]:
                    self._cell_of[each] = place
            place += len(groups[key])
        return moved

    def _refine(self, moved: Sequence[int]) -> None:
        """Splits the cells of all that read these parts, or are read by them, and so on."""
        while moved:
            beside = {
                self._cell_of[other]
                for each in moved
                for other, _ in (*self._reads[each], *self._readers[each])
            }
            moved = [
                each
                for cell in sorted(beside)
                if len(self._members[cell]) > 1
                for each in self._split_by_neighbours(cell)
            ]

    def _split_by_neighbours(self, cell: int) -> list[int]:
        return self._split(
            cell,
            {
                each: tuple(
                    tuple(sorted((self._cell_of[other], how) for other, how in neighbours[each]))
                    for neighbours in (self._reads, self._readers)
                )
                for each in self._members[cell]
            },
        )


def _running_order(parts: Sequence[Part]) -> list[int]:
    reads = {number: {each for each, _ in part.reads} for number, part in enumerate(parts)}
    return list(graphlib.TopologicalSorter(reads).static_order())


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts `conv2d_10` after `conv2d_9`."""
    return [(int(text), "") if text.isdigit() else (0, text) for text in re.split(r"(\d+)", name)]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
