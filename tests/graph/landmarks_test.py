"""The structure of graphs: what counts as reading, and which models are the same network."""

from __future__ import annotations

import dataclasses
import itertools
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
KINDS = {"w": ConvolutionKind.BACKWARD_FILTER, "x": ConvolutionKind.BACKWARD_INPUT}


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
    configurations = {
        name: dataclasses.replace(CONFIGURATION, kind=KINDS[name[-1]]) for name in gradients
    }
    found = find_structure(*make_graph(nodes, configurations=configurations))
    assert found.names == ("a_w", "b_w", "b_x", "a_x")


def test_gradients_after_an_addition_do_not_depend_on_names() -> None:
    """Both convolutions have the gradient of their sum."""
    found = set()
    for small, large in ("9", "10"), ("10", "9"), ("99", "100"), ("100", "99"):
        nodes = {"image": "Placeholder", "sum": "Placeholder"}
        shapes = {}
        for name, size in (small, 3), (large, 5):
            for kind in "wx":
                nodes[f"{name}_{kind}"] = "Conv2D image image sum"
                shapes[f"{name}_{kind}"] = dataclasses.replace(
                    CONFIGURATION, kind=KINDS[kind], filter_shape=(size, size, 8, 8)
                )
        view, convolutions = make_graph(nodes, configurations=shapes)
        order = sorted(convolutions, key=lambda node: node.name)
        found.add(find_structure(view, order).fingerprint)
    assert len(found) == 1


def structure(model: Any, *, training: bool = False, batch_size: int = 2) -> Structure:
    traced = trace(model, batch_size=batch_size, training=training, image_size=None)
    view = GraphView(planned_graph(traced, None))
    return find_structure(view, find_convolutions(view, GraphProperties(view))[0])


def network(
    *,
    name: str | None = None,
    size: int = 16,
    stem: int = 8,
    deep_reads_stem: bool = True,
    has_shortcut: bool = False,
    more: int = 0,
    head: int = 3,
    activation: str | None = None,
) -> tf.keras.Model:
    """A branchy network with unnamed layers, and the ways in which others differ."""

    def conv(x: Any, filters: int, kernel_size: int) -> Any:
        return layers.Conv2D(filters, kernel_size, padding="same", use_bias=False)(x)

    image = tf.keras.Input((size, size, 3))
    x = layers.ReLU()(layers.BatchNormalization()(conv(image, stem, 3)))
    a = conv(x, 8, 5)
    b = conv(x if deep_reads_stem else a, 8, 1)
    for _ in range(more):
        b = conv(b, 8, 1)
    b = conv(layers.ReLU()(b), 8, 3)
    x = conv(layers.Add()([a, b, x] if has_shortcut else [a, b]), 6, 3)
    x = layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(image, layers.Dense(head, activation)(x), name=name)


CHANGED: dict[str, tuple[Changes, str]] = {
    "filters of the stem": ({"stem": 9}, "3x3x3x9"),
    "order of the branches": ({"deep_reads_stem": False}, "computes from other"),
    "one more": ({"more": 1}, "and this graph has 6"),
}


@pytest.fixture(scope="module")
def planned() -> Structure:
    return structure(network())


@pytest.mark.parametrize("name", CHANGED)
def test_a_network_that_differs_by_one_attribute_is_another(name: str, planned: Structure) -> None:
    changes, said = CHANGED[name]
    found = structure(network(**changes))
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
