"""Makes a model faster on this machine in one call, or leaves it unchanged."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop import tensorflow_internals
from tf_interop.convolution import (
    ConvolutionNode,
    batch_size_of,
)
from tf_interop.duration import parse_duration
from tf_interop.errors import ProfileError
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.landmarks import find_structure
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.split_units import find_split_units
from tf_interop.graph.units import Unit, find_units
from tf_interop.graph.view import GraphView
from tf_interop.measure.core import MeasureOptions, load_core_library
from tf_interop.measure.device import (
    ask_for_all_hardware_queues,
    identify_device,
    running_device,
    this_cpu,
)
from tf_interop.measure.run import End, ProfileRun, RunOptions
from tf_interop.model.collect import CollectOptions, collect_graphs
from tf_interop.model.graphs import (
    TracedGraph,
    folded_graph,
    handed_graph_of,
    optimize_graph,
    planned_graph,
    trace,
    with_inferred_shapes,
)
from tf_interop.model.make_plan import plan as plan_model
from tf_interop.planning.lookup import mode_of
from tf_interop.planning.show import doubt, say_xla_is_faster, verdict
from tf_interop.planning.types import FOLDED, XLA, ComparedStep, GraphPlan, MeasuredStep, Plan
from tf_interop.profile.entries import Entry
from tf_interop.profile.types import Profile, profile_of
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.switch import enable as enable_plugin
from tf_interop.structure import Structure
from tf_interop.terminal import now_and_then
from tf_interop.tuning.cache import load_cached, save_cached
from tf_interop.tuning.search import STOCK, SearchResult, as_step, search_units
from tf_interop.tuning.xla import XlaTimes, time_xla


@dataclasses.dataclass(frozen=True)
class TunedGraph:
    """The result for one graph.

    Attributes:
        name: the model, and whether this is its inference or its training.
        plan: changes nothing if nothing beat stock TensorFlow.
        xla: times with `jit_compile=True`; None if not requested, or if the plan is cached.
    """

    name: str
    plan: GraphPlan
    xla: XlaTimes | None = None
    is_cached: bool = False

    def __str__(self) -> str:
        """The result in a sentence."""
        said = f"{self.name}: {verdict(self.plan)}"
        if self.plan.measured is None and self.is_xla_faster:
            assert self.xla is not None and self.xla.ratio is not None
            said += f" {say_xla_is_faster(self.xla.ratio)}"
        return f"{said} From the cache." if self.is_cached else said

    @property
    def is_xla_faster(self) -> bool:
        """Whether `jit_compile=True` beats both stock TensorFlow and the plan.

        A plan without a measured step counts as stock's step minus the predicted gain.
        """
        if self.plan.measured is not None:
            return self.plan.measured.faster_xla is not None
        if self.xla is None or self.xla.median_ms is None or self.xla.ratio is None:
            return False
        expected = self.plan.prediction
        saved_us = expected.sequential_us - expected.latency_us if expected else 0.0
        return self.xla.median_ms * (self.xla.ratio - 1) * 1e3 > max(saved_us, 0.0)


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The result of `tune` for each batch size."""

    graphs: tuple[TunedGraph, ...]
    made_with: Mapping[str, str]

    @functools.cached_property
    def plan(self) -> Plan:
        """The whole result as a plan for `enable(plan=…)` and `save_plan`."""
        entries = {(each.plan.fingerprint, each.plan.batch_size): each.plan for each in self.graphs}
        return Plan(tuple(entries.values()), made_with=dict(self.made_with))

    @property
    def is_faster(self) -> bool:
        """Whether the plan, or folding alone, beats stock TensorFlow at some batch size.

        On a GPU it is only expected to.
        """
        plans = [each.plan for each in self.graphs]
        return any(
            each.changes_graph or (each.measured is not None and each.measured.is_gain)
            for each in plans
        )

    @property
    def is_xla_faster(self) -> bool:
        """Whether `jit_compile=True` beats stock and the plan at some batch size."""
        return any(each.is_xla_faster for each in self.graphs)

    def __str__(self) -> str:
        """A sentence for each graph."""
        return "\n".join(map(str, self.graphs))


def tune(
    model_or_function: Any,
    *,
    batch_sizes: Sequence[int] = (1,),
    training: bool = False,
    image_size: tuple[int, int] | int | None = None,
    jit_compile: bool = False,
    budget: str | float = "30s",
    compare_xla: bool = True,
    use_cache: bool = True,
    enable: bool = True,
    say: Callable[[str], None] | None = None,
) -> Tuning:
    """Finds what beats stock TensorFlow on this machine, and turns it on.

    On a CPU it folds the model's graph, as `enable()` does. It measures whole steps of the folded
    graph with all units on one core, on all cores, on 2, 4 and so on if there are more, and with
    the batch split, alternating with stock TensorFlow and the folded graph. It keeps only units
    that beat the folded graph by more than the measurement error. The model or function runs once,
    on zeros, to get its graph; then the model's state is restored. Timed steps run on random
    values. The result is cached in the user's cache folder, by graph, machine and versions, unless
    other programs disturbed the measurement.

    On a GPU it measures convolutions and stages, as `tf-interop profile` does, and plans from
    them, as `plan` does. It measures no whole step of the plan there.

    Args:
        model_or_function: a Keras model with known inputs, a concrete function, a tf.function with
            an input signature, or a GraphDef.
        batch_sizes: for inputs whose first dimension is unknown.
        training: whether to tune a training step of a Keras model instead of its inference.
        image_size: height and width, or one number for both, where inputs of rank 4 lack them.
        jit_compile: whether XLA compiles the model. On a GPU the stages are then for the compiled
            functions. On a CPU it changes nothing, because units stay outside of them.
        budget: how long to measure one graph, such as `"30s"`, `"2m"` or seconds. Tracing the
            model, and finishing a measurement, take extra time. With `compare_xla` a call takes
            about twice the budget for each batch size.
        compare_xla: whether to measure `jit_compile=True` as well, for the budget at most; on a CPU
            as it is under `enable()`, where depthwise convolutions run TensorFlow's own kernels.
            XLA is never turned on: if the result calls it faster, compile the model with it.
        use_cache: whether to use an earlier result.
        enable: whether to turn the plugin on with the plan if something is faster. Results of
            earlier calls stay on.
        say: called with a few words on the progress; None prints them on stderr, a line every few
            seconds at most.

    Returns:
        The result. Its `str()` is a sentence for each batch size.

    Raises:
        ValueError: an argument is wrong, a required shape is unknown, the model has no
            convolution, or XLA compiles the function.
        GraphError: TensorFlow refuses the graph.
        LibraryError: the compiled library is missing or does not fit this TensorFlow.
        ProfileError: the GPU failed during a measurement.
        PlanError: the GPU has too little memory for a convolution.
    """
    budget_s = parse_duration(budget)
    say = now_and_then() if say is None else say
    if isinstance(batch_sizes, int):
        raise ValueError(f"batch_sizes must be a list, such as [{batch_sizes}], not an int.")
    if not batch_sizes:
        raise ValueError("batch_sizes is empty. Pass at least one batch size.")
    batch_sizes = tuple(dict.fromkeys(batch_sizes))

    def trace_batch(batch_size: int) -> TracedGraph:
        say(f"tracing batch {batch_size}")
        return trace(
            model_or_function,
            batch_size=batch_size,
            training=training,
            image_size=image_size,
            jit_compile=jit_compile,
        )

    def compare_with_xla(traced: TracedGraph) -> XlaTimes | None:
        if not compare_xla:
            return None
        say(f"{traced.name}: compiling with XLA")
        return time_xla(*as_step(traced.graph_def), traced.variables, limit_s=budget_s)

    gpu = running_device("cudnn") if tensorflow_internals.may_have_gpus() else None
    if gpu is None:
        graphs = tuple(
            _tune_on_cpu(trace_batch(each), budget_s, compare_with_xla, use_cache, say)
            for each in batch_sizes
        )
        tuning = Tuning(graphs, _made_with_cpu())
    else:
        ask_for_all_hardware_queues()  # `enable` would be too late, after CUDA has started
        traced = [trace_batch(each) for each in batch_sizes]
        profile_budget_s = budget_s * len(batch_sizes)
        plan = plan_model(
            model_or_function,
            _profile(traced, gpu.backend, profile_budget_s, say),
            batch_sizes=batch_sizes,
            training=training,
            image_size=image_size,
            jit_compile=jit_compile,
            target=gpu.compute_capability or "cpu",
            say=say,
        )
        # A model with a fixed batch size has one plan entry for all batch sizes.
        tuning = Tuning(
            tuple(
                TunedGraph(of.name, entry, compare_with_xla(of))
                for entry, of in zip(plan.graphs, traced, strict=False)
            ),
            plan.made_with,
        )
    if enable and tuning.is_faster:
        _enable_beside_earlier(tuning.plan)
    return tuning


