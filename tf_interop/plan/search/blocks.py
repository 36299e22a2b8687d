"""The stages of a whole graph, block by block: exactly where that is within reach, else in bounds.

Where all later nodes depend on all earlier ones the graph is cut; no stage can go over a cut, and
what is alive behind it does not depend on how the stages before were made. So each block is a
search of its own, and one block that is too wide for the exact search leaves it to all others.
What is found in bounds is then improved by joining (`join_stages`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tf_interop.plan.search.beam import Nodes, SetOptions, search_stages_bounded
from tf_interop.plan.search.bit_graph import find_blocks
from tf_interop.plan.search.exact import search_stages
from tf_interop.plan.search.interface import (
    AvailableBytes,
    Lanes,
    OnProgress,
    SearchProgress,
    SearchResult,
    SearchTooWideError,
    StageOption,
)
from tf_interop.plan.search.join import join_stages


@dataclasses.dataclass(frozen=True, slots=True)
class BlockSearchResult:
    """What was found for all blocks, and how.

    Attributes:
        found: the stages of the whole graph; states and transitions of all blocks together.
        exact_nodes: nodes in blocks that were searched exactly; the others were in bounds.
        changes: made to what was found in bounds, by joining.
        is_joining_complete: whether no change is left that saves anything.
    """

    found: SearchResult
    exact_nodes: int
    changes: int = 0
    is_joining_complete: bool = True


def search_blocks(
    predecessors: Sequence[Sequence[int]],
    stage_options: SetOptions,
    *,
    available_bytes: AvailableBytes | None = None,
    max_lanes: int,
    max_transitions: int,
    width: int,
    max_orders: int,
    on_progress: OnProgress | None = None,
) -> BlockSearchResult:
    """Finds stages of nodes that each have a lane of their own, as one set of them.

    Args:
        predecessors: for each node the nodes that it depends on.
        stage_options: as in `search_stages_bounded`.
        available_bytes: of the options of a stage the fastest is taken that needs no more; None
            where memory does not matter.
        max_lanes: the most nodes of a stage.
        max_transitions: of the exact search of one block; with more the block is searched in
            bounds.
        width: of the bounded search.
        max_orders: as in `join_stages`, of one block.
        on_progress: told how far the search is. It goes back to the beginning of a block that turns
            out to be too wide.

    Returns:
        The stages and how they were searched for.

    Raises:
        SearchError: the graph has a cycle, or a node finds no memory.
    """
    results: list[tuple[_Block, SearchResult]] = []
    in_bounds: list[int] = []
    done = nodes_done = exact_nodes = states = 0
    for block in find_blocks(predecessors):
        local = _Block(block, predecessors, stage_options, available_bytes, done)

        def tell(progress: SearchProgress, before: int = nodes_done, seen: int = states) -> None:
            if on_progress is not None:
                on_progress(
                    SearchProgress(
                        before + progress.nodes_done, len(predecessors), seen + progress.states
                    )
                )

        try:
            found = search_stages(
                local.predecessors,
                local.lane_options,
                available_bytes=local.available_bytes,
                max_lanes=max_lanes,
                max_lane_length=1,
                max_transitions=max_transitions,
                cut_into_blocks=False,
                on_progress=tell,
            )
            exact_nodes += len(block)
        except SearchTooWideError:
            found = search_stages_bounded(
                local.predecessors,
                local.set_options,
                available_bytes=local.available_bytes,
                width=width,
                max_lanes=max_lanes,
                on_progress=tell,
            )
            in_bounds.append(len(results))
        results.append((local, found))
        nodes_done += len(block)
        states += found.states
        done |= sum(1 << node for node in block)
    # Behind all searches: what is asked for here must not use up what the exact ones may ask for.
    changes = 0
    is_joining_complete = True

    def tell_joined(changes_here: int) -> None:
        if on_progress is not None:
            joined = changes + changes_here
            on_progress(SearchProgress(nodes_done, len(predecessors), states, joined))

    for number in in_bounds:
        local, found = results[number]
        tell_joined(0)
        joined = join_stages(
            local.predecessors,
            found,
            local.set_options,
            available_bytes=local.available_bytes,
            max_lanes=max_lanes,
            max_orders=max_orders,
            on_progress=tell_joined,
        )
        results[number] = local, joined.found
        changes += joined.changes
        is_joining_complete &= joined.is_complete
    return BlockSearchResult(
        found=SearchResult(
            tuple(local.whole(lanes) for local, found in results for lanes in found.stages),
            tuple(option for _, found in results for option in found.options),
            sum(found.latency_us for _, found in results),
            states,
            sum(found.transitions for _, found in results),
        ),
        exact_nodes=exact_nodes,
        changes=changes,
        is_joining_complete=is_joining_complete,
    )


class _Block:
    """One block as a graph of its own, whose nodes are numbered from 0."""

    def __init__(
        self,
        nodes: Nodes,
        predecessors: Sequence[Sequence[int]],
        stage_options: SetOptions,
        available_bytes: AvailableBytes | None,
        done: int,
    ) -> None:
        self._nodes = nodes
        self._is_consecutive = nodes == tuple(range(nodes[0], nodes[0] + len(nodes)))
        self._stage_options = stage_options
        self._available_bytes = available_bytes
        self._done = done
        place = {node: number for number, node in enumerate(nodes)}
        self.predecessors = tuple(
            tuple(place[each] for each in predecessors[node] if each in place) for node in nodes
        )
        self.available_bytes = None if available_bytes is None else self._available

    def set_options(self, nodes: Nodes) -> Sequence[StageOption]:
        return self._stage_options(tuple(self._nodes[node] for node in nodes))

    def lane_options(self, lanes: Lanes) -> Sequence[StageOption]:
        return self.set_options(tuple(sorted(node for lane in lanes for node in lane)))

    def whole(self, lanes: Lanes) -> Lanes:
        """The same lanes with the numbers of the whole graph."""
        return tuple(tuple(self._nodes[node] for node in lane) for lane in lanes)

    def _available(self, done: int) -> int:
        assert self._available_bytes is not None
        if self._is_consecutive:
            return self._available_bytes(self._done | done << self._nodes[0])
        here = sum(1 << node for place, node in enumerate(self._nodes) if done >> place & 1)
        return self._available_bytes(self._done | here)
