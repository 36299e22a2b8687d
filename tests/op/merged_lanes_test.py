"""Lanes whose convolutions run as one wider convolution, in stock TensorFlow on the CPU.

All values are small whole numbers, whose sums are exact, so that the comparison is to the bit.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from random_graphs import CHANNELS, SIZE, RandomGraph
from stage_cases import DTYPES, Case, as_constants, digits
from stage_program import (
    Document,
    arguments,
    assert_refused,
    encoded,
    in_graph,
    lane,
    program,
    schedule,
)
from tensorflow.core.framework import graph_pb2

import tf_interop
from tf_interop.convolution import ConvolutionNode, filter_size, may_merge
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.fingerprint import fingerprint_convolutions
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.planning.types import GraphPlan, Plan, PlannedStage
from tf_interop.runtime.plugin import get_plugin
from tf_interop.stage import Lane, Stage, Step

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


def unmerged_counts() -> dict[str, int]:
    fallbacks = tf_interop.status().counters.fallbacks
    return {reason: count for reason, count in fallbacks.items() if "ran unmerged" in reason}


def merged_program(cases: list[Case], *lanes: Document) -> tuple[list[Any], Document]:
    """Inputs and program of cases that read the image of the first, all in a merged lane or so."""
    inputs: list[Any] = []
    operations = [case.step(inputs, []) for case in cases]
    for each in operations:
        each.input[0] = "inputs:0"
    every = lane(*range(len(cases)), merged=True)
    return inputs, program(operations, schedule(*(lanes or [every])))


def cases_of_one_image(
    layout: str = "NHWC", dtype: tf.DType = tf.float32, filters: tuple[int, ...] = (6, 1, 9)
) -> list[Case]:
    shape = [2, 7, 8, 4] if layout == "NHWC" else [2, 4, 7, 8]
    image = digits(shape, dtype)
    attributes = {
        "strides": [1] * 4,
        "dilations": [1] * 4,
        "padding": "SAME",
        "data_format": layout,
    }
    return [
        Case("Conv2D", (image, digits([3, 3, 4, count], dtype, seed=i)), attributes)
        for i, count in enumerate(filters)
    ]


def run(conv_stage: Any, cases: list[Case], *lanes: Document) -> list[tf.Tensor]:
    inputs, document = merged_program(cases, *lanes)
    return in_graph(conv_stage, **arguments(inputs, [], document))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_gives_what_the_own_ops_give(conv_stage: Any, layout: str, dtype: tf.DType) -> None:
    cases = cases_of_one_image(layout, dtype)
    before = unmerged_counts()
    for lanes in ([lane(0, 1, 2, merged=True)], [lane(0), lane(1, 2, merged=True)]):
        results = run(conv_stage, cases, *lanes)
        for case, result in zip(cases, results, strict=True):
            np.testing.assert_array_equal(result, case.own_in_nhwc())
    assert unmerged_counts() == before


def test_adds_each_bias(conv_stage: Any) -> None:
    fused = {"strides": [1] * 4, "padding": "SAME", "fused_ops": ["BiasAdd", "Relu"]}
    cases = [
        Case("_FusedConv2D", (*case.operands, digits([count], seed=7)), fused)
        for case, count in zip(cases_of_one_image(filters=(6, 2)), (6, 2), strict=True)
    ]
    before = unmerged_counts()
    results = run(conv_stage, cases)
    for case, result in zip(cases, results, strict=True):
        image, filter_, bias = case.operands
        expected = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(image, filter_, 1, "SAME"), bias))
        np.testing.assert_array_equal(result, expected)
    assert unmerged_counts() == before


def test_filters_of_different_sizes_run_unmerged_and_are_counted(conv_stage: Any) -> None:
    cases = cases_of_one_image()
    image, attributes = cases[0].operands[0], cases[0].attributes
    cases[1] = Case("Conv2D", (image, digits([1, 1, 4, 3])), attributes)
    before = sum(unmerged_counts().values())
    results = run(conv_stage, cases)
    for case, result in zip(cases, results, strict=True):
        np.testing.assert_array_equal(result, case.own())
    assert sum(unmerged_counts().values()) == before + 1
    assert any("differ in output channels only" in reason for reason in unmerged_counts())
    assert all(reason.startswith("a lane ran unmerged: ") for reason in unmerged_counts())


def test_takes_empty_batches(conv_stage: Any) -> None:
    cases = [
        dataclasses.replace(case, operands=(case.operands[0][:0], case.operands[1]))
        for case in cases_of_one_image()
    ]
    before = unmerged_counts()
    results = run(conv_stage, cases)
    assert [result.shape.as_list() for result in results] == [[0, 7, 8, k] for k in (6, 1, 9)]
    assert unmerged_counts() == before


@pytest.mark.parametrize(
    ("lanes", "place"),
    [
        ([lane(0, merged=True), lane(1, 2)], "schedules[0].stage.lanes[0]"),
        ([lane((0, "DIRECT"), 1, 2, merged=True)], "step 'case_2'"),
    ],
    ids=["one step", "two algorithms"],
)
def test_refuses_lanes_that_cannot_be_merged(
    conv_stage: Any, lanes: list[Document], place: str
) -> None:
    inputs, document = merged_program(cases_of_one_image(), *lanes)
    assert_refused(conv_stage, place, "merged lane", **arguments(inputs, [], document))


@pytest.mark.parametrize(
    "change",
    [
        {"strides": [1, 2, 2, 1]},
        {"dilations": [1, 2, 2, 1]},
        {"padding": "VALID"},
        {"image": 2},
        {"op": "DepthwiseConv2dNative"},
        {"op": "Relu"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_refuses_steps_that_cannot_be_merged(conv_stage: Any, change: dict[str, Any]) -> None:
    first, second = cases_of_one_image(filters=(4, 4))
    attributes = {k: change.get(k, v) for k, v in second.attributes.items()}
    second = Case(change.get("op", second.op), second.operands, attributes)
    inputs, document = merged_program([first, second])
    step = second.step([None, None], [])
    step.input[0] = f"inputs:{change.get('image', 0)}"
    if step.op == "Relu":
        step.input[:] = ["steps:0"]
    document["operations"][1] = encoded(step)
    assert_refused(
        conv_stage, f"step '{step.name}'", "merged lane", **arguments(inputs, [], document)
    )


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_joins_constant_filters_once(conv_stage: Any, dtype: tf.DType) -> None:
    cases = cases_of_one_image(dtype=dtype)
    inputs, document = merged_program(cases, lane(0, 1, merged=True), lane(2))
    filters = inputs[1::2]
    constants = as_constants(inputs)

    @tf.function
    def stage(image: tf.Tensor) -> list[tf.Tensor]:
        marked = document | {"constant_inputs": [1, 3]}
        return conv_stage(**arguments([image, *constants[1:]], [], marked))

    before = tf_interop.status().counters.filters_transformed
    for seed in range(3):
        image = digits([2, 7, 8, 4], dtype, seed=10 + seed)
        for filter_, result in zip(filters, stage(tf.constant(image)), strict=True):
            np.testing.assert_array_equal(result, tf.nn.conv2d(image, filter_, 1, "SAME"))
    assert tf_interop.status().counters.filters_transformed == before + 1


def test_takes_no_other_filter_for_a_marked_one(conv_stage: Any) -> None:
    # No pass would mark what is computed. The kernel must not trust the mark alone.
    (image, first, _, second), document = merged_program(cases_of_one_image(filters=(32, 16)))

    @tf.function
    def stage(factor: tf.Tensor) -> list[tf.Tensor]:
        inputs = [image, factor * first, image, second]
        return conv_stage(**arguments(inputs, [], document | {"constant_inputs": [1, 3]}))

    for factor in map(np.float32, range(1, 9)):
        results = stage(tf.constant(factor))
        for filter_, result in zip((factor * first, second), results, strict=True):
            np.testing.assert_array_equal(result, tf.nn.conv2d(image, filter_, 1, "SAME"))


def merge_what_can_be(graph_def: graph_pb2.GraphDef, plan: GraphPlan) -> tuple[GraphPlan, int]:
    """The plan with all convolutions of a stage that can be merged on a merged lane."""
    view = GraphView(graph_def)
    convolutions, _ = find_convolutions(view, GraphProperties(view))
    assert fingerprint_convolutions(convolutions) == plan.fingerprint
    node_of = {node.name: node for node in convolutions}

    def key(node: ConvolutionNode) -> object:
        each = node.configuration
        if not may_merge(each):
            return node.name
        alike = dataclasses.replace(each, filter_shape=filter_size(each), output_shape=None)
        return view.fanins[node.index][0], alike

    stages = []
    for planned in plan.stages:
        lanes: dict[object, list[Step[str]]] = {}
        for each in planned.stage.lanes:
            # A lane of several steps stays as it is: its steps may depend on each other.
            first = each.operations[0]
            alike = key(node_of[first]) if len(each.steps) == 1 else first
            lanes.setdefault(alike, []).extend(each.steps)
        merged = [isinstance(alike, tuple) and len(steps) > 1 for alike, steps in lanes.items()]
        stage = Stage(
            tuple(
                Lane(tuple(steps), merged=each)
                for steps, each in zip(lanes.values(), merged, strict=True)
            )
        )
        stages.append(PlannedStage(stage))
    count = sum(lane.merged for planned in stages for lane in planned.stage.lanes)
    return dataclasses.replace(plan, stages=tuple(stages)), count


class GraphOfBranches(RandomGraph):
    """A random graph with convolutions of one image that differ in their output channels only."""

    def op(self, tensors: list[tf.Tensor], depth: int = 0) -> tf.Tensor:
        if self.random.random() < 0.6:
            return super().op(tensors, depth)
        image, size = self.random.choice(tensors), self.random.choice([1, 3])
        counts = self.random.choice([(2, 2), (1, 3), (1, 2, 1)])
        branches = [
            tf.nn.conv2d(image, self.digits(size, size, CHANNELS, count), 1, "SAME")
            for count in counts
        ]
        return tf.clip_by_value(tf.concat(branches, -1), -2, 2)


def test_random_graphs_compute_the_same_numbers() -> None:
    merged = 0
    before = unmerged_counts()
    for seed in range(24):
        graph = GraphOfBranches(seed)
        image = graph.digits(2, SIZE, SIZE, CHANNELS)
        compute = graph.function()
        tf_interop.disable()
        expected = compute(image)
        tf_interop.enable("always")
        graphs: dict[str, graph_pb2.GraphDef] = {}
        with get_plugin().observe(lambda graph_def, _: note(graph_def, graphs)):  # noqa: B023
            compute(image)
        plans = []
        for report in tf_interop.status().graphs:
            graph_def = graphs.get(report.plan.fingerprint)
            if graph_def is None:
                continue  # of an earlier seed
            plan, count = merge_what_can_be(graph_def, report.plan)
            plans.append(plan)
            merged += count
        tf_interop.enable(plan=Plan(tuple(plans)))
        result = compute(image)
        assert tf_interop.status().failures == (), f"seed {seed}"
        for ours, theirs in zip(result, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"seed {seed}")
    assert merged > 12
    assert unmerged_counts() == before


def note(graph_def: graph_pb2.GraphDef, graphs: dict[str, graph_pb2.GraphDef]) -> None:
    """Keeps the graph by the fingerprint of its convolutions."""
    view = GraphView(graph_def)
    convolutions, _ = find_convolutions(view, GraphProperties(view))
    graphs[fingerprint_convolutions(convolutions)] = graph_def