def _profile(
    graphs: Sequence[TracedGraph], backend: str, budget_s: float, say: Callable[[str], None]
) -> Profile:
    """Measures the convolutions and stages of all graphs; runs no whole step."""
    opened = load_core_library().open_backend(backend)
    device = identify_device(opened.describe())
    collected = collect_graphs(
        ((each.name, planned_graph(each, device.compute_capability or None)) for each in graphs),
        CollectOptions(),
    )
    entries: list[Entry] = []
    outcome = ProfileRun(
        opened,
        collected.configurations,
        RunOptions(
            measure=MeasureOptions(allow_tf32=tensorflow_internals.is_tf32_on()),
            budget_seconds=budget_s,
        ),
        keep=entries.append,
    ).run(lambda phase, done, total, what: say(f"{phase}: {done} of {total}; {what}"))
    if outcome.end is End.DEVICE_LOST:
        raise ProfileError(
            f"{device.name} failed during a measurement and is no longer usable. Tune in a new "
            "process; tf-interop profile shows which algorithm failed."
        )
    return profile_of(device, entries)


def _tune_on_cpu(
    traced: TracedGraph,
    budget_s: float,
    compare_with_xla: Callable[[TracedGraph], XlaTimes | None],
    use_cache: bool,
    say: Callable[[str], None],
) -> TunedGraph:
    def say_of_graph(text: str) -> None:
        say(f"{traced.name}: {text}")

    say_of_graph("optimizing the graph with TensorFlow")
    step = step_to_tune(traced)
    convolutions, _ = find_convolutions(step.stock, GraphProperties(step.stock))
    if not convolutions:
        raise ValueError(
            f"{traced.name} has no convolution that can be tuned. tf-interop analyze lists the "
            "refused ones and the reasons."
        )
    view, fetches = step.folded, step.fetches
    properties = GraphProperties(view)
    units, _ = find_units(view, properties, nodes_to_preserve=fetches)
    split_units: tuple[Unit, ...] = ()
    if mode_of(convolutions) == "inference":  # only the forward pass of training could be split
        split_units = find_split_units(view, properties, nodes_to_preserve=fetches)
    structure = find_structure(step.stock, convolutions)
    key = cache_key(view, units, convolutions, structure)
    cached = load_cached(key) if use_cache else None
    if cached is not None:
        return TunedGraph(traced.name, cached, is_cached=True)
    found = search_units(
        step.stock.graph_def,
        view,
        units,
        fetches,
        split_units=split_units,
        budget_s=budget_s,
        say=say_of_graph,
    )
    xla = compare_with_xla(traced)
    taken = split_units if found.best.is_split else units if found.best.cores else ()
    plan = _plan_of(found, len(units), taken, convolutions, structure, xla)
    plan = dataclasses.replace(plan, mode=traced.mode)
    if not doubt(plan):
        save_cached(Plan((plan,), made_with=_made_with_cpu() | {"graph": traced.name}), key)
    return TunedGraph(traced.name, plan, xla)


@dataclasses.dataclass(frozen=True)
class StepToTune:
    """A graph in the form of `as_step`.

    Attributes:
        stock: as Grappler hands it over.
        folded: after folding; the same as `stock` if there is nothing to fold.
        fetches: the nodes that a step runs.
    """

    stock: GraphView
    folded: GraphView
    fetches: list[str]


def step_to_tune(traced: TracedGraph) -> StepToTune:
    """The graph of a CPU; a model or function runs once, on zeros."""
    graph_def, fetches = as_step(_graph_to_tune(traced))
    folded = folded_graph(graph_def, "CPU", fetches)
    return StepToTune(GraphView(graph_def), GraphView(folded), fetches)


