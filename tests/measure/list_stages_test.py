"""What is worth measuring merged: convolutions of one depth on one image, alone and with others."""

from __future__ import annotations

import dataclasses

from planning_graphs import CONFIGURATION, INCEPTION, make_graph

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.graph.independence import Independence
from tf_interop.graph.merge_keys import find_merge_keys
from tf_interop.measure.list_stages import (
    stages_of_merges,
)
from tf_interop.stage import Lane, Stage, Step

WIDER = dataclasses.replace(CONFIGURATION, filter_shape=(3, 3, 16, 64))


PLAIN = Step(CONFIGURATION)


def _merges(
    nodes: dict[str, str], configurations: dict[str, ConvolutionConfiguration] | None = None
) -> list[Stage[ConvolutionConfiguration]]:
    view, convolutions = make_graph(nodes, configurations=configurations)
    keys = find_merge_keys(view, convolutions)
    return stages_of_merges(convolutions, Independence(view, convolutions), keys)


def test_merges_alone_then_beside_the_rest_of_the_level() -> None:
    merged = Lane((PLAIN, Step(WIDER), PLAIN), merged=True)
    assert _merges(INCEPTION, {"3x3_reduce": WIDER}) == [
        Stage((merged,)),
        Stage((merged, Lane((PLAIN,)))),
    ]


def test_merges_all_images_of_a_level_at_the_same_time() -> None:
    nodes = {"x": "Relu", "y": "Relu", "z": "Relu"}
    nodes |= {"a": "Conv2D x", "b": "Conv2D y", "c": "Conv2D z", "d": "Conv2D y", "e": "Conv2D x"}
    first = Lane((Step(WIDER), PLAIN), merged=True)
    second = Lane((PLAIN, PLAIN), merged=True)
    assert _merges(nodes, {"a": WIDER}) == [
        Stage((first,)),
        Stage((second,)),
        Stage((first, second, Lane((PLAIN,)))),
    ]


def test_lists_no_merge_twice_and_none_where_images_differ() -> None:
    level = {"x": "Relu", "a": "Conv2D x", "b": "Conv2D x", "y": "Relu a b"}
    nodes = level | {"c": "Conv2D y", "d": "Conv2D y"}
    assert len(_merges(nodes)) == 1
    assert _merges({"x": "Relu", "y": "Relu", "a": "Conv2D x", "b": "Conv2D y"}) == []


def test_merges_nothing_that_waits_for_another() -> None:
    assert _merges({"x": "Relu", "a": "Conv2D x", "b": "Conv2D x ^a"}) == []
