"""The process that times steps of a graph as a program runs them, in turns with stock TensorFlow.

A step is an eager call of a tf.function, whose variables are the program's in shape and dtype. The
other variant is the graph under `tf_interop.enable()`, or under XLA as it compiles then.
"""

from __future__ import annotations

import contextlib
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import msgspec
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop import tensorflow_internals
from tf_interop.planning.types import OURS, STOCK, XLA, ComparedStep
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.switch import calls_as_stock, changing_nothing, enable

_WARM_UP_RUNS = 3
_LEAST_TURN_S = 0.1


class Work(msgspec.Struct):
    """What the process measures.

    Attributes:
        graph_def: a graph with the shapes of its placeholders and VarHandleOps.
        results: the tensors and operations that a step runs for, by name.
        is_compiled: whether XLA, and not the plugin, is compared with stock TensorFlow.
        trying_s: the longest time for which the graph tries ways to run.
        timed_s: how long steps are timed after that.
        uses_gpu: whether it may use a GPU.
        is_deterministic, uses_tf32, intra_op_threads, inter_op_threads: TensorFlow's settings.
    """

    graph_def: bytes
    results: list[str]
    is_compiled: bool
    trying_s: float
    timed_s: float
    uses_gpu: bool = False
    is_deterministic: bool = False
    uses_tf32: bool = True
    intra_op_threads: int = 0
    inter_op_threads: int = 0


class Timed(msgspec.Struct):
    """What the process measured.

    Attributes:
        compared: stock TensorFlow and the other variant.
        way: as in `MeasuredStep`.
    """

    compared: tuple[ComparedStep, ComparedStep]
    way: str | None


class Variant(NamedTuple):
    """What runs a step, and the circumstances in which it does."""

    name: str
    step: Callable[[], object]
    circumstances: Callable[[], AbstractContextManager[None]]


def measure(work: Work) -> Timed:
    """Measures steps."""
    enable()
    graph, inputs = function_of(graph_pb2.GraphDef.FromString(work.graph_def), work.results)

    def variant(
        name: str, circumstances: Callable[[], AbstractContextManager[None]], jit: bool | None
    ) -> Variant:
        # Each is optimized anew.
        function = tf.function(lambda *tensors: graph(*tensors), jit_compile=jit, autograph=False)

        def step() -> None:
            function(*inputs)
            tf.test.experimental.sync_devices()

        return Variant(name, step, circumstances)

    stock = variant(STOCK, calls_as_stock, None)
    with changing_nothing():
        _warm_up(stock)
    other = variant(
        XLA if work.is_compiled else OURS, contextlib.nullcontext, work.is_compiled or None
    )
    _warm_up(other)
    end = time.perf_counter() + work.trying_s
    while _way() is None and time.perf_counter() < end:
        other.step()
    way = _way()
    return Timed(compare_in_turns((stock, other), work.timed_s), way)


def _warm_up(variant: Variant) -> None:
    for _ in range(_WARM_UP_RUNS):
        variant.step()


def _way() -> str | None:
    """How the graphs that were changed last run at the size that ran last."""
    names = {report.timed_graph for report in get_plugin().current_reports}
    timings = [each for each in get_plugin().library.read_self_timings() if each.name in names]
    if any(each.is_trying for each in timings):
        return None
    return timings[-1].way if timings else ""


def compare_in_turns(
    variants: tuple[Variant, Variant], budget_s: float
) -> tuple[ComparedStep, ComparedStep]:
    """Times steps in turns, in at least three rounds, and compares them with the first."""
    end = time.perf_counter() + budget_s
    # The first round fills caches, and determines the number of steps in a turn.
    counts = [max(1, min(50, round(_LEAST_TURN_S / min(_turn(each, 1))))) for each in variants]
    rounds: list[list[list[float]]] = []
    order = [0, 1]
    while len(rounds) < 2 or time.perf_counter() < end:
        order.reverse()  # so that drift favors none
        turns = {number: _turn(variants[number], counts[number]) for number in order}
        rounds.append([turns[0], turns[1]])
    stock_s, other_s = (
        float(np.median(np.concatenate([turns[number] for turns in rounds]))) for number in (0, 1)
    )
    ratios = [float(np.median(stock) / np.median(other)) for stock, other in rounds]
    quartiles = np.percentile(ratios, [25, 75])
    error = float((quartiles[1] - quartiles[0]) / len(ratios) ** 0.5)
    return (
        ComparedStep(variants[0].name, stock_s * 1e3, 1.0, 0.0),
        # Not the median of the rounds' ratios, so that the numbers that people see divide.
        ComparedStep(variants[1].name, other_s * 1e3, stock_s / other_s, error),
    )


