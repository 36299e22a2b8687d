"""Whether stages may be built into a graph, all of them together."""

from __future__ import annotations

from collections.abc import Sequence

from tf_interop.contraction import Edge, contract, misplaced_step
from tf_interop.graph.view import GraphView, join_names
from tf_interop.stage import Stage


def why_illegal(view: GraphView, stages: Sequence[Sequence[Stage[int]]]) -> str | None:
    """Why stages of nodes may not be built into a graph, or None where they may.

    Of each stage there are all ways to run it. A node is in one stage at most.

    Raises:
        GraphError: the graph itself has a cycle.
    """
    for number, ways in enumerate(stages):
        for stage in ways:
            edge = misplaced_step(view.readers, stage)
            if edge is not None:
                source, reader = (view.names[node] for node in edge)
                return (
                    f"Expected independent lanes in stage {number}, and steps in their order, got "
                    f"'{reader}' that depends on '{source}'"
                )
    cycle = contract(view.readers, [ways[0].operations for ways in stages]).cycle
    if not cycle:
        return None
    view.topological_order()  # Raises where the stages are not to blame.
    stage_of = {node: number for number, ways in enumerate(stages) for node in ways[0].operations}
    waits = _join(view, stage_of, cycle)
    return f"Expected stages that wait for none that waits for them, got {waits}"


def _join(view: GraphView, stage_of: dict[int, int], cycle: Sequence[Edge]) -> str:
    """The cycle from stage to stage, with the nodes between."""
    start = next(place for place, (source, _) in enumerate(cycle) if source in stage_of)
    paths: list[list[int]] = []
    for source, reader in (*cycle[start:], *cycle[:start]):
        if source in stage_of:
            paths.append([source])
        paths[-1].append(reader)
    return "; ".join(
        f"stage {stage_of[path[-1]]} that waits for stage {stage_of[path[0]]} "
        f"({join_names([view.names[node] for node in path], at_most=6)})"
        for path in paths
    )
