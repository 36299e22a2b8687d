"""Small graphs and stages for tests."""

from __future__ import annotations

from collections.abc import Mapping

from convolution_values import CONFIGURATION
from plan_values import make_lanes
from tensorflow.core.framework import graph_pb2

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionNode
from tf_interop.graph.view import GraphView
from tf_interop.planning.types import PlannedStage

# A module of GoogLeNet, input to output.
INCEPTION = {
    "input": "Placeholder",
    "1x1": "Conv2D input",
    "3x3_reduce": "Conv2D input",
    "3x3": "Conv2D 3x3_reduce",
    "5x5_reduce": "Conv2D input",
    "5x5": "Conv2D 5x5_reduce",
    "pool": "MaxPool input",
    "pool_proj": "Conv2D pool",
    "output": "ConcatV2 1x1 3x3 5x5 pool_proj",
}


def make_graph(
    nodes: Mapping[str, str],
    *,
    devices: Mapping[str, str] = {},
    regions: Mapping[str, str] = {},
    configurations: Mapping[str, ConvolutionConfiguration] = {},
) -> tuple[GraphView, tuple[ConvolutionNode, ...]]:
    """Makes a graph in which every Conv2D can be part of a stage.

    Args:
        nodes: op type and inputs of each node, such as `{"a": "Conv2D image ^start"}`.
        devices: devices of some convolutions.
        regions: control-flow regions of some convolutions.
        configurations: configurations of some convolutions; the others have `CONFIGURATION`.

    Returns:
        The view and its convolutions in the order of the graph.
    """
    graph_def = graph_pb2.GraphDef()
    convolutions = []
    for index, (name, text) in enumerate(nodes.items()):
        op, *inputs = text.split()
        graph_def.node.add(name=name, op=op, input=inputs)
        if op == "Conv2D":
            convolutions.append(
                ConvolutionNode(
                    name=name,
                    index=index,
                    device=devices.get(name, ""),
                    region=regions.get(name, ""),
                    configuration=configurations.get(name, CONFIGURATION),
                )
            )
    return GraphView(graph_def), tuple(convolutions)


def make_stage(*lanes: str) -> PlannedStage:
    """Makes a planned stage; see `make_lanes`."""
    return PlannedStage(make_lanes(*lanes))