def _graph_to_tune(traced: TracedGraph) -> graph_pb2.GraphDef:
    if traced.run is None:
        return optimize_graph(traced, None)
    handed = handed_graph_of(traced)
    if handed is None:
        raise ValueError(
            f"Grappler hands over no graph with convolutions for {traced.name}. Tune a function "
            "that has some, and that XLA does not compile (jit_compile=False)."
        )
    graph_def = with_inferred_shapes(handed)
    if tables := [node.name for node in graph_def.node if node.op == "_Arg"]:
        raise ValueError(
            f"{traced.name} reads the resource '{tables[0]}', such as a lookup table, which tune "
            "cannot fill. Tune the layers after it as a model of their own."
        )
    return graph_def


def _plan_of(
    found: SearchResult,
    unit_count: int,
    taken: Sequence[Unit],
    convolutions: Sequence[ConvolutionNode],
    structure: Structure,
    xla: XlaTimes | None,
) -> GraphPlan:
    best, stock = found.best, found.variants[0]
    compared = [
        ComparedStep(
            each.name,
            each.times.median_ms,
            each.times.ratio,
            each.times.error,
        )
        for each in found.variants
    ]
    if xla is not None and xla.median_ms is not None and xla.ratio is not None:
        compared.append(ComparedStep(XLA, xla.median_ms, xla.ratio))
    return GraphPlan(
        structure.fingerprint,
        structure.landmarks,
        batch_size=batch_size_of(node.configuration for node in convolutions),
        why_no_stage="" if taken else "no variant beats the graph without units",
        unit_count=len(taken),
        unit_cores=max(best.cores, 1),
        are_split=best.is_split,
        measured=MeasuredStep(
            stock_ms=stock.times.median_ms,
            step_ms=best.times.median_ms,
            ratio=best.times.ratio,
            error=best.times.error,
            unit_count=len(taken) if best.is_split else unit_count,
            unit_op_count=sum(len(unit.steps) for unit in taken),
            cores=found.cores,
            other_load=found.other_load,
            compared=tuple(compared),
        ),
        unfolded=best.name == STOCK and any(each.name == FOLDED for each in found.variants),
    )


def _made_with_cpu() -> dict[str, str]:
    device = this_cpu()
    return {
        "tensorflow": tensorflow_internals.tensorflow_version(),
        "device": device.name,
        "backend": device.backend,
    }


def _enable_beside_earlier(plan: Plan) -> None:
    """Turns the plugin on with a plan; plans of other graphs and batch sizes stay on."""
    entries = {(each.fingerprint, each.batch_size): each for each in plan.graphs}
    earlier = get_plugin().settings.plan
    if earlier is not None and tensorflow_internals.plugin_optimizers_option() is not False:
        for each in earlier.graphs:
            entries.setdefault((each.fingerprint, each.batch_size), each)
    enable_plugin(plan=dataclasses.replace(plan, graphs=tuple(entries.values())))


def cache_key(
    view: GraphView,
    units: Sequence[Unit],
    convolutions: Sequence[ConvolutionNode],
    structure: Structure,
) -> str:
    """A digest of a graph, as Grappler hands it over, and of this machine.

    It includes everything that a measured plan depends on, even versions and TensorFlow's settings
    for threads and oneDNN.
    """
    import tf_interop

    inputs = sorted(
        (node.attr["dtype"].type, str(tf.TensorShape(node.attr["shape"].shape)))
        for node in view.nodes
        if node.op in ("Placeholder", "VarHandleOp")
    )
    key = [
        structure.fingerprint,
        batch_size_of(node.configuration for node in convolutions),
        sorted([view.ops[step] for step in unit.steps] for unit in units),
        inputs,
        this_cpu().name,
        sorted(os.sched_getaffinity(0)),
        tensorflow_internals.tensorflow_version(),
        tf_interop.__version__,
        tf.config.threading.get_intra_op_parallelism_threads(),
        tf.config.threading.get_inter_op_parallelism_threads(),
        os.environ.get(tensorflow_internals.ONEDNN_VARIABLE, ""),
    ]
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]
