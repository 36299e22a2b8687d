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
from tensorflow.core.framework import graph_pb2

from tf_interop.convolution import Refusal, RefusalReason
from tf_interop.errors import GraphError
from tf_interop.graph import find_normalizations
from tf_interop.graph.check_fusions import check_normalizations
from tf_interop.graph.find_normalizations import (
    TrainingNormalization,
    find_training_normalizations,
)
from tf_interop.graph.fuse_normalizations import rewrite_normalizations
from tf_interop.graph.normalization_proof import Result
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.model.graphs import optimize_graph, trace, unread_nodes

v1 = tf.compat.v1
IMAGE = (4, 48, 48, 16)
FEW_PIXELS = (4, 4, 4, 2048)
R = RefusalReason
Found = tuple[tuple[TrainingNormalization, ...], tuple[Refusal, ...]]
Graph = tuple[graph_pb2.GraphDef, list[str]]


def normalization(shape: Sequence[int] = IMAGE, **options: Any) -> Any:
    layer = keras.layers.BatchNormalization(**options)
    layer.build(shape)
    return functools.partial(layer, training=True)


def conv(size: int = 1) -> Any:
    layer = keras.layers.Conv2D(16, size, padding="same", use_bias=False)
    layer.build(IMAGE)
    return layer


def weights_of(layers: Sequence[Any]) -> list[Any]:
    layers = [getattr(layer, "func", layer) for layer in layers]
    return [weight.value for layer in layers for weight in layer.trainable_variables]


def with_fetches(graph_def: graph_pb2.GraphDef) -> Graph:
    return graph_def, unread_nodes(graph_def)


