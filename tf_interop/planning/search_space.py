"""The search space: a DAG in bit masks, and the ways to run sets of its nodes.

Nothing here depends on convolutions or profiles: nodes are numbers, each after those that it
depends on, and the caller supplies the costs of stages. There may be several ways to run a stage,
faster ones with more memory; the fastest that fits into the free memory is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

Lanes = tuple[tuple[int, ...], ...]
"""The lanes of a stage, each with its nodes in order; lanes in the order of their first nodes."""


class StageOption(Protocol):
    """One way to run a stage."""

    @property
    def latency_us(self) -> float:
        """Its time."""

    @property
    def memory_bytes(self) -> int:
        """Its outputs and workspaces."""


StageOptions = Callable[[Lanes], Sequence[StageOption]]
"""The ways to run a stage, fastest first; none where it must not be made."""

AvailableBytes = Callable[[int], float]
"""Memory that is left for a stage, by the nodes that have run before it (bit i: node i)."""

Schedule = tuple[tuple[Lanes, StageOption], ...]
"""The stages in the order in which they run, each with how; together they hold every node once."""

OnProgress = Callable[[str], None]
"""Called now and then with a few words on the progress; an exception ends the search."""


class SearchError(ValueError):
    """No stages could be found."""


class SearchTooWideError(SearchError):
    """There is more to search than was allowed."""


class Space:
    """A DAG, and which sets of its nodes can be stages.

    A lane is a connected part of a stage: of nodes in one part one depends on the other, or a third
    joins them. All others are independent, and have lanes of their own.

    Attributes:
        direct: for each node those that it depends on directly, as bits.
        ancestors: all that it depends on.
        readers: those that depend on it directly.
        descendants: all that depend on it, as bits.
        followers: those that may come after it in a lane, as bits.
        barred: those that it depends on and may be in no stage with, as bits.
        max_lanes: of a stage.
        max_lane_length: the most nodes of a lane; 1 where no node may come after another.
        available: memory that is left for a stage.
    """

    def __init__(
        self,
        predecessors: Sequence[Sequence[int]],
        stage_options: StageOptions,
        *,
        follows: Sequence[Sequence[int]] | None = None,
        available: AvailableBytes = lambda done: math.inf,
        max_lanes: int = 4,
        max_lane_length: int = 1,
    ) -> None:
        follows = predecessors if follows is None or max_lane_length == 1 else follows
        self.max_lanes = max_lanes
        self.max_lane_length = max_lane_length
        self._stage_options = stage_options
        self.available = available
        self.direct = [mask_of(each) for each in predecessors]
        self._follows = [mask_of(each) for each in follows]
        self.ancestors: list[int] = []
        self.readers: list[list[int]] = [[] for _ in predecessors]
        self.followers = [0] * len(predecessors)
        self.barred = [
            direct & ~follows for direct, follows in zip(self.direct, self._follows, strict=True)
        ]
        for node, direct in enumerate(self.direct):
            reached = direct
            for each in bits_of(direct):
                reached |= self.ancestors[each]
                self.readers[each].append(node)
                if self._follows[node] >> each & 1:
                    self.followers[each] |= 1 << node
            self.ancestors.append(reached)
        if not any(self.followers):
            self.max_lane_length = 1
        self.descendants = [0] * len(predecessors)
        for node in reversed(range(len(predecessors))):
            for reader in self.readers[node]:
                self.descendants[node] |= self.descendants[reader] | 1 << reader
        self._options: dict[int, Sequence[StageOption]] = {}

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self.direct)

    def forget(self) -> None:
        """Forgets the options that were remembered."""
        self._options.clear()

    def options(self, nodes: int) -> Sequence[StageOption]:
        """The ways to run a stage of these nodes, fastest first; remembered."""
        options = self._options.get(nodes)
        if options is None:
            lanes = self.lanes(nodes)
            options = self._options[nodes] = () if lanes is None else self._stage_options(lanes)
        return options

    def schedule(self, stages: Iterable[tuple[int, StageOption]]) -> Schedule:
        """Stages given by their nodes, with lanes."""
        return tuple(
            (lanes, option) for nodes, option in stages if (lanes := self.lanes(nodes)) is not None
        )

    def lanes(self, mask: int) -> Lanes | None:
        """The lanes of a stage of these nodes; None if they cannot be one."""
        nodes = list(bits_of(mask))
        ancestors = 0
        for node in nodes:
            ancestors |= self.ancestors[node]
        if not ancestors & mask:
            return tuple([(node,) for node in nodes]) if len(nodes) <= self.max_lanes else None
        if self.max_lane_length == 1:
            return None
        descendants = 0
        for node in nodes:
            descendants |= self.descendants[node]
        # What comes between two nodes of a stage would wait for the stage, and it for that.
        if ancestors & descendants & ~mask:
            return None
        parts: list[int] = []
        for node in nodes:
            part = 1 << node
            inside = self.direct[node] & mask
            if inside:
                if inside & self.barred[node]:
                    return None
                for each in [each for each in parts if each & inside]:
                    parts.remove(each)
                    part |= each
                if part.bit_count() > self.max_lane_length:
                    return None
            parts.append(part)
        if len(parts) > self.max_lanes:
            return None
        parts.sort(key=lambda part: part & -part)
        return tuple([tuple(bits_of(part)) for part in parts])


def bits_of(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(nodes: Iterable[int]) -> int:
    """The bits of nodes."""
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask
