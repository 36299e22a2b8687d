"""Layers of matrix products and activations, divided by rules that are written out here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
from graph_builder import CPU, FLOAT, GraphBuilder
from tensorflow.core.framework import graph_pb2

from tf_interop.graph.view import GraphView
from tf_interop.parallel.degrees import Axis, Degrees
from tf_interop.parallel.layers.find import Layer, LayerGraph
from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.op_parts import Operation, OpPart, OpParts, boxes_of
from tf_interop.parallel.regions import split, whole


def relu_rule(operation: Operation, degrees: Degrees) -> OpParts:
    """An activation has every value where it reads it."""

    def emit(maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
        return [maker("Relu", inputs[0], T=tf.float32)]

    boxes = boxes_of(operation.output_shapes[0], "NHWC", degrees)
    return OpParts(
        tuple(OpPart(place, (box,), (box,), emit) for place, box in boxes.items()), (False,)
    )


def matmul_rule(operation: Operation, degrees: Degrees) -> OpParts:
    """[N, C] x [C, K]; parts along `channel` are addends."""

    def emit(maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
        return [maker("MatMul", *inputs, T=tf.float32)]

    (samples, channels), (_, filters) = operation.input_shapes
    parts = []
    for number, place in enumerate(degrees.places):
        sample = split(samples, degrees.sample)[place[Axis.SAMPLE]]
        channel = split(channels, degrees.channel)[place[Axis.CHANNEL]]
        filter_ = split(filters, degrees.filter)[place[Axis.FILTER]]
        parts.append(
            OpPart(number, ((sample, channel), (channel, filter_)), ((sample, filter_),), emit)
        )
    return OpParts(tuple(parts), (degrees.channel > 1,))


RULES = {"Relu": relu_rule, "MatMul": matmul_rule}


class FakeLayers(LayerGraph):
    """Layers that are named, of nodes whose shapes are given."""

    def __init__(
        self,
        graph_def: graph_pb2.GraphDef,
        layers: Sequence[Sequence[str]],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.view = GraphView(graph_def)
        self._shapes = shapes
        index_of = self.view.index_of
        self.layers = tuple(
            Layer(names[0], tuple(sorted(index_of[name] for name in names)), "NHWC", {})
            for names in layers
        )
        self.layer_of = {
            node: place for place, layer in enumerate(self.layers) for node in layer.nodes
        }
        self.why_whole = {}

    def shape(self, node: int, port: int) -> tuple[int, ...]:
        return self._shapes[self.view.names[node]]

    def operation(self, node: int) -> Operation:
        fanins = self.view.fanins[node]
        return Operation(
            self.view.nodes[node],
            tuple(self.shape(*tensor) for tensor in fanins),
            (self.shape(node, 0),),
            (None,) * len(fanins),
        )

    def parts(self, node: int, degrees: Degrees) -> OpParts | None:
        rule = RULES.get(self.view.ops[node])
        return None if rule is None else rule(self.operation(node), degrees)


SHAPES = {
    "x": (4, 6),
    "v": (6, 8),
    "w": (8, 2),
    "h": (4, 8),
    "r": (4, 8),
    "y": (4, 2),
    "s": (4, 2),
    "c": (8, 2),
}


def two_products(device: str = CPU) -> GraphBuilder:
    """y = relu(x v) w, of arguments, and what returns it."""
    graph = GraphBuilder(device)
    for name in ("x", "v", "w"):
        graph.add(name, "_Arg", T=FLOAT, index="xvw".index(name))
    graph.add("h", "MatMul", "x", "v", T=FLOAT)
    graph.add("r", "Relu", "h", T=FLOAT)
    graph.add("y", "MatMul", "r", "w", T=FLOAT)
    graph.add("result", "_Retval", "y", T=FLOAT, index=0)
    return graph


def layers_of(
    graph: GraphBuilder, layers: Sequence[Sequence[str]] = (("h", "r"), ("y",))
) -> FakeLayers:
    """The layers of such a graph."""
    return FakeLayers(graph.graph_def, layers, SHAPES)


def whole_of(name: str) -> tuple[tuple[int, int], ...]:
    """The box of all of a tensor."""
    return whole(SHAPES[name])
