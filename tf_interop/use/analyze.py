"""Says how many convolutions of a model could run at the same time, without changing anything."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from rich.console import Console
from rich.table import Table
from tensorflow.core.framework import graph_pb2

from tf_interop.errors import LibraryError
from tf_interop.know import tensorflow_internals
from tf_interop.know.find_convolutions import CONVOLUTION_KINDS
from tf_interop.use.graph_figures import GraphFigures, figures_of
from tf_interop.use.handed_graph import graph_handed_over
from tf_interop.use.keras_functions import (
    keras_of,
    trace_inference,
    trace_training_step,
    variables_kept,
)
from tf_interop.use.own_graph import graph_of_function, inline_calls
from tf_interop.use.zero_arguments import fill_shape, zeros

ANALYSIS_FORMAT = "tf_interop.analysis"
ANALYSIS_VERSION = 1

_OWN_GRAPH = "the function's own graph"
_HANDED_GRAPH = "the graph as Grappler hands it over"


@dataclasses.dataclass(frozen=True)
class Analysis:
    """What `analyze` found.

    Attributes:
        name: the model's or function's name, and what is run of it.
        own_graph: the graph as it was traced or given, with function calls inlined.
        handed_graph: the graph as the plugin gets it, after all of Grappler's own passes; None
            where it was not looked at.
        notes: why it was not, and other things to know about the figures.
    """

    name: str
    own_graph: GraphFigures
    handed_graph: GraphFigures | None = None
    notes: tuple[str, ...] = ()

    @property
    def graphs(self) -> tuple[GraphFigures, ...]:
        """The figures of the graphs that were looked at, one or two."""
        return (
            (self.own_graph,) if self.handed_graph is None else (self.own_graph, self.handed_graph)
        )

    def to_json(self) -> dict[str, Any]:
        """The analysis as plain values, for `json.dumps`."""
        return {
            "format": ANALYSIS_FORMAT,
            "version": ANALYSIS_VERSION,
            "made_with": {"tensorflow": tensorflow_internals.tensorflow_version()},
            "name": self.name,
            "graphs": [figures.to_json() for figures in self.graphs],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        """A table with a column for each graph, and the reasons of refusals."""
        text = io.StringIO()
        console = Console(file=text, width=110, highlight=False)
        console.print(self.name, markup=False)
        console.print(_figure_table(self.graphs))
        for figures in self.graphs:
            for refusal in figures.refusals:
                example = refusal.examples[0]
                console.print(
                    f"  {figures.graph}: {refusal.count} left alone for their "
                    f"{refusal.reason.value}, such as '{example.node}': {example.detail}",
                    markup=False,
                    soft_wrap=True,
                )
        for note in self.notes:
            console.print(f"  {note}", markup=False, soft_wrap=True)
        return text.getvalue()


def analyze(
    model_or_function_or_graph: Any,
    *,
    batch_size: int = 2,
    training: bool = False,
    image_size: tuple[int, int] | None = None,
    as_grappler_hands_it_over: bool | None = None,
) -> Analysis:
    """Counts the convolutions of a graph and how many of them are independent.

    The function's own graph needs neither the compiled library nor a GPU. The graph as Grappler
    hands it over is what stages are made from; to get it the function is run once, on zeros. A
    Keras model has its variables put back afterwards. No function should run in another thread
    meanwhile.

    Args:
        model_or_function_or_graph: a Keras model with known inputs, a concrete function, a
            tf.function with an input signature, or a GraphDef.
        batch_size: for inputs whose first dimension is unknown.
        training: whether to look at a training step of a Keras model, and not at its inference.
        image_size: height and width, for inputs of rank 4 that leave them open.
        as_grappler_hands_it_over: whether to look at the graph that Grappler hands over. None does
            for Keras models where the compiled library fits. A function runs only where this is
            True: what it does besides computing, it does.

    Returns:
        The figures of one or both graphs.

    Raises:
        ValueError: an argument is of a wrong kind, or a shape is unknown that has to be known.
        GraphError: the GraphDef is not well-formed.
        LibraryError: `as_grappler_hands_it_over` is True, and the compiled library is missing or
            does not fit.
    """
    if batch_size < 1:
        raise ValueError(f"Expected a batch_size of 1 or more, got {batch_size}.")
    if keras_of(model_or_function_or_graph) is not None:
        return _analyze_model(
            model_or_function_or_graph,
            batch_size,
            training,
            image_size,
            as_grappler_hands_it_over,
        )
    if training:
        raise ValueError(
            "Expected training=True with a Keras model only, got "
            f"{type(model_or_function_or_graph).__name__}. Pass the function that trains instead."
        )
    if isinstance(model_or_function_or_graph, graph_pb2.GraphDef):
        if as_grappler_hands_it_over:
            raise ValueError(
                "Expected as_grappler_hands_it_over=True with what can be run, got a GraphDef. "
                "Pass a concrete function."
            )
        return _analyze_graph_def(model_or_function_or_graph)
    function = _concrete_function(model_or_function_or_graph)
    return _analyze_function(function, batch_size, image_size, bool(as_grappler_hands_it_over))


def _analyze_model(
    model: Any,
    batch_size: int,
    training: bool,
    image_size: tuple[int, int] | None,
    as_handed_over: bool | None,
) -> Analysis:
    trace = trace_training_step if training else trace_inference
    traced = trace(model, batch_size, image_size)
    what = "one training step with SGD" if training else "inference"
    size = tf.nest.flatten(traced.inputs)[0].shape[0]
    analysis = _analyze_own_graph(f"{model.name}, {what}, batch {size}", traced.function)
    analysis = _with_notes(analysis, *traced.notes)
    if as_handed_over is False:
        return analysis

    def run() -> None:
        with variables_kept(model):
            traced.function(tf.nest.map_structure(zeros, traced.inputs))

    try:
        return _with_handed_graph(analysis, run)
    except LibraryError as error:
        if as_handed_over:
            raise
        return _with_notes(analysis, f"{_HANDED_GRAPH} was not looked at: {error}")


def _analyze_function(
    function: Any, batch_size: int, image_size: tuple[int, int] | None, as_handed_over: bool
) -> Analysis:
    analysis = _analyze_own_graph(function.graph.name, function)
    if tensorflow_internals.is_compiled_by_xla(function):
        analysis = _with_notes(
            analysis, "the function is compiled by XLA: Grappler does not get to see it"
        )
    if not as_handed_over:
        return analysis
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
    return _with_handed_graph(analysis, tf.function(call, autograph=False).get_concrete_function())


def _analyze_graph_def(graph_def: graph_pb2.GraphDef) -> Analysis:
    return _analyze_flat_graph("GraphDef", "the graph as it was given", inline_calls(graph_def))


def _analyze_own_graph(name: str, function: Any) -> Analysis:
    return _analyze_flat_graph(name, _OWN_GRAPH, graph_of_function(function))


def _analyze_flat_graph(name: str, which: str, graph_def: graph_pb2.GraphDef) -> Analysis:
    analysis = Analysis(name, figures_of(which, graph_def))
    hidden = sum(
        node.op in CONVOLUTION_KINDS
        for function in graph_def.library.function
        for node in function.node_def
    )
    if hidden:
        analysis = _with_notes(
            analysis,
            f"not in the figures: {hidden} in functions that cannot be inlined, such as those that "
            "XLA compiles",
        )
    return analysis


def _with_handed_graph(analysis: Analysis, run: Callable[[], object]) -> Analysis:
    graph_def = graph_handed_over(run)
    if graph_def is None:
        return _with_notes(analysis, "Grappler handed over no graph that holds a convolution")
    return dataclasses.replace(analysis, handed_graph=figures_of(_HANDED_GRAPH, graph_def))


def _with_notes(analysis: Analysis, *notes: str) -> Analysis:
    return dataclasses.replace(analysis, notes=(*analysis.notes, *notes))


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


def _figure_table(graphs: tuple[GraphFigures, ...]) -> Table:
    table = Table()
    table.add_column("")
    for figures in graphs:
        table.add_column(figures.graph, justify="right")

    def add(label: str, counts: Iterable[int]) -> None:
        table.add_row(label, *(f"{count:,}" for count in counts))

    add("nodes", (figures.node_count for figures in graphs))
    add("convolutions", (figures.convolution_count for figures in graphs))
    for kind in graphs[0].counts_by_kind:
        add(f"  {kind}", [figures.counts_by_kind[kind] for figures in graphs])
    for op in sorted({op for figures in graphs for op in figures.counts_by_op}):
        add(f"  {op}", [figures.counts_by_op.get(op, 0) for figures in graphs])
    add("longest chain", (figures.longest_chain for figures in graphs))
    add("most at one depth", (figures.widest_level for figures in graphs))
    add("independent pairs", (figures.independent_pair_count for figures in graphs))
    add("left alone", (figures.refused_count for figures in graphs))
    return table
