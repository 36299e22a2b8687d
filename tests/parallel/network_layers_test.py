"""The layers of networks that train, as Grappler hands their steps over."""

from __future__ import annotations

import collections
from collections.abc import Callable

import pytest
import tensorflow as tf
from parallel.traced_layers import layer_at, nodes_of_ops

from python.models.googlenet import googlenet
from python.models.small import lenet, paddings, resnet
from tf_interop.convolution import ConvolutionKind
from tf_interop.model.graphs import optimize_graph
from tf_interop.model.graphs import trace as trace_model
from tf_interop.parallel.layers.find import LayerGraph
from tf_interop.parallel.layers.heads import HEAD_OPS
from tf_interop.parallel.layers.prepare import prepare


def layers_of(model: tf.keras.Model) -> LayerGraph:
    traced = trace_model(model, batch_size=4, training=True, image_size=None)
    return prepare(optimize_graph(traced, None))


@pytest.mark.parametrize(
    ("build", "heads", "pools", "joins"),
    [
        (lenet, 5, 2, 0),
        (resnet, 10, 1, 3),
        (paddings, 6, 3, 0),
        (lambda: googlenet((32, 32), 10), 58, 14, 9),
    ],
    ids=["LeNet-5", "ResNet-8", "every padding", "GoogLeNet"],
)
def test_networks_have_the_layers_of_their_authors(
    build: Callable[[], tf.keras.Model], heads: int, pools: int, joins: int
) -> None:
    layers = layers_of(build())
    first_ops = collections.Counter(
        layers.view.ops[layers.view.index_of[layer.name]] for layer in layers.layers
    )
    assert sum(first_ops[op] for op in HEAD_OPS) == heads
    assert sum(first_ops[op] for op in ("MaxPool", "AvgPool", "Mean")) == pools
    assert sum(first_ops[op] for op in ("AddV2", "AddN", "ConcatV2")) == joins
    assert len(layers.layers) == heads + pools + joins

    # No convolution or product is without a layer, and each layer has its gradients.
    assert all(node in layers.layer_of for node in nodes_of_ops(layers, HEAD_OPS))
    roles: dict[int, list[ConvolutionKind]] = collections.defaultdict(list)
    for node in nodes_of_ops(layers, HEAD_OPS):
        roles[layers.layer_of[node]].append(layers.operations[node].role)
    without_input_gradient = 0
    for of_layer in roles.values():
        assert sorted(of_layer, key=lambda role: role.value) in (
            [
                ConvolutionKind.BACKWARD_FILTER,
                ConvolutionKind.BACKWARD_INPUT,
                ConvolutionKind.FORWARD,
            ],
            [ConvolutionKind.BACKWARD_FILTER, ConvolutionKind.FORWARD],
        )
        without_input_gradient += len(of_layer) == 2
    assert without_input_gradient == 1  # the first layer

    # TensorFlow's names say whose gradients they are.
    for node in nodes_of_ops(layers, {"ReluGrad", "MaxPoolGrad", "AvgPoolGrad", "BiasAddGrad"}):
        place = layers.layer_of[node]
        forward = layers.view.names[node].partition("gradient_tape/")[2].rsplit("/", 1)[0]
        scope = forward.rsplit("/", 1)[0]
        names = {layers.view.names[each] for each in layers.layers[place].nodes}
        assert any(name.startswith(scope) for name in names), forward
    # Keras dilates by moving pixels into the batch.
    assert set(layers.why_whole.values()) <= {
        f"nothing divides {op}" for op in ("LRN", "LRNGrad", "SpaceToBatchND", "BatchToSpaceND")
    }


def test_normalization_is_in_the_layer_that_it_normalizes() -> None:
    layers = layers_of(resnet())
    for node in layers.layer_of:
        name = layers.view.names[node]
        for block in ("stem_1", "block0_a_1", "block2_s_1"):
            scope = block.replace("_1", "_norm_1")
            if f"/{scope}/" in name and "gradient_tape" not in name:
                convolution = layer_at(layers, name)
                assert convolution is not None and f"/{block}/" in convolution, name
