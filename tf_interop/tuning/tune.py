"""One call that makes a model faster on the machine at hand, or leaves it as it is."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

from tensorflow.core.framework import graph_pb2

from tf_interop import tensorflow_internals
from tf_interop.convolution import ConvolutionNode, batch_size_of
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.fingerprint import canonical_names, fingerprint_convolutions
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.units import find_units, planned_name
from tf_interop.graph.view import GraphView
from tf_interop.measure.device import this_cpu
from tf_interop.model.graphs import (
    TracedGraph,
    handed_graph_of,
    optimize_graph,
    trace,
    with_inferred_shapes,
)
from tf_interop.model.keras_functions import keras_of
from tf_interop.planning.types import GraphMode, GraphPlan, MeasuredStep, Plan
from tf_interop.runtime.switch import enable as enable_plugin
from tf_interop.tuning.cache import cache_path, load_cached, save_cached
from tf_interop.tuning.search import SearchResult, Variant, as_step, search_narrow_units
from tf_interop.tuning.xla import XlaTimes, time_xla

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?\s*")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclasses.dataclass(frozen=True)
class TunedGraph:
    """What was found for one graph.

    Attributes:
        name: the model, and what is run of it.
        plan: its entry of the plan; it names no unit where nothing beat stock TensorFlow.
        variants: what was measured, stock first; empty where the plan comes from the cache.
        xla: `jit_compile=True`; None where it was not asked for, or the plan comes from the cache.
        is_cached: whether the plan comes from the cache.
    """

    name: str
    plan: GraphPlan
    variants: tuple[Variant, ...] = ()
    xla: XlaTimes | None = None
    is_cached: bool = False

    def __str__(self) -> str:
        """A sentence that says what was found."""
        measured = self.plan.measured
        assert measured is not None
        steps = f"{measured.step_ms:.1f} ms a step"
        if not self.plan.narrow_units:
            return f"{self.name}: stock TensorFlow is fastest ({steps}); the graph stays as it is."
        return (
            f"{self.name}: {measured.ratio:.2f} times as fast as stock TensorFlow ({steps}, stock "
            f"{measured.stock_ms:.1f} ms) on {measured.cores} cores: {len(self.plan.narrow_units)} "
            f"units of {measured.narrow_op_count} operations run on one core each."
        )


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What `tune` found.

    Attributes:
        graphs: for each batch size.
    """

    graphs: tuple[TunedGraph, ...]

    @property
    def plan(self) -> Plan:
        """All of it as a plan, for `enable(plan=…)` and `save_plan`."""
        return Plan(
            tuple(
                {
                    (each.plan.fingerprint, each.plan.batch_size): each.plan for each in self.graphs
                }.values()
            ),
            made_with={
                "tensorflow": tensorflow_internals.tensorflow_version(),
                "device": this_cpu().name,
                "backend": "host",
            },
        )

    @property
    def is_faster(self) -> bool:
        """Whether something beats stock TensorFlow at one of the batch sizes at least."""
        return any(each.plan.narrow_units for each in self.graphs)

    def __str__(self) -> str:
        """A sentence for each graph."""
        return "\n".join(map(str, self.graphs))