def step_of(
    model: Callable[[tf.Tensor], tf.Tensor],
    weights: Sequence[Any],
    *,
    shape: Sequence[int] = IMAGE,
    dtype: str = "float32",
    of_image: bool = True,
    batch_size: Any = None,
    rate: Any = None,
) -> Graph:
    """The graph of a model and its gradients, as Grappler optimizes it; and what a step runs.

    With a variable as `batch_size` nothing knows the batch size. A `rate` multiplies gradients.
    """
    spec = tf.TensorSpec(shape, dtype)

    @tf.function(input_signature=[spec, spec], autograph=False)  # type: ignore[untyped-decorator]
    def step(image: tf.Tensor, factors: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(image)
            # The image and its gradient come from other operations, as in a network.
            inner = tf.nn.tanh(image)
            output = model(inner if batch_size is None else inner[:batch_size])
            loss = tf.reduce_mean(tf.cast(tf.nn.tanh(output) * factors, tf.float32))
        gradients = tape.gradient(loss, [image, *weights] if of_image else list(weights))
        return loss, gradients if rate is None else [each * rate for each in gradients]

    return with_fetches(optimize_graph(trace(step), None))


def find(graph_def: graph_pb2.GraphDef, preserve: Sequence[str] = (), device: str = "CPU") -> Found:
    view = GraphView(graph_def, preserve)
    return find_training_normalizations(view, GraphProperties(view), device)


def rewritten(graph: Graph, matches: Sequence[TrainingNormalization]) -> graph_pb2.GraphDef:
    """The graph with some of its normalizations fused, which passes the check."""
    view = GraphView(*graph)
    original = graph[0].SerializeToString(deterministic=True)
    new = rewrite_normalizations(view, matches)
    assert graph[0].SerializeToString(deterministic=True) == original
    check_normalizations(view, GraphView(new), matches)
    return new


def fused(graph: Graph, count: int, device: str = "CPU") -> graph_pb2.GraphDef:
    """The graph with all of its normalizations fused."""
    graph_def, fetches = graph
    matches, refusals = find(graph_def, fetches, device)
    assert (len(matches), refusals) == (count, ())
    new = rewritten(graph, matches)
    after = GraphView(new)
    assert after.ops.count("FusedBatchNormV3") == count
    assert not {"SquaredDifference", "RsqrtGrad"} & after.op_types
    assert same_graph(new, rewritten(graph, find(graph_def, fetches, device)[0]))
    assert find(new, fetches, device) == ((), ())
    return new


def run(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """What a step computes from random inputs and variables, and the variables after it."""
    graph_def, fetches = graph
    random = np.random.default_rng(seed)
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default() as imported, v1.Session(graph=imported, config=config) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        feeds, reads = {}, {}
        for node in sorted(graph_def.node, key=lambda node: node.name):
            if node.op not in ("Placeholder", "VarHandleOp"):
                continue
            tensor = imported.get_tensor_by_name(f"{node.name}:0")
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
        operations = {name: imported.get_operation_by_name(name) for name in fetches}
        outputs = {name: each.outputs[0] for name, each in operations.items() if each.outputs}
        values = session.run([outputs, list(operations.values())], feeds)[0] | session.run(reads)
    return {name: np.asarray(value, np.float64) for name, value in values.items()}


def assert_same_numbers(graph: Graph, new: graph_pb2.GraphDef, tolerance: float = 1e-4) -> None:
    """Compares by the largest number of a tensor.

    Both orders of summing 9,216 pixels in float32 are within about 1e-5 of the exact result. The
    gradients of parameters are means of numbers of about 1; some would be 0 without rounding.
    """
    for seed in range(2):
        expected, got = run(graph, seed), run((new, graph[1]), seed)
        assert expected.keys() == got.keys()
        for name, value in expected.items():
            scale = max(np.abs(value).max(), 1e-2 if value.ndim < 4 else 1e-9)
            np.testing.assert_allclose(got[name], value, rtol=0, atol=tolerance * scale)


def one(of_image: bool = True, shape: Sequence[int] = IMAGE, **options: Any) -> Graph:
    layer = normalization(shape, **options)
    dtype = layer.func.compute_dtype
    return step_of(layer, weights_of([layer]), of_image=of_image, shape=shape, dtype=dtype)


def in_a_row(*layers: Any, **arguments: Any) -> Graph:
    return step_of(
        lambda image: functools.reduce(lambda value, layer: layer(value), layers, image),
        weights_of(layers),
        **arguments,
    )


def read_twice() -> Graph:
    layer, first, second = normalization(), conv(), conv(3)

    def model(image: tf.Tensor) -> tf.Tensor:
        output = layer(image)
        return tf.nn.tanh(first(output)) * tf.nn.sigmoid(second(output))

    return step_of(model, weights_of([layer, first, second]))


def added_to_each_other(**options: Any) -> Graph:
    """Grappler joins the additions: images in one AddN, vectors in another addition."""
    layers, convs = [normalization(**options), normalization()], [conv(), conv()]

    def model(image: tf.Tensor) -> tf.Tensor:
        first, second = (layer(conv(image)) for layer, conv in zip(layers, convs, strict=True))
        return tf.nn.tanh(first + second)

    return step_of(model, weights_of([*layers, *convs]))


def around_it_an_image_is_added() -> Graph:
    """The gradient of the normalization's image is a part of a sum."""
    layer, before, after = normalization(), conv(3), conv()

    def model(image: tf.Tensor) -> tf.Tensor:
        image = before(image)
        return after(tf.nn.tanh(layer(image)) + image)

    return step_of(model, weights_of([layer, before, after]))


def gated() -> Graph:
    """The normalization's image is multiplied by another one and summed, as by its gradient."""
    layer, gate = normalization(), conv()

    def model(image: tf.Tensor) -> tf.Tensor:
        image = gate(image)
        sums = tf.reduce_sum(image * tf.nn.sigmoid(image), [1, 2], keepdims=True)
        return layer(image) * sums / 1000

    return step_of(model, weights_of([layer, gate]))


def only(*names: str) -> Graph:
    layer = normalization()
    return step_of(layer, [getattr(layer.func, name).value for name in names], of_image=False)


def without_gradient_of(statistic: str) -> Graph:
    def model(image: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(image, [0, 1, 2])
        if statistic == "mean":
            mean = tf.stop_gradient(mean)
        else:
            variance = tf.stop_gradient(variance)
        return tf.nn.batch_normalization(image, mean, variance, None, None, 1e-3)

    return step_of(model, [])


def with_decay(factor: float) -> Graph:
    """A step whose loss has the scale and offset of a normalization, too."""
    scale, offset = (tf.Variable(tf.fill([IMAGE[-1]], value)) for value in (0.7, 1.3))
    spec = tf.TensorSpec(IMAGE)

    @tf.function(input_signature=[spec, spec], autograph=False)  # type: ignore[untyped-decorator]
    def step(image: tf.Tensor, factors: tf.Tensor) -> Any:
        parameters = tf.convert_to_tensor(scale), tf.convert_to_tensor(offset)
        inner = tf.nn.tanh(image)
        with tf.GradientTape() as tape:
            tape.watch([inner, *parameters])
            statistics = tf.nn.moments(inner, [0, 1, 2])
            output = tf.nn.batch_normalization(inner, *statistics, *parameters[::-1], 1e-3)
            loss = tf.reduce_sum(tf.nn.tanh(output) * factors)
            loss += factor * tf.add_n([tf.reduce_sum(each**2) for each in parameters])
        return loss, tape.gradient(loss, [inner, *parameters])

    return with_fetches(optimize_graph(trace(step), None))


def network(compute_capability: str | None = None, size: int = 48) -> Graph:
    layers = keras.layers
    image = keras.Input((size, size, 16))
    start = layers.Conv2D(16, 3, padding="same", use_bias=False)(image)
    x = layers.Activation("tanh")(layers.BatchNormalization()(start))
    x = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    x = layers.Activation("swish")(layers.BatchNormalization(axis=3)(x))
    x = layers.BatchNormalization(scale=False)(layers.Conv2D(16, 1)(x))
    x = layers.GlobalAveragePooling2D()(layers.Activation("tanh")(layers.Add()([x, start])))
    model = keras.Model(image, layers.Dense(5, activation="softmax")(x))
    traced = trace(model, batch_size=4, training=True)
    return with_fetches(optimize_graph(traced, compute_capability))


def random_stack(seed: int) -> Graph:
    random = np.random.default_rng(seed)
    stack = [
        normalization(
            momentum=float(random.uniform(0.5, 1)),
            epsilon=float(10 ** random.uniform(-5, -1)),
            scale=bool(random.integers(2)),
            center=bool(random.integers(2)),
            axis=int(random.choice([-1, 3])),
        )
        for _ in range(3)
    ]
    are_residual = random.integers(2, size=3)

    def model(image: tf.Tensor) -> tf.Tensor:
        for layer, is_residual in zip(stack, are_residual, strict=True):
            image = tf.nn.tanh(layer(image) + (image if is_residual else 0.0))
        return image

    return step_of(model, weights_of(stack))


FUSED: dict[str, tuple[int, Callable[[], Graph]]] = {
    "a_layer": (1, one),
    "neither_scale_nor_offset": (1, lambda: one(scale=False, center=False)),
    "an_unknown_batch_size": (1, lambda: in_a_row(normalization(), batch_size=tf.Variable(4))),
    # The biased variance of few pixels, which the moving variance takes as it is.
    "few_pixels": (1, lambda: one(shape=FEW_PIXELS, momentum=0.0)),
    "few_pixels_of_unknown_number": (
        1,
        lambda: in_a_row(
            normalization(FEW_PIXELS, momentum=0.0), shape=FEW_PIXELS, batch_size=tf.Variable(4)
        ),
    ),
    "a_learning_rate": (1, lambda: in_a_row(normalization(), rate=tf.Variable(0.1))),
    "decay_of_its_parameters": (1, lambda: with_decay(10.0)),
    "two_in_a_row": (2, lambda: in_a_row(normalization(), normalization())),
    "read_twice": (1, read_twice),
    "added_to_each_other": (2, added_to_each_other),
    "added_to_one_without_offset": (2, lambda: added_to_each_other(center=False)),
    "around_it_an_image_is_added": (1, around_it_an_image_is_added),
    "gated": (1, gated),
    "a_small_network": (3, network),
    "only_the_image": (1, lambda: step_of(normalization(), [])),
    "only_the_scale": (1, lambda: only("gamma")),
    "only_the_offset": (1, lambda: only("beta")),
    "no_gradient": (1, only),
    # Its gradient needs only vectors of the normalization.
    "no_gradient_of_the_variance": (1, lambda: without_gradient_of("variance")),
    **{f"stack_{seed}": (3, functools.partial(random_stack, seed)) for seed in range(4)},
}


@pytest.mark.parametrize(("count", "make"), FUSED.values(), ids=FUSED)
def test_fuses(count: int, make: Callable[[], Graph]) -> None:
    graph = make()
    assert_same_numbers(graph, fused(graph, count))


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.03), ("float16", 0.004)])
def test_fuses_mixed_precision(dtype: str, tolerance: float) -> None:
    graph = one(dtype=f"mixed_{dtype}")
    new = fused(graph, 1)
    node = next(node for node in new.node if node.op == "FusedBatchNormGradV3")
    assert node.attr["T"].type == tf.as_dtype(dtype).as_datatype_enum
    # The results are rounded to 8 or 11 bits either way.
    assert_same_numbers(graph, new, tolerance)


