"""Says how many convolutions of a model could run at the same time, without changing anything."""

from __future__ import annotations

import collections
import dataclasses
import io
from collections.abc import Iterable
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from tensorflow.core.framework import graph_pb2

from tf_interop import tensorflow_internals
from tf_interop.convolution import Refusal, RefusalReason
from tf_interop.errors import LibraryError
from tf_interop.graph.convolution_ops import CONVOLUTION_KINDS
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.independence import Independence, NodeIndependence
from tf_interop.graph.levels import level_groups
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.model.graphs import handed_graph_of, trace
from tf_interop.model.keras_functions import keras_of

ANALYSIS_FORMAT = "tf_interop.analysis"
ANALYSIS_VERSION = 1
_INFERENCE = "inference"
_HANDED_GRAPH = "the graph after TensorFlow's own optimizations"
_MOST_EXAMPLES = 3


@dataclasses.dataclass(frozen=True)
class RefusalCount:
    """Convolution nodes that are left alone for one reason.

    Attributes:
        reason: the class of reason.
        count: how many there are.
        examples: the first of them, with what was expected and what they have.
    """

    reason: RefusalReason
    count: int
    examples: tuple[Refusal, ...]


@dataclasses.dataclass(frozen=True)
class GraphCounts:
    """How many convolutions one graph holds, and how they depend on each other.

    Chain, level and pairs are of all convolution nodes, refused ones too. What a loop hands on from
    one iteration to the next is left out of them.

    Attributes:
        graph: which graph it is, such as "the function's own graph".
        node_count: nodes of the graph.
        convolution_count: convolution nodes of the graph.
        counts_by_kind: convolution nodes by the tensor that they compute; each kind is named.
        counts_by_op: convolution nodes by op type, of the types that the graph holds.
        longest_chain: convolutions on the longest path through the graph.
        widest_level: most convolutions at one depth, which is their place in the longest chain that
            ends with them.
        independent_pair_count: pairs of convolutions of which neither depends on the other.
        group_sizes: of each set of convolutions at one depth that could run at the same time how
            many they are, two at least; refused ones are left out.
        refused_count: convolution nodes that can be in no stage.
        refusals: these by reason, the most frequent first.
    """

    graph: str
    node_count: int
    convolution_count: int
    counts_by_kind: dict[str, int]
    counts_by_op: dict[str, int]
    longest_chain: int
    widest_level: int
    independent_pair_count: int
    group_sizes: tuple[int, ...]
    refused_count: int
    refusals: tuple[RefusalCount, ...]


