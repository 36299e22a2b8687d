"""What is folded in Keras' mixed precision on CPUs, and how far it is from float32."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

import tf_interop
from tf_interop.runtime.plugin import get_plugin
from tf_interop.tensorflow_internals import has_onednn_bfloat16

RANDOM = np.random.default_rng(0)
CHANNELS = 32
IMAGES = RANDOM.normal(size=[2, 24, 24, CHANNELS]).astype(np.float32)

pytestmark = [
    pytest.mark.usefixtures("units_on_cpus"),
    pytest.mark.skipif(not has_onednn_bfloat16(), reason="oneDNN has no bfloat16 on this CPU"),
]


@pytest.fixture(autouse=True)
def enabled(units_on_cpus: None) -> Iterator[None]:
    tf_interop.enable(self_timing=False)
    yield
    tf_interop.disable()


def variable(*shape: int) -> Any:
    """A filter, whose results are of the size of what it reads."""
    return tf.Variable(RANDOM.normal(0, np.prod(shape[:-1]) ** -0.5, shape).astype(np.float32))


def offsets() -> Any:
    return tf.Variable(RANDOM.normal(0, 1, [CHANNELS]).astype(np.float32))


def factors() -> Any:
    return tf.Variable(RANDOM.uniform(0.2, 5, [CHANNELS]).astype(np.float32))


FILTER, DEPTHWISE_FILTER = variable(3, 3, CHANNELS, CHANNELS), variable(3, 3, CHANNELS, 1)
WEIGHTS, BIAS = variable(CHANNELS, CHANNELS), offsets()
SCALE, OFFSET, MEAN, VARIANCE = factors(), offsets(), offsets(), factors()
VOLUME_FILTER = variable(2, 3, 3, CHANNELS, CHANNELS)


class Layers:
    """Layers that compute in one dtype, and normalize in float32."""

    def __init__(self, dtype: tf.DType) -> None:
        self.dtype = dtype

    def narrow(self, value: Any) -> Any:
        return tf.cast(value, self.dtype)

    def convolution(self, x: Any) -> Any:
        return tf.nn.conv2d(x, self.narrow(FILTER), 1, "SAME")

    def depthwise(self, x: Any) -> Any:
        return tf.nn.depthwise_conv2d(x, self.narrow(DEPTHWISE_FILTER), [1] * 4, "SAME")

    def convolved_volume(self, x: Any) -> Any:
        volumes = tf.reshape(x, [1, *x.shape])
        return tf.nn.conv3d(volumes, self.narrow(VOLUME_FILTER), [1] * 5, "SAME")

    def transposed(self, x: Any) -> Any:
        sizes = [2, 48, 48, CHANNELS]
        return tf.nn.conv2d_transpose(x, self.narrow(FILTER), sizes, 2, "SAME")

    def bias(self, x: Any) -> Any:
        return tf.nn.bias_add(x, self.narrow(BIAS))

    def normalized_in_float32(self, x: Any) -> Any:
        wide = tf.cast(x, tf.float32)
        return tf.nn.batch_normalization(wide, MEAN, VARIANCE, OFFSET, SCALE, 1e-3)

    def normalized(self, x: Any) -> Any:
        return self.narrow(self.normalized_in_float32(x))

    def fused_normalized(self, x: Any) -> Any:
        return tf.compat.v1.nn.fused_batch_norm(
            x, SCALE, OFFSET, MEAN, VARIANCE, epsilon=1e-3, is_training=False
        )[0]


def hard_swish(x: Any) -> Any:
    return x * (tf.nn.relu6(x + 3.0) * (1 / 6))


CASES: dict[str, tuple[Callable[[Layers, Any], Any], dict[str, int]]] = {
    "a convolution": (
        lambda on, x: tf.nn.relu(on.normalized(on.convolution(x))),
        {"_FusedConv2D": 1},
    ),
    "a convolution with a bias": (
        lambda on, x: tf.nn.relu6(on.normalized(on.bias(on.convolution(x)))),
        {"_FusedConv2D": 1},
    ),
    "a convolution whose normalization is one op": (
        lambda on, x: tf.nn.relu(on.fused_normalized(on.convolution(x))),
        {"_FusedConv2D": 1},
    ),
    "swish": (
        lambda on, x: tf.nn.silu(on.normalized(on.convolution(x))),
        {"_FusedConv2D": 1},
    ),
    "hard swish": (
        lambda on, x: hard_swish(on.normalized(on.convolution(x))),
        {"_FusedConv2D": 1},
    ),
    "a depthwise convolution": (
        lambda on, x: tf.nn.relu6(on.normalized(on.depthwise(x))),
        {"_FusedDepthwiseConv2dNative": 1},
    ),
    "a depthwise convolution with swish": (
        lambda on, x: tf.nn.silu(on.normalized(on.depthwise(on.convolution(x)))),
        {"Conv2D": 1, "_FusedConv2D": 1},
    ),
    "a shortcut": (
        lambda on, x: tf.nn.relu(on.normalized(on.convolution(x)) + x),
        {"_FusedConv2D": 1},
    ),
    "a volume": (
        lambda on, x: tf.nn.elu(on.normalized(on.convolved_volume(x))),
        {"_FusedConv3D": 1},
    ),
    "a transposed convolution": (
        lambda on, x: on.normalized(on.transposed(x)),
        {"Conv2DBackpropInput": 1, "BiasAdd": 1},
    ),
    "a padding": (
        lambda on, x: on.normalized(
            tf.nn.conv2d(tf.pad(x, [[0, 0], [0, 1], [0, 1], [0, 0]]), on.narrow(FILTER), 2, "VALID")
        ),
        {"_FusedConv2D": 1},
    ),
    "a matrix product": (
        lambda on, x: tf.nn.relu(
            on.normalized(on.convolution(x)[:, 0, 0] @ on.narrow(WEIGHTS) + on.narrow(BIAS))
        ),
        {"Conv2D": 1, "_FusedMatMul": 1},
    ),
    "a normalization that is read in float32": (
        lambda on, x: on.normalized_in_float32(on.convolution(x)),
        {"Conv2D": 1, "Cast": 1, "Mul": 1, "AddV2": 1},
    ),
    "an activation in float32": (
        lambda on, x: on.narrow(tf.nn.relu(on.normalized_in_float32(on.convolution(x)))),
        {"Conv2D": 1, "Cast": 2, "Mul": 1, "AddV2": 1, "Relu": 1},
    ),
    "an activation that is one with its normalization, in float32": (
        lambda on, x: on.narrow(
            tf.nn.relu(on.fused_normalized(tf.cast(on.convolution(x), tf.float32)))
        ),
        {"Conv2D": 1, "Cast": 2, "_FusedBatchNormEx": 1},
    ),
    "a normalization after a shortcut": (
        lambda on, x: on.normalized(on.normalized(on.convolution(x)) + x),
        {"_FusedConv2D": 1, "Cast": 2, "Mul": 1, "AddV2": 1},
    ),
    "a convolution that others read, too": (
        lambda on, x: (lambda y: on.normalized(y) + y)(on.convolution(x)),
        {"Conv2D": 1, "Cast": 2, "Mul": 1, "AddV2": 2},
    ),
}
MOST = {
    "a depthwise convolution": 1.4,
    "a matrix product": 1.6,
    "a transposed convolution": 1.2,
}
"""The deviation from float32 where it is more than stock's: the bias is rounded once more."""
SHOWN = {
    *("Conv2D", "DepthwiseConv2dNative", "MatMul", "Pad", "Cast", "Mul", "AddV2", "BiasAdd"),
    *("Conv2DBackpropInput", "Conv3D", "_FusedConv3D"),
    *("_FusedConv2D", "_FusedDepthwiseConv2dNative", "_FusedMatMul"),
    *("Relu", "Relu6", "_MklSwish", "FusedBatchNormV3", "_FusedBatchNormEx"),
}
"""The ops that the table counts."""