def test_fuses_between_casts_that_others_read_too() -> None:
    layer = normalization(dtype="mixed_bfloat16")

    def model(image: tf.Tensor) -> tf.Tensor:
        return layer(image) * tf.cast(tf.cast(image, tf.float32), tf.bfloat16)

    graph = step_of(model, weights_of([layer]), dtype="bfloat16")
    assert_same_numbers(graph, fused(graph, 1), 0.03)


@pytest.mark.parametrize("factor", [1e-9, 1e-3, 1.0])
def test_decay_of_parameters_is_no_part_of_their_gradients(factor: float) -> None:
    graph = with_decay(factor)
    new = GraphView(rewritten(graph, find(*graph)[0]))
    [fused] = [node for node in range(len(new)) if new.ops[node] == "FusedBatchNormGradV3"]
    added = [
        (port, new.ops[reader])
        for reader in new.readers[fused]
        for source, port in new.fanins[reader]
        if source == fused and port > 0
    ]
    assert sorted(port for port, _ in added) == [1, 2]
    assert {op for _, op in added} <= {"AddN", "AddV2"}


@pytest.mark.parametrize("epsilon", [1e-3, 1e-6, 1e-12])
def test_a_variance_with_epsilon_is_not_the_variance(epsilon: float) -> None:
    graph_def, fetches = one(epsilon=epsilon)
    [match], _ = find(graph_def, fetches)
    view = GraphView(graph_def)
    variances = [
        view.names[node]
        for (node, _), (result, _) in match.results.items()
        if result is Result.VARIANCE
    ]
    assert variances and all("/moments/" in name for name in variances)


