"""What searches for stages take and give: ways to run a stage, progress, results and errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

Lanes = tuple[tuple[int, ...], ...]
"""The lanes of a stage, each with its nodes in order; lanes in the order of their first nodes."""


@dataclasses.dataclass(frozen=True, slots=True)
class StageOption:
    """One way to run a stage.

    Attributes:
        latency_us: what it takes.
        memory_bytes: what it needs beside what is alive before it: its outputs and workspaces.
        spread_us: how far `latency_us` may be off. The searches take it as it is; `join_stages`
            makes no change for less.
    """

    latency_us: float
    memory_bytes: int = 0
    spread_us: float = 0.0


StageOptions = Callable[[Lanes], Sequence[StageOption]]
"""The ways to run a stage, fastest first; none where it must not be made."""

AvailableBytes = Callable[[int], int]
"""Memory that is left for a stage, by the nodes that have run before it (bit i: node i)."""


@dataclasses.dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found, and how far it looked.

    Attributes:
        stages: the stages in the order in which they run; together they hold every node once.
        options: for each stage the place of the option that was taken.
        latency_us: the sum of their latencies, the least that there is within the rule and limits.
        states: states that were solved, those of all blocks together, without the empty one.
        transitions: pairs of a state and an ending of it that were looked at.
    """

    stages: tuple[Lanes, ...]
    options: tuple[int, ...]
    latency_us: float
    states: int
    transitions: int


@dataclasses.dataclass(frozen=True, slots=True)
class SearchProgress:
    """How far a search is.

    Attributes:
        nodes_done: nodes that stages have been found for.
        nodes: all nodes.
        states: states that were solved up to now.
        joined: changes that joining has made to the stages that were found; None before that.
    """

    nodes_done: int
    nodes: int
    states: int
    joined: int | None = None


OnProgress = Callable[[SearchProgress], None]
"""Told now and then how far the search is; what it raises ends the search."""


class SearchError(ValueError):
    """No stages could be found, or what was given is no DAG."""


class SearchTooWideError(SearchError):
    """There is more to search than was allowed."""
