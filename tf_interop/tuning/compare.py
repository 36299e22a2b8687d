"""Measures whole steps of a graph in stock TensorFlow and as `tf_interop.enable()` changes it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop.graph.view import parse_input
from tf_interop.measure.other_load import OtherLoad
from tf_interop.planning.types import ONE_THREAD, OURS, STOCK, MeasuredStep
from tf_interop.runtime.graph_pass import change_graph
from tf_interop.runtime.kernel_library import load_kernel_library
from tf_interop.runtime.settings import DEFAULT_KEPT_MB, GraphItem, Settings
from tf_interop.tuning.step_bench import Variant, compare_in_turns, steps_of

_THE_CPU = "/device:CPU:0"


def compare_with_stock(
    stock: graph_pb2.GraphDef,
    fetches: Sequence[str],
    *,
    budget_s: float,
    say: Callable[[str], None] = lambda text: None,
) -> MeasuredStep:
    """Measures a graph unchanged, changed, and unchanged with one thread for each operation.

    Args:
        stock: the graph as Grappler hands it over for a CPU, in the form of `as_step`.
        fetches: the nodes that a step runs.
        budget_s: how long to measure; a measurement that has begun is finished.
        say: called with a few words on the progress.
    """
    end = time.perf_counter() + budget_s
    cores = core_count()
    others = OtherLoad()
    ours, timed_graph = changed_graph(stock, fetches)
    variants = [Variant(STOCK, stock, fetches)]
    if ours is not stock:
        variants.append(Variant(OURS, ours, fetches))
    if cores > 1:
        variants.append(Variant(ONE_THREAD, stock, fetches, intra_op_threads=1))
    with steps_of(variants) as steps:
        if timed_graph:
            say("trying ways to run the changed graph")
        half = time.perf_counter() + (end - time.perf_counter()) / 2
        while _way_of(timed_graph) is None and time.perf_counter() < half:
            steps[OURS]()
        way = _way_of(timed_graph)
        say("comparing it with stock TensorFlow, in turns")
        compared = compare_in_turns(steps, budget_s=max(0.5, end - time.perf_counter()))
    return MeasuredStep(compared, way, cores, others.share())


def changed_graph(
    stock: graph_pb2.GraphDef, fetches: Sequence[str]
) -> tuple[graph_pb2.GraphDef, str]:
    """The graph as the plugin changes it without a plan, and the name under which it is timed.

    The name is empty if it has no units.
    """
    settings = Settings(times_itself=True, kept_mb=DEFAULT_KEPT_MB)
    changed = change_graph(stock, GraphItem("CPU", fetches, fetches), settings)
    timed_graph = "" if changed.report is None else changed.report.timed_graph
    return changed.graph_def or stock, timed_graph


def _way_of(timed_graph: str) -> str | None:
    """How a graph runs at the size that ran last; as in `MeasuredStep`."""
    for each in load_kernel_library().read_self_timings():
        if timed_graph and each.name == timed_graph:
            return None if each.is_trying else each.way
    return ""


def core_count() -> int:
    """The number of cores that the intra-op threads use."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, tf.config.threading.get_intra_op_parallelism_threads() or cores)


def as_step(graph_def: graph_pb2.GraphDef) -> tuple[graph_pb2.GraphDef, list[str]]:
    """Turns a function's flat graph into one that a Session can run.

    Returns:
        The graph without its `_Retval` nodes, and the names of the nodes that a step runs: those
        that compute the results and those that nothing reads.
    """
    step = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    step.node.extend(node for node in graph_def.node if node.op != "_Retval")
    for node in step.node:
        node.device = node.device or _THE_CPU
    read = {parse_input(text)[0] for node in step.node for text in node.input}
    unread = [node.name for node in step.node if node.name not in read]
    results = [parse_input(node.input[0])[0] for node in graph_def.node if node.op == "_Retval"]
    inputs = {node.name for node in step.node if node.op in ("Placeholder", "VarHandleOp")}
    return step, [name for name in dict.fromkeys((*results, *unread)) if name not in inputs]
