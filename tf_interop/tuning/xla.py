"""Times whole steps of a graph under XLA, in a process of its own.

XLA may take minutes to compile a network, and only ending its process stops it. The process
alternates between the compiled graph (`jit_compile=True`) and the uncompiled one. XLA compiles as
it does under `tf_interop.enable()`: on a CPU depthwise convolutions run TensorFlow's own kernels.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop.child_process import describe_end, run_module
from tf_interop.planning.types import STOCK, XLA, ComparedStep
from tf_interop.runtime.kernel_library import load_kernel_library
from tf_interop.tuning.step_bench import Step, compare_in_turns, random_values

_TIMED_S = 3.0


class _Work(msgspec.Struct):
    graph_def: bytes
    fetches: list[str]
    variables: dict[str, tuple[str, list[int]]]
    intra_op_threads: int
    inter_op_threads: int


def time_xla(
    graph_def: graph_pb2.GraphDef,
    fetches: Sequence[str],
    variables: Mapping[str, Any],
    *,
    limit_s: float,
) -> ComparedStep | str:
    """Times a graph under XLA, and compares it with stock TensorFlow in the same process.

    Args:
        graph_def: the traced graph; its placeholders have known shapes.
        fetches: the nodes whose first outputs a step computes.
        variables: `tf.TensorSpec`s, by the names of the placeholders that stand for the variables.
        limit_s: when to end the process.

    Returns:
        The step, or why it was not measured.
    """
    work = _Work(
        graph_def.SerializeToString(),
        list(fetches),
        {name: (spec.dtype.name, spec.shape.as_list()) for name, spec in variables.items()},
        tf.config.threading.get_intra_op_parallelism_threads(),
        tf.config.threading.get_inter_op_parallelism_threads(),
    )
    ended = run_module("tf_interop.tuning.xla", msgspec.msgpack.encode(work), limit_s)
    if ended.code is None:
        return f"compiling and timing it took longer than {limit_s:.0f} s"
    if not ended.result:
        return f"the process that compiled it {describe_end(ended.code)}"
    return msgspec.json.decode(ended.result, type=ComparedStep | str)


def _measure(work: _Work) -> ComparedStep | str:
    load_kernel_library().set_xla_calls(True)
    tf.config.threading.set_intra_op_parallelism_threads(work.intra_op_threads)
    tf.config.threading.set_inter_op_parallelism_threads(work.inter_op_threads)
    graph_def = graph_pb2.GraphDef.FromString(work.graph_def)
    random = np.random.default_rng(0)
    variables = {
        name: tf.Variable(random_values(random, tf.TensorShape(shape), tf.as_dtype(dtype)))
        for name, (dtype, shape) in work.variables.items()
    }
    inputs = {}
    for node in graph_def.node:
        if node.op == "Placeholder" and node.name not in variables:
            shape = tf.TensorShape(node.attr["shape"].shape)
            dtype = tf.as_dtype(node.attr["dtype"].type)
            inputs[node.name] = tf.constant(random_values(random, shape, dtype))
    imported = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph_def, name=""), []
    )
    graph = imported.prune(
        [f"{name}:0" for name in (*inputs, *variables)], [f"{name}:0" for name in work.fetches]
    )
    handles = [variable.handle for variable in variables.values()]

    def compute(*tensors: Any) -> Any:
        return graph(*tensors, *handles)

    def make_step(*, jit_compile: bool | None) -> Step:
        function = tf.function(compute, autograph=False, jit_compile=jit_compile)

        def step() -> None:
            function(*inputs.values())
            tf.test.experimental.sync_devices()

        return step

    steps = {STOCK: make_step(jit_compile=None), XLA: make_step(jit_compile=True)}
    try:
        for _ in range(3):
            for step in steps.values():
                step()
    except tf.errors.OpError as error:
        return f"XLA cannot compile it: {str(error).splitlines()[0]}"
    _, compiled = compare_in_turns(steps, budget_s=_TIMED_S)
    # Only errors of variants that were timed in one process compare.
    return dataclasses.replace(compiled, error=None)


if __name__ == "__main__":
    _request, _result = map(pathlib.Path, sys.argv[1:])
    _work = msgspec.msgpack.decode(_request.read_bytes(), type=_Work)
    _result.write_bytes(msgspec.json.encode(_measure(_work)))