def _turn(variant: Variant, count: int) -> list[float]:
    times = []
    with variant.circumstances():
        for _ in range(count):
            start = time.perf_counter()
            variant.step()
            times.append(time.perf_counter() - start)
    return times


def function_of(
    graph_def: graph_pb2.GraphDef, results: Sequence[str]
) -> tuple[Callable[..., Any], list[tf.Tensor]]:
    """A function that runs a graph, and its inputs; inputs and variables have random values."""
    random = np.random.default_rng(0)
    own = graph_pb2.GraphDef()
    own.CopyFrom(graph_def)
    inputs: dict[str, tf.Tensor] = {}
    variables: dict[str, tf.Variable] = {}
    for node in own.node:
        tensorflow_internals.name_bfloat16_for_onednn(node)
        if node.op in ("Placeholder", "VarHandleOp"):
            dtype = tf.as_dtype(node.attr["dtype"].type)
            value = _random_values(random, tf.TensorShape(node.attr["shape"].shape), dtype)
            if node.op == "Placeholder":
                inputs[node.name] = tf.constant(value, dtype)
            else:
                variables[node.name] = tf.Variable(value, dtype=dtype)
    # In a tf.function, operations with side effects would get new dependencies.
    imported = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(own, name=""), [])
    fed = [f"{name}:0" for name in (*inputs, *variables)]
    pruned = imported.prune(fed, [imported.graph.as_graph_element(each) for each in results])
    handles = [each.handle for each in variables.values()]
    # The variables live as long as the function.
    return lambda *tensors, _=variables: pruned(*tensors, *handles), list(inputs.values())


def _random_values(
    random: np.random.Generator, shape: tf.TensorShape, dtype: tf.DType
) -> np.ndarray:
    """Values that keep activations in a sane range, without denormals, which are slow.

    Types that are not floating-point get zeros, or empty strings.
    """
    sizes = shape.as_list()
    if not dtype.is_floating:
        return np.full(sizes, b"" if dtype == tf.string else 0, dtype.as_numpy_dtype)
    if len(sizes) < 2:  # scales, variances, counters
        return np.full(sizes, 0.5, dtype.as_numpy_dtype)
    fan_in = max(1, int(np.prod(sizes[:-1])))
    scale = 1.0 if len(sizes) == 4 and sizes[-1] <= 4 else fan_in**-0.5
    values: np.ndarray = random.normal(scale=scale, size=sizes)
    return values.astype(dtype.as_numpy_dtype)


def _main(request: pathlib.Path, result: pathlib.Path) -> None:
    work = msgspec.msgpack.decode(request.read_bytes(), type=Work)
    tf.config.threading.set_intra_op_parallelism_threads(work.intra_op_threads)
    tf.config.threading.set_inter_op_parallelism_threads(work.inter_op_threads)
    tf.config.experimental.enable_tensor_float_32_execution(work.uses_tf32)
    if not work.uses_gpu:
        tf.config.set_visible_devices([], "GPU")
    if work.is_deterministic:
        tf.config.experimental.enable_op_determinism()
    timed: Timed | str
    try:
        timed = measure(work)
    except Exception as error:  # the other process describes it
        first, *_ = str(error).strip().splitlines() or ["no message"]
        timed = f"{type(error).__name__}: {first}"
    result.write_bytes(msgspec.json.encode(timed))


if __name__ == "__main__":
    _main(*map(pathlib.Path, sys.argv[1:]))
