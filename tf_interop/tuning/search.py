"""Finds the units of a graph to make narrow or split, by measuring whole steps against stock."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop.graph.rewrite import rewrite_units
from tf_interop.graph.units import Unit, unit_name
from tf_interop.graph.view import GraphView, parse_input
from tf_interop.measure.other_load import OtherLoad
from tf_interop.planning.types import FOLDED
from tf_interop.runtime.fold_pass import arrange_filters
from tf_interop.tuning.propose import Machine, StepModel, UnitTimes, propose
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
        unit_cores: the cores of each narrow unit, by its number; empty if the batch is split.
        predicted_ms: the simulated step; 0 if there is none, or it is fitted to the measured one.
    """

    name: str
    unit_cores: Mapping[int, int]
    times: StepTimes
    predicted_ms: float = 0.0

    @property
    def is_split(self) -> bool:
        """Whether the batch is split."""
        return self.name == BATCH_SPLIT


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        variants: stock, folded if there is anything to fold, the fastest others, and all units on
            one core each, in this order.
        best: the fastest; the folded graph, or stock's, if nothing beats it by more than the error.
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
    """Measures a graph unchanged, folded, with all units narrow or split, and with proposed ones.

    All units are measured with each number of cores in `Machine.widths`.

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

    machine = _machine()
    others = OtherLoad()
    with StepBench() as bench:
        say("measuring stock TensorFlow")
        bench.add(STOCK, stock, fetches)
        candidates: dict[str, Mapping[int, int]] = {STOCK: {}}
        base = STOCK
        if view.graph_def is not stock:
            base = FOLDED
            _add(bench, FOLDED, view, (), {}, fetches)
            candidates[FOLDED] = {}
        if not units:
            few = tuple(_time(bench, candidates, budget_s / 10).values())
            return SearchResult(few, few[-1], machine.cores, others.share())
        for width in machine.widths:
            name = _all_on(width)
            say(f"measuring {name}, {len(units)} of them")
            candidates[name] = dict.fromkeys(range(len(units)), width)
            _add(bench, name, view, units, candidates[name], fetches)
        if split_units:
            say("measuring the batch split over all cores")
            candidates[BATCH_SPLIT] = {}
            each_part = dict.fromkeys(range(len(split_units)), 1)
            _add(bench, BATCH_SPLIT, view, split_units, each_part, fetches)
        variants = _time(bench, candidates, max(0.5, min(left() * 0.3, 5.0)))
        unit_times, model = _model(bench, base, view, units, machine)
        split_step_us = _split_step_us(bench, view, split_units, machine) if split_units else 0.0
        proposed = propose(model, unit_times, machine.widths)
        proposed = [each for each in proposed if each not in candidates.values()]
        for number, unit_cores in enumerate(proposed, 1):
            if left() < budget_s * 0.4:
                break
            name = f"proposal {number}: {len(unit_cores)} of {len(units)} units narrow"
            say(f"measuring {name}")
            _add(bench, name, view, units, unit_cores, fetches)
            candidates[name] = unit_cores
        if len(candidates) > len(variants):
            variants = _time(bench, candidates, max(0.5, left() * 0.5))
        by_ratio = sorted(variants, key=lambda name: variants[name].times.ratio, reverse=True)
        # In turns once more, so that everything reported was measured over the same period.
        fastest = [name for name in by_ratio if candidates[name] or name == BATCH_SPLIT]
        last = dict.fromkeys((STOCK, base, *fastest[:_FINALISTS], ALL_NARROW))
        say(f"comparing {fastest[0]} with stock TensorFlow")
        variants = _time(
            bench,
            {name: candidates[name] for name in last},
            max(0.5, min(left(), budget_s * 0.4)),
        )
    predicted = _predictions(model, split_step_us, base, variants)
    variants = {
        name: dataclasses.replace(each, predicted_ms=predicted.get(name, 0.0))
        for name, each in variants.items()
    }
    best = max(
        (each for name, each in variants.items() if name not in (STOCK, base)),
        key=lambda each: each.times.ratio,
    )
    least = variants[base].times.ratio
    if best.times.ratio - max(best.times.error, _LEAST_GAIN * least) <= least:
        best = variants[base]
    return SearchResult(tuple(variants.values()), best, machine.cores, others.share())


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
    unit_cores: Mapping[int, int],
    fetches: Sequence[str],
) -> None:
    """Adds a variant with narrow units; filters outside of units are arranged, as the pass does."""
    numbers = sorted(unit_cores)
    rewritten = view.graph_def
    if numbers:
        rewritten = rewrite_units(
            view,
            [units[number] for number in numbers],
            fetches,
            cores=[{None: unit_cores[number]} for number in numbers],
        )
    bench.add(name, arrange_filters(rewritten, fetches) or rewritten, fetches)


def _all_on(width: int) -> str:
    return ALL_NARROW if width == 1 else f"all units on {width} cores"


def _time(
    bench: StepBench, candidates: Mapping[str, Mapping[int, int]], budget_s: float
) -> dict[str, Variant]:
    """Times candidates, given as `unit_cores` by name."""
    times = bench.time(list(candidates), budget_s=budget_s)
    return {name: Variant(name, candidates[name], each) for name, each in times.items()}


def _model(
    bench: StepBench, base: str, view: GraphView, units: Sequence[Unit], machine: Machine
) -> tuple[list[UnitTimes], StepModel]:
    stock_us = bench.op_times_us(base)
    narrow_us = {width: bench.op_times_us(_all_on(width)) for width in machine.widths}
    unit_times = [
        UnitTimes(
            {width: us.get(unit_name(view, unit), 0.0) for width, us in narrow_us.items()},
            sum(stock_us.get(view.names[step], 0.0) for step in unit.steps),
        )
        for unit in units
    ]
    return unit_times, StepModel(view, units, unit_times, stock_us, machine)


def _split_step_us(
    bench: StepBench, view: GraphView, units: Sequence[Unit], machine: Machine
) -> float:
    """Simulates a step with a split batch, from the measured times of its ops."""
    op_times_us = bench.op_times_us(BATCH_SPLIT)
    unit_times = [
        UnitTimes({machine.cores: op_times_us.get(unit_name(view, unit), 0.0)}, 0.0)
        for unit in units
    ]
    model = StepModel(view, units, unit_times, op_times_us, machine)
    return model.simulate(dict.fromkeys(range(len(units)), machine.cores)).step_us


def _predictions(
    model: StepModel, split_step_us: float, base: str, variants: dict[str, Variant]
) -> dict[str, float]:
    """Simulated steps in ms, scaled to match the measured steps without and with all units narrow.

    These two are left out, and so is stock if the graph is folded. Between them the scale follows
    the share of narrow units. A split batch leaves few ops, which take little time to dispatch, so
    its step is not scaled.
    """
    simulated = {
        name: split_step_us if each.is_split else model.simulate(each.unit_cores).step_us
        for name, each in variants.items()
        if name == base or name != STOCK
    }
    scales = {
        name: variants[name].times.median_ms / max(simulated[name], 1e-9)
        for name in (base, ALL_NARROW)
    }
    count = len(variants[ALL_NARROW].unit_cores)

    def scale(variant: Variant) -> float:
        if variant.is_split:
            return 1e-3
        share = len(variant.unit_cores) / count
        return scales[base] + (scales[ALL_NARROW] - scales[base]) * share

    others = {name: variants[name] for name in simulated.keys() - scales.keys()}
    return {name: simulated[name] * scale(each) for name, each in others.items()}


def _machine() -> Machine:
    cores = len(os.sched_getaffinity(0))
    intra_op_threads = tf.config.threading.get_intra_op_parallelism_threads() or cores
    inter_op_threads = tf.config.threading.get_inter_op_parallelism_threads() or cores
    return Machine(min(cores, intra_op_threads), inter_op_threads)
