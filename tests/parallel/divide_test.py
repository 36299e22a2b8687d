"""The pass that divides layers, on hand-made graphs."""

from __future__ import annotations

import dataclasses

import pytest
from graph_builder import CPU, FLOAT, GraphBuilder, add_shapes, graph_of, same_graph
from tensorflow.core.framework import graph_pb2

from tf_interop.errors import PlanError, TimeLimitError
from tf_interop.graph.time_limit import time_limit
from tf_interop.graph.view import GraphView
from tf_interop.parallel.divide import Divider, ParallelReport
from tf_interop.parallel.layers.find import find_layers
from tf_interop.parallel.lookup import structure_of_layers
from tf_interop.parallel.types import Degrees, DividedLayer, GraphDivision, ParallelPlan

OTHER = CPU.replace("CPU:0", "CPU:1")
DEVICES = ("/device:CPU:0", "/device:CPU:1")
HALVES = DividedLayer("0", "c", Degrees(sample=2), (0, 1))


def graph_of_convolution(batch: int | None = 4) -> GraphBuilder:
    graph = GraphBuilder(CPU)
    shapes = {"x": (batch, 6, 6, 3), "f": (3, 3, 3, 8)}
    for index, (name, shape) in enumerate(shapes.items()):
        graph.add(name, "_Arg", T=FLOAT, index=index)
        add_shapes(graph.node(name), "_output_shapes", [shape])
    graph.conv("c", "x", "f")
    graph.add("r", "Relu", "c", T=FLOAT)
    for name in ("c", "r"):
        add_shapes(graph.node(name), "_output_shapes", [(batch, 6, 6, 8)])
    graph.add("result", "_Retval", "r", T=FLOAT, index=0)
    return graph


def plan_of(*layers: DividedLayer, why: str = "") -> ParallelPlan:
    view = GraphView(graph_of_convolution().graph_def)
    structure = structure_of_layers(find_layers(view))
    entry = GraphDivision(structure.fingerprint, structure.landmarks, layers, why_whole=why)
    return ParallelPlan(DEVICES, (entry,))


def run(
    graph: GraphBuilder, plan: ParallelPlan
) -> tuple[graph_pb2.GraphDef | None, ParallelReport | None]:
    return Divider(plan).divide(graph.graph_def, ["result"])


def test_divides_a_layer_and_says_what_is_sent() -> None:
    graph = graph_of_convolution()
    before = graph_pb2.GraphDef.FromString(graph.graph_def.SerializeToString())
    divided, report = run(graph, plan_of(HALVES))
    assert same_graph(graph.graph_def, before)
    assert divided is not None
    assert report is not None
    assert {node.device for node in divided.node} == {CPU, OTHER}
    image, filters, output = (4 * size for size in (2 * 6 * 6 * 3, 3 * 3 * 3 * 8, 2 * 6 * 6 * 8))
    assert report.sent_bytes == {(CPU, OTHER): image + filters, (OTHER, CPU): output}
    assert list(report.divided) == ["c"]
    assert report.why_unchanged == ""
    assert str(report).startswith("1 of 1 layers on 2 devices, 0.00403 MB sent in a step")


def test_leaves_what_is_divided_or_has_no_layers_alone() -> None:
    divided, _ = run(graph_of_convolution(), plan_of(HALVES))
    for graph_def in (divided, graph_of({"r": "Relu x"}, CPU).graph_def):
        assert Divider(plan_of(HALVES)).divide(graph_def) == (None, None)


@pytest.mark.parametrize(
    ("batch", "layers", "why_whole", "why"),
    [
        (None, [HALVES], "", "no layer can be divided: its shapes are unknown"),
        (4, [], "", "the parallel plan leaves this graph as it is"),
        (4, [], "one device is faster", "one device is faster"),
    ],
)
def test_keeps_a_graph_and_says_why(
    batch: int | None, layers: list[DividedLayer], why_whole: str, why: str
) -> None:
    divided, report = run(graph_of_convolution(batch), plan_of(*layers, why=why_whole))
    assert divided is None
    assert report is not None
    assert not report.divided
    assert report.why_unchanged.startswith(why)
    assert why in str(report)


@pytest.mark.parametrize(
    ("layer", "batch_size", "place"),
    [
        (DividedLayer("1", "d", Degrees(sample=2), (0, 1)), None, "no layer 'd'"),
        (
            DividedLayer("0", "c", Degrees(height=7), (0,) * 7),
            None,
            "than parts: 7 parts of a height of 6",
        ),
        (HALVES, 8, "for batch size 8, but the graph has 4"),
    ],
    ids=["of_a_layer_that_is_not_there", "more_parts_than_values", "of_another_batch_size"],
)
def test_refuses_a_plan(layer: DividedLayer, batch_size: int | None, place: str) -> None:
    [graph] = plan_of(layer).graphs
    graph = dataclasses.replace(graph, batch_size=batch_size)
    with pytest.raises(PlanError, match=place):
        run(graph_of_convolution(), ParallelPlan(DEVICES, (graph,)))


def test_ends_when_it_takes_too_long() -> None:
    with pytest.raises(TimeLimitError), time_limit(-1):
        run(graph_of_convolution(), plan_of(HALVES))
