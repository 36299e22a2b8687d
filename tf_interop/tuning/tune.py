"""Makes a model faster on this machine in one call, or leaves it unchanged."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop import tensorflow_internals
from tf_interop.convolution import batch_size_of
from tf_interop.duration import parse_duration
from tf_interop.errors import ProfileError
from tf_interop.graph.landmarks import find_structure
from tf_interop.graph.view import GraphView
from tf_interop.measure.core import MeasureOptions, load_core_library
from tf_interop.measure.device import (
    ask_for_all_hardware_queues,
    identify_device,
    running_gpu,
    this_cpu,
)
from tf_interop.measure.run import End, ProfileRun, RunOptions
from tf_interop.model.collect import CollectOptions, collect_graphs
from tf_interop.model.graphs import (
    TracedGraph,
    convolutions_of,
    handed_graph_of,
    optimize_graph,
    planned_graph,
    trace,
    with_inferred_shapes,
)
from tf_interop.model.make_plan import plan as plan_model
from tf_interop.planning.show import doubt, say_xla_is_faster, verdict
from tf_interop.planning.types import (
    XLA,
    ComparedStep,
    GraphPlan,
    MeasuredStep,
    Plan,
    first_of_each,
)
from tf_interop.profile.entries import Entry
from tf_interop.profile.types import Profile, profile_of
from tf_interop.runtime.settings import Policy, Settings
from tf_interop.runtime.switch import enable as enable_plugin
from tf_interop.runtime.switch import settings_in_use, turn_on
from tf_interop.structure import Structure
from tf_interop.terminal import ProgressLines
from tf_interop.tuning.cache import load_cached, save_cached
from tf_interop.tuning.compare import compare_with_stock, core_count, time_xla

_HARMLESS_OPS = re.compile("Var|ReadVariable|Assign|Resource(Apply|Gather|Scatter)|Random|Multinom")
"""The stateful ops that only have state, or random numbers."""

NOT_IN_CACHE = "the result in the cache is without it; measure again (--fresh, use_cache=False)"

_SETTING_VARIABLES = ("TF_NUM_", "TF_INTEROP_", "TF_ENABLE_ONEDNN_OPTS", "ONEDNN_", "OMP_")
_NAMES = {
    *("_class", "shared_name", "container", "debug_name", "frame_name"),
    "_gradient_op_type",
}
"""The attributes that name something, which may be different in each process."""
_MOST_BYTES_OF_VALUE = 1024

_LEAST_LOSS = 0.05
"""A graph that loses less is not left to stock TensorFlow, whose steps vary as much."""


@dataclasses.dataclass(frozen=True)
class TunedGraph:
    """The result for one graph.

    Attributes:
        name: the model, and whether this is its inference or its training.
        plan: changes nothing if nothing beat stock TensorFlow.
        xla: a step with `jit_compile=True`, or why it was not measured; None if not requested, or
            if the cached plan has it.
    """

    name: str
    plan: GraphPlan
    xla: ComparedStep | str | None = None
    is_cached: bool = False

    def __str__(self) -> str:
        """The result in a sentence."""
        said = f"{self.name}: {verdict(self.plan)}"
        if self.plan.measured is None and self.is_xla_faster:
            assert isinstance(self.xla, ComparedStep)
            said += f" {say_xla_is_faster(self.xla.ratio)}"
        return f"{said} From the cache." if self.is_cached else said

    @property
    def is_xla_faster(self) -> bool:
        """Whether `jit_compile=True` beats both stock TensorFlow and the plan.

        A plan without a measured step counts as stock's step minus the predicted gain.
        """
        if self.plan.measured is not None:
            return self.plan.measured.fastest.name == XLA
        if not isinstance(self.xla, ComparedStep):
            return False
        expected = self.plan.prediction
        saved_us = expected.sequential_us - expected.latency_us if expected else 0.0
        return self.xla.step_ms * (self.xla.ratio - 1) * 1e3 > max(saved_us, 0.0)


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The result of `tune` for each batch size."""

    graphs: tuple[TunedGraph, ...]
    made_with: Mapping[str, str]

    @functools.cached_property
    def plan(self) -> Plan:
        """The whole result as a plan for `enable(plan=…)` and `save_plan`."""
        entries = first_of_each(each.plan for each in self.graphs)
        return Plan(entries, made_with=dict(self.made_with))

    @property
    def is_faster(self) -> bool:
        """Whether `tf_interop.enable()` beats stock TensorFlow at some batch size.

        On a GPU the plan is only expected to.
        """
        plans = [each.plan for each in self.graphs]
        return any(
            each.stages or (each.measured is not None and each.measured.ours.is_gain)
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

    On a CPU it measures steps of the graph as programs run them, in several new processes: as
    `enable()` changes it, after it has found its way to run, in turns with stock TensorFlow. Of
    further programs, 95 % should gain within the error. The plan has the times, and says to leave
    the graph as it is where stock TensorFlow is faster. The model or function runs once, on zeros,
    to get its graph; then the model's state is restored. Timed steps run on random values. The
    result is cached in the user's cache folder, by graph, machine and versions, unless other
    programs disturbed the measurement.

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
            model takes extra time, and on a CPU three processes run in any case. With
            `compare_xla` a call takes about twice the budget for each batch size.
        compare_xla: whether to measure `jit_compile=True` as well, for the budget at most, as it is
            under `enable()`: on a CPU depthwise convolutions run TensorFlow's own kernels, on a GPU
            all convolutions are in stages. XLA is never turned on: if the result calls it faster,
            compile the model with it.
        use_cache: whether to use an earlier result.
        enable: whether to turn the plugin on with the plan if something is faster, or if it is on
            already. Results of earlier calls and the other options of `enable` stay.
        say: called with a few words on the progress; None prints them on stderr, a line every ten
            seconds.

    Returns:
        The result. Its `str()` is a sentence for each batch size.

    Raises:
        ValueError: an argument is wrong, a required shape is unknown, the model has no
            convolution or calls Python, or XLA compiles the function.
        GraphError: TensorFlow refuses the graph.
        LibraryError: the compiled library is missing or does not fit this TensorFlow.
        ProfileError: the GPU failed during a measurement.
        PlanError: the GPU has too little memory for a convolution.
    """
    budget_s = parse_duration(budget)
    if isinstance(batch_sizes, int):
        raise ValueError(f"batch_sizes must be a list, such as [{batch_sizes}], not an int.")
    if not batch_sizes:
        raise ValueError("batch_sizes is empty. Pass at least one batch size.")
    batch_sizes = tuple(dict.fromkeys(batch_sizes))

    options = {"training": training, "image_size": image_size, "jit_compile": jit_compile}
    with contextlib.nullcontext(say) if say is not None else ProgressLines() as tell:
        tuning = _tune(
            model_or_function,
            batch_sizes,
            options,
            budget_s,
            compares_xla=compare_xla,
            use_cache=use_cache,
            say=tell,
        )
    in_use = settings_in_use()
    if in_use is not None and in_use.policy is Policy.ALWAYS:  # it uses no plan
        in_use = None
    if enable and (tuning.is_faster or in_use is not None):
        _turn_on(tuning.plan, in_use)
    return tuning


def _tune(
    model_or_function: Any,
    batch_sizes: Sequence[int],
    options: Mapping[str, Any],
    budget_s: float,
    *,
    compares_xla: bool,
    use_cache: bool,
    say: Callable[[str], None],
) -> Tuning:
    def trace_batch(batch_size: int) -> TracedGraph:
        say(f"tracing batch {batch_size}")
        return trace(model_or_function, batch_size=batch_size, **options)

    def compare_with_xla(traced: TracedGraph) -> ComparedStep | str | None:
        if not compares_xla:
            return None
        say(f"{traced.name}: compiling with XLA")
        return time_xla(traced, limit_s=budget_s)

    gpu = running_gpu()
    if gpu is None:
        graphs = tuple(
            _tune_on_cpu(
                trace_batch(each),
                budget_s,
                compare_with_xla,
                compares_xla=compares_xla,
                use_cache=use_cache,
                say=say,
            )
            for each in batch_sizes
        )
        return Tuning(graphs, _made_with_cpu())
    ask_for_all_hardware_queues()  # `enable` would be too late, after CUDA has started
    traced = [trace_batch(each) for each in batch_sizes]
    profile_budget_s = budget_s * len(batch_sizes)
    plan = plan_model(
        model_or_function,
        _profile(traced, gpu.backend, profile_budget_s, say),
        batch_sizes=batch_sizes,
        **options,
        target=gpu.compute_capability or "cpu",
        say=say,
    )
    # A model with a fixed batch size has one plan entry for all batch sizes.
    return Tuning(
        tuple(
            TunedGraph(of.name, entry, compare_with_xla(of))
            for entry, of in zip(plan.graphs, traced, strict=False)
        ),
        plan.made_with,
    )


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
    compare_with_xla: Callable[[TracedGraph], ComparedStep | str | None],
    *,
    compares_xla: bool,
    use_cache: bool,
    say: Callable[[str], None],
) -> TunedGraph:
    def say_of_graph(text: str) -> None:
        say(f"{traced.name}: {text}")

    say_of_graph("optimizing the graph with TensorFlow")
    view, convolutions, _ = convolutions_of(graph_to_tune(traced))
    if not convolutions:
        raise ValueError(
            f"{traced.name} has no convolution that can be tuned. tf-interop analyze lists the "
            "refused ones and the reasons."
        )
    structure = find_structure(view, convolutions)
    key = cache_key(view, structure)
    cached = load_cached(key) if use_cache else None
    if cached is not None:
        lacks_xla = compares_xla and cached.measured is not None and cached.measured.xla is None
        return TunedGraph(traced.name, cached, NOT_IN_CACHE if lacks_xla else None, is_cached=True)
    measured = compare_with_stock(traced, budget_s=budget_s, say=say_of_graph)
    xla = compare_with_xla(traced)
    if isinstance(xla, ComparedStep):
        measured = dataclasses.replace(measured, compared=(*measured.compared, xla))
    plan = GraphPlan(
        structure.fingerprint,
        structure.landmarks,
        # A graph with its convolutions in a loop does not state their batch size.
        batch_size=batch_size_of(each.configuration for each in convolutions) or traced.batch_size,
        mode=traced.mode,
        measured=measured,
        as_stock=_is_slower(measured),
    )
    if not doubt(plan):
        save_cached(Plan((plan,), made_with=_made_with_cpu() | {"graph": traced.name}), key)
    return TunedGraph(traced.name, plan, xla)


def graph_to_tune(traced: TracedGraph) -> graph_pb2.GraphDef:
    """The graph as Grappler hands it over for a CPU; a model or function runs once, on zeros."""
    if traced.run is None:
        _refuse_effects(traced.graph_def)
        return optimize_graph(traced, None)
    handed = handed_graph_of(traced)
    if handed is None:
        raise ValueError(
            f"TensorFlow optimizes no graph with convolutions for {traced.name}. Tune a function "
            "that has some, and that XLA does not compile (jit_compile=False)."
        )
    graph_def = with_inferred_shapes(handed)
    if tables := [node.name for node in graph_def.node if node.op == "_Arg"]:
        raise ValueError(
            f"{traced.name} reads the resource '{tables[0]}', such as a lookup table, which tune "
            "cannot fill. Tune the layers after it as a model of their own."
        )
    return graph_def


def _refuse_effects(graph_def: graph_pb2.GraphDef) -> None:
    """Refuses a GraphDef, which may be of somebody else, that would do more than compute."""
    functions = (function.node_def for function in graph_def.library.function)
    found = {
        node.op: node.name
        for node in itertools.chain(graph_def.node, *functions)
        if (op_def := tensorflow_internals.op_def(node.op)) is not None
        and op_def.is_stateful
        and not _HARMLESS_OPS.match(node.op)
    }
    if found:
        names = ", ".join(f"'{name}' ({op})" for op, name in sorted(found.items())[:5])
        raise ValueError(
            "The GraphDef has operations that may read or write files, open sockets or run "
            f"Python: {names}. tune would run them. Remove them, or if you trust the graph, name a "
            "function that returns a tf.function with it, as module:function."
        )


def _is_slower(measured: MeasuredStep) -> bool:
    """Whether a graph that has found its way to run is slower than in stock TensorFlow."""
    ours = measured.ours
    return measured.way is not None and ours.ratio + max(ours.error or 0.0, _LEAST_LOSS) < 1


def _made_with_cpu() -> dict[str, str]:
    device = this_cpu()
    return {
        "tensorflow": tensorflow_internals.tensorflow_version(),
        "device": device.name,
        "cores": str(core_count()),
        "backend": device.backend,
        "tuned": device.date,
    }


def _turn_on(plan: Plan, before: Settings | None) -> None:
    """Turns the plugin on with a plan; plans of other graphs and other settings stay."""
    if before is None:
        enable_plugin(plan=plan)
        return
    if before.plan is not None:
        graphs = first_of_each((*plan.graphs, *before.plan.graphs))
        plan = dataclasses.replace(plan, graphs=graphs)
    turn_on(dataclasses.replace(before, plan=plan))


def cache_key(view: GraphView, structure: Structure) -> str:
    """A digest of a graph, as Grappler hands it over, and of this machine.

    It includes everything that a measurement depends on, even versions and settings for threads and
    oneDNN, but no names.
    """
    variables = {
        name: value for name, value in os.environ.items() if name.startswith(_SETTING_VARIABLES)
    }
    key = [
        structure.fingerprint,
        sorted(map(_form_of, view.nodes)),
        sorted(variables.items()),
        this_cpu().name,
        sorted(os.sched_getaffinity(0)),
        tensorflow_internals.tensorflow_version(),
        version("tf_interop"),
        tf.config.threading.get_intra_op_parallelism_threads(),
        tf.config.threading.get_inter_op_parallelism_threads(),
        tensorflow_internals.is_op_determinism_on(),
    ]
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]


def _form_of(node: node_def_pb2.NodeDef) -> str:
    """The op and attributes of a node, without names; of large constants only the shapes."""
    form = [node.op]
    for name, value in sorted(node.attr.items()):
        if name in _NAMES or value.WhichOneof("value") == "func":
            continue
        content = value.SerializeToString(deterministic=True)
        if len(content) > _MOST_BYTES_OF_VALUE and value.HasField("tensor"):
            content = f"{value.tensor.dtype} {value.tensor.tensor_shape}".encode()
        form.append(f"{name}: {content.hex()}")
    return "; ".join(form)