def test_casts_that_wait_stay() -> None:
    graph_def, fetches = one(dtype="mixed_bfloat16")
    for cast in [node.name for node in graph_def.node if node.op == "Cast"]:
        changed_def = graph_pb2.GraphDef()
        changed_def.CopyFrom(graph_def)
        node_of(changed_def, cast).input.append("^factors")
        graph = changed_def, fetches
        new = rewritten(graph, find(*graph)[0])
        assert "^factors" in node_of(new, cast).input
        assert_same_numbers(graph, new, 0.03)


@pytest.mark.parametrize("which", [0, 1])
def test_fuses_one_of_a_sum_that_keeps_the_other(which: int) -> None:
    graph = added_to_each_other()
    assert_same_numbers(graph, rewritten(graph, [find(*graph)[0][which]]))


def reasons(graph_def: graph_pb2.GraphDef, preserve: Sequence[str] = ()) -> set[RefusalReason]:
    matches, refusals = find(graph_def, preserve)
    assert not matches
    assert all(refusal.op in ("SquaredDifference", "Rsqrt") for refusal in refusals)
    return {refusal.reason for refusal in refusals}


def masked() -> Graph:
    mask = tf.constant(np.arange(4 * 48 * 48).reshape(4, 48, 48) % 3 == 0)
    layer = normalization()
    return step_of(functools.partial(layer, mask=mask), weights_of([layer]))