def steps_of(node: node_def_pb2.NodeDef) -> list[node_def_pb2.NodeDef]:
    """The steps of a unit."""
    is_unit = node.op == "TfInterop>Unit"
    steps = node.attr["steps"].list.s if is_unit else ()
    return [node_def_pb2.NodeDef.FromString(step) for step in steps]


def deviation(result: Any, exact: Any) -> float:
    """The root of the mean square, as a part of that of the exact values."""
    difference = tf.cast(result, tf.float32) - exact
    return float(tf.norm(difference) / tf.norm(exact))


@pytest.mark.parametrize("case", CASES)
def test_folds_and_stays_near_float32(case: str) -> None:
    function, left = CASES[case]
    images = tf.cast(IMAGES, tf.bfloat16)
    exact = function(Layers(tf.float32), tf.cast(images, tf.float32))
    of_stock = function(Layers(tf.bfloat16), images)
    graphs: list[Any] = []
    with get_plugin().observe(lambda graph_def, _: graphs.append(graph_def)):
        result = tf.function(function)(Layers(tf.bfloat16), images)
    assert not get_plugin().failures
    nodes = [*graphs[-1].node, *(step for node in graphs[-1].node for step in steps_of(node))]
    assert collections.Counter(node.op for node in nodes if node.op in SHOWN) == left
    assert result.dtype == of_stock.dtype
    assert 0 < deviation(result, exact) <= MOST.get(case, 1) * deviation(of_stock, exact) < 0.01


def test_arithmetic_in_bfloat16_after_a_convolution_in_float32_stays() -> None:
    narrow = Layers(tf.bfloat16).narrow

    def function(x: Any) -> Any:
        y = narrow(tf.nn.conv2d(x, FILTER, 1, "SAME"))
        return tf.cast(y * narrow(SCALE) + narrow(OFFSET), tf.float32)

    result = tf.function(function)(IMAGES)
    # In float32 the deviation would be less than a millionth.
    assert 1e-3 < deviation(result, tf.nn.conv2d(IMAGES, FILTER, 1, "SAME") * SCALE + OFFSET) < 0.01


def test_a_changed_variable_is_seen() -> None:
    function = tf.function(CASES["a convolution"][0])
    layers, images = Layers(tf.bfloat16), tf.cast(IMAGES, tf.bfloat16)
    before = function(layers, images)
    original = SCALE.numpy()
    SCALE.assign(-original)
    try:
        after = function(layers, images)
        assert deviation(after, CASES["a convolution"][0](Layers(tf.float32), IMAGES)) < 0.02
        assert deviation(after, tf.cast(before, tf.float32)) > 0.5
    finally:
        SCALE.assign(original)
