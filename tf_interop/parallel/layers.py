"""Finds the layers of a graph: what is divided in one way.

A layer is a convolution or a matrix product and what follows it node by node, with all of their
gradients; joins of several layers and pooling are layers of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.parallel.degrees import Axis, Degrees
from tf_interop.parallel.op_parts import Operation, OpParts


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """What is divided in one way.

    Attributes:
        name: the name of its first node.
        nodes: places of its nodes in the graph, ascending.
        layout: of its tensors of rank 4, `NHWC` or `NCHW`.
        extents: the size of each axis of its work; 1 where it has none.
    """

    name: str
    nodes: tuple[int, ...]
    layout: str
    extents: Mapping[Axis, int]


class LayerGraph:
    """The layers of a graph.

    Attributes:
        view: the graph.
        layers: in topological order of their first nodes.
        layer_of: for each node that is in a layer, the layer's place in `layers`. All other nodes
            run whole, on the devices that they have.
        why_whole: for nodes that cost something and are in no layer, why, in words.
    """

    view: GraphView
    layers: tuple[Layer, ...]
    layer_of: Mapping[int, int]
    why_whole: Mapping[str, str]

    def operation(self, node: int) -> Operation:
        """A node of a layer as rules see it."""
        raise NotImplementedError

    def parts(self, node: int, degrees: Degrees) -> OpParts | None:
        """A node of a layer, divided; None where it runs whole. Remembered."""
        raise NotImplementedError

    def shape(self, node: int, port: int) -> tuple[int, ...]:
        """The shape of an output of a node of a layer."""
        raise NotImplementedError


def find_layers(
    view: GraphView, properties: GraphProperties, nodes_to_preserve: Collection[str] = ()
) -> LayerGraph:
    """Finds the layers of a graph.

    Args:
        view: the graph, forward and backward together.
        properties: its shapes.
        nodes_to_preserve: names that have to stay; these nodes run whole.

    Raises:
        GraphError: the graph has a cycle that no loop closes.
    """
    raise NotImplementedError


def legal_degrees(layer: Layer, count: int) -> tuple[Degrees, ...]:
    """All ways to divide a layer into `count` parts, none longer than its axis, in order."""
    raise NotImplementedError