def tune(
    model_or_function: Any,
    *,
    batch_sizes: Sequence[int] = (1,),
    training: bool = False,
    image_size: tuple[int, int] | None = None,
    budget: str | float = "30s",
    compare_xla: bool = False,
    use_cache: bool = True,
    enable: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Tuning:
    """Finds what runs faster than stock TensorFlow here, and turns it on.

    On a CPU it measures the operations of the model's graph on one core and on all, proposes which
    units to run on one core each, and measures whole steps of the proposals by turns with stock
    TensorFlow. What does not beat stock by more than the error of the measurement is not made. The
    model is run once, on zeros, to get its graph, and is afterwards as it was; steps that are timed
    run on random values. What was found is kept in the
    user's cache folder, by graph, machine and versions.

    Args:
        model_or_function: a Keras model with known inputs, a concrete function, or a tf.function
            with an input signature.
        batch_sizes: to tune for; they count for inputs whose first dimension is unknown.
        training: whether to tune a training step of a Keras model, and not its inference.
        image_size: height and width, for inputs of rank 4 that leave them open.
        budget: how long measuring one graph may take, such as `"30s"`, `"2m"` or seconds. Tracing
            the model, and a measurement that has begun, come on top.
        compare_xla: whether to measure `jit_compile=True` as well, within the budget once more.
            It is told, and not turned on.
        use_cache: whether to take what was found before.
        enable: whether to turn the plugin on with the plan where something is faster.
        say: told what is being done, in a few words.

    Returns:
        What was found. `str()` of it is a sentence for each batch size.

    Raises:
        ValueError: an argument is of a wrong kind, a shape is unknown that has to be known, or the
            model has no convolution.
        GraphError: TensorFlow refuses the graph.
        LibraryError: the compiled library is missing or does not fit this TensorFlow.
    """
    budget_s = parse_budget(budget)
    if not batch_sizes:
        raise ValueError("Expected at least one batch size, got none.")
    mode: GraphMode | None = None
    if keras_of(model_or_function) is not None:
        mode = "training" if training else "inference"
    graphs = []
    for batch_size in batch_sizes:
        say(f"tracing batch {batch_size}")
        traced = trace(
            model_or_function, batch_size=batch_size, training=training, image_size=image_size
        )
        tuned = _tune_graph(
            traced,
            batch_size=batch_size,
            image_size=image_size,
            budget_s=budget_s,
            use_cache=use_cache,
            say=lambda text, name=traced.name: say(f"{name}: {text}"),
        )
        if compare_xla and not tuned.is_cached:
            say(f"{traced.name}: compiling with XLA")
            xla = time_xla(*as_step(traced.graph_def), traced.variables, limit_s=budget_s)
            tuned = dataclasses.replace(tuned, xla=xla)
        graphs.append(dataclasses.replace(tuned, plan=dataclasses.replace(tuned.plan, mode=mode)))
    tuning = Tuning(tuple(graphs))
    if enable and tuning.is_faster:
        enable_plugin(plan=tuning.plan)
    return tuning


def parse_budget(budget: str | float) -> float:
    """A duration in seconds.

    Args:
        budget: a number of seconds, or a text such as `"30s"`, `"500ms"`, `"2m"`.

    Raises:
        ValueError: it is no positive duration.
    """
    match = _DURATION.fullmatch(str(budget))
    seconds = float(match[1]) * _SECONDS[match[2] or "s"] if match else 0.0
    if not seconds > 0:
        raise ValueError(f"Expected a budget such as '30s' or '2m', got {budget!r}.")
    return seconds


def _tune_graph(
    traced: TracedGraph,
    *,
    batch_size: int,
    image_size: tuple[int, int] | None,
    budget_s: float,
    use_cache: bool,
    say: Callable[[str], None],
) -> TunedGraph:
    say("having TensorFlow optimize the graph")
    graph_def = _optimized(traced, batch_size, image_size)
    graph_def, fetches = as_step(graph_def)
    view = GraphView(graph_def)
    properties = GraphProperties(view)
    convolutions, _ = find_convolutions(view, properties)
    if not convolutions:
        raise ValueError(
            f"Expected a model with convolutions, got none in {traced.name}. tf-interop analyze "
            "says what was refused and why."
        )
    units, _ = find_units(view, properties, nodes_to_preserve=fetches)
    path = cache_path(view, units, convolutions)
    cached = load_cached(path) if use_cache else None
    if cached is not None:
        return TunedGraph(traced.name, cached.graphs[0], is_cached=True)
    found = search_narrow_units(graph_def, fetches, budget_s=budget_s, say=say)
    tuned = TunedGraph(traced.name, _plan_of(found, convolutions), found.variants)
    save_cached(Tuning((tuned,)).plan, path)
    return tuned


def _optimized(
    traced: TracedGraph, batch_size: int, image_size: tuple[int, int] | None
) -> graph_pb2.GraphDef:
    """The graph as Grappler hands it over: a model or function is run once, on zeros."""
    if traced.run is None:
        return optimize_graph(
            traced, batch_size=batch_size, image_size=image_size, compute_capability=None
        )
    handed = handed_graph_of(traced)
    return traced.graph_def if handed is None else with_inferred_shapes(handed)


def _plan_of(found: SearchResult, convolutions: Sequence[ConvolutionNode]) -> GraphPlan:
    names = [planned_name(found.view, unit) for unit in found.units]
    canonical = canonical_names(names)
    best, stock = found.best, found.variants[0]
    narrow = sorted(best.narrow)
    return GraphPlan(
        fingerprint_convolutions(convolutions),
        len(convolutions),
        (),
        batch_size=batch_size_of(node.configuration for node in convolutions),
        why_no_stage="" if narrow else "nothing that was measured beats stock TensorFlow",
        narrow_units=tuple(canonical[names[number]] for number in narrow),
        measured=MeasuredStep(
            stock_ms=stock.times.median_ms,
            step_ms=best.times.median_ms,
            ratio=best.times.ratio,
            error=best.times.error,
            predicted_ms=best.predicted_ms,
            unit_count=len(found.units),
            narrow_op_count=sum(len(found.units[number].steps) for number in narrow),
            cores=found.cores,
        ),
    )
