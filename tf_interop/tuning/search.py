"""Finds the units of a graph to make narrow or split, by measuring whole steps against stock."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop.graph.rewrite import rewrite_units
from tf_interop.graph.units import Unit
from tf_interop.graph.view import GraphView, parse_input
from tf_interop.measure.other_load import OtherLoad
from tf_interop.planning.types import FOLDED
from tf_interop.runtime.fold_pass import arrange_filters
from tf_interop.tuning.step_bench import StepBench, StepTimes

STOCK = "stock TensorFlow"
ALL_NARROW = "all units narrow"
BATCH_SPLIT = "batch split over all cores"

# The steps of a program differ by a few percent from steps timed in a Session.
_LEAST_GAIN = 0.05
_FINALISTS = 2
_THE_CPU = "/device:CPU:0"


@dataclasses.dataclass(frozen=True)
class Variant:
    """A measured way to run a graph.

    Attributes:
        cores: of each unit; 0 if the graph has none.
        is_split: whether the units split the batch.
    """

    name: str
    cores: int
    is_split: bool
    times: StepTimes


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        variants: stock, folded if there is anything to fold, and the fastest others, in this order.
        best: the fastest; the folded graph if nothing beats it by more than the error, and stock's
            if that beats the folded graph by more than the error.
        cores: the number of cores that TensorFlow uses.
        other_load: the share of the cores that other programs took meanwhile.
    """

    variants: tuple[Variant, ...]
    best: Variant
    cores: int
    other_load: float


def search_units(
    stock: graph_pb2.GraphDef,
    view: GraphView,
    units: Sequence[Unit],
    fetches: Sequence[str],
    *,
    split_units: Sequence[Unit] = (),
    budget_s: float,
    say: Callable[[str], None] = lambda text: None,
) -> SearchResult:
    """Measures a graph unchanged, folded, with all units on each number of cores, and split.

    Args:
        stock: the graph as Grappler hands it over for a CPU.
        view: the graph after folding, or the same graph if there is nothing to fold.
        units: the units of `view` that may be narrow.
        fetches: the nodes that a step runs.
        split_units: the units that may be split.
        budget_s: how long to measure; a measurement that has begun is finished.
        say: called with a few words on the progress.
    """
    end = time.perf_counter() + budget_s

    def left() -> float:
        return end - time.perf_counter()

    cores = core_count()
    others = OtherLoad()
    with StepBench() as bench:
        say("measuring stock TensorFlow")
        bench.add(STOCK, stock, fetches)
        added: dict[str, tuple[int, bool]] = {STOCK: (0, False)}  # as in Variant
        base = STOCK
        if view.graph_def is not stock:
            base = FOLDED
            _add(bench, FOLDED, view, (), 0, fetches)
            added[FOLDED] = (0, False)
        for width in widths_on(cores) if units else ():
            name = ALL_NARROW if width == 1 else f"all units on {width} cores"
            say(f"measuring {name}, {len(units)} of them")
            _add(bench, name, view, units, width, fetches)
            added[name] = (width, False)
        if split_units:
            say("measuring the batch split over all cores")
            _add(bench, BATCH_SPLIT, view, split_units, 1, fetches)
            added[BATCH_SPLIT] = (1, True)

        def measure(names: Sequence[str], budget_s: float) -> dict[str, Variant]:
            times = bench.time(names, budget_s=budget_s)
            return {name: Variant(name, *added[name], each) for name, each in times.items()}

        variants = measure(list(added), max(0.5, left() * 0.5))
        others_by_ratio = sorted(
            (name for name in variants if name not in (STOCK, base)),
            key=lambda name: variants[name].times.ratio,
            reverse=True,
        )
        # In turns once more, so that everything reported was measured over the same period.
        last = dict.fromkeys((STOCK, base, *others_by_ratio[:_FINALISTS]))
        if others_by_ratio:
            say(f"comparing {others_by_ratio[0]} with stock TensorFlow")
            variants = measure(list(last), max(0.5, left()))
    best = max(
        (variants[name] for name in others_by_ratio[:_FINALISTS]),
        key=lambda each: each.times.ratio,
        default=variants[base],
    )
    least = variants[base].times.ratio
    if best.times.ratio - max(best.times.error, _LEAST_GAIN * least) <= least:
        best = variants[base]
        if least + max(best.times.error, _LEAST_GAIN) < 1:
            best = variants[STOCK]
    return SearchResult(tuple(variants.values()), best, cores, others.share())


def core_count() -> int:
    """The number of cores that the intra-op threads use."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, tf.config.threading.get_intra_op_parallelism_threads() or cores)


def widths_on(cores: int) -> tuple[int, ...]:
    """The numbers of cores that a unit may have: 1, 2, 4 and so on, and all cores."""
    powers = range((cores - 1).bit_length())
    return (*(1 << power for power in powers), cores)


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


def _add(
    bench: StepBench,
    name: str,
    view: GraphView,
    units: Sequence[Unit],
    cores: int,
    fetches: Sequence[str],
) -> None:
    """Adds a variant with units; filters outside of units are arranged, as the pass does."""
    rewritten = view.graph_def
    if units:
        rewritten = rewrite_units(view, units, fetches, cores=[{None: cores}] * len(units))
    bench.add(name, arrange_filters(rewritten, fetches) or rewritten, fetches)
