"""Proves that two tensors have the same first dimension, whatever it is when the graph runs.

    images ──┬── Conv2D ── a
             └── MaxPool ── b

Here a and b have the first dimension of `images`, so their sum broadcasts neither.
"""

from __future__ import annotations

from collections.abc import Collection

from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.split_units import Operation
from tf_interop.graph.view import GraphView

Tensor = tuple[int, int]


class BatchOrigins:
    """The tensor from which each tensor of a graph has its first dimension."""

    def __init__(
        self, view: GraphView, properties: GraphProperties, preserved: Collection[str]
    ) -> None:
        """Reads the whole graph; a Session may feed other values for `preserved`."""
        self._origins: dict[int, Tensor] = {}
        for index in view.topological_order():
            if view.names[index] in preserved:
                continue
            operation = Operation(view, properties, index, preserved=preserved)
            images = operation.images() or ()
            found = {self.of(view.fanins[index][position]) for position in images}
            if len(found) == 1:
                self._origins[index] = found.pop()

    def of(self, tensor: Tensor) -> Tensor:
        """The origin of a tensor; two tensors of one origin have the same first dimension."""
        return self._origins.get(tensor[0], tensor)