@dataclasses.dataclass(frozen=True)
class Analysis:
    """What `analyze` found.

    Attributes:
        name: the model's or function's name, and what is run of it.
        own_graph: the graph as it was traced or given, with function calls inlined.
        handed_graph: the graph as the plugin gets it, after all of Grappler's own passes; None
            where it was not looked at.
        notes: why it was not, and other things to know about the counts.
        mode: what is run of a Keras model, inference or a training step; None for other things.
    """

    name: str
    own_graph: GraphCounts
    handed_graph: GraphCounts | None = None
    notes: tuple[str, ...] = ()
    mode: str | None = None

    @property
    def graphs(self) -> tuple[GraphCounts, ...]:
        """The graphs that were looked at, one or two."""
        return tuple(each for each in (self.own_graph, self.handed_graph) if each is not None)

    @property
    def conclusion(self) -> str:
        """Whether there is anything to gain, as far as that is known without measuring."""
        graph = self.graphs[-1]
        if not graph.convolution_count:
            return "There is no convolution in the graph: nothing for tf_interop to do."
        if not graph.group_sizes:
            of_which = " that can be in a stage" if graph.refused_count else ""
            where = "" if self.mode is None else f" for {self.mode}"
            hint = " In a training step some may be: --training." if self.mode == _INFERENCE else ""
            return f"No two convolutions{of_which} are independent: nothing to gain{where}.{hint}"
        count, least, most = (measure(graph.group_sizes) for measure in (len, min, max))
        groups = f"{count} {'group' if count == 1 else 'groups'}"
        sizes = f"{least}" if least == most else f"{least} to {most}"
        return (
            f"{graph.convolution_count} convolutions, {groups} of {sizes} that could run at the "
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
            "graphs": [msgspec.to_builtins(graph) for graph in self.graphs],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        """A table with a column for each graph, what it says, and the reasons of refusals."""
        text = io.StringIO()
        console = Console(file=text, width=110, highlight=False)
        console.print(self.name, markup=False)
        console.print(_table_of(self.graphs))
        console.print(self.conclusion, markup=False)
        for graph in self.graphs:
            for refusal in graph.refusals:
                example = refusal.examples[0]
                console.print(
                    f"  {graph.graph}: {refusal.count} left alone for their "
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
        The counts of one or both graphs.

    Raises:
        ValueError: an argument is of a wrong kind, or a shape is unknown that has to be known.
        GraphError: the GraphDef is not well-formed.
        LibraryError: `as_grappler_hands_it_over` is True, and the compiled library is missing or
            does not fit.
    """
    traced = trace(
        model_or_function_or_graph, batch_size=batch_size, training=training, image_size=image_size
    )
    handed_graph, why_not = None, traced.why_not_run
    if as_grappler_hands_it_over is False:
        why_not = ""
    elif as_grappler_hands_it_over or not why_not:
        try:
            handed_graph = handed_graph_of(traced)
            if handed_graph is None:
                why_not = "Grappler handed over none that holds a convolution"
        except LibraryError as error:
            if as_grappler_hands_it_over:
                raise
            why_not = str(error)
    is_keras = keras_of(model_or_function_or_graph) is not None
    return Analysis(
        traced.name,
        _count(traced.origin, traced.graph_def),
        None if handed_graph is None else _count(_HANDED_GRAPH, handed_graph),
        traced.notes + ((f"{_HANDED_GRAPH} was not looked at: {why_not}",) if why_not else ()),
        ("this training step" if training else _INFERENCE) if is_keras else None,
    )


def _count(graph: str, graph_def: graph_pb2.GraphDef) -> GraphCounts:
    view = GraphView(graph_def)
    # As the pass does, which runs where TensorFlow's own kernels may take NCHW.
    convolutions, refused = find_convolutions(view, GraphProperties(view))
    groups = level_groups(convolutions, Independence(view, convolutions))
    indices = [index for index, op in enumerate(view.ops) if op in CONVOLUTION_KINDS]
    independence = NodeIndependence(view, indices)
    depths = independence.depths
    kinds = dict.fromkeys((kind.value for kind in CONVOLUTION_KINDS.values()), 0)
    for index in indices:
        kinds[CONVOLUTION_KINDS[view.ops[index]].value] += 1
    by_reason: dict[RefusalReason, list[Refusal]] = {}
    for each in refused:
        by_reason.setdefault(each.reason, []).append(each)
    return GraphCounts(
        graph=graph,
        node_count=len(view),
        convolution_count=len(indices),
        counts_by_kind=kinds,
        counts_by_op=dict(sorted(collections.Counter(view.ops[i] for i in indices).items())),
        longest_chain=max(depths, default=0),
        widest_level=max(collections.Counter(depths).values(), default=0),
        independent_pair_count=independence.independent_pair_count,
        group_sizes=tuple(len(group) for _, group in groups if len(group) > 1),
        refused_count=len(refused),
        refusals=tuple(
            RefusalCount(reason, len(group), tuple(group[:_MOST_EXAMPLES]))
            for reason, group in sorted(by_reason.items(), key=lambda item: -len(item[1]))
        ),
    )


def _table_of(graphs: tuple[GraphCounts, ...]) -> Table:
    table = Table("")
    for graph in graphs:
        table.add_column(graph.graph, justify="right")

    def add(label: str, counts: Iterable[int]) -> None:
        table.add_row(label, *(f"{count:,}" for count in counts))

    add("nodes", (graph.node_count for graph in graphs))
    add("convolutions", (graph.convolution_count for graph in graphs))
    table.add_section()
    table.add_row("by what they compute:")
    for kind in graphs[0].counts_by_kind:
        add(f"  {kind}", (graph.counts_by_kind[kind] for graph in graphs))
    table.add_section()
    table.add_row("by op type:")
    for op in sorted({op for graph in graphs for op in graph.counts_by_op}):
        add(f"  {op}", (graph.counts_by_op.get(op, 0) for graph in graphs))
    table.add_section()
    add("longest chain", (graph.longest_chain for graph in graphs))
    add("most at one depth", (graph.widest_level for graph in graphs))
    add("independent pairs", (graph.independent_pair_count for graph in graphs))
    add("groups", (len(graph.group_sizes) for graph in graphs))
    add("left alone", (graph.refused_count for graph in graphs))
    return table
