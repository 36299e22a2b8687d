"""The structure of graphs: what counts as reading, and which models are the same network."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from convolution_values import CONFIGURATION
from planning_graphs import INCEPTION, make_graph

from tf_interop.convolution import ConvolutionKind
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.landmarks import find_reads, find_structure
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.model.graphs import planned_graph, trace
from tf_interop.structure import Structure, describe_difference

layers = tf.keras.layers

Changes = dict[str, Any]


def reads_of(nodes: dict[str, str]) -> dict[str, dict[str, str]]:
    """For each convolution the others that it reads, and how."""
    view, convolutions = make_graph(nodes)
    firsts = [node.index for node in convolutions]
    reads = find_reads(view, {index: number for number, index in enumerate(firsts)}, firsts)
    names = [node.name for node in convolutions]
    return {
        name: {names[number]: how for number, how in its}
        for name, its in zip(names, reads, strict=True)
    }


def test_reads_the_nearest_through_other_operations() -> None:
    nodes = INCEPTION | {"relu": "Relu output", "next": "Conv2D relu", "last": "Conv2D next"}
    found = reads_of(nodes)
    assert found["1x1"] == found["pool_proj"] == {}
    assert found["3x3"] == {"3x3_reduce": "0, directly"}
    assert found["next"] == dict.fromkeys(("1x1", "3x3", "5x5", "pool_proj"), "0")
    assert found["last"] == {"next": "0, directly"}


def test_neither_sizes_nor_control_dependencies_count() -> None:
    nodes = {
        "image": "Placeholder",
        "a": "Conv2D image",
        "size": "Shape a",
        "scaled": "Fill size image",
        "b": "Conv2D scaled ^a",
    }
    assert reads_of(nodes)["b"] == {}


def test_a_gradient_reads_gradients_and_not_the_loss() -> None:
    nodes = {
        "image": "Placeholder",
        "a": "Conv2D image",
        "relu": "Relu a",
        "b": "Conv2D relu",
        "loss": "Softmax b",
        "gradient_tape/loss": "Sub loss image",
        "gradient_tape/b/x": "Conv2D gradient_tape/loss",
        "gradient_tape/b/w": "Conv2D relu image gradient_tape/loss",
        "gradient_tape/relu": "ReluGrad gradient_tape/b/x relu",
        "gradient_tape/a/w": "Conv2D image image gradient_tape/relu",
    }
    found = reads_of(nodes)
    assert found["gradient_tape/b/x"] == {}
    assert found["gradient_tape/b/w"] == {"a": "0"}
    assert found["gradient_tape/a/w"] == {"gradient_tape/b/x": "2"}


def test_the_gradients_of_one_convolution_stay_together() -> None:
    """Nothing else tells which of two alike gradients of filters belongs to which of images."""
    nodes = dict.fromkeys(("image", "first", "second"), "Placeholder")
    gradients = {"a_w": "first", "b_w": "second", "b_x": "first", "a_x": "second"}
    nodes |= {name: f"Conv2D image image {incoming}" for name, incoming in gradients.items()}
    kinds = {"w": ConvolutionKind.BACKWARD_FILTER, "x": ConvolutionKind.BACKWARD_INPUT}
    configurations = {
        name: dataclasses.replace(CONFIGURATION, kind=kinds[name[-1]]) for name in gradients
    }
    found = find_structure(*make_graph(nodes, configurations=configurations))
    assert found.names == ("a_w", "b_w", "b_x", "a_x")


def structure(model: Any, *, training: bool = False, batch_size: int = 2) -> Structure:
    traced = trace(model, batch_size=batch_size, training=training, image_size=None)
    view = GraphView(planned_graph(traced, None))
    return find_structure(view, find_convolutions(view, GraphProperties(view))[0])


def network(
    *,
    name: str | None = None,
    size: int = 16,
    dtype: str = "float32",
    stem: Changes | None = None,
    wide: Changes | None = None,
    deep: Changes | None = None,
    deep_reads_stem: bool = True,
    has_shortcut: bool = False,
    more: int = 0,
    head: int = 3,
    activation: str | None = None,
) -> tf.keras.Model:
    """A branchy network with unnamed layers, and the ways in which others differ."""

    def conv(x: Any, changes: Changes | None, **usual: Any) -> Any:
        return layers.Conv2D(**({"padding": "same", "use_bias": False} | usual | (changes or {})))(
            x
        )

    image = tf.keras.Input((size, size, 3), dtype=dtype)
    with_dtype = {"dtype": dtype}
    x = conv(image, stem, filters=8, kernel_size=3, **with_dtype)
    x = layers.ReLU(**with_dtype)(layers.BatchNormalization(**with_dtype)(x))
    a = conv(x, wide, filters=8, kernel_size=5, **with_dtype)
    b = conv(x if deep_reads_stem else a, deep, filters=8, kernel_size=1, **with_dtype)
    for _ in range(more):
        b = conv(b, None, filters=8, kernel_size=1, **with_dtype)
    b = conv(layers.ReLU(**with_dtype)(b), None, filters=8, kernel_size=3, **with_dtype)
    x = layers.Add(**with_dtype)([a, b, x] if has_shortcut else [a, b])
    x = conv(x, None, filters=6, kernel_size=3, **with_dtype)
    x = layers.GlobalAveragePooling2D(**with_dtype)(x)
    return tf.keras.Model(image, layers.Dense(head, activation, **with_dtype)(x), name=name)


CHANGED: dict[str, tuple[Callable[[], tf.keras.Model], str]] = {
    "filters of the stem": (lambda: network(stem={"filters": 9}), "3x3x3x9"),
    "strides of the stem": (lambda: network(stem={"strides": 2}), "strides 2x2"),
    "padding of the stem": (lambda: network(stem={"padding": "valid"}), "VALID"),
    "dilation": (lambda: network(wide={"dilation_rate": 2}), "VALID"),
    "size of a branch": (lambda: network(wide={"kernel_size": 3}), "3x3x8x8"),
    "groups of a branch": (lambda: network(wide={"groups": 2}), ""),
    "filters of the other branch": (lambda: network(deep={"filters": 4}), "1x1x8x4"),
    "dtype": (lambda: network(dtype="float64"), "float64"),
    "order of the branches": (lambda: network(deep_reads_stem=False), "computes from other"),
    "a shortcut": (lambda: network(has_shortcut=True), "computes from other"),
    "one more": (lambda: network(more=1), "and this graph has 6"),
}


@pytest.fixture(scope="module")
def planned() -> Structure:
    return structure(network())


@pytest.mark.parametrize("name", CHANGED)
def test_a_network_that_differs_by_one_attribute_is_another(name: str, planned: Structure) -> None:
    build, said = CHANGED[name]
    found = structure(build())
    assert found.fingerprint != planned.fingerprint
    difference = describe_difference(planned.landmarks, found.landmarks, "convolutions")
    assert said in difference
    assert any(f"'{each}'" in difference for each in found.names)


@pytest.mark.parametrize("training", [False, True])
def test_a_network_is_recognized_whatever_its_layers_are_called(training: bool) -> None:
    expected = structure(network(), training=training)
    for other in (
        network(name="another_name"),
        network(head=5),
        network(activation="softmax"),
        network(size=24),
        tf.keras.models.clone_model(network()),
    ):
        found = structure(other, training=training)
        assert found.fingerprint == expected.fingerprint
        assert found.names != expected.names
        assert [each.form for each in found.landmarks] == [e.form for e in expected.landmarks]


def test_a_structure_is_the_same_in_every_process_and_release() -> None:
    view, convolutions = make_graph(INCEPTION)
    orders = itertools.islice(itertools.permutations(convolutions), 0, 720, 100)
    assert {find_structure(view, order).fingerprint for order in orders} == {"e1653fedac51c777"}


def test_every_convolution_counts() -> None:
    view, convolutions = make_graph(INCEPTION)
    expected = find_structure(view, convolutions)
    assert find_structure(view, convolutions[1:]).fingerprint != expected.fingerprint
    assert re.fullmatch("[0-9a-f]{16}", find_structure(view, ()).fingerprint)
