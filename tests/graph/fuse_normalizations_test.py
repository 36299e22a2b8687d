"""Batch normalization in training: which are fused, what they compute then, and which stay."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_builder import CPU, node_of, same_graph
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.convolution import Refusal, RefusalReason
from tf_interop.errors import GraphError
from tf_interop.graph.fuse_normalizations import (
    TrainingNormalization,
    check_normalizations,
    find_training_normalizations,
    rewrite_normalizations,
)
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.model.graphs import optimize_graph, trace
from tf_interop.tuning.search import as_step

v1 = tf.compat.v1
IMAGE = (4, 48, 48, 16)
Values = dict[str, np.ndarray[Any, Any]]
Model = Callable[[tf.Tensor], tf.Tensor]


def normalization(**options: Any) -> Any:
    layer = keras.layers.BatchNormalization(**options)
    layer.build(IMAGE)
    return layer


def step_of(
    model: Model,
    variables: Sequence[Any],
    *,
    shape: Sequence[int] = IMAGE,
    dtype: tf.DType = tf.float32,
    of_image: bool = True,
    batch_size: Any = None,
    rate: Any = None,
) -> tuple[graph_pb2.GraphDef, list[str]]:
    """The graph of a model and its gradients, as Grappler optimizes it; and what a step runs.

    With a variable as `batch_size` nothing knows the batch size. A `rate` multiplies gradients.
    """
    spec = tf.TensorSpec(shape, dtype)
    weights = [getattr(each, "value", each) for each in variables]

    @tf.function(input_signature=[spec, spec], autograph=False)  # type: ignore[untyped-decorator]
    def step(image: tf.Tensor, factors: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(image)
            # The image and its gradient come from other operations, as in a network.
            inner = tf.nn.relu(image)
            output = model(inner if batch_size is None else inner[:batch_size])
            loss = tf.reduce_sum(tf.nn.tanh(output) * factors)
        gradients = tape.gradient(loss, [image, *weights] if of_image else list(weights))
        return loss, gradients if rate is None else [each * rate for each in gradients]

    return as_step(optimize_graph(trace(step), None))


def find(
    graph_def: graph_pb2.GraphDef, preserve: Sequence[str] = ()
) -> tuple[tuple[TrainingNormalization, ...], tuple[Refusal, ...]]:
    view = GraphView(graph_def)
    return find_training_normalizations(view, GraphProperties(view), nodes_to_preserve=preserve)


def fused(graph_def: graph_pb2.GraphDef, fetches: Sequence[str], count: int) -> graph_pb2.GraphDef:
    """The graph with all of its normalizations fused."""
    view = GraphView(graph_def)
    matches, refusals = find(graph_def, fetches)
    assert not refusals
    assert len(matches) == count
    original = graph_def.SerializeToString(deterministic=True)
    new = rewrite_normalizations(view, matches, fetches)
    assert graph_def.SerializeToString(deterministic=True) == original
    after = GraphView(new)
    check_normalizations(view, after, matches, fetches)
    assert after.ops.count("FusedBatchNormV3") == count
    assert "SquaredDifference" not in after.op_types
    assert same_graph(new, rewrite_normalizations(view, find(graph_def, fetches)[0], fetches))
    assert find(new, fetches) == ((), ())
    return new


def run(graph_def: graph_pb2.GraphDef, fetches: Sequence[str], seed: int = 0) -> Values:
    """What a step computes from random inputs and variables, and the variables after it."""
    random = np.random.default_rng(seed)
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    values: Values = {}
    with tf.Graph().as_default() as graph, v1.Session(graph=graph, config=config) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        feeds, reads = {}, {}
        for node in sorted(graph_def.node, key=lambda node: node.name):
            if node.op not in ("Placeholder", "VarHandleOp"):
                continue
            tensor = graph.get_tensor_by_name(f"{node.name}:0")
            dtype = tf.as_dtype(node.attr["dtype"].type)
            shape = [dim.size for dim in node.attr["shape"].shape.dim]
            if node.op == "Placeholder":
                feeds[tensor] = random.normal(0.5, 1, shape).astype(dtype.as_numpy_dtype)
            else:
                value = random.uniform(0.5, 1.5, shape) if dtype.is_floating else IMAGE[0]
                session.run(
                    tf.raw_ops.AssignVariableOp(resource=tensor, value=tf.constant(value, dtype))
                )
                reads[node.name] = tf.raw_ops.ReadVariableOp(resource=tensor, dtype=dtype)
        outputs = {
            name: graph.get_operation_by_name(name).outputs
            for name in fetches
            if graph.get_operation_by_name(name).outputs
        }
        operations = [graph.get_operation_by_name(name) for name in fetches]
        values |= session.run([{n: o[0] for n, o in outputs.items()}, operations], feeds)[0]
        values |= session.run(reads)
    return {name: value.astype(np.float64) for name, value in values.items()}


def assert_same_numbers(
    graph_def: graph_pb2.GraphDef,
    new: graph_pb2.GraphDef,
    fetches: Sequence[str],
    tolerance: float = 1e-4,
) -> None:
    """Compares by the largest number of a tensor.

    Both orders of summing 9,216 pixels in float32 are within about 1e-5 of the exact result.
    """
    for seed in range(2):
        expected, got = run(graph_def, fetches, seed), run(new, fetches, seed)
        assert expected.keys() == got.keys()
        for name, value in expected.items():
            scale = max(np.abs(value).max(), 1e-3)
            np.testing.assert_allclose(got[name], value, rtol=0, atol=tolerance * scale)


OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "momentum_and_epsilon": {"momentum": 0.7, "epsilon": 1.1e-5},
    "no_scale": {"scale": False},
    "no_offset": {"center": False},
    "neither": {"scale": False, "center": False},
    "a_named_axis": {"axis": 3},
    "a_named_axis_and_no_scale": {"axis": 3, "scale": False},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_fuses_a_layer(options: dict[str, Any]) -> None:
    layer = normalization(**options)
    graph_def, fetches = step_of(functools.partial(layer, training=True), layer.trainable_variables)
    new = fused(graph_def, fetches, 1)
    assert "RsqrtGrad" not in GraphView(new).op_types
    assert_same_numbers(graph_def, new, fetches)


def test_fuses_a_layer_of_unknown_batch_size() -> None:
    layer = normalization()
    graph_def, fetches = step_of(
        functools.partial(layer, training=True),
        layer.trainable_variables,
        batch_size=tf.Variable(4),
    )
    [match], _ = find(graph_def)
    assert match.image_shape == (None, *IMAGE[1:])
    assert_same_numbers(graph_def, fused(graph_def, fetches, 1), fetches)


def test_multiplies_by_a_learning_rate() -> None:
    # Grappler moves the learning rate before the last factor of the gradient of the scale.
    layer = normalization()
    rate = tf.Variable(0.1)

    graph_def, fetches = step_of(
        functools.partial(layer, training=True), layer.trainable_variables, rate=rate
    )
    new = fused(graph_def, fetches, 1)
    assert GraphView(new).ops.count("RealDiv") == 1
    assert_same_numbers(graph_def, new, fetches)


def conv(filters: int, size: int = 1) -> Any:
    layer = keras.layers.Conv2D(filters, size, padding="same", use_bias=False)
    layer.build(IMAGE)
    return layer


def test_fuses_two_layers_in_a_row() -> None:
    first, second = normalization(), normalization()
    graph_def, fetches = step_of(
        lambda image: second(first(image, training=True), training=True),
        [*first.trainable_variables, *second.trainable_variables],
    )
    assert_same_numbers(graph_def, fused(graph_def, fetches, 2), fetches)


def test_fuses_a_layer_whose_output_is_read_twice() -> None:
    layer, one, other = normalization(), conv(16), conv(16, 3)

    def model(image: tf.Tensor) -> tf.Tensor:
        output = layer(image, training=True)
        return one(output) * other(output)

    graph_def, fetches = step_of(model, layer.trainable_variables)
    assert_same_numbers(graph_def, fused(graph_def, fetches, 1), fetches)


def test_fuses_layers_that_a_residual_block_adds() -> None:
    # Grappler joins the additions: images in one AddN, vectors in another addition.
    layers = [normalization(), normalization()]
    convs = [conv(16), conv(16)]

    def model(image: tf.Tensor) -> tf.Tensor:
        one, other = (
            layer(conv(image), training=True) for layer, conv in zip(layers, convs, strict=True)
        )
        return tf.nn.relu(one + other)

    weights = [weight for layer in (*layers, *convs) for weight in layer.trainable_variables]
    graph_def, fetches = step_of(model, weights)
    matches, _ = find(graph_def, fetches)
    assert all(match.dropped for match in matches)
    new = fused(graph_def, fetches, 2)
    assert_same_numbers(graph_def, new, fetches)


def test_fuses_one_layer_of_a_sum_that_keeps_another() -> None:
    layers = [normalization(), normalization()]
    convs = [conv(16), conv(16)]

    def model(image: tf.Tensor) -> tf.Tensor:
        one, other = (
            layer(conv(image), training=True) for layer, conv in zip(layers, convs, strict=True)
        )
        return tf.nn.relu(one + other)

    weights = [weight for layer in (*layers, *convs) for weight in layer.trainable_variables]
    graph_def, fetches = step_of(model, weights)
    for match in find(graph_def, fetches)[0]:
        view = GraphView(graph_def)
        new = rewrite_normalizations(view, [match], fetches)
        check_normalizations(view, GraphView(new), [match], fetches)
        assert_same_numbers(graph_def, new, fetches)


def test_fuses_a_layer_around_which_an_image_is_added() -> None:
    layer, before, after = normalization(), conv(16, 3), conv(16)

    def model(image: tf.Tensor) -> tf.Tensor:
        image = before(image)
        return after(tf.nn.relu(layer(image, training=True)) + image)

    weights = [*layer.trainable_variables, *before.trainable_variables]
    graph_def, fetches = step_of(model, weights)
    [match], _ = find(graph_def, fetches)
    # dx is part of an addition.
    assert match.dropped
    assert_same_numbers(graph_def, fused(graph_def, fetches, 1), fetches)


@pytest.mark.parametrize("trained", ["scale", "offset", "image", "nothing"])
def test_fuses_a_layer_of_which_a_part_is_frozen(trained: str) -> None:
    layer = normalization()
    weights = {"scale": [layer.gamma], "offset": [layer.beta]}.get(trained, [])
    graph_def, fetches = step_of(
        functools.partial(layer, training=True), weights, of_image=trained == "image"
    )
    new = fused(graph_def, fetches, 1)
    has_gradient = "FusedBatchNormGradV3" in GraphView(new).op_types
    assert has_gradient == (trained != "nothing")
    assert_same_numbers(graph_def, new, fetches)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_fuses_a_layer_of_mixed_precision(dtype: str) -> None:
    layer = normalization(dtype=f"mixed_{dtype}")
    graph_def, fetches = step_of(
        functools.partial(layer, training=True),
        layer.trainable_variables,
        dtype=tf.as_dtype(dtype),
    )
    new = fused(graph_def, fetches, 1)
    [match], _ = find(graph_def, fetches)
    assert match.dtype == tf.as_dtype(dtype).as_datatype_enum
    # The results are rounded to 8 or 11 bits either way.
    assert_same_numbers(graph_def, new, fetches, 0.03 if dtype == "bfloat16" else 0.004)


def test_fuses_between_casts_that_others_read_too() -> None:
    layer = normalization(dtype="mixed_bfloat16")

    def model(image: tf.Tensor) -> tf.Tensor:
        return layer(image, training=True) * tf.cast(tf.cast(image, tf.float32), tf.bfloat16)

    graph_def, fetches = step_of(model, layer.trainable_variables, dtype=tf.bfloat16)
    assert_same_numbers(graph_def, fused(graph_def, fetches, 1), fetches, 0.03)


def test_fuses_a_small_network() -> None:
    layers = keras.layers
    image = keras.Input((48, 48, 16))
    start = layers.Conv2D(16, 3, padding="same", use_bias=False)(image)
    x = layers.ReLU()(layers.BatchNormalization()(start))
    x = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    x = layers.Activation("swish")(layers.BatchNormalization(axis=3)(x))
    x = layers.BatchNormalization(scale=False)(layers.Conv2D(16, 1)(x))
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.Add()([x, start])))
    model = keras.Model(image, layers.Dense(5, activation="softmax")(x))
    graph_def, fetches = as_step(optimize_graph(trace(model, batch_size=4, training=True), None))
    assert_same_numbers(graph_def, fused(graph_def, fetches, 3), fetches, 1e-3)


@pytest.mark.parametrize("seed", range(6))
def test_fuses_random_stacks(seed: int) -> None:
    random = np.random.default_rng(seed)
    stack: list[tuple[Any, bool]] = []
    for _ in range(3):
        layer = normalization(
            momentum=float(random.uniform(0.5, 1)),
            epsilon=float(10 ** random.uniform(-5, -1)),
            scale=bool(random.integers(2)),
            center=bool(random.integers(2)),
            axis=int(random.choice([-1, 3])),
        )
        stack.append((layer, bool(random.integers(2))))

    def model(image: tf.Tensor) -> tf.Tensor:
        for layer, is_residual in stack:
            output = layer(image, training=True)
            image = tf.nn.relu(output + image) if is_residual else tf.nn.sigmoid(output)
        return image

    weights = [weight for layer, _ in stack for weight in layer.trainable_variables]
    graph_def, fetches = step_of(model, weights)
    assert_same_numbers(graph_def, fused(graph_def, fetches, 3), fetches, 1e-3)


def test_computes_the_formulas() -> None:
    layer = normalization(momentum=0.75, epsilon=0.01)
    graph_def, _ = step_of(functools.partial(layer, training=True), layer.trainable_variables)
    view = GraphView(graph_def)
    [match], _ = find(graph_def)
    new = rewrite_normalizations(view, [match])
    gradient = next(node for node in new.node if node.op == "FusedBatchNormGradV3")
    names = [view.names[match.output], gradient.name]
    tensors = [f"{names[0]}:0", f"{names[0]}:1", f"{names[0]}:2"]
    tensors += [f"{gradient.name}:{port}" for port in range(3)]
    inputs = [gradient.input[0], *node_of(new, names[0]).input[:3]]
    with_names = graph_pb2.GraphDef()
    with_names.CopyFrom(new)
    fetched = []
    for place, text in enumerate([*inputs, *tensors]):
        node = with_names.node.add(name=f"fetched_{place}", op="Identity", input=[text])
        node.attr["T"].type = match.dtype
        fetched.append(node.name)
    values = run(with_names, fetched)
    dy, x, scale, offset, y, mean, unbiased, dx, dscale, doffset = (
        values[name] for name in fetched
    )
    axes, n = (0, 1, 2), x.size / x.shape[-1]
    inverse = 1 / np.sqrt(x.var(axes) + 0.01)
    normalized = (x - x.mean(axes)) * inverse
    expected = {
        "y": (y, scale * normalized + offset),
        "mean": (mean, x.mean(axes)),
        "variance": (unbiased * (n - 1) / n, x.var(axes)),
        "doffset": (doffset, dy.sum(axes)),
        "dscale": (dscale, (dy * normalized).sum(axes)),
        "dx": (
            dx,
            scale * inverse * (dy - dy.mean(axes) - normalized * (dy * normalized).mean(axes)),
        ),
    }
    for name, (got, right) in expected.items():
        tolerance = 1e-5 * np.abs(right).max()
        np.testing.assert_allclose(got, right, rtol=0, atol=tolerance, err_msg=name)


def reasons(graph_def: graph_pb2.GraphDef, preserve: Sequence[str] = ()) -> list[RefusalReason]:
    matches, refusals = find(graph_def, preserve)
    assert not matches
    assert all(refusal.op == "SquaredDifference" for refusal in refusals)
    return [refusal.reason for refusal in refusals]


R = RefusalReason


@functools.cache
def one_layer() -> tuple[graph_pb2.GraphDef, list[str], TrainingNormalization]:
    layer = normalization()
    graph_def, fetches = step_of(functools.partial(layer, training=True), layer.trainable_variables)
    [match], _ = find(graph_def, fetches)
    return graph_def, fetches, match


def changed(
    change: Callable[[node_def_pb2.NodeDef], object], op: str, part: str = ""
) -> graph_pb2.GraphDef:
    """The graph of one layer with a change of its last node of an op."""
    graph_def = graph_pb2.GraphDef()
    graph_def.CopyFrom(one_layer()[0])
    names = [node.name for node in graph_def.node if node.op == op and part in node.name]
    change(node_of(graph_def, names[-1]))
    return graph_def


def with_reader(name: str, control: bool = False) -> graph_pb2.GraphDef:
    graph_def = graph_pb2.GraphDef()
    graph_def.CopyFrom(one_layer()[0])
    op = "NoOp" if control else "Relu"
    reader = graph_def.node.add(name="reader", op=op, device=CPU)
    reader.input.append(f"^{name}" if control else name)
    if not control:
        reader.attr["T"].type = 1
    return graph_def


def names_of(op: str) -> list[str]:
    return [node.name for node in one_layer()[0].node if node.op == op]


@pytest.mark.parametrize(
    ("shape", "options", "reason"),
    [
        ((4, 12, 12, 16), {}, R.SLOWER),
        ((4, 64, 64, 16), {"axis": 1}, R.LAYOUT),
        ((4, 4096, 16), {}, R.SHAPE),
        ((4, 16, 16, 16, 16), {}, R.SHAPE),
        (IMAGE, {"dtype": "float64"}, R.DTYPE),
    ],
)
def test_keeps_by_shape_layout_and_type(
    shape: tuple[int, ...], options: dict[str, Any], reason: RefusalReason
) -> None:
    layer = keras.layers.BatchNormalization(**options)
    layer.build(shape)
    dtype = tf.as_dtype(options.get("dtype", "float32"))
    graph_def, _ = step_of(
        functools.partial(layer, training=True),
        layer.trainable_variables,
        shape=shape,
        dtype=dtype,
    )
    assert reasons(graph_def) == [reason]


def test_keeps_small_images_of_unknown_batch_size() -> None:
    layer = normalization()
    for size, expected in ((22, [R.SLOWER]), (23, [])):
        graph_def, _ = step_of(
            functools.partial(layer, training=True),
            layer.trainable_variables,
            shape=(4, size, size, 16),
            batch_size=tf.Variable(4),
        )
        assert [refusal.reason for refusal in find(graph_def)[1]] == expected


def test_keeps_what_is_no_batch_normalization() -> None:
    layers = keras.layers
    layer = layers.LayerNormalization()
    layer.build(IMAGE)
    graph_def, _ = step_of(layer, layer.trainable_variables)
    assert set(reasons(graph_def)) <= {R.LAYOUT}

    def loss(image: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.math.squared_difference(image, 2.0), axis=(0, 1, 2))

    graph_def, _ = step_of(loss, [])
    assert reasons(graph_def) == []
    layer = normalization()
    graph_def, _ = step_of(functools.partial(layer, training=False), layer.trainable_variables)
    assert reasons(graph_def) == []


def test_keeps_statistics_with_a_mask() -> None:
    layer = normalization()
    mask = tf.constant(np.arange(4 * 48 * 48).reshape(4, 48, 48) % 3 == 0)
    graph_def, _ = step_of(
        lambda image: layer(image, training=True, mask=mask), layer.trainable_variables
    )
    assert find(graph_def)[0] == ()


def test_keeps_a_scale_that_depends_on_the_statistics() -> None:
    layer = normalization(renorm=True)
    graph_def, _ = step_of(functools.partial(layer, training=True), layer.trainable_variables)
    assert reasons(graph_def) == [R.PATTERN]


@pytest.mark.parametrize("op", ["SquaredDifference", "RsqrtGrad", "Squeeze", "Tile"])
def test_keeps_what_is_fed_or_fetched(op: str) -> None:
    name = next(name for name in names_of(op) if "batch_norm" in name)
    assert reasons(one_layer()[0], [name]) == [R.PRESERVED]


def test_keeps_a_fetched_output() -> None:
    graph_def, _, match = one_layer()
    view = GraphView(graph_def)
    assert match.image_gradient is not None
    for index in (match.output, match.image_gradient):
        assert reasons(graph_def, [view.names[index]]) == [R.PRESERVED]


def test_keeps_an_image_that_is_read_elsewhere() -> None:
    [name] = names_of("SquaredDifference")
    assert reasons(with_reader(name)) == [R.READ_ELSEWHERE]
    name = next(name for name in names_of("Sub") if "moments/sub" in name)
    assert reasons(with_reader(name)) == [R.READ_ELSEWHERE]


@pytest.mark.parametrize("op", ["Rsqrt", "RsqrtGrad", "Squeeze"])
def test_fuses_with_vectors_that_are_read_elsewhere(op: str) -> None:
    _, fetches, _ = one_layer()
    for name in names_of(op):
        read = with_reader(name)
        fetches = [*fetches, "reader"]
        assert_same_numbers(read, fused(read, fetches, 1), fetches)


@pytest.mark.parametrize("op", ["SquaredDifference", "RsqrtGrad", "Rsqrt"])
def test_keeps_what_others_wait_for(op: str) -> None:
    [name] = names_of(op)
    is_image = op == "SquaredDifference"
    if is_image:
        assert reasons(with_reader(name, control=True)) == [R.CONTROL_DEPENDENCY]
    else:
        # The small node stays for the node that waits.
        assert len(find(with_reader(name, control=True))[0]) == 1


def test_keeps_what_waits_for_others() -> None:
    def wait(node: node_def_pb2.NodeDef) -> None:
        node.input.append("^image")

    assert reasons(changed(wait, "SquaredDifference")) == [R.CONTROL_DEPENDENCY]


def test_keeps_nodes_on_other_devices_and_in_clusters() -> None:
    for op in ("SquaredDifference", "RsqrtGrad", "Tile"):
        for device in (CPU.replace("task:0", "task:1"), CPU.replace("CPU:0", "CPU:1"), ""):

            def place(node: node_def_pb2.NodeDef, device: str = device) -> None:
                node.device = device

            assert reasons(changed(place, op, "batch_norm")) == [R.DEVICE]

        def mark(node: node_def_pb2.NodeDef) -> None:
            node.attr["_XlaMustCompile"].b = True

        assert reasons(changed(mark, op, "batch_norm")) == [R.XLA]


def test_keeps_other_gradients() -> None:
    def change_number(node: node_def_pb2.NodeDef) -> None:
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(2.001))

    assert reasons(changed(change_number, "Const", "moments/scalar")) == [R.READ_ELSEWHERE]

    def exchange(node: node_def_pb2.NodeDef) -> None:
        node.op = "AddV2"

    assert reasons(changed(exchange, "Sub", "moments/sub")) == [R.READ_ELSEWHERE]


def test_keeps_other_outputs() -> None:
    def exchange(node: node_def_pb2.NodeDef) -> None:
        node.op = "AddV2"

    assert reasons(changed(exchange, "Sub", "batchnorm/sub")) == [R.PATTERN]


def test_fuses_on_gpus_in_both_layouts() -> None:
    layer = keras.layers.BatchNormalization(axis=1)
    layer.build((4, 16, 48, 48))
    graph_def, fetches = step_of(
        functools.partial(layer, training=True),
        layer.trainable_variables,
        shape=(4, 16, 48, 48),
    )
    for node in graph_def.node:
        node.device = node.device.replace("CPU", "GPU")
    new = fused(graph_def, fetches, 1)
    node = next(node for node in new.node if node.op == "FusedBatchNormV3")
    assert node.attr["data_format"].s == b"NCHW"
    assert node.device.endswith("GPU:0")


def test_the_check_finds_a_change() -> None:
    graph_def, fetches, match = one_layer()
    view = GraphView(graph_def)
    new = rewrite_normalizations(view, [match], fetches)
    update = next(node for node in new.node if node.op == "AssignVariableOp")
    update.input[1] = match.name.replace("SquaredDifference", "mean")
    broken = [new]
    broken.append(rewrite_normalizations(view, [match], fetches))
    node = next(node for node in broken[1].node if node.op == "Tanh")
    node.device = ""
    for each in broken:
        with pytest.raises(GraphError):
            check_normalizations(view, GraphView(each), [match], fetches)
