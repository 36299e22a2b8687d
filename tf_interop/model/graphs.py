"""Traces Keras models and functions, and gets their graphs as Grappler hands them over."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop import tensorflow_internals
from tf_interop.convolution import ConvolutionNode, Refusal
from tf_interop.errors import GraphError
from tf_interop.graph.epilogues import find_epilogues, fuse_epilogues
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.ops import CONVOLUTION_KINDS
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import COLOCATION, GraphView, parse_input
from tf_interop.model.keras_functions import (
    KerasFunction,
    check_image_size,
    fill_shape,
    keras_of,
    trace_keras,
)
from tf_interop.planning.types import GraphMode
from tf_interop.runtime.fold_pass import run_fold_pass
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import DEFAULT_KEPT_MB, GraphItem, Settings
from tf_interop.runtime.switch import changing_nothing

_STALE_ATTRIBUTES = (
    *("_output_shapes", "_input_shapes", "_handle_shapes", "_handle_dtypes"),
    # A node may be colocated with one that Grappler removed; TensorFlow imports no such graph.
    COLOCATION,
)


@dataclasses.dataclass(frozen=True)
class TracedGraph:
    """The graph of one model, function or GraphDef.

    Attributes:
        name: the model's or function's name, with the kind of run and the batch size.
        graph_def: the graph, with function calls inlined.
        mode: of a Keras model; None for a function or a graph, which may be for either.
        batch_size: for inputs that leave it open.
        image_size: height and width, for inputs of rank 4 that leave them open.
        run: runs the function on zeros a number of times, restores its variables, and returns the
            seconds of each run; None for a GraphDef.
        fetches: names of the nodes that the graph is run for; empty if unknown.
        variables: shapes and dtypes of the variables, by the name of the node that stands for them.
        is_compiled: whether XLA compiles it, so that Grappler does not change it.
        notes: remarks for the user.
    """

    name: str
    graph_def: graph_pb2.GraphDef
    mode: GraphMode | None = None
    batch_size: int = 1
    image_size: tuple[int, int] | None = None
    run: Callable[[int], list[float]] | None = None
    fetches: tuple[str, ...] = ()
    variables: Mapping[str, tf.TensorSpec] = dataclasses.field(default_factory=dict)
    is_compiled: bool = False
    notes: tuple[str, ...] = ()


def trace(
    model_or_function_or_graph: Any,
    *,
    batch_size: int = 1,
    training: bool = False,
    image_size: tuple[int, int] | int | None = None,
    jit_compile: bool = False,
) -> TracedGraph:
    """Traces a model or a function, and inlines function calls.

    The arguments are those of `tf_interop.analyze`.

    Raises:
        ValueError: an argument is of the wrong kind, or an input's shape is unknown.
        GraphError: TensorFlow refuses the graph.
    """
    subject = model_or_function_or_graph
    if not is_count(batch_size):
        raise ValueError(
            f"Expected a batch size to be a whole number of 1 or more, got {batch_size!r}. Several "
            "are a list, such as [1, 8]."
        )
    if not isinstance(training, bool):
        raise ValueError(f"Expected training to be True or False, got {training!r}.")
    if not isinstance(jit_compile, bool):
        raise ValueError(f"Expected jit_compile to be True or False, got {jit_compile!r}.")
    image_size = _height_and_width(image_size)
    if keras_of(subject) is not None:
        traced = _trace_model(subject, batch_size, training, image_size)
        traced = dataclasses.replace(traced, mode="training" if training else "inference")
    elif training:
        raise ValueError(
            f"training=True needs a Keras model, got {type(subject).__name__}. Pass the function "
            "that trains instead."
        )
    elif isinstance(subject, graph_pb2.GraphDef):
        traced = TracedGraph("GraphDef", _inline_calls(subject))
        inputs = [spec for node in traced.graph_def.node if (spec := _input_spec(node)) is not None]
        check_image_size("The GraphDef", inputs, image_size)
    else:
        function = _concrete_function(subject)
        traced = _trace_function(function, batch_size, image_size)
        jit_compile = jit_compile or tensorflow_internals.is_compiled_by_xla(function)
    hidden = sum(
        node.op in CONVOLUTION_KINDS
        for function in traced.graph_def.library.function
        for node in function.node_def
    )
    notes = traced.notes
    if hidden:
        notes += (f"not counted: {hidden} in functions that cannot be inlined, such as XLA's",)
    if jit_compile:
        notes += ("compiled by XLA: nothing is folded, only biases and activations are fused",)
    return dataclasses.replace(
        traced,
        batch_size=batch_size,
        image_size=image_size,
        is_compiled=jit_compile,
        notes=notes,
    )


def trace_step(
    model_or_function: Any,
    batch_size: int,
    image_size: tuple[int, int] | None,
    *,
    training: bool = False,
    jit_compile: bool | None = None,
) -> KerasFunction:
    """Traces a step that can be called: of a Keras model, as `trace_keras` does, or a function."""
    if keras_of(model_or_function) is not None:
        return trace_keras(
            model_or_function, batch_size, image_size, training=training, jit_compile=jit_compile
        )
    if training:
        raise ValueError("Training needs a Keras model. Leave training out.")
    function = _concrete_function(model_or_function)

    def filled(spec: Any) -> Any:
        if not isinstance(spec, tf.TensorSpec):
            raise ValueError(
                f"An argument of {function.name!r} is {spec!r}, not a tensor. Wrap the function in "
                "one that only takes tensors."
            )
        return fill_shape(spec, batch_size, image_size)

    declared = _input_signature(function)
    specs = tf.nest.map_structure(filled, declared)
    check_image_size(f"The function '{function.graph.name}'", declared, image_size)

    def program(inputs: Any) -> Any:
        positional, named = inputs
        return function(*positional, **named)

    step = tf.function(program, jit_compile=jit_compile, autograph=False)
    return KerasFunction(step, step.get_concrete_function(specs), specs, ())


def handed_graph_of(
    traced: TracedGraph, ops: Container[str] = CONVOLUTION_KINDS
) -> graph_pb2.GraphDef | None:
    """Runs a function for the first time, and returns the graph that Grappler hands over.

    TensorFlow hands it over twice, and the second time it is the one that runs. A function that
    another thread runs meanwhile may be mistaken for this one.

    Returns:
        None if no graph had one of `ops`.

    Raises:
        LibraryError: the compiled library is missing or does not fit, or TensorFlow did not accept
            its plugin.
    """
    assert traced.run is not None, "a GraphDef cannot be run"
    plugin = get_plugin()
    plugin.check_registered()
    largest: graph_pb2.GraphDef | None = None
    most = 1

    def look_at(graph_def: graph_pb2.GraphDef, _device_type: str) -> None:
        nonlocal largest, most
        count = sum(node.op in ops for node in graph_def.node)
        if count >= most:
            largest, most = graph_def, count

    with plugin.observe(look_at):
        traced.run(1)
    if largest is not None:
        # For functions that stay calls, Grappler hands over only the signature.
        bodies = {each.signature.name: each for each in traced.graph_def.library.function}
        for function in largest.library.function:
            function.CopyFrom(bodies.get(function.signature.name, function))
    return largest


def optimize_graph(traced: TracedGraph, compute_capability: str | None) -> graph_pb2.GraphDef:
    """Optimizes a traced graph as Grappler would for a device, without running it.

    Layouts and fused operations depend on the device, which this machine need not have.

    Returns:
        A graph whose variables are VarHandleOps, and whose nodes have the shapes of their outputs.

    Raises:
        ValueError: an input's shape is unknown.
        GraphError: TensorFlow refuses the graph.
    """
    fetches = traced.fetches or unread_nodes(traced.graph_def)
    with _refusals_explained("optimize the graph"):
        # Grappler chooses layouts by shapes, which may still leave the batch open.
        shaped = with_shapes(traced)
        optimized = tensorflow_internals.optimize_for_device(shaped, fetches, compute_capability)
    return with_inferred_shapes(optimized)


def with_shapes(traced: TracedGraph) -> graph_pb2.GraphDef:
    """The graph with VarHandleOps, and the shapes of all nodes' outputs.

    Raises:
        ValueError: an input's shape is unknown.
    """
    graph_def = graph_pb2.GraphDef()
    graph_def.CopyFrom(traced.graph_def)
    for node in graph_def.node:
        if node.name in traced.variables:
            _become_variable(node, traced.variables[node.name])
        elif (spec := _input_spec(node)) is not None:
            filled = fill_shape(spec, traced.batch_size, traced.image_size)
            node.attr["shape"].shape.CopyFrom(filled.shape.as_proto())
    return with_inferred_shapes(graph_def)


def _input_spec(node: node_def_pb2.NodeDef) -> tf.TensorSpec | None:
    """The tensor that a Placeholder stands for; None if its rank is unknown, or it is no tensor."""
    if node.op != "Placeholder":
        return None
    dtype = tf.as_dtype(node.attr["dtype"].type)
    shape = tf.TensorShape(node.attr["shape"].shape)
    is_tensor = dtype not in (tf.resource, tf.variant) and shape.rank is not None
    return tf.TensorSpec(shape, dtype, node.name) if is_tensor else None


def planned_graph(traced: TracedGraph, compute_capability: str | None) -> graph_pb2.GraphDef:
    """The graph by which a plan is found, optimized for a device.

    For stages it is folded; units are found by the graph before folding. If XLA compiles it, only
    epilogues are fused. The exceptions are those of `optimize_graph`.
    """
    if traced.is_compiled:
        with _refusals_explained("infer the graph's shapes"):
            view = GraphView(with_shapes(traced), traced.fetches)
        return fuse_epilogues(view, find_epilogues(view, GraphProperties(view)))
    device_type = "CPU" if compute_capability is None else "GPU"
    optimized = optimize_graph(traced, compute_capability)
    if Settings().makes_units(device_type):
        return optimized
    # TensorFlow fetches the reads of a function to keep their order, which folding keeps, too.
    reads = {node.name for node in optimized.node if node.op == "ReadVariableOp"}
    return folded_graph(optimized, device_type, [f for f in traced.fetches if f not in reads])


def convolutions_of(
    graph_def: graph_pb2.GraphDef,
) -> tuple[GraphView, tuple[ConvolutionNode, ...], tuple[Refusal, ...]]:
    """A graph's convolutions that can be in a stage, and refusals of the others, as in the pass."""
    view = GraphView(graph_def)
    # With properties, because TensorFlow's own kernels may accept NCHW.
    return view, *find_convolutions(view, GraphProperties(view))


