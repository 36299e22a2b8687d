"""Says how many convolutions of a model could run at the same time, without changing anything."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from tf_interop import tensorflow_internals
from tf_interop.model.graph_counts import GraphFigures, figures_of
from tf_interop.model.graphs import HANDED_GRAPH, graphs_of
from tf_interop.model.keras_functions import keras_of

ANALYSIS_FORMAT = "tf_interop.analysis"
ANALYSIS_VERSION = 1
INFERENCE = "inference"
_STEPS = {False: INFERENCE, True: "this training step"}


@dataclasses.dataclass(frozen=True)
class Analysis:
    """What `analyze` found.

    Attributes:
        name: the model's or function's name, and what is run of it.
        own_graph: the graph as it was traced or given, with function calls inlined.
        handed_graph: the graph as the plugin gets it, after all of Grappler's own passes; None
            where it was not looked at.
        notes: why it was not, and other things to know about the figures.
        step: what is run of a Keras model, inference or a training step; None for other things.
    """

    name: str
    own_graph: GraphFigures
    handed_graph: GraphFigures | None = None
    notes: tuple[str, ...] = ()
    step: str | None = None

    @property
    def graphs(self) -> tuple[GraphFigures, ...]:
        """The figures of the graphs that were looked at, one or two."""
        return (
            (self.own_graph,) if self.handed_graph is None else (self.own_graph, self.handed_graph)
        )

    @property
    def answer(self) -> str:
        """Whether there is anything to gain, as far as that is known without measuring."""
        figures = self.graphs[-1]
        if not figures.convolution_count:
            return "There is no convolution in the graph: nothing for tf_interop to do."
        if not figures.group_sizes:
            of_which = " that can be in a stage" if figures.refused_count else ""
            where = "" if self.step is None else f" for {self.step}"
            hint = " In a training step some may be: --training." if self.step == INFERENCE else ""
            return f"No two convolutions{of_which} are independent: nothing to gain{where}.{hint}"
        count, least, most = (measure(figures.group_sizes) for measure in (len, min, max))
        groups = f"{count} {'group' if count == 1 else 'groups'}"
        sizes = f"{least}" if least == most else f"{least} to {most}"
        return (
            f"{figures.convolution_count} convolutions, {groups} of {sizes} that could run at the "
            "same time: there may be something to gain. Whether it is faster only measuring says, "
            "on the machine that will run it: tf-interop profile."
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
        """A table with a column for each graph, what it says, and the reasons of refusals."""
        text = io.StringIO()
        console = Console(file=text, width=110, highlight=False)
        console.print(self.name, markup=False)
        console.print(_figure_table(self.graphs))
        console.print(self.answer, markup=False)
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
    graphs = graphs_of(
        model_or_function_or_graph,
        batch_size=batch_size,
        training=training,
        image_size=image_size,
        as_grappler_hands_it_over=as_grappler_hands_it_over,
    )
    handed_graph = graphs.handed_graph
    return Analysis(
        graphs.name,
        figures_of(graphs.own_graph_is, graphs.own_graph),
        None if handed_graph is None else figures_of(HANDED_GRAPH, handed_graph),
        graphs.notes,
        None if keras_of(model_or_function_or_graph) is None else _STEPS[training],
    )


def _figure_table(graphs: tuple[GraphFigures, ...]) -> Table:
    table = Table()
    table.add_column("")
    for figures in graphs:
        table.add_column(figures.graph, justify="right")

    def add(label: str, counts: Iterable[int]) -> None:
        table.add_row(label, *(f"{count:,}" for count in counts))

    add("nodes", (figures.node_count for figures in graphs))
    add("convolutions", (figures.convolution_count for figures in graphs))
    table.add_section()
    table.add_row("by what they compute:")
    for kind in graphs[0].counts_by_kind:
        add(f"  {kind}", [figures.counts_by_kind[kind] for figures in graphs])
    table.add_section()
    table.add_row("by op type:")
    for op in sorted({op for figures in graphs for op in figures.counts_by_op}):
        add(f"  {op}", [figures.counts_by_op.get(op, 0) for figures in graphs])
    table.add_section()
    add("longest chain", (figures.longest_chain for figures in graphs))
    add("most at one depth", (figures.widest_level for figures in graphs))
    add("independent pairs", (figures.independent_pair_count for figures in graphs))
    add("groups", (len(figures.group_sizes) for figures in graphs))
    add("left alone", (figures.refused_count for figures in graphs))
    return table