def layer_normalization() -> Graph:
    layer = keras.layers.LayerNormalization()
    layer.build(IMAGE)
    return step_of(layer, weights_of([layer]))


def squared_loss() -> Graph:
    def model(image: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.math.squared_difference(image, 2.0), axis=(0, 1, 2))

    return step_of(model, [])


KEPT: dict[str, tuple[set[RefusalReason], Callable[[], Graph]]] = {
    "channels_first": ({R.LAYOUT}, lambda: one(shape=(4, 64, 64, 16), axis=1)),
    "rank_3": ({R.SHAPE}, lambda: one(shape=(4, 4096, 16))),
    "rank_5": ({R.SHAPE}, lambda: one(shape=(4, 16, 16, 16, 16))),
    "double": ({R.DTYPE}, lambda: one(dtype="float64")),
    "a_scale_that_depends_on_statistics": ({R.PATTERN}, lambda: one(renorm=True)),
    "an_incomplete_gradient": ({R.READ_ELSEWHERE}, lambda: without_gradient_of("mean")),
    "a_mask": ({R.PATTERN}, masked),
    "synchronized": ({R.PATTERN}, lambda: one(synchronized=True)),
    "a_layer_normalization": ({R.LAYOUT}, layer_normalization),
    "a_loss": (set(), squared_loss),
    "inference": (set(), lambda: in_a_row(normalization().func)),
}


@pytest.mark.parametrize(("expected", "make"), KEPT.values(), ids=KEPT)
def test_keeps(expected: set[RefusalReason], make: Callable[[], Graph]) -> None:
    assert reasons(make()[0]) == expected


@pytest.mark.parametrize(("size", "is_small"), [(19, True), (20, False)])
def test_a_small_image_stays_under_op_determinism(
    monkeypatch: pytest.MonkeyPatch, size: int, is_small: bool
) -> None:
    batch_size = tf.Variable(4)
    graph_def, _ = in_a_row(normalization(), shape=(4, size, size, 16), batch_size=batch_size)
    assert [refusal.reason for refusal in find(graph_def)[1]] == []
    monkeypatch.setattr(find_normalizations, "is_op_determinism_on", lambda: True)
    assert [refusal.reason for refusal in find(graph_def)[1]] == [R.SLOWER] * is_small


one_layer = functools.cache(one)


def changed(which: str, part: str, **changes: Any) -> graph_pb2.GraphDef:
    """The graph of one layer with a change of its last node of the op `which`."""
    graph_def = graph_pb2.GraphDef()
    graph_def.CopyFrom(one_layer()[0])
    name = [node.name for node in graph_def.node if node.op == which and part in node.name][-1]
    node = node_of(graph_def, name)
    node.input.extend(changes.pop("waits_for", ()))
    for attribute in changes.pop("marks", ()):
        node.attr[attribute].b = True
    if "value" in changes:
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(changes.pop("value")))
    for field, value in changes.items():
        setattr(node, field, value)
    return graph_def


@pytest.mark.parametrize(
    ("reason", "op", "part", "changes"),
    [
        (R.CONTROL_DEPENDENCY, "SquaredDifference", "", {"waits_for": ["^image"]}),
        (R.READ_ELSEWHERE, "Const", "moments/scalar", {"value": 2.0001}),
        (R.READ_ELSEWHERE, "Sub", "moments/sub", {"op": "AddV2"}),
        (R.PATTERN, "Sub", "batchnorm/sub", {"op": "AddV2"}),
        *(
            (reason, op, "batch_norm", change)
            for op in ("SquaredDifference", "RsqrtGrad", "Tile")
            for reason, change in (
                (R.DEVICE, {"device": CPU.replace("CPU:0", "CPU:1")}),
                (R.XLA, {"marks": ["_XlaMustCompile"]}),
            )
        ),
    ],
)
def test_keeps_a_changed_layer(
    reason: RefusalReason, op: str, part: str, changes: dict[str, Any]
) -> None:
    assert reasons(changed(op, part, **changes)) == {reason}


