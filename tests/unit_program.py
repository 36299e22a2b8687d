"""Operations as one TfInterop>Unit, and as nodes of a graph to compare with it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from stage_program import operation
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.runtime.kernel_library import TimedSpan, load_kernel_library

PLAIN = {"strides": [1, 1, 1, 1], "padding": "SAME"}
POOL = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}

DIVIDED = "with the batch divided"

RANDOM = np.random.default_rng(3)

Run = Callable[..., list[tf.Tensor]]


def chain(dtype: tf.DType = tf.float32) -> list[node_def_pb2.NodeDef]:
    """Convolution, bias, activation, pooling, convolution."""
    return [
        operation("first", "Conv2D", ["inputs:0", "inputs:1"], dtype, **PLAIN),
        operation("bias", "BiasAdd", ["steps:0:0", "inputs:2"], dtype),
        operation("relu", "Relu", ["steps:1:0"], dtype),
        operation("pool", "MaxPool", ["steps:2:0"], dtype, **POOL),
        operation("last", "Conv2D", ["steps:3:0", "inputs:3"], dtype, **PLAIN),
    ]


def values_of_chain(batch_size: int = 2) -> list[np.ndarray]:
    """Whole numbers, whose sums are exact in any order: some CPUs' kernels add by threads."""
    shapes = ([batch_size, 12, 12, 8], [3, 3, 8, 16], [16], [1, 1, 16, 8])
    return [RANDOM.integers(-1, 2, shape).astype(np.float32) for shape in shapes]


def serialized(steps: Sequence[node_def_pb2.NodeDef]) -> list[bytes]:
    return [step.SerializeToString() for step in steps]


def in_graph(
    unit: Any,
    steps: Sequence[node_def_pb2.NodeDef],
    results: Sequence[str],
    dtype: tf.DType = tf.float32,
    constant: Sequence[Any] = (),
    **attributes: Any,
) -> Run:
    """The op as a function; its last inputs are `constant`."""

    @tf.function(autograph=False)
    def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
        inputs = [*tensors, *map(tf.constant, constant)]
        given = {"Tout": [dtype] * len(results)} | attributes
        return unit(inputs=inputs, steps=serialized(steps), results=results, **given)

    return run


def stock(
    steps: Sequence[node_def_pb2.NodeDef], results: Sequence[str], constant: Sequence[Any] = ()
) -> Run:
    """The same as nodes of a graph."""

    def tensor_of(operand: str) -> str:
        kind, number, *port = operand.split(":")
        return f"i{number}:0" if kind == "inputs" else f"{steps[int(number)].name}:{port[0]}"

    @tf.function(autograph=False)
    def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
        graph = graph_pb2.GraphDef(node=steps)
        for node in graph.node:
            node.input[:] = map(tensor_of, node.input)
        inputs = {}
        for place, value in enumerate([*tensors, *map(tf.constant, constant)]):
            placeholder = graph.node.add(name=f"i{place}", op="Placeholder")
            placeholder.attr["dtype"].type = value.dtype.as_datatype_enum
            inputs[f"i{place}:0"] = tf.convert_to_tensor(value)
        return tf.graph_util.import_graph_def(graph, inputs, list(map(tensor_of, results)), name="")

    return run


_NAMES = itertools.count()


def self_timed() -> dict[str, Any]:
    """The attributes of a unit that times itself, alone, and may divide its first input."""
    return {"timed_graph": f"graph {next(_NAMES)}", "timed_units": 1, "split_inputs": [0]}


def call_divided(call: Callable[[], Any], timed_graph: str, way: str = DIVIDED) -> Any:
    """Calls a new unit that times itself until it divides the batch, and returns that result."""
    for _ in range(100):
        timings = load_kernel_library().read_self_timings()
        if any((each.name, each.way) == (timed_graph, way) for each in timings):
            return call()
        call()
    raise AssertionError(f"Not divided, but {timings}")


def spans_of(run: Callable[[], Any], calls: int) -> list[TimedSpan]:
    """The timeline of `calls` calls of each op in `run`, without those of earlier tests."""
    library = load_kernel_library()
    earlier = len(library.read_timeline())
    library.record_timeline(calls)
    run()
    library.record_timeline(0)
    return library.read_timeline()[earlier:]


def assert_same_bits(left: Sequence[tf.Tensor], right: Sequence[tf.Tensor]) -> None:
    assert len(left) == len(right) > 0
    for one, other in zip(left, right, strict=True):
        assert one.shape == other.shape
        assert one.numpy().tobytes() == other.numpy().tobytes()
