"""The graphs of what a user calls a model: as traced or given, and as Grappler hands it over."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop import tensorflow_internals
from tf_interop.errors import GraphError, LibraryError
from tf_interop.graph.convolution_ops import CONVOLUTION_KINDS
from tf_interop.graph.view import parse_input
from tf_interop.model.device_graph import graph_for_device, unread_nodes
from tf_interop.model.keras_functions import (
    fill_shape,
    keras_of,
    trace_inference,
    trace_training_step,
    variables_kept,
    zeros,
)
from tf_interop.runtime.plugin import Plugin, get_plugin
from tf_interop.runtime.settings import Settings

HANDED_GRAPH = "the graph after TensorFlow's own optimizations"
_NOT_LOOKED_AT = f"{HANDED_GRAPH} was not looked at:"


@dataclasses.dataclass(frozen=True)
class ModelGraphs:
    """Graphs of one model, function or GraphDef.

    Attributes:
        name: the model's or function's name, and what is run of it.
        own_graph: the graph as it was traced or given, with function calls inlined.
        own_graph_is: which graph that is, for reading.
        handed_graph: the graph as the plugin gets it, after all of Grappler's own passes; None
            where it was not looked at.
        fetches: names of the nodes that `own_graph` is run for; empty where that is not known.
        variables: shapes and dtypes of the variables, by the name of the node of `own_graph` that
            stands for them.
        notes: why a graph was not looked at, and other things to know.
    """

    name: str
    own_graph: graph_pb2.GraphDef
    own_graph_is: str
    handed_graph: graph_pb2.GraphDef | None = None
    fetches: tuple[str, ...] = ()
    variables: Mapping[str, tf.TensorSpec] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


def graphs_of(
    model_or_function_or_graph: Any,
    *,
    batch_size: int,
    training: bool,
    image_size: tuple[int, int] | None,
    as_grappler_hands_it_over: bool | None,
) -> ModelGraphs:
    """Gets the graphs.

    The arguments are those of `tf_interop.analyze`.

    Raises:
        ValueError: an argument is of a wrong kind, or a shape is unknown that has to be known.
        LibraryError: the graph is to be looked at as it is handed over, and the compiled library is
            missing or does not fit.
    """
    subject = model_or_function_or_graph
    if batch_size < 1:
        raise ValueError(f"Expected a batch_size of 1 or more, got {batch_size}.")
    if keras_of(subject) is not None:
        return _graphs_of_model(
            subject, batch_size, training, image_size, as_grappler_hands_it_over
        )
    if training:
        raise ValueError(
            "Expected training=True with a Keras model only, got "
            f"{type(subject).__name__}. Pass the function that trains instead."
        )
    if not isinstance(subject, graph_pb2.GraphDef):
        function = _concrete_function(subject)
        return _graphs_of_function(function, batch_size, image_size, as_grappler_hands_it_over)
    if as_grappler_hands_it_over:
        raise ValueError(
            "Expected as_grappler_hands_it_over=True with what can be run, got a GraphDef. "
            "Pass a concrete function."
        )
    graphs = ModelGraphs("GraphDef", inline_calls(subject), "the graph as it was given")
    if as_grappler_hands_it_over is None:
        graphs = _with_notes(graphs, f"{_NOT_LOOKED_AT} a GraphDef is not run")
    return _with_hidden_noted(graphs)


def device_graph_of(
    model_or_function_or_graph: Any,
    *,
    batch_size: int,
    training: bool,
    image_size: tuple[int, int] | None,
    compute_capability: str | None,
) -> tuple[str, graph_pb2.GraphDef]:
    """The graph as Grappler would hand it over for a device, and what it is called.

    Nothing is run, and the device need not be here.

    Args:
        model_or_function_or_graph: what `tf_interop.analyze` takes.
        batch_size: for inputs that leave it open.
        training: whether to look at a training step; Keras models only.
        image_size: height and width, for inputs of rank 4 that leave them open.
        compute_capability: of the GPU, such as `9.0`; None for a CPU.

    Raises:
        ValueError: an argument is of a wrong kind, or a shape is unknown that has to be known.
        GraphError: TensorFlow refuses the graph.
    """
    graphs = graphs_of(
        model_or_function_or_graph,
        batch_size=batch_size,
        training=training,
        image_size=image_size,
        as_grappler_hands_it_over=False,
    )
    graph_def = graph_for_device(
        graphs.own_graph,
        fetches=graphs.fetches,
        variables=graphs.variables,
        batch_size=batch_size,
        image_size=image_size,
        compute_capability=compute_capability,
    )
    return graphs.name, graph_def


def inline_calls(
    graph_def: graph_pb2.GraphDef, fetches: Collection[str] = ()
) -> graph_pb2.GraphDef:
    """Inlines the function calls of a graph.

    Args:
        graph_def: the graph; it is not changed.
        fetches: names of the nodes that it is run for; where there are none, those that no other
            reads.

    Returns:
        The graph itself if it has no functions, else a new one, whose library holds the functions
        that cannot be inlined.

    Raises:
        GraphError: TensorFlow refuses the graph.
    """
    if not graph_def.library.function:
        return graph_def
    try:
        return tensorflow_internals.inline_function_calls(
            graph_def, fetches or unread_nodes(graph_def)
        )
    except (tf.errors.OpError, ValueError) as error:
        raise GraphError(
            "Expected a graph whose function calls TensorFlow can inline, got: "
            f"{str(error).rstrip('.')}. Import what registers its ops first, and check that every "
            "function is in its library."
        ) from error


def count_convolution_nodes(graph_def: graph_pb2.GraphDef) -> int:
    """Convolution nodes of a graph, without those in its function library."""
    return sum(node.op in CONVOLUTION_KINDS for node in graph_def.node)


def _graphs_of_model(
    model: Any,
    batch_size: int,
    training: bool,
    image_size: tuple[int, int] | None,
    as_handed_over: bool | None,
) -> ModelGraphs:
    trace = trace_training_step if training else trace_inference
    traced = trace(model, batch_size, image_size)
    what = "one training step with SGD" if training else "inference"
    size = tf.nest.flatten(traced.inputs)[0].shape[0]
    graphs = _own_graphs(f"{model.name}, {what}, batch {size}", traced.function)
    graphs = _with_notes(graphs, *traced.notes)
    if as_handed_over is False:
        return graphs

    def run() -> None:
        with variables_kept(model):
            traced.function(tf.nest.map_structure(zeros, traced.inputs))

    try:
        return _with_handed_graph(graphs, run)
    except LibraryError as error:
        if as_handed_over:
            raise
        return _with_notes(graphs, f"{_NOT_LOOKED_AT} {error}")


def _graphs_of_function(
    function: Any,
    batch_size: int,
    image_size: tuple[int, int] | None,
    as_handed_over: bool | None,
) -> ModelGraphs:
    graphs = _own_graphs(function.graph.name, function)
    if tensorflow_internals.is_compiled_by_xla(function):
        graphs = _with_notes(
            graphs, "the function is compiled by XLA: Grappler does not get to see it"
        )
    elif as_handed_over is None:
        graphs = _with_notes(
            graphs,
            f"{_NOT_LOOKED_AT} a function may do more than compute, and is run only when told to, "
            "by --as-grappler-hands-it-over",
        )
    if not as_handed_over:
        return graphs
    arguments, keyword_arguments = tf.nest.map_structure(
        lambda value: (
            zeros(fill_shape(value, batch_size, image_size))
            if isinstance(value, tf.TensorSpec)
            else value
        ),
        function.structured_input_signature,
    )

    def call() -> Any:
        return function(*arguments, **keyword_arguments)

    # A function that has run before is not optimized again; one around it is.
    return _with_handed_graph(graphs, tf.function(call, autograph=False).get_concrete_function())


def _own_graphs(name: str, function: Any) -> ModelGraphs:
    fetches = tuple(tensorflow_internals.function_fetches(function))
    graph_def = inline_calls(function.graph.as_graph_def(add_shapes=True), fetches)
    variables = {
        tensor.op.name: spec
        for tensor in function.inputs
        if (spec := tensorflow_internals.variable_spec(tensor)) is not None
    }
    return _with_hidden_noted(
        ModelGraphs(
            name,
            _needed_for(fetches, graph_def),
            "the function's own graph",
            fetches=fetches,
            variables=variables,
        )
    )


def _needed_for(fetches: Collection[str], graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """The nodes of a graph that `fetches` depend on, in the order of the graph.

    Tracing leaves others behind that TensorFlow never runs, such as the gradient by the image of
    the first convolution.
    """
    nodes = {node.name: node for node in graph_def.node}
    needed: set[str] = set()
    unseen = list(fetches)
    while unseen:
        name = unseen.pop()
        if name not in needed:
            needed.add(name)
            unseen += [parse_input(text)[0] for text in nodes[name].input]
    pruned = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    pruned.node.extend(node for name, node in nodes.items() if name in needed)
    return pruned


def _with_hidden_noted(graphs: ModelGraphs) -> ModelGraphs:
    hidden = sum(
        node.op in CONVOLUTION_KINDS
        for function in graphs.own_graph.library.function
        for node in function.node_def
    )
    if not hidden:
        return graphs
    return _with_notes(
        graphs,
        f"not counted: {hidden} in functions that cannot be inlined, such as those that XLA "
        "compiles",
    )


def _with_handed_graph(graphs: ModelGraphs, run: Callable[[], object]) -> ModelGraphs:
    """Adds the graph that Grappler hands over when `run` runs a function for the first time.

    TensorFlow hands it over twice; the second has seen more of Grappler's passes, and is what is
    run. A function that runs in another thread meanwhile may be taken for this one.

    Raises:
        LibraryError: the compiled library is missing or does not fit, or TensorFlow did not take
            its plugin.
    """
    plugin = get_plugin()
    if not plugin.device_types:
        raise LibraryError(" ".join(plugin.refused_device_types.values()))
    largest: graph_pb2.GraphDef | None = None
    most = 1

    def look_at(graph_def: graph_pb2.GraphDef, _device_type: str) -> None:
        nonlocal largest, most
        count = count_convolution_nodes(graph_def)
        if count >= most:
            largest, most = graph_def, count

    with _rewriting_nothing(plugin), plugin.observe(look_at):
        run()
    if largest is None:
        return _with_notes(graphs, "Grappler handed over no graph that holds a convolution")
    return dataclasses.replace(graphs, handed_graph=largest)


@contextlib.contextmanager
def _rewriting_nothing(plugin: Plugin) -> Iterator[None]:
    """Has the plugin called and leave graphs alone, whatever the user asked for."""
    settings = plugin.settings
    is_off = tensorflow_internals.plugin_optimizers_option() is False
    plugin.settings = Settings()
    try:
        if is_off:
            tensorflow_internals.set_plugin_optimizers_option(True)
        yield
    finally:
        if is_off:
            tensorflow_internals.set_plugin_optimizers_option(False)
        plugin.settings = settings


def _with_notes(graphs: ModelGraphs, *notes: str) -> ModelGraphs:
    return dataclasses.replace(graphs, notes=(*graphs.notes, *notes))


def _concrete_function(value: Any) -> Any:
    """A function as a concrete function.

    Raises:
        ValueError: it is none, or has no input signature.
    """
    if isinstance(value, tf.types.experimental.ConcreteFunction):
        return value
    if not isinstance(value, tf.types.experimental.PolymorphicFunction):
        raise ValueError(
            "Expected a Keras model, a concrete function or a GraphDef, got "
            f"{type(value).__name__}. A function that computes with tensors becomes a concrete "
            "one by tf.function(f).get_concrete_function(...)."
        )
    try:
        return value.get_concrete_function()
    except (TypeError, ValueError) as error:
        if value.input_signature is not None:
            raise
        raise ValueError(
            "Expected a tf.function with an input signature, got one without. Pass what its "
            "get_concrete_function(...) gives."
        ) from error
