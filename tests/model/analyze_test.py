"""Counts of `analyze` on known networks, and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
import tf_keras

import tf_interop
from tf_interop import Analysis
from tf_interop.convolution import RefusalReason
from tf_interop.errors import GraphError
from tf_interop.model.graphs import with_inferred_shapes

FILTER = tf.ones((3, 3, 4, 4))
SPEC = tf.TensorSpec((None, 8, 8, 4))


def _model(keras: Any = tf.keras, *, size: int | None = 8) -> Any:
    """Two branches, batch normalization with statistics, and dropout with a random seed."""
    image = keras.Input((size, size, 3))
    branches = [keras.layers.Conv2D(4, side, padding="same")(image) for side in (3, 5)]
    features = keras.layers.BatchNormalization()(keras.layers.Concatenate()(branches))
    features = keras.layers.Dropout(0.5)(keras.layers.GlobalAveragePooling2D()(features))
    return keras.Model(image, keras.layers.Dense(3, activation="softmax")(features))


def _shape(analysis: Analysis) -> tuple[int, int, int, int]:
    """Convolutions, longest chain, most at one depth, independent pairs."""
    return (
        analysis.convolution_count,
        analysis.longest_chain,
        analysis.widest_level,
        analysis.independent_pair_count,
    )


@pytest.mark.parametrize(
    ("name", "training", "shape", "kinds", "conclusion"),
    [
        # The image has no gradient.
        pytest.param(
            *("ResNet50", True, (158, 98, 4, 2792), (53, 52, 53), "158 convolutions, "),
            marks=pytest.mark.slow,
        ),
        ("InceptionV3", False, (94, 47, 4, 248), (94, 0, 0), "94 convolutions, 27 groups of 2 "),
        ("MobileNet", False, (28, 28, 1, 0), (28, 0, 0), "No two convolutions are independent"),
    ],
)
def test_counts_of_networks(
    name: str,
    training: bool,
    shape: tuple[int, ...],
    kinds: tuple[int, ...],
    conclusion: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_INTEROP_HOST_STAGES", "0")
    model = getattr(tf.keras.applications, name)(weights=None)
    analysis = tf_interop.analyze(model, training=training)
    what = "one training step with SGD" if training else "inference"
    assert analysis.name == f"{model.name}, {what}, batch 1"
    assert _shape(analysis) == shape
    assert tuple(analysis.counts_by_kind.values()) == kinds
    assert sum(analysis.counts_by_op.values()) == shape[0]
    assert analysis.conclusion.startswith(conclusion)
    said = " ".join(str(analysis).split())
    assert analysis.conclusion in said
    assert f"{shape[3]:,}" in said


def _maps_and_scores() -> Any:
    image = tf.keras.Input((8, 8, 3))
    maps = tf.keras.layers.Conv2D(4, 3)(image)
    scores = tf.keras.layers.Dense(2)(tf.keras.layers.Flatten()(maps))
    return tf.keras.Model(image, [maps, scores])


def _named_scores() -> Any:
    maps_and_scores = _maps_and_scores()
    return tf.keras.Model(maps_and_scores.input, {"scores": maps_and_scores.output[1]})


def _several_inputs() -> Any:
    image = tf.keras.Input((8, 8, 3), name="image")
    extra = tf.keras.Input((2,), dtype="int32", name="extra")
    features = tf.keras.layers.Flatten()(tf.keras.layers.Conv2D(4, 3)(image))
    embedded = tf.keras.layers.Embedding(3, 1)(extra)[..., 0]
    joined = tf.keras.layers.Concatenate()([features, embedded])
    return tf.keras.Model({"image": image, "extra": extra}, joined)


def _sequential(keras: Any = tf.keras, *, batch_size: int | None = None) -> Any:
    image = keras.Input((8, 8, 3), batch_size=batch_size)
    return keras.Sequential([image, keras.layers.Conv2D(4, 3)])


def _without_variables() -> Any:
    return tf.keras.Sequential([tf.keras.Input((8, 8, 3)), tf.keras.layers.Flatten()])


@pytest.mark.parametrize(
    ("make", "options", "count", "note"),
    [
        (lambda: _model(tf_keras), {"training": True}, 4, ""),
        (_without_variables, {}, 0, ""),
        (_maps_and_scores, {"training": True}, 2, "mean of squares"),
        (_named_scores, {"training": True}, 2, ""),
        (_several_inputs, {}, 1, ""),
        (_sequential, {"batch_size": 3}, 1, ""),
        (lambda: _sequential(tf_keras), {"batch_size": 3}, 1, ""),
        (lambda: _sequential(batch_size=5), {}, 1, "fixes the batch size at 5"),
        (lambda: _model(size=None), {"image_size": (8, 9)}, 2, ""),
        (lambda: _convolution_function(tf.TensorSpec(None)), {}, 1, ""),
    ],
)
def test_takes_all_forms_of_models(
    make: Callable[[], Any], options: dict[str, Any], count: int, note: str
) -> None:
    analysis = tf_interop.analyze(make(), **options)
    assert analysis.convolution_count == count
    assert len(analysis.notes) == bool(note)
    assert note in "".join(analysis.notes)
    assert ("no convolution" in analysis.conclusion) == (not count)


class _Subclassed(tf.keras.Model):  # type: ignore[misc]
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs


def _convolution_function(spec: tf.TensorSpec = SPEC, **options: Any) -> Any:
    @tf.function(input_signature=[spec], **options)
    def convolution(image: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(image, FILTER, 1, "SAME")

    return convolution


def test_takes_a_concrete_function_with_named_and_constant_arguments() -> None:
    runs = tf.Variable(0)

    @tf.function
    def convolution(image: tf.Tensor, same: bool, *, scale: tf.Tensor) -> tf.Tensor:
        runs.assign_add(1)
        return tf.nn.conv2d(image, FILTER, 1, "SAME" if same else "VALID") * scale

    function = convolution.get_concrete_function(SPEC, True, scale=tf.TensorSpec(()))
    analysis = tf_interop.analyze(function)
    assert (analysis.name, analysis.convolution_count) == ("convolution", 1)
    # Nothing is run.
    assert runs.numpy() == 0


def test_inlines_calls_conditionals_and_loops() -> None:
    convolution = _convolution_function()

    @tf.function(input_signature=[SPEC, tf.TensorSpec((), tf.int32)])
    def nested(image: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        image = convolution(convolution(image))
        image = tf.cond(count > 0, lambda: convolution(image), lambda: image)
        for _ in tf.range(count):
            image = convolution(image)
        return image

    # Two in a row, one in the branch, one in the loop's body.
    graph_def = nested.get_concrete_function().graph.as_graph_def()
    for each in (nested, graph_def):
        assert _shape(tf_interop.analyze(each)) == (4, 4, 1, 0)
    graph_def.node[0].op = "NoSuchOp"
    with pytest.raises(GraphError, match="NoSuchOp"):
        tf_interop.analyze(graph_def)


def test_takes_a_variable_that_a_branch_changes() -> None:
    filter_ = tf.Variable(FILTER)

    @tf.function(input_signature=[tf.TensorSpec((2, 8, 8, 4))])
    def changing(image: tf.Tensor) -> tf.Tensor:
        result = tf.nn.conv2d(image, filter_, 1, "SAME")
        mean = tf.reduce_mean(result)
        tf.cond(mean > 0, lambda: filter_.assign(filter_ * mean), lambda: filter_.read_value())
        return result

    assert tf_interop.analyze(changing).convolution_count == 1


def test_infers_the_shape_of_a_fused_node_that_tensorflow_does_not_import() -> None:
    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder(tf.bfloat16, (2, 8, 8, 4), "image")
        filter_ = tf.compat.v1.placeholder(tf.bfloat16, (3, 3, 4, 4), "filter")
        tf.compat.v1.placeholder(tf.bfloat16, (4,), "bias")
        tf.nn.relu(tf.nn.conv2d(image, filter_, 2, "SAME", name="y"))
    graph_def = graph.as_graph_def()
    [fused] = [node for node in graph_def.node if node.name == "y"]
    fused.op = "_FusedConv2D"
    fused.input.append("bias")
    fused.attr["num_args"].i = 1
    fused.attr["TArgs"].list.type.append(fused.attr["T"].type)
    fused.attr["fused_ops"].list.s.append(b"BiasAdd")
    [shaped] = [node for node in with_inferred_shapes(graph_def).node if node.name == "y"]
    [shape] = shaped.attr["_output_shapes"].list.shape
    assert tf.TensorShape(shape) == (2, 4, 4, 4)
    assert shaped.op == fused.op
    assert shaped.input == fused.input
    assert shaped.attr["fused_ops"] == fused.attr["fused_ops"]
    assert "_kernel" not in shaped.attr


def test_one_number_is_height_and_width() -> None:
    model = _model(size=None)
    sizes = [tf_interop.analyze(model, image_size=size) for size in (8, (8, 8))]
    assert sizes[0] == sizes[1]


def test_notes_functions_that_xla_compiles() -> None:
    compiled = _convolution_function(jit_compile=True)

    @tf.function(input_signature=[SPEC])
    def outer(image: tf.Tensor) -> tf.Tensor:
        return compiled(tf.nn.conv2d(image, FILTER, 1, "SAME"))

    [note] = tf_interop.analyze(compiled).notes
    assert "compiled by XLA" in note
    analysis = tf_interop.analyze(outer)
    assert analysis.convolution_count == 1
    [note] = analysis.notes
    assert note.startswith("not counted: 1 ")


def test_counts_refusals() -> None:
    graph = tf.Graph()
    with graph.as_default():
        image = tf.compat.v1.placeholder(tf.int32, (1, 8, 8, 4))
        filters = tf.ones((3, 3, 4, 4), tf.int32)
        first, *_ = (
            tf.nn.conv2d(image, filters, stride, "SAME", name="abcd"[stride - 1])
            for stride in (1, 2, 3, 4)
        )
        tf.nn.conv2d(first, filters, 1, "SAME", name="e")
    analysis = tf_interop.analyze(graph.as_graph_def())
    # The convolutions are independent, but cannot be in a stage.
    assert "that can be in a stage" in analysis.conclusion
    [refusal] = analysis.refusals
    assert (refusal.reason, refusal.count) == (RefusalReason.DTYPE, 5)
    assert [example.node for example in refusal.examples] == ["a", "b", "c"]
    assert "5 unchanged for their dtype, such as 'a'" in str(analysis)
    # Refused convolutions still count for chain and level.
    assert _shape(analysis) == (5, 2, 4, 4 * 3 // 2 + 3)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: 3, {}, "int"),
        (lambda: "ResNet50", {}, "str"),
        (lambda: lambda image: image, {}, "function"),
        (lambda: tf.function(lambda image: image), {}, "signature"),
        (_convolution_function, {"training": True}, "training=True"),
        (_convolution_function, {"training": "yes"}, "True or False, got 'yes'"),
        (_convolution_function, {"batch_size": 0}, "batch size .* 1 or more, got 0"),
        (_convolution_function, {"batch_size": 8.5}, "whole number .* got 8.5"),
        (_convolution_function, {"batch_size": "8"}, "whole number .* got '8'"),
        (_model, {"image_size": (9, 9, 3)}, r"height and width, .* got \(9, 9, 3\)"),
        (_model, {"image_size": "64"}, "height and width, .* got '64'"),
        (lambda: _model(), {"image_size": (9, 9)}, r"\(9, 9\)"),
        (lambda: _model(size=None), {}, "image_size="),
        (_Subclassed, {}, "inputs"),
        (_without_variables, {"training": True}, "trainable variables"),
    ],
)
def test_refuses(make: Callable[[], object], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tf_interop.analyze(make(), **options)
