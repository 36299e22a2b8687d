"""Measures whole steps of a graph in stock TensorFlow and as `tf_interop.enable()` changes it."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop.graph.view import parse_input
from tf_interop.measure.other_load import OtherLoad
from tf_interop.planning.types import ONE_THREAD, OURS, STOCK
from tf_interop.runtime.graph_pass import change_graph
from tf_interop.runtime.kernel_library import SelfTiming, load_kernel_library
from tf_interop.runtime.settings import DEFAULT_KEPT_MB, GraphItem, Settings
from tf_interop.tuning.step_bench import StepBench, StepTimes

_THE_CPU = "/device:CPU:0"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        times: by the names of variants, stock TensorFlow first.
        way: how the changed graph ran in the end; empty if it has no units.
        is_settled: whether it had stopped trying ways before it was timed.
        cores: the number of cores that TensorFlow uses.
        other_load: the share of the cores that other programs took meanwhile.
    """

    times: Mapping[str, StepTimes]
    way: str
    is_settled: bool
    cores: int
    other_load: float


def compare_with_stock(
    stock: graph_pb2.GraphDef,
    fetches: Sequence[str],
    *,
    budget_s: float,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
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
    with StepBench() as bench:
        say("measuring stock TensorFlow")
        bench.add(STOCK, stock, fetches)
        names = [STOCK]
        if ours is not stock:
            say("trying ways to run the changed graph")
            bench.add(OURS, ours, fetches)
            names.append(OURS)
            while _is_trying(timed_graph) and time.perf_counter() < end - budget_s / 2:
                bench.run(OURS)
        if cores > 1:
            bench.add(ONE_THREAD, stock, fetches, intra_op_threads=1)
            names.append(ONE_THREAD)
        is_settled = not _is_trying(timed_graph)
        say("comparing them, in turns")
        times = bench.time(names, budget_s=max(0.5, end - time.perf_counter()))
    return Comparison(times, _way_of(timed_graph), is_settled, cores, others.share())


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


def _timing_of(timed_graph: str) -> SelfTiming | None:
    """Of the sizes that ran last, which come first."""
    timings = load_kernel_library().read_self_timings()
    return next((each for each in timings if timed_graph and each.name == timed_graph), None)


def _is_trying(timed_graph: str) -> bool:
    timing = _timing_of(timed_graph)
    return timing is not None and timing.is_trying


def _way_of(timed_graph: str) -> str:
    timing = _timing_of(timed_graph)
    return "" if timing is None else timing.way


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
