"""What `analyze` counts, on networks whose counts are known, and what it leaves as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from graph_builder import GraphBuilder

import tf_interop
from tf_interop import tensorflow_internals
from tf_interop.convolution import RefusalReason
from tf_interop.errors import GraphError, LibraryError
from tf_interop.model import graphs as model_graphs
from tf_interop.model.analyze import GraphCounts
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import Policy, Settings

# How many nodes Grappler leaves depends on its version, and on the layout that it chooses.
NODE_COUNTS_ARE_KNOWN = tf.__version__.startswith("2.21.") and not tf.config.list_physical_devices(
    "GPU"
)

FILTER = tf.ones((3, 3, 4, 4))
SPEC = tf.TensorSpec((None, 8, 8, 4))


@pytest.fixture(autouse=True)
def fixture_plugin_as_at_the_start() -> Iterator[None]:
    yield
    get_plugin().settings = Settings()
    get_plugin().forget_reports()
    tensorflow_internals.set_plugin_optimizers_option(None)


@pytest.fixture(params=[tf.keras, tf_keras], ids=["keras_3", "tf_keras"], name="keras")
def fixture_keras(request: pytest.FixtureRequest) -> Any:
    return request.param


def _model(keras: Any, *, size: int | None = 8) -> Any:
    """Two branches, batch normalization with statistics, and dropout with a random seed."""
    image = keras.Input((size, size, 3))
    branches = [keras.layers.Conv2D(4, side, padding="same")(image) for side in (3, 5)]
    features = keras.layers.BatchNormalization()(keras.layers.Concatenate()(branches))
    features = keras.layers.Dropout(0.5)(keras.layers.GlobalAveragePooling2D()(features))
    return keras.Model(image, keras.layers.Dense(3, activation="softmax")(features))


def _shape(counts: GraphCounts) -> tuple[int, int, int, int]:
    """Convolutions, longest chain, most at one depth, independent pairs."""
    return (
        counts.convolution_count,
        counts.longest_chain,
        counts.widest_level,
        counts.independent_pair_count,
    )


@pytest.mark.parametrize(
    ("name", "training", "node_count", "shape", "kinds"),
    [
        ("ResNet50", False, 1465, (53, 49, 2, 12), (53, 0, 0)),
        # The image has no gradient.
        ("ResNet50", True, 4323, (158, 98, 4, 2792), (53, 52, 53)),
        ("InceptionV3", False, 1802, (94, 47, 4, 248), (94, 0, 0)),
    ],
)
def test_counts_of_networks(
    name: str,
    training: bool,
    node_count: int,
    shape: tuple[int, int, int, int],
    kinds: tuple[int, int, int],
) -> None:
    model = getattr(tf.keras.applications, name)(weights=None)
    analysis = tf_interop.analyze(model, training=training)
    what = "one training step with SGD" if training else "inference"
    assert analysis.name == f"{model.name}, {what}, batch 2"
    assert analysis.handed_graph is not None
    # Grappler neither adds convolutions nor changes which depend on each other.
    assert [_shape(counts) for counts in analysis.graphs] == [shape, shape]
    if NODE_COUNTS_ARE_KNOWN:
        assert analysis.handed_graph.node_count == node_count
    assert tuple(analysis.own_graph.counts_by_kind.values()) == kinds
    if name == "InceptionV3":
        assert analysis.own_graph.counts_by_op == {"Conv2D": 94}
        assert analysis.conclusion.startswith("94 convolutions, 27 groups of 2 to 4")


def test_densenet121_own_graph() -> None:
    model = tf.keras.applications.DenseNet121(weights=None)
    analysis = tf_interop.analyze(model, as_grappler_hands_it_over=False)
    assert "nothing to gain for inference" in analysis.conclusion
    assert "--training" in analysis.conclusion
    assert analysis.conclusion in " ".join(str(analysis).split())
    assert _shape(analysis.own_graph) == (120, 120, 1, 0)
    assert analysis.graphs == (analysis.own_graph,)


def test_a_training_step_keeps_the_variables_of_the_model(keras: Any) -> None:
    model = _model(keras)
    before = [variable.numpy() for variable in model.variables]
    analysis = tf_interop.analyze(model, training=True)
    assert [_shape(counts) for counts in analysis.graphs] == [(4, 2, 2, 2)] * 2
    assert analysis.notes == ()
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_keeps_settings_and_option_and_rewrites_nothing() -> None:
    settings = Settings(Policy.ALWAYS)
    get_plugin().settings = settings
    tensorflow_internals.set_plugin_optimizers_option(False)
    analysis = tf_interop.analyze(_model(tf.keras))
    assert analysis.handed_graph is not None
    assert get_plugin().reports == ()
    assert get_plugin().settings is settings
    assert tensorflow_internals.plugin_optimizers_option() is False


def test_says_why_the_handed_graph_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise LibraryError("Expected a library, found none.")

    monkeypatch.setattr(model_graphs, "get_plugin", fail)
    model = _model(tf.keras)
    analysis = tf_interop.analyze(model)
    assert analysis.handed_graph is None
    [note] = analysis.notes
    assert "found none" in note
    assert _shape(analysis.own_graph) == (2, 1, 2, 1)
    with pytest.raises(LibraryError, match="found none"):
        tf_interop.analyze(model, as_grappler_hands_it_over=True)


def _layers(image: Any, *outputs: Any) -> Any:
    return tf.keras.Model(image, outputs if len(outputs) > 1 else outputs[0])


def _dense() -> Any:
    image = tf.keras.Input((4,))
    return _layers(image, tf.keras.layers.Dense(2)(image))


def _maps_and_scores() -> Any:
    image = tf.keras.Input((8, 8, 3))
    maps = tf.keras.layers.Conv2D(4, 3)(image)
    return _layers(image, maps, tf.keras.layers.Dense(2)(tf.keras.layers.Flatten()(maps)))


def _several_inputs() -> Any:
    image = tf.keras.Input((8, 8, 3), name="image")
    extra = tf.keras.Input((2,), dtype="int32", name="extra")
    features = tf.keras.layers.Flatten()(tf.keras.layers.Conv2D(4, 3)(image))
    embedded = tf.keras.layers.Embedding(3, 1)(extra)[..., 0]
    joined = tf.keras.layers.Concatenate()([features, embedded])
    return tf.keras.Model({"image": image, "extra": extra}, joined)


def _fixed_batch() -> Any:
    image = tf.keras.Input((8, 8, 3), batch_size=5)
    return _layers(image, tf.keras.layers.Conv2D(4, 3)(image))


def _sequential(keras: Any = tf.keras) -> Any:
    return keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3)])


@pytest.mark.parametrize(
    ("make", "options", "counts", "note"),
    [
        (_dense, {}, [0], "holds a convolution"),
        (_maps_and_scores, {"training": True}, [2, 2], "mean of squares"),
        (_several_inputs, {}, [1, 1], ""),
        (_sequential, {"batch_size": 3}, [1, 1], ""),
        (lambda: _sequential(tf_keras), {"batch_size": 3}, [1, 1], ""),
        (_fixed_batch, {}, [1, 1], "fixes the batch size at 5"),
        (lambda: _model(tf.keras, size=None), {"image_size": (8, 9)}, [2, 2], ""),
    ],
)
def test_models_of_each_form(
    make: Callable[[], Any], options: dict[str, Any], counts: list[int], note: str
) -> None:
    analysis = tf_interop.analyze(make(), **options)
    assert [graph.convolution_count for graph in analysis.graphs] == counts
    assert len(analysis.notes) == bool(note)
    assert note in "".join(analysis.notes)
    if counts == [0]:
        assert "no convolution" in analysis.conclusion


class _Subclassed(tf.keras.Model):  # type: ignore[misc]
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs


def _without_variables() -> Any:
    image = tf.keras.Input((8, 8, 3))
    return _layers(image, tf.keras.layers.Flatten()(image))


def _convolution_function(**options: Any) -> Any:
    @tf.function(input_signature=[SPEC], **options)
    def convolution(image: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(image, FILTER, 1, "SAME")

    return convolution


def test_function_runs_only_where_told_to() -> None:
    runs = tf.Variable(0)

    @tf.function(input_signature=[SPEC])
    def counted(image: tf.Tensor) -> tf.Tensor:
        runs.assign_add(1)
        return tf.nn.conv2d(image, FILTER, 1, "SAME")

    unrun = tf_interop.analyze(counted)
    assert unrun.handed_graph is None
    [note] = unrun.notes
    assert "--as-grappler-hands-it-over" in note
    assert runs.numpy() == 0
    # The second time, too, although TensorFlow has optimized the function by then.
    for count in (1, 2):
        analysis = tf_interop.analyze(counted, as_grappler_hands_it_over=True)
        assert analysis.handed_graph is not None
        assert analysis.handed_graph.convolution_count == 1
        assert runs.numpy() == count


def test_concrete_function_with_arguments_by_name_and_constants() -> None:
    @tf.function
    def convolution(image: tf.Tensor, same: bool, *, scale: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(image, FILTER, 1, "SAME" if same else "VALID") * scale

    function = convolution.get_concrete_function(SPEC, True, scale=tf.TensorSpec(()))
    analysis = tf_interop.analyze(function, as_grappler_hands_it_over=True)
    assert [counts.convolution_count for counts in analysis.graphs] == [1, 1]
    assert analysis.name == "convolution"


def test_unknown_rank_analyzes_but_does_not_run() -> None:
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def convolution(image: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(image, FILTER, 1, "SAME")

    assert tf_interop.analyze(convolution).own_graph.convolution_count == 1
    with pytest.raises(ValueError, match="'image'"):
        tf_interop.analyze(convolution, as_grappler_hands_it_over=True)


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
    assert _shape(tf_interop.analyze(nested).own_graph) == (4, 4, 1, 0)


def test_says_what_is_compiled_by_xla() -> None:
    compiled = _convolution_function(jit_compile=True)

    @tf.function(input_signature=[SPEC])
    def outer(image: tf.Tensor) -> tf.Tensor:
        return compiled(tf.nn.conv2d(image, FILTER, 1, "SAME"))

    [note] = tf_interop.analyze(compiled).notes
    assert "compiled by XLA" in note
    analysis = tf_interop.analyze(outer, as_grappler_hands_it_over=False)
    assert analysis.own_graph.convolution_count == 1
    [note] = analysis.notes
    assert note.startswith("not counted: 1 ")


def test_counts_refusals_of_integers() -> None:
    graph = GraphBuilder()
    graph.source("x")
    graph.source("f")
    for name in ("a", "b", "c", "d"):
        graph.conv(name, "x", "f", T=tf.int32.as_datatype_enum)
    graph.conv("e", "d", "f")
    analysis = tf_interop.analyze(graph.graph_def)
    # They are independent, but in no stage.
    assert "that can be in a stage" in analysis.conclusion
    counts = analysis.own_graph
    [refusal] = counts.refusals
    assert (refusal.reason, refusal.count) == (RefusalReason.DTYPE, 4)
    assert [example.node for example in refusal.examples] == ["a", "b", "c"]
    # Who is refused still takes its place in chain and level.
    assert _shape(counts) == (5, 2, 4, 4 * 3 // 2 + 3)


def test_counts_refusals_of_fused_batch_normalization() -> None:
    ones = tf.ones(4)

    @tf.function(input_signature=[SPEC])
    def normalized(image: tf.Tensor) -> tf.Tensor:
        image = tf.nn.conv2d(image, FILTER, 1, "SAME")
        return tf.raw_ops.FusedBatchNormV3(
            x=image, scale=ones, offset=ones, mean=ones, variance=ones, is_training=False
        ).y

    analysis = tf_interop.analyze(normalized, as_grappler_hands_it_over=True)
    assert analysis.own_graph.refusals == ()
    assert analysis.handed_graph is not None
    [refusal] = analysis.handed_graph.refusals
    assert (refusal.reason, refusal.count) == (RefusalReason.FUSED_OPS, 1)
    assert "FusedBatchNorm" in refusal.examples[0].detail
    assert "1 left alone for their fused operations" in str(analysis)


def test_a_graph_def_is_inlined_and_not_run() -> None:
    convolution = _convolution_function()

    @tf.function(input_signature=[SPEC])
    def outer(image: tf.Tensor) -> tf.Tensor:
        return convolution(convolution(image))

    graph_def = outer.get_concrete_function().graph.as_graph_def()
    analysis = tf_interop.analyze(graph_def)
    assert analysis.own_graph.graph == "the graph as it was given"
    assert _shape(analysis.own_graph) == (2, 2, 1, 0)
    [note] = analysis.notes
    assert "a GraphDef is not run" in note
    graph_def.node[0].op = "NoSuchOp"
    with pytest.raises(GraphError, match="NoSuchOp"):
        tf_interop.analyze(graph_def)


def test_table_and_json_say_the_same() -> None:
    analysis = tf_interop.analyze(_model(tf.keras))
    document = json.loads(json.dumps(analysis.to_json()))
    assert (document["format"], document["version"]) == ("tf_interop.analysis", 1)
    rows = {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for line in str(analysis).splitlines()
        if len(cells := line.strip("│┃").replace("┃", "│").split("│")) == 3
    }
    assert rows[""] == [graph["graph"] for graph in document["graphs"]]
    for row, field in (("convolutions", "convolution_count"), ("nodes", "node_count")):
        assert rows[row] == [str(graph[field]) for graph in document["graphs"]]
    assert rows["independent pairs"] == rows["groups"] == ["1", "1"]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: 3, {}, "int"),
        (lambda: "ResNet50", {}, "str"),
        (lambda: lambda image: image, {}, "function"),
        (lambda: tf.function(lambda image: image), {}, "signature"),
        (_convolution_function, {"training": True}, "training=True"),
        (_convolution_function, {"batch_size": 0}, "batch_size"),
        (tf.compat.v1.GraphDef, {"as_grappler_hands_it_over": True}, "GraphDef"),
        (lambda: _model(tf.keras), {"image_size": (9, 9)}, r"\(9, 9\)"),
        (lambda: _model(tf.keras, size=None), {}, "image_size="),
        (_Subclassed, {}, "inputs"),
        (_without_variables, {"training": True}, "trainable variables"),
    ],
)
def test_refuses(make: Callable[[], object], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tf_interop.analyze(make(), **options)
