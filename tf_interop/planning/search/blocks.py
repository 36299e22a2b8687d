"""The stages of a whole graph, block by block: exactly where that is within reach, else in bounds.

Where all later nodes depend on all earlier ones the graph is cut. A stage over a cut would be a
single lane, which saves nothing, and what is alive after it does not depend on how the stages
before were made. So each block is a search of its own, and one block that is too wide for the exact
search leaves it to all others. There it is searched exactly with lanes of one node, or else by a
beam.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable

from tf_interop.planning.search.beam import search_in_bounds
from tf_interop.planning.search.exact import search_exactly
from tf_interop.planning.search.space import (
    OnProgress,
    SearchResult,
    SearchTooWideError,
    Space,
    shift,
)


@dataclasses.dataclass(frozen=True, slots=True)
class SearchBounds:
    """How far to search.

    Attributes:
        max_transitions: of the exact search of one block; with more the block is searched in
            bounds.
        width: of the beam.
    """

    max_transitions: int
    width: int


def search_blocks(
    space: Space, bounds: SearchBounds, *, on_progress: OnProgress = lambda words: None
) -> SearchResult:
    """Finds the stages of a graph.

    Args:
        space: the graph.
        bounds: how far to search.
        on_progress: told how far the search is. It goes back to the beginning of a block that turns
            out to be too wide.

    Raises:
        SearchError: a node finds no memory.
    """
    blocks = find_blocks(space)
    results: list[SearchResult] = []
    exact_nodes = 0
    # Each search has a part of its own, so that what it remembers goes with it.
    for block in blocks:
        found, is_exact = _search(
            space.part(block.start, block.stop),
            bounds,
            lambda nodes, start=block.start: on_progress(  # type: ignore[misc]
                f"{start + nodes} of {len(space)} convolutions"
            ),
        )
        exact_nodes += len(block) * is_exact
        results.append(found)
    return SearchResult(
        stages=tuple(
            shift(lanes, block.start)
            for block, found in zip(blocks, results, strict=True)
            for lanes in found.stages
        ),
        options=tuple(option for found in results for option in found.options),
        latency_us=sum(found.latency_us for found in results),
        exact_nodes=exact_nodes,
    )


def _search(
    part: Space, bounds: SearchBounds, on_nodes: Callable[[int], None]
) -> tuple[SearchResult, bool]:
    """The stages of a block, and whether there are none better."""
    found = None
    with contextlib.suppress(SearchTooWideError):
        # What is too wide with lanes of one node is so with others too.
        for space in (part.with_lanes_of_one(), part) if part.may_follow else (part,):
            found = search_exactly(space, max_transitions=bounds.max_transitions)
        on_nodes(len(part))
        assert found is not None
        return found, True
    # Not above, where the error holds what the exact search remembered.
    return found or search_in_bounds(part, width=bounds.width, on_nodes=on_nodes), False


def find_blocks(space: Space) -> list[range]:
    """Cuts a DAG wherever all later nodes depend on all earlier ones."""
    count = len(space)
    cuts: list[int] = [count] if count else []
    common = (1 << count) - 1
    for node in reversed(range(1, count)):
        common &= space.ancestors[node]
        if common & (1 << node) - 1 == (1 << node) - 1:
            cuts.append(node)
    return [range(start, stop) for start, stop in itertools.pairwise([0, *reversed(cuts)])]
