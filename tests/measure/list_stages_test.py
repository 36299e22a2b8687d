"""What is worth measuring merged: convolutions of one depth on one image, alone and with others."""

from __future__ import annotations

import dataclasses

from planning_graphs import CONFIGURATION, INCEPTION, make_graph

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.graph.independence import Independence
from tf_interop.graph.merge_keys import find_merge_keys
from tf_interop.measure.list_stages import (
    StageConfigurations,
    stages_of_merges,
    stages_of_plan,
)
from tf_interop.plan.types import LaneOptions, PinnedConvolution, PlannedStage

WIDER = dataclasses.replace(CONFIGURATION, filter_shape=(3, 3, 16, 64))


def _merges(
    nodes: dict[str, str], configurations: dict[str, ConvolutionConfiguration] | None = None
) -> list[StageConfigurations]:
    view, convolutions = make_graph(nodes, configurations=configurations)
    keys = find_merge_keys(view, convolutions)
    return stages_of_merges(convolutions, Independence(view, convolutions), keys)


def test_merges_alone_then_beside_the_rest_of_the_level() -> None:
    assert _merges(INCEPTION, {"3x3_reduce": WIDER}) == [
        StageConfigurations((CONFIGURATION, WIDER, CONFIGURATION), (0, 0, 0), merged=(True,)),
        StageConfigurations(
            (CONFIGURATION, WIDER, CONFIGURATION, CONFIGURATION), (0, 0, 0, 1), merged=(True, False)
        ),
    ]


def test_merges_all_images_of_a_level_at_the_same_time() -> None:
    nodes = {"x": "Relu", "y": "Relu", "z": "Relu"}
    nodes |= {"a": "Conv2D x", "b": "Conv2D y", "c": "Conv2D z", "d": "Conv2D y", "e": "Conv2D x"}
    stages = _merges(nodes, {"a": WIDER})
    assert [(stage.lanes, stage.merged) for stage in stages] == [
        ((0, 0), (True,)),
        ((0, 0), (True,)),
        ((0, 0, 1, 1, 2), (True, True, False)),
    ]
    assert stages[2].configurations == (WIDER, *[CONFIGURATION] * 4)


def test_lists_no_merge_twice_and_none_where_images_differ() -> None:
    level = {"x": "Relu", "a": "Conv2D x", "b": "Conv2D x", "y": "Relu a b"}
    nodes = level | {"c": "Conv2D y", "d": "Conv2D y"}
    assert [stage.lanes for stage in _merges(nodes)] == [(0, 0)]
    assert _merges({"x": "Relu", "y": "Relu", "a": "Conv2D x", "b": "Conv2D y"}) == []


def test_merges_nothing_that_waits_for_another() -> None:
    assert _merges({"x": "Relu", "a": "Conv2D x", "b": "Conv2D x ^a"}) == []


def test_a_plan_is_measured_with_what_it_merges() -> None:
    _, convolutions = make_graph({"x": "Relu", "a": "Conv2D x", "b": "Conv2D x", "c": "Conv2D"})
    lanes = (
        (PinnedConvolution("a", "FFT"), PinnedConvolution("b", "FFT")),
        (PinnedConvolution("c", "GEMM"),),
    )
    options = (LaneOptions(merged=True), LaneOptions())
    (stage,) = stages_of_plan([PlannedStage(lanes, lane_options=options)], convolutions)
    assert stage == StageConfigurations(
        (CONFIGURATION,) * 3, (0, 0, 1), ("FFT", "FFT", "GEMM"), merged=(True, False)
    )
