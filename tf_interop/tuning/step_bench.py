"""Times whole steps of variants of one graph, in turns, in Sessions of one process.

A variant computes the same results with other nodes. All variants of a Session share variables,
inputs and large constants, so each takes little memory. Grappler does not change the graphs; the
later steps of TensorFlow's executor, such as placement and oneDNN's op names, still apply.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import config_pb2

from tf_interop import tensorflow_internals
from tf_interop.planning.types import ComparedStep

_SHARED_CONSTANT_BYTES = 1 << 10
_WARM_UP_RUNS = 3
_LEAST_TURN_S = 0.02


class Variant(NamedTuple):
    """A variant of a graph.

    Attributes:
        graph_def: a flat graph. Its placeholders have known shapes. Its variables are VarHandleOps,
            which variants share by name.
        fetches: the nodes that a step runs.
        intra_op_threads: the threads for an operation; 0 for the program's setting.
    """

    name: str
    graph_def: graph_pb2.GraphDef
    fetches: Sequence[str]
    intra_op_threads: int = 0


Step = Callable[[], object]
"""Runs a step."""


@contextlib.contextmanager
def steps_of(variants: Sequence[Variant]) -> Iterator[dict[str, Step]]:
    """Yields what runs a step of each variant of a graph, by name; each has run a few times.

    Variables have random values, and training changes them.
    """
    shared_nodes: dict[str, node_def_pb2.NodeDef] = {}
    for variant in variants:
        for node in variant.graph_def.node:
            if _is_shared(node):
                shared_nodes.setdefault(node.name, node)
    with tf.Graph().as_default() as graph:
        shared, assigns, values = _import_shared(shared_nodes)
        operations = [
            _import(variant, shared, f"variant_{number}") for number, variant in enumerate(variants)
        ]
    steps: dict[str, Step] = {}
    with contextlib.ExitStack() as stack:
        sessions: dict[int, Any] = {}
        for variant, of_step in zip(variants, operations, strict=True):
            threads = variant.intra_op_threads
            if threads not in sessions:
                sessions[threads] = _session_with(threads, graph)
                stack.callback(sessions[threads].close)
                sessions[threads].run(assigns, values)
            step = steps[variant.name] = sessions[threads].make_callable(of_step)
            for _ in range(_WARM_UP_RUNS):
                step()
        yield steps


def compare_in_turns(steps: Mapping[str, Step], *, budget_s: float) -> tuple[ComparedStep, ...]:
    """Times steps in turns, in at least three rounds, and compares them with the first."""
    end = time.perf_counter() + budget_s
    order = list(steps)
    # The first round fills caches, and determines the number of steps in a turn.
    counts = {
        name: max(1, min(50, round(_LEAST_TURN_S / min(_turn(steps[name], 1))))) for name in order
    }
    rounds: list[dict[str, list[float]]] = []
    while len(rounds) < 2 or time.perf_counter() < end:
        order.reverse()  # so that no variant always follows the same one
        rounds.append({name: _turn(steps[name], counts[name]) for name in order})
    return tuple(_compared(rounds, next(iter(steps)), name) for name in steps)


def _turn(step: Step, count: int) -> list[float]:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times


def _compared(
    rounds: Sequence[Mapping[str, Sequence[float]]], stock: str, name: str
) -> ComparedStep:
    stock_s, step_s = (
        float(np.median([each for times in rounds for each in times[variant]]))
        for variant in (stock, name)
    )
    ratios = np.array([np.median(times[stock]) / np.median(times[name]) for times in rounds])
    quartiles = np.percentile(ratios, [25, 75])
    return ComparedStep(
        name,
        step_ms=step_s * 1e3,
        # Not the median of the rounds' ratios, so that the numbers that people see divide.
        ratio=stock_s / step_s,
        error=float((quartiles[1] - quartiles[0]) / len(ratios) ** 0.5),
    )


def _session_with(intra_op_threads: int, graph: tf.Graph) -> Any:
    threading = tf.config.threading
    config = config_pb2.ConfigProto(
        intra_op_parallelism_threads=(
            intra_op_threads or threading.get_intra_op_parallelism_threads()
        ),
        inter_op_parallelism_threads=threading.get_inter_op_parallelism_threads(),
        use_per_session_threads=True,
    )
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1  # L0: no constant folding
    return tf.compat.v1.Session(graph=graph, config=config)


def _import(variant: Variant, shared: Mapping[str, tf.Tensor], scope: str) -> list[tf.Operation]:
    """Imports the nodes that a variant does not share; returns the operations of a step."""
    graph_def = variant.graph_def
    own = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    own.node.extend(node for node in graph_def.node if not _is_shared(node))
    names = {node.name for node in graph_def.node if _is_shared(node)}
    for node in own.node:
        tensorflow_internals.name_bfloat16_for_onednn(node)
        # Shared nodes are always ready.
        node.input[:] = [text for text in node.input if text[0] != "^" or text[1:] not in names]
    tf.graph_util.import_graph_def(
        own, name=scope, input_map={f"{name}:0": shared[name] for name in names}
    )
    graph = tf.compat.v1.get_default_graph()
    return [
        shared[name].op if name in names else graph.get_operation_by_name(f"{scope}/{name}")
        for name in variant.fetches
    ]


def _import_shared(
    nodes: Mapping[str, node_def_pb2.NodeDef],
) -> tuple[dict[str, tf.Tensor], list[Any], dict[Any, np.ndarray]]:
    """Imports shared nodes: constants in place of inputs, variables, and large constants.

    Returns:
        Their tensors by name, and the operations that set variables to values, with these.
    """
    random = np.random.default_rng(0)
    shared = graph_pb2.GraphDef()
    shared.node.extend(nodes.values())
    for node in shared.node:
        if node.op == "Placeholder":
            dtype = tf.as_dtype(node.attr["dtype"].type)
            value = random_values(random, tf.TensorShape(node.attr["shape"].shape), dtype)
            node.op = "Const"
            node.attr.clear()
            node.attr["dtype"].type = dtype.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))
        elif node.op == "VarHandleOp":
            node.attr["shared_name"].s = node.name.encode()
    outputs = tf.graph_util.import_graph_def(
        shared, name="shared", return_elements=[f"{name}:0" for name in nodes]
    )
    tensors = dict(zip(nodes, outputs, strict=True))
    assigns, values = [], {}
    for name, node in nodes.items():
        if node.op == "VarHandleOp":
            dtype = tf.as_dtype(node.attr["dtype"].type)
            value = random_values(random, tf.TensorShape(node.attr["shape"].shape), dtype)
            place = tf.compat.v1.placeholder(dtype, value.shape)
            assigns.append(tf.raw_ops.AssignVariableOp(resource=tensors[name], value=place))
            values[place] = value
    return tensors, assigns, values


def random_values(
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


def _is_shared(node: node_def_pb2.NodeDef) -> bool:
    if node.op in ("Placeholder", "VarHandleOp"):
        return True
    return node.op == "Const" and node.ByteSize() > _SHARED_CONSTANT_BYTES and not node.input
