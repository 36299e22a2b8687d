"""What is folded, and what a normalization that cannot be folded becomes; numbers against stock."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

import tf_interop
from tf_interop.convolution import RefusalReason
from tf_interop.runtime.plugin import get_plugin

RANDOM = np.random.default_rng(0)
CHANNELS = 24
IMAGES = RANDOM.normal(size=[2, 32, 32, CHANNELS]).astype(np.float32)
LARGE_IMAGES = RANDOM.normal(size=[2, 64, 64, CHANNELS]).astype(np.float32)

pytestmark = pytest.mark.usefixtures("units_on_cpus")

Function = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def enabled(units_on_cpus: None) -> Iterator[None]:
    tf_interop.enable(self_timing=False)
    yield
    tf_interop.disable()


def variable(*shape: int) -> Any:
    """A filter, whose results are of the size of what it reads."""
    return tf.Variable(RANDOM.normal(0, np.prod(shape[:-1]) ** -0.5, shape).astype(np.float32))


def offsets(*shape: int) -> Any:
    return tf.Variable(RANDOM.normal(0, 0.3, shape or [CHANNELS]).astype(np.float32))


def factors(*shape: int) -> Any:
    return tf.Variable(RANDOM.uniform(0.5, 1.5, shape or [CHANNELS]).astype(np.float32))


def normalization(*shape: int) -> Function:
    """A batch normalization as Keras 3 computes it."""
    scale, offset, mean, variance = (
        factors(*shape),
        offsets(*shape),
        offsets(*shape),
        factors(*shape),
    )
    return lambda x: tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-3)


def fused_normalization(x: Any) -> Any:
    """A batch normalization as Keras 2 computes it."""
    return tf.compat.v1.nn.fused_batch_norm(
        x, SCALE, OFFSET, OFFSET, SCALE, epsilon=1e-3, is_training=False
    )[0]


SCALE, OFFSET = factors(), offsets()
FILTER = variable(1, 1, CHANNELS, CHANNELS)
FILTER_OF_TWO = variable(3, 3, CHANNELS // 2, 2)
LARGER_FILTER = variable(1, 1, CHANNELS, CHANNELS + 1)
NORMALIZATION = normalization()
OTHER_NORMALIZATION = normalization()


def convolution(x: Any, filters: Any = None) -> Any:
    return tf.nn.conv2d(x, FILTER if filters is None else filters, 1, "SAME")


def hard_swish(x: Any, shift: float = 3.0) -> Any:
    return x * (tf.nn.relu6(x + shift) * (1 / 6))


def run(function: Function, images: Any) -> tuple[Any, collections.Counter[str]]:
    """What a function returns, and the ops of the graph that computed it."""
    graphs: list[graph_pb2.GraphDef] = []
    with get_plugin().observe(lambda graph_def, _: graphs.append(graph_def)):
        result = tf.nest.map_structure(np.asarray, tf.function(function)(images))
    assert not get_plugin().failures
    return result, collections.Counter(node.op for node in graphs[-1].node)


def assert_stocks(got: Any, expected: Any) -> None:
    for one, other in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        # Sums of up to 250 terms, rounded in another order.
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=5e-6)


def transposed(x: Any) -> Any:
    return tf.nn.conv2d_transpose(x, TRANSPOSED_FILTER, [2, 64, 64, 12], 2, "SAME")


def widened(x: Any) -> Any:
    return tf.nn.conv2d_transpose(x, FILTER, x.shape, 1, "SAME")


TRANSPOSED_FILTER, DEPTHWISE_FILTER = variable(3, 3, 12, CHANNELS), variable(3, 3, CHANNELS, 1)
VOLUME_FILTER, WEIGHTS = variable(2, 3, 3, CHANNELS, 12), variable(CHANNELS, 12)
FACTORS_OF_96 = factors(96)
NORMALIZATION_OF_12, BIAS, BIAS_OF_12 = normalization(12), offsets(), offsets(12)
NORMALIZATION_OF_NCHW = normalization(1, CHANNELS, 1, 1)


def to_volumes(x: Any) -> Any:
    return tf.reshape(x, [1, 4, 16, 32, CHANNELS])


def rows(x: Any) -> Any:
    """A Keras Dense layer without a bias, of an image."""
    return tf.reshape(tf.reshape(x, [-1, CHANNELS]) @ WEIGHTS, [2, 32, 32, 12])


def to_nchw(x: Any) -> Any:
    return tf.transpose(x, [0, 3, 1, 2])


FOLDED: dict[str, tuple[Function, dict[str, int]]] = {
    "convolution with bias": (
        lambda x: tf.nn.relu(NORMALIZATION(tf.nn.bias_add(convolution(x), BIAS))),
        {"_FusedConv2D": 1},
    ),
    "depthwise with bias": (
        lambda x: tf.nn.relu6(
            NORMALIZATION(
                tf.nn.bias_add(
                    tf.nn.depthwise_conv2d(convolution(x), DEPTHWISE_FILTER, [1] * 4, "SAME"), BIAS
                )
            )
        ),
        {"Conv2D": 1, "_FusedDepthwiseConv2dNative": 1},
    ),
    "transposed with bias": (
        lambda x: tf.nn.relu(NORMALIZATION_OF_12(tf.nn.bias_add(transposed(x), BIAS_OF_12))),
        {"Conv2DBackpropInput": 1, "BiasAdd": 1, "Relu": 1},
    ),
    "volumes with bias": (
        lambda x: NORMALIZATION_OF_12(
            tf.nn.conv3d(to_volumes(x), VOLUME_FILTER, [1] * 5, "SAME") + BIAS_OF_12
        ),
        {"_FusedConv3D": 1},
    ),
    "matrix product": (
        lambda x: tf.nn.relu(
            NORMALIZATION_OF_12(tf.reduce_mean(convolution(x), [1, 2]) @ WEIGHTS + BIAS_OF_12)
        ),
        {"Conv2D": 1, "_FusedMatMul": 1},
    ),
    "scalars": (lambda x: (convolution(x) * SCALE / 2.0 - 1.0) * 0.5, {"_FusedConv2D": 1}),
    "fused normalization and Relu": (
        lambda x: tf.nn.relu(fused_normalization(convolution(x))),
        {"_FusedConv2D": 1},
    ),
    "fused normalization and Relu after depthwise": (
        lambda x: tf.nn.relu(
            fused_normalization(
                tf.nn.depthwise_conv2d(convolution(x), DEPTHWISE_FILTER, [1] * 4, "SAME")
            )
        ),
        {"Conv2D": 1, "_FusedDepthwiseConv2dNative": 1},
    ),
    "fused normalization and Relu without a kernel": (
        lambda x: tf.nn.relu(fused_normalization(widened(x))),
        {"Conv2DBackpropInput": 1, "_FusedDepthwiseConv2dNative": 1},
    ),
    "division": (lambda x: (convolution(x) - OFFSET) / SCALE, {"_FusedConv2D": 1}),
    "hard swish, multiplied in another order": (
        lambda x: (lambda y: y * tf.nn.relu6(y + 3.0) * (1 / 6))(NORMALIZATION(convolution(x))),
        {"_FusedConv2D": 1},
    ),
    "hard swish without an offset": (
        lambda x: hard_swish(convolution(x) * SCALE),
        {"Conv2D": 1, "AddV2": 1, "Relu6": 1, "Mul": 2},
    ),
    "almost hard swish": (
        lambda x: hard_swish(NORMALIZATION(convolution(x)), shift=2.5),
        {"_FusedConv2D": 1, "AddV2": 1, "Relu6": 1, "Mul": 2},
    ),
    "hard swish whose gate is read elsewhere": (
        lambda x: (lambda y: (y * (tf.nn.relu6(y + 3.0) * (1 / 6)), tf.nn.relu6(y + 3.0)))(
            NORMALIZATION(convolution(x))
        ),
        {"_FusedConv2D": 1, "AddV2": 1, "Relu6": 1, "Mul": 2},
    ),
    "gelu of rows": (
        lambda x: tf.nn.gelu(rows(convolution(x)) + BIAS_OF_12),
        {"Conv2D": 1, "_FusedMatMul": 1},
    ),
    "a factor and an offset of rows": (
        lambda x: NORMALIZATION_OF_12(rows(convolution(x)) + BIAS_OF_12),
        {"Conv2D": 1, "_FusedMatMul": 1},
    ),
    "rows that become others": (
        lambda x: tf.reshape(rows(convolution(x)), [2, 32, 4, 96]) * FACTORS_OF_96,
        {"Conv2D": 1, "MatMul": 1, "Mul": 1},
    ),
    "gelu of an approximation": (
        lambda x: tf.nn.gelu(rows(convolution(x)) + BIAS_OF_12, approximate=True),
        {"Conv2D": 1, "_FusedMatMul": 1, "Mul": 5, "AddV2": 2},
    ),
    "an activation that Grappler moves after a concatenation": (
        lambda x: tf.concat(
            [
                tf.nn.relu(NORMALIZATION(convolution(x))),
                tf.nn.relu(
                    tf.nn.bias_add(
                        tf.nn.depthwise_conv2d(x, DEPTHWISE_FILTER, [1] * 4, "SAME"), BIAS
                    )
                ),
                tf.nn.relu(tf.nn.bias_add(convolution(x), BIAS)),
            ],
            -1,
        ),
        {"_FusedConv2D": 2, "_FusedDepthwiseConv2dNative": 1, "ConcatV2": 1},
    ),
    "an activation after a concatenation with something else": (
        lambda x: tf.nn.relu6(tf.concat([x, NORMALIZATION(convolution(x))], 1)),
        {"_FusedConv2D": 1, "ConcatV2": 1, "Relu6": 1},
    ),
    "an activation after a concatenation that would change its results again": (
        lambda x: tf.nn.elu(
            tf.concat([NORMALIZATION(convolution(x)), OTHER_NORMALIZATION(convolution(x + 1.0))], 3)
        ),
        {"AddV2": 1, "_FusedConv2D": 2, "ConcatV2": 1, "Elu": 1},
    ),
    "an activation after a concatenation that something else reads": (
        lambda x: (lambda y: (tf.nn.relu(y), tf.reduce_max(y)))(
            tf.concat([NORMALIZATION(convolution(x)), OTHER_NORMALIZATION(convolution(x + 1.0))], 3)
        ),
        {"AddV2": 1, "_FusedConv2D": 2, "ConcatV2": 1, "Relu": 1},
    ),
    "swish after a bias": (
        lambda x: tf.nn.silu(tf.nn.bias_add(convolution(x), BIAS)),
        {"_FusedConv2D": 1},
    ),
    "swish after depthwise with strides and padding": (
        lambda x: tf.nn.silu(
            NORMALIZATION(
                tf.nn.depthwise_conv2d(
                    tf.pad(x, [[0, 0], [0, 1], [0, 1], [0, 0]]),
                    DEPTHWISE_FILTER,
                    [1, 2, 2, 1],
                    "VALID",
                )
            )
        ),
        {"_FusedConv2D": 1},
    ),
    "swish after depthwise with two results for each channel": (
        lambda x: tf.nn.silu(
            NORMALIZATION(tf.nn.depthwise_conv2d(x[..., ::2], FILTER_OF_TWO, [1] * 4, "SAME"))
        ),
        {"_FusedDepthwiseConv2dNative": 1, "_MklSwish": 1},
    ),
}
SHOWN = {
    *("Conv2D", "DepthwiseConv2dNative", "Conv2DBackpropInput", "Conv3D", "MatMul"),
    *("_FusedConv2D", "_FusedDepthwiseConv2dNative", "_FusedConv3D", "_FusedMatMul"),
    *("Mul", "AddV2", "Sub", "RealDiv", "BiasAdd", "ConcatV2", "Pad"),
    *("Relu", "Relu6", "Elu", "LeakyRelu", "_MklSwish"),
    *("FusedBatchNormV3", "_FusedBatchNormEx"),
}
"""The ops that the tables count."""


ACTIVATIONS = {
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "elu": tf.nn.elu,
    "leaky_relu": tf.nn.leaky_relu,
    "swish": tf.nn.silu,
    "hard swish": hard_swish,
    "gelu": tf.nn.gelu,
}
NORMALIZED = {
    "Conv2D": lambda x: NORMALIZATION(convolution(x)),
    "DepthwiseConv2dNative": lambda x: NORMALIZATION(
        tf.nn.depthwise_conv2d(convolution(x), DEPTHWISE_FILTER, [1] * 4, "SAME")
    ),
    "Conv3D": lambda x: NORMALIZATION_OF_12(
        tf.nn.conv3d(to_volumes(x), VOLUME_FILTER, [1] * 5, "SAME")
    ),
    "MatMul": lambda x: NORMALIZATION_OF_12(tf.reduce_mean(convolution(x), [1, 2]) @ WEIGHTS),
    "Conv2D in NCHW": lambda x: NORMALIZATION_OF_NCHW(
        tf.nn.conv2d(to_nchw(x), FILTER, 1, "SAME", data_format="NCHW")
    ),
}
SEPARATE = {
    *[(op, "gelu") for op in NORMALIZED if op != "MatMul"],
    *[("MatMul", "swish"), ("MatMul", "hard swish")],
    *[("Conv3D", "swish"), ("Conv3D", "hard swish")],
}
"""The activations that have no kernel."""


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("op", NORMALIZED)
def test_folds_an_activation(op: str, activation: str) -> None:
    def function(x: Any) -> Any:
        return ACTIVATIONS[activation](NORMALIZED[op](x))

    result, ops = run(function, IMAGES)
    assert_stocks(result, function(IMAGES))
    is_grouped = op == "DepthwiseConv2dNative" and activation in ("swish", "leaky_relu")
    fused = "_FusedConv2D" if is_grouped or op == "Conv2D in NCHW" else f"_Fused{op}"
    assert ops[fused] == 1
    names = {"Relu", "Relu6", "Elu", "LeakyRelu", "_MklSwish", "AddV2", "Erfc"}
    assert (not names.isdisjoint(ops)) == ((op, activation) in SEPARATE)


@pytest.mark.parametrize(
    "filters",
    [
        lambda: FILTER - tf.reduce_mean(FILTER, [0, 1, 2], keepdims=True),
        lambda: LARGER_FILTER[..., :CHANNELS],
        lambda: tf.sqrt(tf.abs(FILTER)),  # TensorFlow makes one operation of it
    ],
    ids=["standardized", "a part", "several functions"],
)
def test_keeps_filters_that_are_computed(filters: Callable[[], Any]) -> None:
    result, ops = run(lambda x: convolution(x, filters()), IMAGES)
    assert_stocks(result, convolution(IMAGES, filters()))
    assert ops.keys() & {"Sub", "Mean", "StridedSlice", "_UnaryOpsComposition", "Abs"} == set()
    assert ops["Conv2D"] == 1


@pytest.mark.parametrize("case", FOLDED)
def test_folds(case: str) -> None:
    function, left = FOLDED[case]
    result, ops = run(function, IMAGES)
    assert_stocks(result, function(IMAGES))
    assert {op: count for op, count in ops.items() if op in SHOWN} == left


RESCALED: dict[str, tuple[Function, dict[str, int]]] = {
    "before a convolution": (
        lambda x: convolution(tf.nn.relu(NORMALIZATION(x))),
        {"_FusedDepthwiseConv2dNative": 1, "Conv2D": 1},
    ),
    "after a concatenation": (
        lambda x: tf.nn.relu6(NORMALIZATION(tf.concat([convolution(x)[..., 4:], x[..., :4]], -1))),
        {"Conv2D": 1, "ConcatV2": 1, "_FusedDepthwiseConv2dNative": 1},
    ),
    "after an addition that others read, read by two": (
        lambda x: (lambda y: (y, tf.nn.elu(NORMALIZATION(y)), OTHER_NORMALIZATION(y)))(
            convolution(x) + x
        ),
        {"Conv2D": 1, "AddV2": 1, "_FusedDepthwiseConv2dNative": 2},
    ),
    "two in a row": (
        lambda x: convolution(OTHER_NORMALIZATION(NORMALIZATION(x))),
        {"_FusedDepthwiseConv2dNative": 1, "Conv2D": 1},
    ),
    "scalars": (
        lambda x: convolution((x / 127.5 - 1.0 - OFFSET) / SCALE),
        {"_FusedDepthwiseConv2dNative": 1, "Conv2D": 1},
    ),
    "an activation without a kernel": (
        lambda x: convolution(tf.nn.leaky_relu(NORMALIZATION(x))),
        {"_FusedDepthwiseConv2dNative": 1, "LeakyRelu": 1, "Conv2D": 1},
    ),
    "an inner value that others read": (
        lambda x: (lambda y: (convolution(y + OFFSET), y))(x * SCALE),
        {"Mul": 1, "AddV2": 1, "Conv2D": 1},
    ),
    "a factor that is no parameter": (
        lambda x: convolution(x * tf.reduce_mean(x, [1, 2], keepdims=True) + OFFSET),
        {"Mul": 1, "AddV2": 1, "Conv2D": 1},
    ),
    "a factor of each pixel": (
        lambda x: convolution(x * PIXELS + OFFSET),
        {"Mul": 1, "AddV2": 1, "Conv2D": 1},
    ),
    "a matrix": (
        lambda x: tf.reshape(NORMALIZATION(tf.reshape(convolution(x), [-1, CHANNELS])), x.shape),
        {"Mul": 1, "AddV2": 1, "Conv2D": 1},
    ),
}
PIXELS = factors(64, 64, 1)


@pytest.mark.parametrize("case", RESCALED)
def test_makes_one_operation(case: str) -> None:
    function, left = RESCALED[case]
    result, ops = run(function, LARGE_IMAGES)
    assert_stocks(result, function(LARGE_IMAGES))
    assert {op: count for op, count in ops.items() if op in SHOWN} == left


def padded(*amounts: int, channels: int = 0) -> Function:
    top, bottom, left, right = amounts
    edges = [[0, 0], [top, bottom], [left, right], [channels, 0]]
    return lambda x: tf.pad(x, edges)


def strided(x: Any) -> Any:
    return tf.nn.conv2d(x, WIDE_FILTER, 2, "VALID")


def strided_depthwise(x: Any) -> Any:
    filters = WIDE_DEPTHWISE_FILTER[:, :, : x.shape[-1]]
    return tf.nn.depthwise_conv2d(x, filters, [1, 2, 2, 1], "VALID")


WIDE_FILTER = variable(3, 3, CHANNELS, CHANNELS)
WIDE_DEPTHWISE_FILTER = variable(3, 3, CHANNELS + 1, 1)
PADDED: dict[str, tuple[Function, int]] = {
    "convolution": (lambda x: NORMALIZATION(strided(padded(0, 3, 2, 1)(x))), 0),
    "convolution without a fold": (lambda x: strided(padded(1, 1, 1, 1)(x)), 0),
    "depthwise as SAME": (
        lambda x: convolution(NORMALIZATION(strided_depthwise(padded(0, 1, 0, 1)(x)))),
        0,
    ),
    "depthwise unlike SAME": (lambda x: convolution(strided_depthwise(padded(1, 1, 1, 1)(x))), 1),
    "two readers": (
        lambda x: (lambda y: strided(y) + strided_depthwise(y))(padded(0, 1, 0, 1)(x)),
        0,
    ),
    "a reader of another kind": (
        lambda x: (lambda y: strided(y) + tf.nn.max_pool2d(y, 3, 2, "VALID"))(
            padded(0, 1, 0, 1)(x)
        ),
        1,
    ),
    # Stock TensorFlow fails where it merges such a Pad with a Conv2D.
    "padded channels": (
        lambda x: convolution(strided_depthwise(padded(0, 1, 0, 1, channels=1)(x))[..., 1:]),
        1,
    ),
    "after a normalization": (
        lambda x: strided(padded(1, 1, 1, 1)(tf.nn.relu(NORMALIZATION(x)))),
        0,
    ),
}


@pytest.mark.parametrize("case", PADDED)
def test_merges_padding(case: str) -> None:
    function, left = PADDED[case]
    result, ops = run(function, LARGE_IMAGES)
    assert_stocks(result, function(LARGE_IMAGES))
    assert ops["Pad"] == left


def test_keeps_passes_that_are_faster() -> None:
    function = RESCALED["before a convolution"][0]
    result, ops = run(function, IMAGES[:, :8])
    assert_stocks(result, function(IMAGES[:, :8]))
    assert (ops["Mul"], ops["AddV2"], ops["Relu"]) == (1, 1, 1)


@pytest.mark.parametrize("activation", [tf.identity, tf.nn.relu, tf.nn.relu6])
def test_the_fused_op_of_a_normalization_is_replaced_at_any_size(activation: Function) -> None:
    def function(x: Any) -> Any:
        return convolution(activation(fused_normalization(x)))

    result, ops = run(function, IMAGES[:, :8])
    assert_stocks(result, function(IMAGES[:, :8]))
    assert {op: count for op, count in ops.items() if op in SHOWN} == {
        "_FusedDepthwiseConv2dNative": 1,
        "Conv2D": 1,
    }


def test_infinite_values_and_nan_stay_where_they_are() -> None:
    images = LARGE_IMAGES.copy()
    images[0, 3, 4] = np.nan
    images[0, 5, ::2, ::3] = np.inf
    images[1, 6, 7] = -np.inf

    def function(x: Any) -> Any:
        return NORMALIZATION(x), convolution(x)

    result, ops = run(function, images)
    assert ops["_FusedDepthwiseConv2dNative"] == 1
    assert_stocks(result[0], function(images)[0])


def test_an_unknown_batch_counts_as_one_image_and_may_be_empty() -> None:
    signature = [tf.TensorSpec([None, 64, 64, CHANNELS])]
    function = RESCALED["before a convolution"][0]
    compiled = tf.function(function, input_signature=signature)
    for count in (2, 0, 1):
        assert_stocks(compiled(LARGE_IMAGES[:count]), function(LARGE_IMAGES[:count]))
    assert get_plugin().fold_reports[0].rescaling_count == 1


def test_keeps_passes_over_images_of_unknown_size() -> None:
    signature = [tf.TensorSpec([None, None, None, CHANNELS])]
    function = RESCALED["before a convolution"][0]
    compiled = tf.function(function, input_signature=signature)
    assert_stocks(compiled(LARGE_IMAGES), function(LARGE_IMAGES))
    report = get_plugin().fold_reports[0]
    assert report.rescaling_count == 0
    assert RefusalReason.SHAPE in {refusal.reason for refusal in report.refusals}


def test_a_change_of_the_normalization_is_seen() -> None:
    scale = factors()

    @tf.function
    def function(x: Any) -> Any:
        return convolution(x * scale + OFFSET)

    for factor in (1.0, 2.0, -3.0):
        scale.assign(tf.ones_like(scale) * factor)
        assert_stocks(function(LARGE_IMAGES), convolution(LARGE_IMAGES * factor + OFFSET))
    assert get_plugin().fold_reports[0].rescaling_count == 1


@pytest.mark.parametrize(("other_batch", "is_fused"), [(None, False), (2, False), (0, True)])
def test_a_shortcut_of_an_unknown_batch_size_is_fused_if_it_cannot_broadcast(
    other_batch: int | None, is_fused: bool
) -> None:
    """With 0 the shortcut comes from the same images; otherwise from others, perhaps only one."""
    image = tf.TensorSpec([None, 32, 32, CHANNELS])
    other = tf.TensorSpec([other_batch or None, 32, 32, CHANNELS])

    @tf.function(input_signature=[image, other], autograph=False)  # type: ignore[untyped-decorator]
    def compute(x: Any, y: Any) -> Any:
        shortcut = tf.nn.max_pool2d(x, 3, 1, "SAME") if other_batch == 0 else tf.nn.relu(y)
        return tf.nn.relu(NORMALIZATION(convolution(x)) + shortcut)

    seen: list[graph_pb2.GraphDef] = []
    with get_plugin().observe(lambda graph_def, _: seen.append(graph_def)):
        found = compute(IMAGES, IMAGES[:1] if other_batch is None else IMAGES)
    assert is_fused != any(node.op == "AddV2" for node in seen[-1].node)
    tf_interop.disable()
    expected = compute(IMAGES, IMAGES[:1] if other_batch is None else IMAGES)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def with_strides(x: Any, filters: Any, strides: Any = 2) -> Any:
    return tf.nn.conv2d(x, filters, strides, "SAME")


WIDE_FILTER, EVEN_FILTER = variable(3, 3, CHANNELS, CHANNELS), variable(2, 4, CHANNELS, CHANNELS)
LAST_FILTER = variable(1, 1, CHANNELS, CHANNELS)


def last_block(x: Any, filters: Any = WIDE_FILTER, **options: Any) -> Any:
    """The last block of a stage of a ResNet."""
    shortcut = tf.nn.relu(NORMALIZATION(convolution(x)))
    inner = tf.nn.conv2d(shortcut, filters, 1, options.pop("padding", "SAME"), **options)
    inner = tf.nn.relu(OTHER_NORMALIZATION(inner))
    inner = NORMALIZATION(convolution(inner, LAST_FILTER))
    return tf.nn.relu(inner + shortcut) if inner.shape == shortcut.shape else tf.nn.relu(inner)


def two_readers(x: Any, strides: Any = 2) -> Any:
    return tf.nn.relu(NORMALIZATION(with_strides(x, FILTER, strides))), with_strides(x, LAST_FILTER)


STRIDED: dict[str, tuple[Function, list[list[int]], int]] = {
    "a block that adds a shortcut": (
        lambda x: two_readers(last_block(x)),
        [[1, 1], [1, 1], [1, 1], [1, 1], [2, 2]],
        1,
    ),
    "even sizes and dilations": (
        lambda x: two_readers(last_block(x, EVEN_FILTER, dilations=[2, 3])),
        [[1, 1], [1, 1], [1, 1], [1, 1], [2, 2]],
        1,
    ),
    "without padding": (
        lambda x: two_readers(last_block(x, padding="VALID")),
        [[1, 1], [1, 1], [1, 1], [1, 1], [2, 2]],
        0,
    ),
    "strides of columns, and a convolution with strides": (
        lambda x: with_strides(
            with_strides(with_strides(x, WIDE_FILTER, 2), FILTER, [1, 3]), LAST_FILTER
        ),
        [[1, 1], [2, 2], [2, 6]],
        0,
    ),
    "something else reads the block": (
        lambda x: (lambda y: (two_readers(y), tf.reduce_mean(y)))(last_block(x)),
        [[1, 1], [1, 1], [1, 1], [2, 2], [2, 2]],
        0,
    ),
    "different strides": (
        lambda x: two_readers(last_block(x), 3),
        [[1, 1], [1, 1], [1, 1], [2, 2], [3, 3]],
        0,
    ),
    "a reader that pads": (
        lambda x: tf.nn.conv2d(last_block(x), FILTER, 2, [[0, 0], [1, 1], [1, 1], [0, 0]]),
        [[1, 1], [1, 1], [1, 1], [2, 2]],
        0,
    ),
    "a reader of more pixels": (
        lambda x: with_strides(last_block(x), WIDE_FILTER),
        [[1, 1], [1, 1], [1, 1], [2, 2]],
        0,
    ),
}


@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.parametrize("size", [(32, 32), (31, 29), (2, 1)])
def test_computes_only_pixels_that_are_read(name: str, size: tuple[int, int]) -> None:
    function, expected, pools = STRIDED[name]
    if name == "without padding" and min(size) < 3:
        pytest.skip("No pixel is left.")
    images = IMAGES[:, : size[0], : size[1]]
    graphs: list[graph_pb2.GraphDef] = []
    with get_plugin().observe(lambda graph_def, _: graphs.append(graph_def)):
        got = tf.function(function)(images)
    assert not get_plugin().failures
    assert_stocks(got, function(images))
    nodes = [*graphs[-1].node]
    for node in graphs[-1].node:  # a convolution that adds a shortcut is a unit
        nodes += map(node_def_pb2.NodeDef.FromString, node.attr["steps"].list.s)
    found = [
        [*node.attr["strides"].list.i][1:3]
        for node in nodes
        if node.op in ("Conv2D", "_FusedConv2D")
    ]
    assert sorted(found) == expected
    assert sum(node.op == "AvgPool" for node in nodes) == pools
