"""What is alive of a graph's convolutions while it runs."""

from __future__ import annotations

from tf_interop.planning.problem import PlanningProblem


class LiveMemory:
    """Outputs of convolutions that are alive, by what has run."""

    def __init__(self, problem: PlanningProblem) -> None:
        self._output_bytes = [costs.output_bytes for costs in problem.node_costs]
        self._readers = [0] * len(problem.nodes)
        for node, predecessors in enumerate(problem.predecessors):
            for predecessor in predecessors:
                self._readers[predecessor] |= 1 << node
        self._alive: dict[int, int] = {0: 0}

    def alive_bytes(self, done: int) -> int:
        """Outputs that something reads that has not run; and those that nothing reads.

        Args:
            done: the nodes that have run, as bits.
        """
        alive = self._alive.get(done)
        if alive is None:
            alive = self._alive[done] = sum(
                size
                for node, (size, readers) in enumerate(
                    zip(self._output_bytes, self._readers, strict=True)
                )
                if done >> node & 1 and (not readers or readers & ~done)
            )
        return alive
