"""The stages of a whole graph, block by block: exactly where that is within reach, else in bounds.

Where all later nodes depend on all earlier ones the graph is cut. A stage over a cut would be a
single lane, which saves nothing, and what is alive after it does not depend on how the stages
before were made. So each block is a search of its own, and one block that is too wide for the exact
search leaves it to all others. There it is searched exactly with lanes of one node, or else by a
beam.
"""

from __future__ import annotations

import itertools

from tf_interop.planning.search.beam import search_in_bounds
from tf_interop.planning.search.exact import search_exactly
from tf_interop.planning.search.space import (
    Lanes,
    OnProgress,
    Schedule,
    SearchTooWideError,
    Space,
    StageOption,
    mask_of,
)


def search_blocks(
    space: Space,
    *,
    max_transitions: int,
    width: int,
    on_progress: OnProgress = lambda words: None,
) -> tuple[Schedule, int]:
    """Finds the stages of a graph.

    Returns:
        The stages, and how many nodes are in blocks that were searched exactly.

    Raises:
        SearchError: a node finds no memory.
    """
    stages: list[tuple[Lanes, StageOption]] = []
    exact_nodes = 0
    for block in find_blocks(space):

        def on_nodes(nodes: int, start: int = block.start) -> None:
            on_progress(f"{start + nodes} of {len(space)} convolutions")

        has_chains = space.max_lane_length > 1 and any(
            space.followers[node] & mask_of(block) for node in block
        )
        found = None
        try:
            # What is too wide with lanes of one node is so with others too.
            for with_chains in (False, True) if has_chains else (False,):
                found = search_exactly(
                    space, block, max_transitions=max_transitions, with_chains=with_chains
                )
            exact_nodes += len(block)
            on_nodes(len(block))
        except SearchTooWideError:
            pass
        # Not above, where the error holds what the exact search remembered.
        stages += found or search_in_bounds(space, block, width=width, on_nodes=on_nodes)
        space.forget()
    return tuple(stages), exact_nodes


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
