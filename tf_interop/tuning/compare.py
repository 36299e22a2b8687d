"""Compares steps of a graph with stock TensorFlow, in processes that run it as programs do."""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import time
from collections.abc import Callable

import msgspec
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from tf_interop import tensorflow_internals
from tf_interop.child_process import describe_end, run_module
from tf_interop.errors import GraphError
from tf_interop.measure.device import running_gpu
from tf_interop.measure.other_load import OtherLoad
from tf_interop.model.graphs import TracedGraph, unread_nodes, with_shapes
from tf_interop.planning.types import ComparedStep, MeasuredStep
from tf_interop.tuning import timed_steps
from tf_interop.tuning.timed_steps import Timed, Work

_FEWEST_PROCESSES = 3
_MOST_PROCESSES = 6
_LONGEST_TIMED_S = 2.0
_QUANTILES = (4.303, 3.182, 2.776, 2.571)
"""Student's t at 97.5 %, for 2, 3, … degrees of freedom."""
_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_PATIENCE_S = 900.0
"""How long a process may take beyond its time, for TensorFlow's start and its own optimizers."""


def compare_with_stock(
    traced: TracedGraph, *, budget_s: float, say: Callable[[str], None] = lambda text: None
) -> MeasuredStep:
    """Measures a graph with and without `tf_interop.enable()` on a CPU, in several new processes.

    Args:
        traced: the graph; its inputs and variables get random values.
        budget_s: how long to measure; three processes run in any case.
        say: called with a few words on the progress.

    Raises:
        ValueError: an input's shape is unknown, or the graph calls Python.
        GraphError: TensorFlow refuses the graph, or a process crashed.
    """
    functions = (function.node_def for function in traced.graph_def.library.function)
    for node in itertools.chain(traced.graph_def.node, *functions):
        if node.op in _PYTHON_OPS:
            raise ValueError(
                f"{traced.name} calls Python, at '{node.name}', which a new process cannot. Tune "
                "the layers after it as a model of their own."
            )
    start = time.perf_counter()
    others = OtherLoad()
    work = _work_of(traced, trying_s=budget_s / 3, timed_s=min(_LONGEST_TIMED_S, budget_s / 12))
    found: list[Timed] = []
    while len(found) < _MOST_PROCESSES:
        taken_s = time.perf_counter() - start
        if len(found) >= _FEWEST_PROCESSES and taken_s * (1 + 1 / len(found)) > budget_s:
            break
        say(f"comparing it with stock TensorFlow, in process {len(found) + 1}")
        timed = _run(work, work.trying_s + work.timed_s + _PATIENCE_S)
        if isinstance(timed, Timed):
            found.append(timed)
        elif len(found) < _FEWEST_PROCESSES:
            raise GraphError(f"{traced.name} cannot be timed in a new process: {timed}")
        else:
            break
    return _summary(found, others.share())


def time_xla(traced: TracedGraph, *, limit_s: float) -> ComparedStep | str:
    """Compares a graph that XLA compiles with stock TensorFlow, in a new process.

    XLA may take minutes to compile a network, and only ending its process stops it.

    Returns:
        The step, or why it was not measured.
    """
    timed_s = min(_LONGEST_TIMED_S, limit_s / 4)
    timed = _run(_work_of(traced, is_compiled=True, timed_s=timed_s), limit_s)
    # The error of one process does not compare with one over several.
    return timed if isinstance(timed, str) else dataclasses.replace(timed.compared[1], error=None)


def core_count() -> int:
    """The number of cores that the intra-op threads use."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, tf.config.threading.get_intra_op_parallelism_threads() or cores)


def _run(work: Work, limit_s: float) -> Timed | str:
    """What a new process measured, or why it did not."""
    ended = run_module(timed_steps.__name__, msgspec.msgpack.encode(work), limit_s)
    if ended.result:
        return msgspec.json.decode(ended.result, type=Timed | str)
    if ended.code is None:
        return f"it took longer than {limit_s:.0f} s"
    said = ended.said.strip().splitlines() or ["nothing"]
    return f"it {describe_end(ended.code)}; last it said: {said[-1]}"


def _summary(found: list[Timed], other_load: float) -> MeasuredStep:
    """The process in the middle, and how far one more may be from it, as 95 % of them are."""
    in_order = sorted(found, key=lambda each: each.compared[1].ratio)
    middle = in_order[(len(in_order) - 1) // 2]
    stock, ours = middle.compared
    spread = statistics.stdev(each.compared[1].ratio for each in found)
    spread *= _QUANTILES[len(found) - 3] * (1 + 1 / len(found)) ** 0.5
    ours = dataclasses.replace(ours, error=max(spread, ours.error or 0.0))
    way = None if any(each.way is None for each in found) else middle.way
    return MeasuredStep((stock, ours), way, core_count(), other_load)


def _work_of(
    traced: TracedGraph, *, timed_s: float, trying_s: float = 0.0, is_compiled: bool = False
) -> Work:
    graph_def = with_shapes(traced)
    nodes = {node.name: node for node in graph_def.node}
    fetches = dict.fromkeys(traced.fetches or unread_nodes(graph_def))
    return Work(
        graph_def.SerializeToString(),
        [name if _has_effects(nodes[name]) else f"{name}:0" for name in fetches],
        is_compiled,
        trying_s,
        timed_s,
        running_gpu() is not None,
        tensorflow_internals.is_op_determinism_on(),
        tensorflow_internals.is_tf32_on(),
        tf.config.threading.get_intra_op_parallelism_threads(),
        tf.config.threading.get_inter_op_parallelism_threads(),
    )


def _has_effects(node: node_def_pb2.NodeDef) -> bool:
    """Whether a step runs a node, but not for its result."""
    op_def = tensorflow_internals.op_def(node.op)
    return op_def is None or op_def.is_stateful or not op_def.output_arg
