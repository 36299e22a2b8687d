"""What is folded, and what a normalization that cannot be folded becomes; numbers against stock.

In Keras' mixed precision on CPUs with bfloat16, numbers are compared with float32.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from unnoticed import run_python

import tf_interop
from tf_interop.convolution import RefusalReason
from tf_interop.runtime.plugin import get_plugin
from tf_interop.tensorflow_internals import has_onednn_bfloat16

RANDOM = np.random.default_rng(0)
CHANNELS = 24
IMAGES = RANDOM.normal(size=[2, 32, 32, CHANNELS]).astype(np.float32)
LARGE_IMAGES = RANDOM.normal(size=[2, 64, 64, CHANNELS]).astype(np.float32)

pytestmark = pytest.mark.usefixtures("units_on_cpus")

Layer = Callable[[Any], Any]
Ops = dict[str, int]


@pytest.fixture(autouse=True)
def enabled(units_on_cpus: None) -> Iterator[None]:
    tf_interop.enable(self_timing=False)
    yield
    tf_interop.disable()


def filters(*shape: int) -> Any:
    """Results are of the size of what they read."""
    return tf.Variable(RANDOM.normal(0, np.prod(shape[:-1]) ** -0.5, shape).astype(np.float32))


def offsets(*shape: int) -> Any:
    return tf.Variable(RANDOM.normal(0, 0.3, shape or [CHANNELS]).astype(np.float32))


def factors(*shape: int) -> Any:
    return tf.Variable(RANDOM.uniform(0.5, 1.5, shape or [CHANNELS]).astype(np.float32))


# Layers compute in the dtype of what they read, and their variables are float32, as in Keras.


def of(*layers: Layer) -> Layer:
    return lambda x: functools.reduce(lambda value, layer: layer(value), layers, x)


def convolution(size: int = 1, *strides: int, padding: Any = "SAME", **options: Any) -> Layer:
    values = filters(size, size, CHANNELS, CHANNELS)
    strides = strides or (1,)
    return lambda x: tf.nn.conv2d(x, tf.cast(values, x.dtype), strides, padding, **options)


def depthwise(channels: int = CHANNELS, of_each: int = 1, stride: int = 1) -> Layer:
    values, padding = filters(3, 3, channels, of_each), "VALID" if stride > 1 else "SAME"
    strides = [1, stride, stride, 1]
    return lambda x: tf.nn.depthwise_conv2d(x, tf.cast(values, x.dtype), strides, padding)


def normalization(*shape: int) -> Layer:
    """A batch normalization as Keras 3 computes it, in float32."""
    scale, mean, variance = factors(*shape), offsets(*shape), factors(*shape)
    offset = offsets(*shape)

    def normalize(x: Any) -> Any:
        wide = tf.cast(x, tf.float32)
        return tf.nn.batch_normalization(wide, mean, variance, offset, scale, 1e-3)

    return normalize


def narrow(layer: Layer) -> Layer:
    return lambda x: tf.cast(layer(x), x.dtype)


def bias(channels: int = CHANNELS) -> Layer:
    values = offsets(channels)
    return lambda x: tf.nn.bias_add(x, tf.cast(values, x.dtype))


def padded(*amounts: int, channels: int = 0) -> Layer:
    top, bottom, left, right = amounts
    edges = [[0, 0], [top, bottom], [left, right], [channels, 0]]
    return lambda x: tf.pad(x, edges)


def hard_swish(x: Any, shift: float = 3.0) -> Any:
    return x * (tf.nn.relu6(x + shift) * (1 / 6))


def fused_normalization(x: Any) -> Any:
    """A batch normalization as Keras 2 computes it."""
    return tf.compat.v1.nn.fused_batch_norm(
        x, SCALE, OFFSET, OFFSET, SCALE, epsilon=1e-3, is_training=False
    )[0]


def volumes(x: Any) -> Any:
    values = tf.reshape(x, [1, 4, 16, 32, CHANNELS])
    return tf.nn.conv3d(values, tf.cast(VOLUME_FILTER, x.dtype), [1] * 5, "SAME")


def transposed(x: Any) -> Any:
    sizes = [2, 64, 64, 12]
    return tf.nn.conv2d_transpose(x, tf.cast(TRANSPOSED_FILTER, x.dtype), sizes, 2, "SAME")


def widened(x: Any) -> Any:
    return tf.nn.conv2d_transpose(x, FILTER, x.shape, 1, "SAME")


def product(x: Any) -> Any:
    return tf.reduce_mean(x, [1, 2]) @ tf.cast(WEIGHTS, x.dtype)


def rows(x: Any) -> Any:
    """A Keras Dense layer without a bias, of an image."""
    return tf.reshape(tf.reshape(x, [-1, CHANNELS]) @ WEIGHTS, [2, 32, 32, 12])


def of_two(x: Any) -> Any:
    return tf.concat([of(conv, norm)(x), of(conv, other_norm)(x + 1.0)], 3)


SCALE, OFFSET, FACTORS_OF_96, PIXELS = factors(), offsets(), factors(96), factors(64, 64, 1)
ROW = offsets(1, 12)
FILTER, LARGER_FILTER = filters(1, 1, CHANNELS, CHANNELS), filters(1, 1, CHANNELS, CHANNELS + 1)
VOLUME_FILTER, WEIGHTS = filters(2, 3, 3, CHANNELS, 12), filters(CHANNELS, 12)
TRANSPOSED_FILTER, EVEN_FILTER = filters(3, 3, 12, CHANNELS), filters(2, 4, CHANNELS, CHANNELS)
conv, other_conv, wide_conv = convolution(), convolution(), convolution(3)
in_depth, biased, biased_12 = depthwise(), bias(), bias(12)
norm, other_norm = narrow(normalization()), narrow(normalization())
norm_12, norm_nchw = narrow(normalization(12)), normalization(1, CHANNELS, 1, 1)
relu, relu6, elu, leaky_relu, swish = (
    *(tf.nn.relu, tf.nn.relu6, tf.nn.elu, tf.nn.leaky_relu),
    tf.nn.silu,
)

SHOWN = {
    *("Conv2D", "DepthwiseConv2dNative", "Conv2DBackpropInput", "Conv3D", "MatMul"),
    *("_FusedConv2D", "_FusedDepthwiseConv2dNative", "_FusedConv3D", "_FusedMatMul"),
    *("Mul", "AddV2", "Sub", "RealDiv", "BiasAdd", "ConcatV2", "Pad", "Cast", "Erfc"),
    *("Relu", "Relu6", "Elu", "LeakyRelu", "_MklSwish"),
    *("FusedBatchNormV3", "_FusedBatchNormEx"),
}
"""The ops that the tables count."""


def nodes_of(function: Layer, images: Any) -> tuple[Any, list[node_def_pb2.NodeDef]]:
    """What a function returns, and the nodes of the graph that computed it, with units' steps."""
    graphs: list[graph_pb2.GraphDef] = []
    with get_plugin().observe(lambda graph_def, _: graphs.append(graph_def)):
        result = tf.function(function)(images)
    assert not get_plugin().failures
    nodes = [*graphs[-1].node]
    for node in graphs[-1].node:
        if node.op == "TfInterop>Unit":
            nodes += map(node_def_pb2.NodeDef.FromString, node.attr["steps"].list.s)
    return result, nodes