def folded_graph(
    graph_def: graph_pb2.GraphDef, device_type: str, fetches: Sequence[str] = ()
) -> graph_pb2.GraphDef:
    """The graph after the plugin has folded and fused what it can on devices of a type."""
    folded, _ = run_fold_pass(
        graph_def,
        GraphItem(device_type, fetches, fetches),
        DEFAULT_KEPT_MB,
        has_onednn=tensorflow_internals.is_onednn_on(),
    )
    return graph_def if folded is None else folded


def with_inferred_shapes(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """Infers the shapes of all nodes from the graph's inputs, variables and constants."""
    stripped = graph_pb2.GraphDef()
    stripped.CopyFrom(graph_def)
    for node in stripped.node:
        if node.op == "_Arg":
            _become_input(node)
        tensorflow_internals.name_bfloat16_for_onednn(node)
        for name in _STALE_ATTRIBUTES:
            if name in node.attr:
                del node.attr[name]
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(stripped, name="")
    shaped = graph.as_graph_def(add_shapes=True)
    for node in shaped.node:
        tensorflow_internals.name_as_grappler_does(node)
    return shaped


def _trace_model(
    model: Any, batch_size: int, training: bool, image_size: tuple[int, int] | None
) -> TracedGraph:
    traced = trace_keras(model, batch_size, image_size, training=training)
    what = "one training step with SGD" if training else "inference"
    size = tf.nest.flatten(traced.inputs)[0].shape[0]

    def runner() -> Callable[[], object]:
        inputs = tf.nest.map_structure(_zeros, traced.inputs)
        return lambda: traced.function(inputs)

    return _graph_of(f"{model.name}, {what}, batch {size}", traced.function, runner, traced.notes)


def _trace_function(
    function: Any, batch_size: int, image_size: tuple[int, int] | None
) -> TracedGraph:
    name, declared = function.graph.name, _input_signature(function)
    check_image_size(f"The function '{name}'", declared, image_size)

    def runner() -> Callable[[], object]:
        arguments, keyword_arguments = tf.nest.map_structure(
            lambda value: (
                _zeros(fill_shape(value, batch_size, image_size))
                if isinstance(value, tf.TensorSpec)
                else value
            ),
            declared,
        )
        # A function that has run before is not optimized again, but a function around it is.
        around: Callable[[], object] = tf.function(
            lambda: function(*arguments, **keyword_arguments), autograph=False
        )
        return around

    return _graph_of(name, function, runner, ())


def _input_signature(function: Any) -> Any:
    """Arguments and keyword arguments; only arguments for a frozen function, which forgot which."""
    if function.structured_input_signature is not None:
        return function.structured_input_signature
    count = len(function.inputs) - len(function.captured_inputs)
    return [tf.TensorSpec(each.shape, each.dtype) for each in function.inputs[:count]], {}


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    if spec.dtype in (tf.resource, tf.variant):
        raise ValueError(
            f"The input '{spec.name}' is a {spec.dtype.name}, not numbers or strings. Capture it "
            "in a tf.function instead."
        )
    return tf.zeros(spec.shape, spec.dtype)


def _graph_of(
    name: str,
    function: Any,
    runner: Callable[[], Callable[[], object]],
    notes: tuple[str, ...],
) -> TracedGraph:
    """The graph of a function; `runner` makes what runs it on zeros."""
    fetches = tuple(tensorflow_internals.function_fetches(function))
    graph_def = _inline_calls(function.graph.as_graph_def(add_shapes=True), fetches)
    variables = {
        tensor.op.name: spec
        for tensor in function.inputs
        if (spec := tensorflow_internals.variable_spec(tensor)) is not None
    }

    def run(count: int) -> list[float]:
        call = runner()
        # What is optimized now is timed as stock TensorFlow.
        with _variables_kept(function), changing_nothing():
            return [_seconds(call) for _ in range(count)]

    return TracedGraph(
        name,
        _needed_for(fetches, graph_def),
        run=run,
        fetches=fetches,
        variables=variables,
        notes=notes,
    )


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    for result in tf.nest.flatten(call()):
        if isinstance(result, tf.Tensor):
            result.numpy()  # a GPU computes on after the call
    return time.perf_counter() - start


@contextlib.contextmanager
def _variables_kept(function: Any) -> Iterator[None]:
    """Restores weights, statistics and random seeds of `function` after the `with` block."""
    handles = function.captured_inputs
    specs = map(tensorflow_internals.variable_spec, function.inputs[-len(handles) :])
    values = [
        (handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec.dtype))
        for handle, spec in zip(handles, specs, strict=False)
        if spec is not None
    ]
    try:
        yield
    finally:
        for handle, value in values:
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _inline_calls(
    graph_def: graph_pb2.GraphDef, fetches: Collection[str] = ()
) -> graph_pb2.GraphDef:
    """Inlines function calls; the library then has the functions that cannot be inlined."""
    if not graph_def.library.function:
        return graph_def
    with _refusals_explained("inline the graph's function calls"):
        fetches = fetches or unread_nodes(graph_def)
        return tensorflow_internals.inline_function_calls(graph_def, fetches)


