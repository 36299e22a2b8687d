"""A whole network as one unit, and whether its batch may be divided."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf
from graph_builder import CPU
from tensorflow.core.framework import graph_pb2
from unit_program import call_divided, self_timed

from tf_interop.graph.check import check_rewrite
from tf_interop.graph.program import UNIT_OP
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.rewrite import rewrite_units
from tf_interop.graph.units import Unit
from tf_interop.graph.view import GraphView
from tf_interop.graph.whole_unit import find_whole_unit
from tf_interop.runtime.kernel_library import load_kernel_library

v1 = tf.compat.v1

CHANNELS = 4
IMAGES = np.random.default_rng(0).integers(-2, 3, (7, 6, 6, CHANNELS)).astype(np.float32)
Layer = Callable[[tf.Tensor], tf.Tensor]


def ones(*shape: int) -> tf.Tensor:
    return tf.ones(shape, tf.float32)


def conv(image: tf.Tensor) -> tf.Tensor:
    return tf.nn.conv2d(image, ones(3, 3, image.shape[-1], CHANNELS), 1, "SAME")


def conv_of_any(x: tf.Tensor) -> tf.Tensor:
    return conv(tf.reshape(x, [-1, int(np.prod(x.shape[1:])), 1, 1]))


def view_of(
    make: Layer,
    batch: int | None = len(IMAGES),
    sizes: Sequence[int | None] = (6, 6),
    preserved: Sequence[str] = (),
) -> GraphView:
    """A graph in which `make` computes `result` from `images`."""
    with tf.Graph().as_default() as graph:
        images = v1.placeholder(tf.float32, (batch, *sizes, CHANNELS), "images")
        tf.identity(make(images), "result")
    graph_def = graph.as_graph_def(add_shapes=True)
    for node in graph_def.node:
        node.device = CPU
    return GraphView(graph_def, ["result", *preserved])


def run(graph_def: graph_pb2.GraphDef, images: np.ndarray, timed_graph: str = "") -> np.ndarray:
    """The result for images; of a call that divides them if a unit times itself."""
    load_kernel_library()
    config = v1.ConfigProto(intra_op_parallelism_threads=3, use_per_session_threads=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default() as graph, v1.Session(graph=graph, config=config) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        call = functools.partial(session.run, "result:0", {"images:0": images})
        found: np.ndarray = call_divided(call, timed_graph) if timed_graph else call()
        return found


def found_unit(view: GraphView) -> Unit:
    unit = find_whole_unit(view, GraphProperties(view))
    assert unit is not None
    return unit


def ops_of(view: GraphView, unit: Unit) -> set[str]:
    return {view.ops[step] for step in unit.steps}


def computing_unit(view: GraphView, sizes: Sequence[int] = (len(IMAGES),)) -> Unit:
    """The unit of a graph, which computes the same, with the batch divided if it may be."""
    unit = found_unit(view)
    check_rewrite(view, GraphView(rewrite_units(view, [unit])))
    for size in sizes:
        timed_graph = self_timed()["timed_graph"] if unit.split and size > 1 else ""
        rewritten = rewrite_units(view, [unit], timed_graph=timed_graph)
        found = run(rewritten, IMAGES[:size], timed_graph)
        expected = run(view.graph_def, IMAGES[:size])
        # The order of a sum over channels may depend on the batch size.
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    return unit


BATCHWISE: dict[str, Layer] = {
    "Relu": tf.nn.relu,
    "BiasAdd": lambda x: tf.nn.bias_add(x, [1.0, 2.0, 3.0, 4.0]),
    "MaxPool": lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"),
    "AvgPool": lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME"),
    "Pad": lambda x: tf.pad(x, [[0, 0], [1, 1], [0, 2], [0, 0]]),
    "Mean": lambda x: tf.reduce_mean(x, [1, -2], keepdims=True),
    "ConcatV2": lambda x: tf.concat([x, conv(x)], -1),
    "AddV2": lambda x: x + conv(x),
    "Mul": lambda x: x * tf.reduce_max(x, [1, 2], keepdims=True),
    "Sub": lambda x: x - tf.reshape(tf.range(4.0), [1, 1, 1, 4]),
    "Transpose": lambda x: tf.transpose(x, [0, 3, 1, 2]),
    "Squeeze": lambda x: tf.squeeze(tf.reduce_sum(x, 1, keepdims=True), 1),
    "ExpandDims": lambda x: tf.expand_dims(x, -1),
    "Split": lambda x: tf.add_n(tf.split(x, 2, 3)),
    "MatMul": lambda x: tf.matmul(tf.reduce_sum(x, [1, 2]), ones(CHANNELS, 5)),
    "BatchMatMulV2": lambda x: tf.matmul(x, x, transpose_b=True),
    "Softmax": lambda x: tf.nn.softmax(x / 100),
    "Rsqrt": lambda x: x * tf.math.rsqrt(tf.constant([0.5] * CHANNELS) + 0.25),
    "FusedBatchNormV3": lambda x: v1.nn.fused_batch_norm(
        x, ones(4), ones(4), ones(4), ones(4), is_training=False
    )[0],
    "Reshape": lambda x: tf.reshape(x, [-1, 36 * CHANNELS]),
    "ResizeBilinear": lambda x: tf.image.resize(x, (9, 9)),
    "DepthwiseConv2dNative": lambda x: tf.nn.depthwise_conv2d(
        x, ones(3, 3, CHANNELS, 2), [1, 1, 1, 1], "SAME"
    ),
    "ClipByValue": lambda x: tf.raw_ops.ClipByValue(t=x, clip_value_min=-1.0, clip_value_max=1.0),
    "StridedSlice": lambda x: x[:, 1:, ::2],
    "SelectV2": lambda x: tf.where(x > 0, x, -2 * x),
    "LogicalAnd": lambda x: tf.cast((x > 0) & (x < 1), tf.float32),
    "FakeQuantWithMinMaxVarsPerChannel": lambda x: (
        tf.quantization.fake_quant_with_min_max_vars_per_channel(x, -ones(4), 2 * ones(4))
    ),
    "Einsum": lambda x: tf.einsum("nhwc,chk->nwk", x, ones(CHANNELS, 6, 3)),
    "GatherV2": lambda x: tf.gather(x, [3, 0, 1], axis=-1),
    "Roll": lambda x: tf.roll(x, [2, 1], [1, -1]),
    "ReverseV2": lambda x: tf.reverse(x, [1]),
    "Cumsum": lambda x: tf.cumsum(x, 2),
    "Tile": lambda x: tf.tile(x, [1, 2, 1, 3]),
    "Pack": lambda x: tf.reduce_sum(tf.stack([x, conv(x)], -1), -1),
    "ArgMax": lambda x: tf.cast(tf.argmax(x, 1), tf.float32)[:, None],
    "TopKV2": lambda x: tf.math.top_k(x, 2)[0],
    "Conv2DBackpropInput": lambda x: tf.nn.conv2d_transpose(
        x, ones(2, 2, 5, CHANNELS), [tf.shape(x)[0], 12, 12, 5], 2
    ),
    "Conv3DBackpropInputV2": lambda x: tf.nn.conv3d_transpose(
        x[:, None], ones(2, 2, 2, 5, CHANNELS), [tf.shape(x)[0], 2, 12, 12, 5], 2
    )[:, 0],
}


# The sizes include the batch size, which is known.
BY_SIZES: dict[str, Layer] = {
    "Reshape": lambda x: tf.reshape(x, [len(IMAGES), 36, CHANNELS]),
    "Conv2DBackpropInput": lambda x: tf.nn.conv2d_transpose(
        x, ones(2, 2, 5, CHANNELS), [len(IMAGES), 12, 12, 5], 2
    ),
}


@pytest.mark.parametrize(
    ("op", "layer", "batch"),
    [
        *((*each, batch) for each in BATCHWISE.items() for batch in (len(IMAGES), None)),
        *((*each, len(IMAGES)) for each in BY_SIZES.items()),
    ],
)
def test_divides_a_batchwise_operation(op: str, layer: Layer, batch: int | None) -> None:
    view = view_of(lambda images: layer(conv(images)), batch)
    unit = computing_unit(view)
    assert unit.split
    assert {"Conv2D", op} <= ops_of(view, unit)


OTHERS: dict[str, Layer] = {
    "Mean": lambda x: x - tf.reduce_mean(x, 0),
    "Sum": lambda x: x / (1 + tf.reduce_sum(tf.abs(x))),
    "ConcatV2": lambda x: tf.concat([x, x + 1], 0),
    "Transpose": lambda x: tf.transpose(x, [1, 0, 2, 3]),
    "Reshape": lambda x: tf.reshape(x, [-1, CHANNELS]),
    "ReverseV2": lambda x: tf.reverse(x, [0]),
    "Roll": lambda x: tf.roll(x, [1, 1], [2, 0]),
    "GatherV2": lambda x: tf.gather(x, [3, 0, 1]),
    "Tile": lambda x: tf.tile(x, [2, 1, 1, 1]),
    "Pack": lambda x: tf.stack([x, x + 1]),
    "TopKV2": lambda x: tf.math.top_k(tf.reduce_mean(x, [1, 2, 3]), 2)[0],
    "FakeQuantWithMinMaxVarsPerChannel": lambda x: (
        tf.quantization.fake_quant_with_min_max_vars_per_channel(
            tf.reduce_sum(x, [1, 2, 3]), -ones(len(IMAGES)), ones(len(IMAGES))
        )
    ),
    "Einsum": lambda x: tf.einsum("nhwc,mhwc->nm", x, x),
    # The sizes are just height and width.
    "Conv2DBackpropInput": lambda x: tf.raw_ops.Conv2DBackpropInput(
        input_sizes=[len(IMAGES), len(IMAGES)],
        filter=ones(2, 2, 5, CHANNELS),
        out_backprop=x[:, :4, :4],
        strides=[1, 2, 2, 1],
        padding="SAME",
    ),
    "StridedSlice": lambda x: x[::2] + x[3:] + x[-1] + x[..., 1:2][:4],
    "Pad": lambda x: tf.pad(x, [[1, 0], [0, 0], [0, 0], [0, 0]]),
    "MatMul": lambda x: tf.matmul(tf.reduce_sum(x, [1, 2]), ones(len(IMAGES), 5), transpose_a=True),
    "Softmax": lambda x: tf.nn.softmax(tf.reduce_mean(x, [1, 2, 3])),
    "FusedBatchNormV3": lambda x: v1.nn.fused_batch_norm(x, ones(4), ones(4))[0],
    "Conv2D": lambda x: tf.nn.conv2d(
        ones(2, 8, 8, CHANNELS), tf.reduce_sum(x, 0)[:2, :2, None, :] * ones(2, 2, 4, 1), 1, "SAME"
    ),
    "AddV2": lambda x: x + IMAGES,
    "Mul": lambda x: tf.reduce_sum(x, [1, 2])[:CHANNELS] * tf.reduce_mean(x, [1, 2, 3])[:CHANNELS],
    "Split": lambda x: tf.split(x, [3, 4], 0)[1],
    "BatchMatMulV2": lambda x: tf.matmul(tf.reduce_sum(x, [2, 3]), tf.reduce_sum(x, [1, 3]), True),
    "ExpandDims": lambda x: tf.expand_dims(x, 0),
}


@pytest.mark.parametrize("op", OTHERS)
def test_does_not_divide_an_operation_that_is_not_batchwise(op: str) -> None:
    view = view_of(lambda images: OTHERS[op](tf.nn.relu(conv(images))))
    assert not computing_unit(view).split


@pytest.mark.parametrize("batch", [len(IMAGES), None])
@pytest.mark.parametrize("op", [op for op in BATCHWISE if op != "ArgMax"])  # Cast is no step
def test_includes_a_batchwise_operation_before_a_convolution(op: str, batch: int | None) -> None:
    view = view_of(lambda images: conv_of_any(BATCHWISE[op](images)), batch)
    unit = computing_unit(view)
    assert {"Conv2D", op} <= ops_of(view, unit)
    [node] = [node for node in rewrite_units(view, [unit]).node if node.op == UNIT_OP]
    assert unit.split
    assert node.input[0] == "images"


@pytest.mark.parametrize("op", [op for op in OTHERS if "Conv" not in op])
def test_leaves_out_an_operation_before_a_convolution_that_is_not_batchwise(op: str) -> None:
    view = view_of(lambda images: conv_of_any(tf.reshape(OTHERS[op](images), [-1, 1])))
    unit = computing_unit(view)
    assert not unit.split or op == "Reshape" or op not in ops_of(view, unit)


def test_leaves_out_what_makes_a_filter_of_images_or_is_read_outside() -> None:
    def layers(images: tf.Tensor) -> tf.Tensor:
        scaled = tf.sqrt(tf.abs(images))
        read_twice = conv(scaled) / (1 + tf.reduce_sum(scaled))
        filters = tf.tanh(images)
        filtered = tf.nn.conv2d(tf.transpose(images, [0, 3, 1, 2]), filters, 1, "SAME")
        return read_twice + tf.reduce_sum(filtered, 1, keepdims=True)

    view = view_of(layers)
    unit = computing_unit(view)
    assert unit.split
    assert ops_of(view, unit) & {"Transpose", "Sqrt", "Tanh"} == {"Transpose"}


def test_does_not_divide_a_product_of_images() -> None:
    def layers(images: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(images, [len(IMAGES), -1])
        return conv_of_any(tf.matmul(rows, rows, transpose_b=True))

    assert not computing_unit(view_of(layers)).split


def test_the_largest_input_is_that_of_the_images() -> None:
    def layers(images: tf.Tensor) -> tf.Tensor:
        return conv(v1.placeholder(tf.float32, (1, 1, 1, CHANNELS), "mean") - images)

    view = view_of(layers, 1)
    shapes = GraphProperties(view).output_shape
    rewritten = rewrite_units(view, [found_unit(view)], output_shapes=shapes)
    [node] = [node for node in rewritten.node if node.op == UNIT_OP]
    assert list(node.input[:2]) == ["images", "mean"]


def test_leaves_out_what_gives_images_one_size() -> None:
    """Otherwise a network would be timed anew for each size."""

    def layers(images: tf.Tensor) -> tf.Tensor:
        return conv(tf.image.resize(images / 255, (6, 6)) - 1.0)

    view = view_of(layers, None, (None, None))
    assert ops_of(view, found_unit(view)) & {"Sub", "ResizeBilinear", "RealDiv"} == {"Sub"}


def network(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(conv(tf.exp(x - 1.0)))


@pytest.mark.parametrize(
    ("layers", "inside", "is_split"),
    [
        (network, {"Sub", "Exp", "Relu"}, True),
        (lambda x: network(tf.reverse(x, [0])), {"Sub", "Exp", "Relu"}, True),
        (lambda x: tf.reverse(network(x), [0]), {"Sub", "Exp", "Relu", "ReverseV2"}, False),
    ],
    ids=["all", "one before is not batchwise", "one after is not batchwise"],
)
def test_finds_a_whole_network(layers: Layer, inside: set[str], is_split: bool) -> None:
    view = view_of(layers)
    unit = computing_unit(view)
    assert ops_of(view, unit) & {"Sub", "Exp", "Relu", "ReverseV2"} == inside
    assert bool(unit.split) == is_split


@pytest.mark.parametrize("batch", [0, 1])
def test_does_not_divide_a_batch_of(batch: int) -> None:
    assert not found_unit(view_of(conv, batch)).split


def sizes_of(x: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.shape(x)[0], 36, CHANNELS])


def test_makes_sizes_for_each_part_of_a_batch_of_unknown_size() -> None:
    def layers(images: tf.Tensor) -> tf.Tensor:
        x = conv(images)
        return tf.nn.relu(tf.reshape(x, sizes_of(x)))

    view = view_of(layers, None)
    unit = computing_unit(view, sizes=(0, 1, 2, 7))
    assert unit.split
    assert {"Shape", "StridedSlice", "Pack", "Reshape", "Relu"} <= ops_of(view, unit)


def sizes_of_another(images: tf.Tensor) -> tf.Tensor:
    return tf.reshape(conv(images), sizes_of(tf.reverse(conv(images), [1])))


def sizes_for_another(images: tf.Tensor) -> tf.Tensor:
    x = conv(images)
    sizes = sizes_of(x)
    return tf.reshape(tf.reverse(x, [0]), sizes) + tf.nn.relu(tf.reshape(x, sizes))


def sizes_read_beside(images: tf.Tensor) -> tf.Tensor:
    x = conv(images)
    sizes = sizes_of(x)
    count = tf.cast(tf.reduce_sum(sizes), tf.float32)
    return tf.reshape(x, sizes) + count * tf.reshape(x, [-1, 36, CHANNELS])


@pytest.mark.parametrize("layers", [sizes_of_another, sizes_for_another, sizes_read_beside])
def test_other_sizes(layers: Layer) -> None:
    computing_unit(view_of(layers, None), sizes=(1, 7))


@pytest.mark.parametrize("is_read_outside", [False, True])
def test_a_constant_that_waits_for_images(is_read_outside: bool) -> None:
    def layers(images: tf.Tensor) -> tf.Tensor:
        x = conv(images)
        with tf.control_dependencies([x]):
            two = tf.constant(2.0)
        x = tf.nn.relu(x * two)
        return x + tf.reverse(two * tf.ones([1]), [0]) if is_read_outside else x

    view = view_of(layers)
    unit = computing_unit(view)
    assert unit.split
    assert ("Const" in ops_of(view, unit)) == (not is_read_outside)


def test_an_operand_of_one_image_from_outside_is_for_all_images() -> None:
    """If it were split, its batch would differ from the images', and nothing would be split."""
    one = np.full((1, 6, 6, CHANNELS), 2.0, np.float32)

    def layers(images: tf.Tensor) -> tf.Tensor:
        return conv(images) * tf.identity(v1.placeholder_with_default(one, one.shape, "one"))

    view = view_of(layers)
    unit = computing_unit(view)
    assert "Mul" in ops_of(view, unit)
    assert [view.names[source] for source, _ in unit.split] == ["images"]