def assert_stocks(got: Any, expected: Any) -> None:
    for one, other in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        # Sums of up to 250 terms, rounded in another order.
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=5e-6)


def assert_becomes(function: Layer, images: Any, left: Ops) -> None:
    """A function computes what it does in stock TensorFlow, with these of the ops of `SHOWN`."""
    result, nodes = nodes_of(function, images)
    assert_stocks(result, function(tf.constant(images)))
    assert collections.Counter(node.op for node in nodes if node.op in SHOWN) == left


ONE = {"_FusedConv2D": 1}
AFTER_ONE = {"Conv2D": 1, "_FusedDepthwiseConv2dNative": 1}
PRODUCT = {"Conv2D": 1, "_FusedMatMul": 1}
SWISH_LEFT = {"_FusedConv2D": 1, "AddV2": 1, "Relu6": 1, "Mul": 2}
FOLDED: dict[str, tuple[Layer, Ops]] = {
    "convolution": (of(conv, biased, norm, relu), ONE),
    "depthwise": (of(conv, in_depth, biased, norm, relu6), AFTER_ONE),
    "volumes": (of(volumes, biased_12, norm_12, elu), {"_FusedConv3D": 1}),
    "matrix product": (of(conv, product, biased_12, norm_12, relu), PRODUCT),
    "transposed": (
        of(transposed, biased_12, norm_12, relu),
        {"Conv2DBackpropInput": 1, "BiasAdd": 1, "Relu": 1},
    ),
    "shortcut": (lambda x: relu(of(conv, norm)(x) + x), ONE),
    "padding": (of(padded(0, 1, 0, 1), convolution(3, 2, padding="VALID"), norm), ONE),
    "scalars": (lambda x: (conv(x) * SCALE / 2.0 - 1.0) * 0.5, ONE),
    "division": (lambda x: (conv(x) - OFFSET) / SCALE, ONE),
    "fused normalization": (of(conv, fused_normalization, relu), ONE),
    "fused normalization of depthwise": (of(conv, in_depth, fused_normalization, relu), AFTER_ONE),
    "fused normalization and Relu without a kernel": (
        of(widened, fused_normalization, relu),
        {"Conv2DBackpropInput": 1, "_FusedDepthwiseConv2dNative": 1},
    ),
    "hard swish": (of(conv, norm, hard_swish), ONE),
    "hard swish, multiplied in another order": (
        of(conv, norm, lambda y: y * relu6(y + 3.0) * (1 / 6)),
        ONE,
    ),
    "hard swish without an offset": (
        lambda x: hard_swish(conv(x) * SCALE),
        {"Conv2D": 1, "AddV2": 1, "Relu6": 1, "Mul": 2},
    ),
    "almost hard swish": (of(conv, norm, lambda y: hard_swish(y, 2.5)), SWISH_LEFT),
    "hard swish whose gate is read elsewhere": (
        of(conv, norm, lambda y: (hard_swish(y), relu6(y + 3.0))),
        SWISH_LEFT,
    ),
    "swish after a bias": (of(conv, biased, swish), ONE),
    "swish after depthwise": (
        of(conv, in_depth, norm, swish),
        {"Conv2D": 1, "_FusedConv2D": 1},
    ),
    "swish after depthwise with strides and padding": (
        of(padded(0, 1, 0, 1), depthwise(stride=2), norm, swish),
        ONE,
    ),
    "swish after depthwise with two results for each channel": (
        of(lambda x: x[..., ::2], depthwise(CHANNELS // 2, of_each=2), norm, swish),
        {"_FusedDepthwiseConv2dNative": 1, "_MklSwish": 1},
    ),
    "gelu of rows": (of(conv, rows, biased_12, tf.nn.gelu), PRODUCT),
    "gelu of an approximation": (
        of(conv, rows, biased_12, lambda y: tf.nn.gelu(y, approximate=True)),
        PRODUCT | {"Mul": 5, "AddV2": 2},
    ),
    "normalized rows": (of(conv, rows, biased_12, norm_12), PRODUCT),
    "rows that become others": (
        of(conv, rows, lambda y: tf.reshape(y, [2, 32, 4, 96]) * FACTORS_OF_96),
        {"Conv2D": 1, "MatMul": 1, "Mul": 1},
    ),
    "a row that a parameter gives another rank": (
        lambda x: (conv(x), tf.reshape(x[0, 0, :1] @ WEIGHTS, [12]) + ROW, biased(x)),
        {"Conv2D": 1, "MatMul": 1, "AddV2": 1, "BiasAdd": 1},
    ),
    "an activation that Grappler moves after a concatenation": (
        lambda x: tf.concat(
            [of(conv, norm, relu)(x), of(in_depth, biased, relu)(x), of(conv, biased, relu)(x)], 3
        ),
        {"_FusedConv2D": 2, "_FusedDepthwiseConv2dNative": 1, "ConcatV2": 1},
    ),
    "an activation after a concatenation with something else": (
        lambda x: relu6(tf.concat([x, of(conv, norm)(x)], 1)),
        {"_FusedConv2D": 1, "ConcatV2": 1, "Relu6": 1},
    ),
    "an activation after a concatenation that would change its results again": (
        of(of_two, elu),
        {"AddV2": 1, "_FusedConv2D": 2, "ConcatV2": 1, "Elu": 1},
    ),
    "an activation after a concatenation that something else reads": (
        of(of_two, lambda y: (relu(y), tf.reduce_max(y))),
        {"AddV2": 1, "_FusedConv2D": 2, "ConcatV2": 1, "Relu": 1},
    ),
}


@pytest.mark.parametrize("case", FOLDED)
def test_folds(case: str) -> None:
    function, left = FOLDED[case]
    assert_becomes(function, IMAGES, left)


def test_folds_what_has_a_kernel_without_onednn() -> None:
    """The fused kernel for that reads all channels."""
    run_python(
        """
        import numpy as np, tensorflow as tf, tf_interop
        random = np.random.default_rng(0)
        dense, grouped = (
            tf.Variable(random.normal(size=[3, 3, depth, 8]).astype("f") / 8) for depth in (8, 2)
        )
        scale, offset = (tf.Variable(random.uniform(0.5, 1.5, [8]).astype("f")) for _ in range(2))
        def function(x):
            for each in (dense, grouped):
                x = tf.nn.relu(tf.nn.conv2d(x, each, 1, "SAME") * scale + offset)
            return x
        images = random.normal(size=[2, 16, 16, 8]).astype("f")
        expected = function(tf.constant(images))
        tf_interop.enable()
        run = tf.function(function)
        for _ in range(3):
            np.testing.assert_allclose(run(images), expected, rtol=1e-4, atol=1e-5)
        status = tf_interop.status()
        assert not status.failures and status.folded_graphs[0].fold_count, status
        """,
        TF_ENABLE_ONEDNN_OPTS="0",
    )


def test_a_convolution_that_adds_a_shortcut_is_a_unit() -> None:
    """Several threads at once may not call oneDNN's kernel for it alone."""
    _, nodes = nodes_of(FOLDED["shortcut"][0], IMAGES)
    assert "TfInterop>Unit" in {node.op for node in nodes}


wide_norm = normalization()
NOT_IN_BFLOAT16: dict[str, tuple[Layer, Ops]] = {
    "a normalization that is read in float32": (
        of(conv, wide_norm),
        {"Conv2D": 1, "Cast": 1, "Mul": 1, "AddV2": 1},
    ),
    "an activation in float32": (
        of(conv, narrow(of(wide_norm, relu))),
        {"Conv2D": 1, "Cast": 2, "Mul": 1, "AddV2": 1, "Relu": 1},
    ),
    "an activation that is one with its normalization, in float32": (
        of(conv, narrow(lambda y: relu(fused_normalization(tf.cast(y, tf.float32))))),
        {"Conv2D": 1, "Cast": 2, "_FusedBatchNormEx": 1},
    ),
    "a normalization after a shortcut": (
        lambda x: other_norm(of(conv, norm)(x) + x),
        {"_FusedConv2D": 1, "Cast": 2, "Mul": 1, "AddV2": 1},
    ),
    "a convolution that others read, too": (
        of(conv, lambda y: norm(y) + y),
        {"Conv2D": 1, "Cast": 2, "Mul": 1, "AddV2": 2},
    ),
}
"""What does not fold in mixed precision, or only in part."""

IN_BFLOAT16 = {
    **dict.fromkeys(["convolution", "fused normalization", "hard swish", "swish after a bias"], 1),
    **dict.fromkeys(["swish after depthwise", "shortcut", "padding", "volumes"], 1),
    **{"depthwise": 1.4, "matrix product": 1.6, "transposed": 1.2},
    **dict.fromkeys(NOT_IN_BFLOAT16, 1),
}
"""The deviation from float32, at most, as times that of stock TensorFlow.

It is more where the bias is rounded once more.
"""

with_bfloat16 = pytest.mark.skipif(
    not has_onednn_bfloat16(), reason="oneDNN has no bfloat16 on this CPU"
)


def deviation(result: Any, exact: Any) -> float:
    """The root of the mean square, as a part of that of the exact values."""
    difference = tf.cast(result, tf.float32) - exact
    return float(tf.norm(difference) / tf.norm(exact))


@with_bfloat16
@pytest.mark.parametrize("case", IN_BFLOAT16)
def test_folds_in_mixed_precision_and_stays_near_float32(case: str) -> None:
    function, left = (FOLDED | NOT_IN_BFLOAT16)[case]
    images = tf.cast(IMAGES, tf.bfloat16)
    exact, of_stock = function(tf.cast(images, tf.float32)), function(images)
    result, nodes = nodes_of(function, images)
    assert collections.Counter(node.op for node in nodes if node.op in SHOWN) == left
    assert result.dtype == of_stock.dtype
    assert 0 < deviation(result, exact) <= IN_BFLOAT16[case] * deviation(of_stock, exact) < 0.01


@with_bfloat16
def test_arithmetic_in_bfloat16_after_a_convolution_in_float32_stays() -> None:
    def function(x: Any) -> Any:
        y, *parameters = (tf.cast(each, tf.bfloat16) for each in (conv(x), SCALE, OFFSET))
        return tf.cast(y * parameters[0] + parameters[1], tf.float32)

    # In float32 the deviation would be less than a millionth.
    assert 1e-3 < deviation(tf.function(function)(IMAGES), conv(IMAGES) * SCALE + OFFSET) < 0.01


ACTIVATIONS: tuple[Layer, ...] = (relu, relu6, elu, leaky_relu, swish, hard_swish, tf.nn.gelu)
OF_SEVEN: dict[str, tuple[Layer, Ops]] = {
    "Conv2D": (of(conv, norm), {"_FusedConv2D": 7, "Erfc": 1}),
    "Conv2D in NCHW": (
        lambda x: norm_nchw(
            tf.nn.conv2d(tf.transpose(x, [0, 3, 1, 2]), FILTER, 1, "SAME", data_format="NCHW")
        ),
        {"_FusedConv2D": 7, "Erfc": 1},
    ),
    # Swish and LeakyRelu have a kernel for as many groups as channels.
    "DepthwiseConv2dNative": (
        of(conv, in_depth, norm),
        {"Conv2D": 7, "_FusedDepthwiseConv2dNative": 5, "_FusedConv2D": 2, "Erfc": 1},
    ),
    "Conv3D": (
        of(lambda x: tf.nn.conv3d(x[None], VOLUME_FILTER, [1] * 5, "SAME"), norm_12),
        {"_FusedConv3D": 7, "_MklSwish": 1, "Relu6": 1, "Erfc": 1},
    ),
    "MatMul": (
        of(conv, product, norm_12),
        {"Conv2D": 7, "_FusedMatMul": 7, "_MklSwish": 1, "Relu6": 1},
    ),
}
"""Normalized operations, and what the graph has if each of the activations follows one."""


@pytest.mark.parametrize("op", OF_SEVEN)
def test_folds_activations(op: str) -> None:
    normalized, expected = OF_SEVEN[op]

    def function(x: Any) -> Any:
        return [each(normalized(x[:, :, n:])) for n, each in enumerate(ACTIVATIONS)]

    result, nodes = nodes_of(function, IMAGES)
    assert_stocks(result, function(IMAGES))
    # Parts of activations are multiplications and additions.
    shown = (node.op for node in nodes if node.op in SHOWN - {"Mul", "AddV2"})
    assert collections.Counter(shown) == expected


@pytest.mark.parametrize(
    "compute",
    [
        lambda: FILTER - tf.reduce_mean(FILTER, [0, 1, 2], keepdims=True),
        lambda: LARGER_FILTER[..., :CHANNELS],
        lambda: tf.sqrt(tf.abs(FILTER)),  # TensorFlow makes one operation of it
    ],
    ids=["standardized", "a part", "several functions"],
)
def test_keeps_filters_that_are_computed(compute: Callable[[], Any]) -> None:
    def function(x: Any) -> Any:
        return tf.nn.conv2d(x, compute(), 1, "SAME")

    result, nodes = nodes_of(function, IMAGES)
    assert_stocks(result, function(IMAGES))
    ops = [node.op for node in nodes]
    assert {"Sub", "Mean", "StridedSlice", "_UnaryOpsComposition", "Abs"}.isdisjoint(ops)
    assert ops.count("Conv2D") == 1


STAYS = {"Mul": 1, "AddV2": 1, "Conv2D": 1}
RESCALED: dict[str, tuple[Layer, Ops]] = {
    "before a convolution": (of(norm, relu, conv), AFTER_ONE),
    "after a concatenation": (
        lambda x: relu6(norm(tf.concat([conv(x)[..., 4:], x[..., :4]], -1))),
        AFTER_ONE | {"ConcatV2": 1},
    ),
    "after an addition that others read, read by two": (
        of(lambda x: conv(x) + x, lambda y: (y, elu(norm(y)), other_norm(y))),
        {"Conv2D": 1, "AddV2": 1, "_FusedDepthwiseConv2dNative": 2},
    ),
    "two in a row": (of(norm, other_norm, conv), AFTER_ONE),
    "scalars": (lambda x: conv((x / 127.5 - 1.0 - OFFSET) / SCALE), AFTER_ONE),
    "an activation without a kernel": (
        of(norm, leaky_relu, conv),
        AFTER_ONE | {"LeakyRelu": 1},
    ),
    "an inner value that others read": (
        of(lambda x: x * SCALE, lambda y: (conv(y + OFFSET), y)),
        STAYS,
    ),
    "a factor that is no parameter": (
        lambda x: conv(x * tf.reduce_mean(x, [1, 2], keepdims=True) + OFFSET),
        STAYS,
    ),
    "a factor of each pixel": (lambda x: conv(x * PIXELS + OFFSET), STAYS),
    "a matrix": (
        lambda x: tf.reshape(norm(tf.reshape(conv(x), [-1, CHANNELS])), x.shape),
        STAYS,
    ),
}


@pytest.mark.parametrize("case", RESCALED)
def test_makes_one_operation(case: str) -> None:
    function, left = RESCALED[case]
    assert_becomes(function, LARGE_IMAGES, left)


def test_keeps_passes_that_are_faster() -> None:
    assert_becomes(of(norm, relu, conv), IMAGES[:, :8], STAYS | {"Relu": 1})


@pytest.mark.parametrize("activation", [tf.identity, relu, relu6])
def test_the_fused_op_of_a_normalization_is_replaced_at_any_size(activation: Layer) -> None:
    assert_becomes(of(fused_normalization, activation, conv), IMAGES[:, :8], AFTER_ONE)


strided = convolution(3, 2, padding="VALID")
strided_depthwise = depthwise(stride=2)
as_same = padded(0, 1, 0, 1)
PADDED: dict[str, tuple[Layer, int]] = {
    "convolution": (of(padded(0, 3, 2, 1), strided, norm), 0),
    "convolution without a fold": (of(padded(1, 1, 1, 1), strided), 0),
    "depthwise as SAME": (of(as_same, strided_depthwise, norm, conv), 0),
    "depthwise unlike SAME": (of(padded(1, 1, 1, 1), strided_depthwise, conv), 1),
    "two readers": (of(as_same, lambda y: strided(y) + strided_depthwise(y)), 0),
    "a reader of another kind": (
        of(as_same, lambda y: strided(y) + tf.nn.max_pool2d(y, 3, 2, "VALID")),
        1,
    ),
    # Stock TensorFlow fails where it merges such a Pad with a Conv2D.
    "padded channels": (
        of(padded(0, 1, 0, 1, channels=1), depthwise(CHANNELS + 1, stride=2), lambda y: y[..., 1:]),
        1,
    ),
    "after a normalization": (of(norm, relu, padded(1, 1, 1, 1), strided), 0),
}


@pytest.mark.parametrize("case", PADDED)
def test_merges_padding(case: str) -> None:
    function, left = PADDED[case]
    # A convolution lets the plugin see graphs that have none.
    result, nodes = nodes_of(lambda x: (function(x), conv(x)), LARGE_IMAGES)
    assert_stocks(result[0], function(LARGE_IMAGES))
    assert [node.op for node in nodes].count("Pad") == left


def test_infinite_values_and_nan_stay_where_they_are() -> None:
    images = LARGE_IMAGES.copy()
    images[0, 3, 4] = np.nan
    images[0, 5, ::2, ::3] = np.inf
    images[1, 6, 7] = -np.inf
    result, nodes = nodes_of(lambda x: (norm(x), conv(x)), images)
    assert "_FusedDepthwiseConv2dNative" in {node.op for node in nodes}
    assert_stocks(result[0], norm(images))


def test_an_unknown_batch_counts_as_one_image_and_may_be_empty() -> None:
    function = of(norm, relu, conv)
    run = tf.function(function, input_signature=[tf.TensorSpec([None, 64, 64, CHANNELS])])
    for count in (2, 0, 1):
        assert_stocks(run(LARGE_IMAGES[:count]), function(LARGE_IMAGES[:count]))
    assert get_plugin().fold_reports[0].rescaling_count == 1


def test_keeps_passes_over_images_of_unknown_size() -> None:
    function = of(norm, relu, conv)
    run = tf.function(function, input_signature=[tf.TensorSpec([None, None, None, CHANNELS])])
    assert_stocks(run(LARGE_IMAGES), function(LARGE_IMAGES))
    report = get_plugin().fold_reports[0]
    assert report.rescaling_count == 0
    assert RefusalReason.SHAPE in {refusal.reason for refusal in report.refusals}


def test_a_change_of_the_normalization_is_seen() -> None:
    scale = factors()
    run = tf.function(lambda x: conv(x * scale + OFFSET))
    for factor in (1.0, 2.0, -3.0):
        scale.assign(tf.ones_like(scale) * factor)
        assert_stocks(run(LARGE_IMAGES), conv(LARGE_IMAGES * factor + OFFSET))
    assert get_plugin().fold_reports[0].rescaling_count == 1


@pytest.mark.parametrize(("other_batch", "is_fused"), [(None, False), (2, False), (0, True)])
def test_a_shortcut_of_an_unknown_batch_size_is_fused_if_it_cannot_broadcast(
    other_batch: int | None, is_fused: bool
) -> None:
    """With 0 the shortcut comes from the same images; otherwise from others, perhaps only one."""
    image = tf.TensorSpec([None, 32, 32, CHANNELS])
    other = tf.TensorSpec([other_batch or None, 32, 32, CHANNELS])

    def program(x: Any, y: Any) -> Any:
        shortcut = tf.nn.max_pool2d(x, 3, 1, "SAME") if other_batch == 0 else relu(y)
        return relu(of(conv, norm)(x) + shortcut)

    images = [IMAGES, IMAGES[:1] if other_batch is None else IMAGES]
    seen: list[graph_pb2.GraphDef] = []
    with get_plugin().observe(lambda graph_def, _: seen.append(graph_def)):
        result = tf.function(program, input_signature=[image, other], autograph=False)(*images)
    assert is_fused != any(node.op == "AddV2" for node in seen[-1].node)
    np.testing.assert_allclose(result, program(*images), rtol=1e-4, atol=1e-4)


def test_a_sum_of_images_of_different_sizes_is_refused_as_in_stock() -> None:
    spec = tf.TensorSpec([None, None, None, CHANNELS])
    run = tf.function(lambda x, y: tf.add_n([of(conv, norm)(x), y]), input_signature=[spec, spec])
    for other in (LARGE_IMAGES, tf.transpose(IMAGES[:, :8], [0, 2, 1, 3])):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="must have the same size and shape"
        ):
            run(IMAGES[:, :8], other)
    assert_stocks(run(IMAGES, IMAGES), of(conv, norm)(IMAGES) + IMAGES)


def test_the_gradient_of_a_grouped_convolution_has_more_channels_than_a_group() -> None:
    grouped = filters(3, 3, CHANNELS // 2, CHANNELS)

    def gradient(y: Any) -> Any:
        strides = [1, 1, 1, 1]
        x = tf.raw_ops.Conv2DBackpropInput(
            input_sizes=y.shape, filter=grouped, out_backprop=y, strides=strides, padding="SAME"
        )
        return x * 0.5 + 1.0

    assert_stocks(tf.function(gradient)(IMAGES), gradient(IMAGES))


def last_block(inner: Layer = wide_conv) -> Layer:
    """The last block of a stage of a ResNet, which adds a shortcut if it has the same size."""

    def block(x: Any) -> Any:
        shortcut = of(conv, norm, relu)(x)
        result = of(inner, other_norm, relu, other_conv, norm)(shortcut)
        return relu(result + shortcut) if result.shape == shortcut.shape else relu(result)

    return block


def two_readers(stride: int = 2) -> Layer:
    strided, other = convolution(1, stride), convolution(1, 2)
    return lambda x: (of(strided, norm, relu)(x), other(x))


def even(x: Any) -> Any:
    return tf.nn.conv2d(x, EVEN_FILTER, 1, "SAME", dilations=[2, 3])


readers = two_readers()
PAD = [[0, 0], [1, 1], [1, 1], [0, 0]]
WHOLE = [1, 1]
STRIDED: dict[str, tuple[Layer, list[list[int]], int]] = {
    "a block that adds a shortcut": (of(last_block(), readers), [*[WHOLE] * 4, [2, 2]], 1),
    "even sizes and dilations": (of(last_block(even), readers), [*[WHOLE] * 4, [2, 2]], 1),
    "without padding": (
        of(last_block(convolution(3, padding="VALID")), readers),
        [*[WHOLE] * 4, [2, 2]],
        0,
    ),
    "strides of columns, and a convolution with strides": (
        of(convolution(3, 2), convolution(1, 1, 3), convolution(1, 2)),
        [WHOLE, [2, 2], [2, 6]],
        0,
    ),
    "something else reads the block": (
        of(last_block(), lambda y: (readers(y), tf.reduce_mean(y))),
        [*[WHOLE] * 3, [2, 2], [2, 2]],
        0,
    ),
    "different strides": (of(last_block(), two_readers(3)), [*[WHOLE] * 3, [2, 2], [3, 3]], 0),
    "a reader that pads": (
        of(last_block(), convolution(1, 2, padding=PAD)),
        [*[WHOLE] * 3, [2, 2]],
        0,
    ),
    "a reader of more pixels": (of(last_block(), convolution(3, 2)), [*[WHOLE] * 3, [2, 2]], 0),
}
"""Functions, the strides of their convolutions then, and how many averages take pixels apart."""


@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.parametrize("size", [(32, 29), (2, 1)])
def test_computes_only_pixels_that_are_read(name: str, size: tuple[int, int]) -> None:
    function, expected, pools = STRIDED[name]
    if name == "without padding" and min(size) < 3:
        pytest.skip("No pixel is left.")
    images = IMAGES[:, : size[0], : size[1]]
    result, nodes = nodes_of(function, images)
    assert_stocks(result, function(images))
    convolutions = (node for node in nodes if node.op in ("Conv2D", "_FusedConv2D"))
    found = sorted([*node.attr["strides"].list.i][1:3] for node in convolutions)
    assert found == expected
    assert sum(node.op == "AvgPool" for node in nodes) == pools