@contextlib.contextmanager
def _refusals_explained(work: str) -> Iterator[None]:
    try:
        yield
    except (tf.errors.OpError, ValueError) as error:
        raise GraphError(
            f"TensorFlow cannot {work}: {str(error).rstrip('.')}. First import the packages that "
            "register its ops, and check that every function is in its library."
        ) from error


def _needed_for(fetches: Collection[str], graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """The nodes that `fetches` depend on; tracing also leaves nodes that never run."""
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


def unread_nodes(graph_def: graph_pb2.GraphDef) -> list[str]:
    """The names of the nodes that no other node reads."""
    read = {parse_input(text)[0] for node in graph_def.node for text in node.input}
    return [node.name for node in graph_def.node if node.name not in read]


def is_count(value: object) -> bool:
    """Whether a value of any type is a whole number of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        return False
    return int(value) >= 1


def _height_and_width(image_size: Any) -> tuple[int, int] | None:
    """Checks an image size of any type; one number is both."""
    if image_size is None:
        return None
    if is_count(image_size):
        return image_size, image_size
    is_pair = isinstance(image_size, Sequence) and len(image_size) == 2
    if not is_pair or not all(map(is_count, image_size)):
        raise ValueError(
            f"Expected image_size to be height and width, such as (224, 224), got {image_size!r}."
        )
    return image_size[0], image_size[1]


def _concrete_function(value: Any) -> Any:
    if isinstance(value, tf.types.experimental.ConcreteFunction):
        return value
    if not isinstance(value, tf.types.experimental.PolymorphicFunction):
        raise ValueError(
            "Expected a Keras model, a concrete function or a GraphDef, got "
            f"{type(value).__name__}. tf.function(f).get_concrete_function(...) makes a concrete "
            "function."
        )
    try:
        return value.get_concrete_function()
    except (TypeError, ValueError) as error:
        if value.input_signature is not None:
            raise
        raise ValueError(
            "The tf.function has no input signature. Pass the result of its "
            "get_concrete_function(...)."
        ) from error


def _become_input(node: node_def_pb2.NodeDef) -> None:
    """Turns the node of a function's argument into a placeholder or a variable of its shape."""
    if node.attr["T"].type == tf.resource.as_datatype_enum:
        shapes = node.attr["_handle_shapes"].list.shape
        dtypes = node.attr["_handle_dtypes"].list.type
        if len(shapes) == len(dtypes) == 1:
            _become_variable(node, tf.TensorSpec(tf.TensorShape(shapes[0]), tf.as_dtype(dtypes[0])))
        return
    shapes = node.attr["_output_shapes"].list.shape
    shape = tf.TensorShape(shapes[0] if shapes else None)
    dtype = node.attr["T"].type
    node.op = "Placeholder"
    node.attr.clear()
    node.attr["dtype"].type = dtype
    node.attr["shape"].shape.CopyFrom(shape.as_proto())


def _become_variable(node: node_def_pb2.NodeDef, spec: tf.TensorSpec) -> None:
    node.op = "VarHandleOp"
    node.attr.clear()
    node.attr["dtype"].type = spec.dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(spec.shape.as_proto())
    node.attr["shared_name"].s = node.name.encode()
