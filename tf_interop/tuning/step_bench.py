"""Times whole steps of variants of one graph, in turns, in Sessions of one process.

A variant computes the same results with other nodes. All variants of a Session share variables,
inputs and large constants, so each takes little memory. Grappler does not change the graphs; the
later steps of TensorFlow's executor, such as placement and oneDNN's op names, still apply.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import config_pb2

from tf_interop import tensorflow_internals
from tf_interop.planning.types import ComparedStep

_SHARED_CONSTANT_BYTES = 1 << 10
_WARM_UP_RUNS = 3
_LEAST_TURN_S = 0.02


class StepBench:
    """Variants of one graph in Sessions of their own, one for each number of threads.

    Use as a context manager. Variables have random values, and training changes them.
    """

    def __init__(self) -> None:
        self._graph = tf.Graph()
        self._sessions: dict[int, Any] = {}  # by the threads for an operation
        self._assigns: list[tuple[Any, dict[Any, Any]]] = []
        self._random = np.random.default_rng(0)
        self._shared: dict[str, Any] = {}
        self._calls: dict[str, Any] = {}

    def __enter__(self) -> StepBench:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions.values():
            session.close()

    def add(
        self,
        variant: str,
        graph_def: graph_pb2.GraphDef,
        fetches: Sequence[str],
        *,
        intra_op_threads: int | None = None,
    ) -> None:
        """Adds a variant.

        Args:
            variant: a new name.
            graph_def: a flat graph. Its placeholders have known shapes. Its variables are
                VarHandleOps, which variants share by name.
            fetches: the nodes that a step runs.
            intra_op_threads: the threads for an operation; None for the program's setting.
        """
        scope = f"variant_{len(self._calls)}"
        own = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
        fresh: list[node_def_pb2.NodeDef] = []
        for node in graph_def.node:
            if not _is_shared(node):
                own.node.append(node)
            elif node.name not in self._shared:
                fresh.append(node)
        with self._graph.as_default():
            self._add_shared(fresh)
            names = {node.name for node in graph_def.node} & self._shared.keys()
            for node in own.node:
                tensorflow_internals.name_bfloat16_for_onednn(node)
                # Shared nodes are always ready.
                node.input[:] = [
                    text for text in node.input if text[0] != "^" or text[1:] not in names
                ]
            tf.graph_util.import_graph_def(
                own, name=scope, input_map={f"{name}:0": self._shared[name] for name in names}
            )
        targets = [
            self._shared[name].op
            if name in names
            else self._graph.get_operation_by_name(f"{scope}/{name}")
            for name in fetches
        ]
        threads = intra_op_threads or tf.config.threading.get_intra_op_parallelism_threads()
        self._calls[variant] = self._session_with(threads).make_callable(targets)
        for _ in range(_WARM_UP_RUNS):
            self.run(variant)

    def run(self, variant: str) -> None:
        """Runs a step of a variant."""
        self._calls[variant]()

    def time(self, *, budget_s: float) -> tuple[ComparedStep, ...]:
        """Times the variants in turns, in at least three rounds; compares them with the first."""
        rounds: list[dict[str, list[float]]] = []
        counts = dict.fromkeys(self._calls, 1)
        end = time.perf_counter() + budget_s
        order = list(self._calls)
        while len(rounds) < 3 or time.perf_counter() < end:
            steps = {name: self._turn(name, counts[name]) for name in order}
            order.reverse()  # so that no variant always follows the same one
            rounds.append(steps)
            if len(rounds) == 1:  # it fills caches, and determines the number of steps in a turn
                counts = {
                    name: max(1, min(50, round(_LEAST_TURN_S / min(times))))
                    for name, times in steps.items()
                }
        return tuple(_compared(rounds[1:], next(iter(self._calls)), name) for name in self._calls)

    def _session_with(self, intra_op_threads: int) -> Any:
        """The Session with as many threads for an operation, with the values of all variables."""
        session = self._sessions.get(intra_op_threads)
        if session is None:
            config = config_pb2.ConfigProto(
                intra_op_parallelism_threads=intra_op_threads,
                inter_op_parallelism_threads=tf.config.threading.get_inter_op_parallelism_threads(),
                use_per_session_threads=True,
            )
            config.graph_options.rewrite_options.disable_meta_optimizer = True
            config.graph_options.optimizer_options.opt_level = -1  # L0: no constant folding
            session = tf.compat.v1.Session(graph=self._graph, config=config)
            self._sessions[intra_op_threads] = session
            for assigns, values in self._assigns:
                session.run(assigns, values)
        return session

    def _turn(self, variant: str, count: int) -> list[float]:
        call = self._calls[variant]
        times = []
        for _ in range(count):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return times

    def _add_shared(self, nodes: Collection[node_def_pb2.NodeDef]) -> None:
        shared = graph_pb2.GraphDef()
        for node in nodes:
            copy = shared.node.add()
            copy.CopyFrom(node)
            if node.op == "Placeholder":
                self._become_constant(copy)
            elif node.op == "VarHandleOp":
                copy.attr["shared_name"].s = node.name.encode()
        tf.graph_util.import_graph_def(shared, name="shared")
        assigns, values = [], {}
        for node in nodes:
            tensor = self._graph.get_tensor_by_name(f"shared/{node.name}:0")
            self._shared[node.name] = tensor
            if node.op == "VarHandleOp":
                dtype = tf.as_dtype(node.attr["dtype"].type)
                shape = tf.TensorShape(node.attr["shape"].shape)
                value = random_values(self._random, shape, dtype)
                place = tf.compat.v1.placeholder(dtype, value.shape)
                assigns.append(tf.raw_ops.AssignVariableOp(resource=tensor, value=place))
                values[place] = value
        if assigns:
            self._assigns.append((assigns, values))
            for session in self._sessions.values():
                session.run(assigns, values)

    def _become_constant(self, node: node_def_pb2.NodeDef) -> None:
        dtype = tf.as_dtype(node.attr["dtype"].type)
        value = random_values(self._random, tf.TensorShape(node.attr["shape"].shape), dtype)
        node.op = "Const"
        node.attr.clear()
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))


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