def test_leaves_other_devices_alone() -> None:
    graph_def = changed("SquaredDifference", "", device=CPU.replace("CPU", "GPU"))
    assert find(graph_def) == ((), ())


@pytest.mark.parametrize("op", ["SquaredDifference", "RsqrtGrad", "Tile", "Mean", "AddN"])
def test_keeps_what_is_fed_or_fetched(op: str) -> None:
    graph_def, _ = one_layer()
    names = [node.name for node in graph_def.node if node.op == op]
    assert reasons(graph_def, names) == {R.PRESERVED}


def with_reader(name: str, *, control: bool) -> Graph:
    graph_def = graph_pb2.GraphDef()
    graph_def.CopyFrom(one_layer()[0])
    reader = graph_def.node.add(name="reader", op="NoOp" if control else "Tanh", device=CPU)
    reader.input.append(f"^{name}" if control else name)
    if not control:
        reader.attr["T"].type = 1
    return graph_def, [*one_layer()[1], "reader"]


@pytest.mark.parametrize("control", [False, True])
def test_what_others_need(control: bool) -> None:
    """An image that others need stays; a vector does not keep a normalization from being fused."""
    for op in ("SquaredDifference", "Tile", "Rsqrt", "Squeeze", "Mean", "AddN"):
        for node in one_layer()[0].node:
            if node.op != op or "batch_norm" not in node.name + "batch_norm" * (op == "AddN"):
                continue
            graph = with_reader(node.name, control=control)
            if op in ("SquaredDifference", "Tile"):
                reason = R.CONTROL_DEPENDENCY if control else R.READ_ELSEWHERE
                assert reasons(graph[0]) == {reason}
            else:
                new = rewritten(graph, find(*graph)[0])
                assert "FusedBatchNormV3" in GraphView(new).op_types
                assert_same_numbers(graph, new)


@pytest.mark.parametrize("size", [48, 16])  # 16 is also the number of channels
def test_fuses_where_grappler_changed_the_layout(size: int) -> None:
    graph_def, fetches = network("9.0", size)
    assert "Transpose" in GraphView(graph_def).op_types
    new = fused((graph_def, fetches), 3, "GPU")
    layouts = {node.attr["data_format"].s for node in new.node if node.op == "FusedBatchNormV3"}
    assert layouts == {b"NCHW"}
    for each in (graph_def, new):
        for node in each.node:
            node.device = node.device.replace("GPU", "CPU")
    assert_same_numbers((graph_def, fetches), new)


def test_keeps_what_others_need_of_an_image_in_the_other_layout() -> None:
    graph_def, fetches = network("9.0")
    tile = next(n for n in graph_def.node if n.op == "Tile" and "batch_norm" in n.name)
    reader = graph_def.node.add(name="reader", op="Tanh", device=tile.device, input=[tile.name])
    reader.attr["T"].type = 1
    matches, refusals = find(graph_def, [*fetches, "reader"], "GPU")
    assert len(matches) == 2
    assert [refusal.reason for refusal in refusals] == [R.READ_ELSEWHERE]


@pytest.mark.parametrize(
    ("op", "changes"),
    [
        ("AssignVariableOp", {"input": ["image", "image"]}),
        ("Tanh", {"device": ""}),
        ("Tanh", {"op": "Relu"}),
        ("Tanh", {"name": "another"}),
    ],
)
def test_the_check_finds_a_change(op: str, changes: dict[str, Any]) -> None:
    graph_def, fetches = one_layer()
    view, matches = GraphView(graph_def, fetches), find(graph_def, fetches)[0]
    new = rewrite_normalizations(view, matches)
    node = next(node for node in new.node if node.op == op)
    if "input" in changes:
        node.input[1:] = changes.pop("input")[1:]
    for field, value in changes.items():
        setattr(node, field, value)
    with pytest.raises(GraphError):
        check_normalizations(view, GraphView(new), matches)
