"""Counts the convolutions of a model that could run together, without running the model."""

from __future__ import annotations

import collections
import dataclasses
import io
from typing import Any

from rich.console import Console
from rich.table import Table

from tf_interop.convolution import Refusal, RefusalReason
from tf_interop.graph.independence import Independence, NodeIndependence, level_groups
from tf_interop.graph.ops import CONVOLUTION_KINDS
from tf_interop.measure.device import visible_gpus
from tf_interop.model.graphs import convolutions_of, planned_graph, trace
from tf_interop.terminal import count_of

_INFERENCE = "inference"
_MOST_EXAMPLES = 3


@dataclasses.dataclass(frozen=True)
class RefusalCount:
    """Convolution nodes that are refused for one reason; `examples` are the first ones."""

    reason: RefusalReason
    count: int
    examples: tuple[Refusal, ...]


@dataclasses.dataclass(frozen=True)
class Analysis:
    """The number of convolutions in a graph, and how they depend on each other.

    Chain, level and pairs count refused convolutions too. Dependencies from one iteration of a loop
    to the next do not count.

    Attributes:
        name: the model's or function's name, with the kind of run and the batch size.
        mode: `inference` or `this training step` for a Keras model; else None.
        counts_by_kind: convolution nodes by the tensor that they compute, for every kind.
        counts_by_op: convolution nodes by op type, for the types in the graph.
        longest_chain: convolutions on the longest path through the graph.
        widest_level: the most convolutions at one depth. A convolution's depth is the length of the
            longest chain that ends with it.
        independent_pair_count: pairs of convolutions that do not depend on each other.
        group_sizes: the sizes, two or more, of the sets of convolutions at one depth that could run
            together; without refused ones.
        refused_count: convolution nodes that cannot be in a stage.
        refusals: these by reason, the most frequent first.
    """

    name: str
    mode: str | None
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
    notes: tuple[str, ...] = ()

    @property
    def conclusion(self) -> str:
        """Whether there may be anything to gain, in a sentence or two."""
        if not self.convolution_count:
            return "There is no convolution in the graph, so tf_interop cannot do anything."
        if not self.group_sizes:
            of_which = " that can be in a stage" if self.refused_count else ""
            where = "" if self.mode is None else f" for {self.mode}"
            hint = " For a training step add --training." if self.mode == _INFERENCE else ""
            return (
                f"No two convolutions{of_which} are independent, so a GPU gains nothing{where}. "
                f"A CPU may still gain: run tf-interop tune.{hint}"
            )
        least, most = min(self.group_sizes), max(self.group_sizes)
        sizes = f"{least}" if least == most else f"{least} to {most}"
        groups = count_of(len(self.group_sizes), "group")
        return (
            f"{self.convolution_count} convolutions, {groups} of {sizes} that could run together, "
            "so there may be something to gain. To measure it, run tf-interop tune on the target "
            "machine."
        )

    def __str__(self) -> str:
        """A table of the counts, the conclusion, and the reasons of refusals."""
        table = Table(show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for label, count in (
            ("nodes", self.node_count),
            ("convolutions", self.convolution_count),
            *((f"  {kind}", count) for kind, count in self.counts_by_kind.items()),
            *((f"  {op}", count) for op, count in self.counts_by_op.items()),
            ("longest chain", self.longest_chain),
            ("most at one depth", self.widest_level),
            ("independent pairs", self.independent_pair_count),
            ("groups", len(self.group_sizes)),
            ("unchanged", self.refused_count),
        ):
            table.add_row(label, f"{count:,}")
        text = io.StringIO()
        console = Console(file=text, width=110, highlight=False, markup=False)
        console.print(self.name)
        console.print(table)
        console.print(self.conclusion)
        for refusal in self.refusals:
            example = refusal.examples[0]
            console.print(
                f"  {refusal.count} unchanged for their {refusal.reason.value}, such as "
                f"'{example.node}': {example.detail}",
                soft_wrap=True,
            )
        for note in self.notes:
            console.print(f"  {note}", soft_wrap=True)
        return text.getvalue()


def analyze(
    model_or_function_or_graph: Any,
    *,
    batch_size: int = 1,
    training: bool = False,
    image_size: tuple[int, int] | int | None = None,
    jit_compile: bool = False,
) -> Analysis:
    """Counts the convolutions of a graph and how many of them are independent.

    The graph is traced and goes through Grappler's own passes, as it does before the plugin on this
    machine. For a GPU its parameters are then folded, as they are before stages. If XLA compiles
    it, only biases and activations are fused. Nothing runs, and neither the compiled library nor a
    GPU is needed.

    Args:
        model_or_function_or_graph: a Keras model with known inputs, a concrete function, a
            tf.function with an input signature, or a GraphDef.
        batch_size: for inputs whose first dimension is unknown.
        training: whether to analyze a training step of a Keras model instead of its inference.
        image_size: height and width, or one number for both, where inputs of rank 4 lack them.
        jit_compile: whether XLA compiles the model. A function that XLA compiles needs no such
            argument.

    Raises:
        ValueError: an argument is of the wrong kind, or an input's shape is unknown.
        GraphError: the GraphDef is not well-formed.
    """
    traced = trace(
        model_or_function_or_graph,
        batch_size=batch_size,
        training=training,
        image_size=image_size,
        jit_compile=jit_compile,
    )
    gpus = visible_gpus()
    graph_def = planned_graph(traced, gpus[0].compute_capability if gpus else None)
    view, convolutions, refused = convolutions_of(graph_def)
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
    return Analysis(
        name=traced.name,
        mode="this training step" if traced.mode == "training" else traced.mode,
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
        notes=traced.notes,
    )