@pytest.mark.parametrize("may_be_fed", [False, True])
def test_a_constant_that_may_be_fed_does_not_count(may_be_fed: bool) -> None:
    preserved = ["Mean/reduction_indices"] * may_be_fed
    view = view_of(lambda images: tf.reduce_mean(conv(images), [1, 2]), preserved=preserved)
    assert bool(found_unit(view).split) != may_be_fed


def random_layers(seed: int) -> Layer:
    """Random layers, in sequence and side by side, that keep the images' shape."""
    choose = random.Random(seed)
    back: dict[int, Layer] = {
        2: lambda x: x[:, :1, None, None] * ones(1, 6, 6, CHANNELS),
        3: lambda x: tf.reduce_mean(x, [1, 2])[:, None, None, None] * ones(1, 6, 6, CHANNELS),
        4: lambda x: tf.image.resize(x[..., :1], (6, 6)) * ones(1, 1, 1, CHANNELS),
        5: lambda x: tf.squeeze(x, -1),
    }

    def layers(images: tf.Tensor) -> tf.Tensor:
        tensors = [conv(images)]
        for _ in range(choose.randint(3, 10)):
            source = choose.choice(tensors)
            kind = choose.random()
            if kind < 0.4:
                made = tf.tanh(conv(source) / 64)
            elif kind < 0.8:
                made = back.get(0, tf.identity)(choose.choice(list(BATCHWISE.values()))(source))
            else:
                made = OTHERS[choose.choice(["Mean", "Sum", "ReverseV2"])](source)
            if made.shape.rank < 4 or made.shape[1:] != images.shape[1:]:
                made = back[made.shape.rank](made)
            tensors.append(tf.tanh(made + choose.choice(tensors)))
        return tf.add_n(tensors[-3:])

    return layers


@pytest.mark.parametrize("seed", range(40))
def test_random_layers(seed: int) -> None:
    computing_unit(view_of(random_layers(seed), None if seed % 2 else len(IMAGES)))
