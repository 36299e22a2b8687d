"""Finds what XLA compiles: nodes by their attributes, functions of this process, or all graphs.

A function with `jit_compile=True` never reaches Grappler. But TensorFlow's eager context keeps the
definition of every traced function in use, except those of TensorFlow 1, and the definition shows
the flag.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from typing import NamedTuple

from tensorflow.core.framework import node_def_pb2

from tf_interop import tensorflow_internals
from tf_interop.graph.ops import CONVOLUTION_KINDS

_XLA_MARKS = frozenset(
    {
        "_XlaCluster",
        "_xla_compile_id",
        "_xla_cluster_id",
        "_xla_outside_compilation",
        "_tpu_replicate",
    }
)
_COPY = "__tf_interop_"
"""In the names of functions that the plugin made with stages (cc_kernels/plugin)."""

_XLA_SWITCHES = frozenset({"_XlaMustCompile", "_XlaCompile"})


def xla_mark(node: node_def_pb2.NodeDef) -> str | None:
    """The attribute that makes XLA compile a node; None if there is none."""
    for key in node.attr:
        if key in _XLA_MARKS or (key in _XLA_SWITCHES and node.attr[key].b):
            return str(key)
    return None


@dataclasses.dataclass(frozen=True)
class XlaFunction:
    """A function with convolutions that XLA compiles.

    Attributes:
        name: TensorFlow's name for it, which contains its Python name.
        convolution_count: convolutions in it and in the functions that it calls.
    """

    name: str
    convolution_count: int


class _Definition(NamedTuple):
    """The needed parts of a function's definition; `calls` repeats a function called twice."""

    must_compile: bool
    convolution_count: int
    calls: tuple[str, ...]


def find_xla_functions() -> tuple[XlaFunction, ...]:
    """This process's functions with convolutions that XLA compiles."""
    counts: dict[str, int] = {}

    def count(name: str) -> int:
        definition = _read_definition(name)
        if definition is not None and name not in counts:
            counts[name] = 0  # for a function that calls itself, as in some imported graphs
            counts[name] = definition.convolution_count + sum(map(count, definition.calls))
        return counts.get(name, 0)

    found = []
    for name in tensorflow_internals.function_names():
        if _COPY in name:
            continue
        definition = _read_definition(name)
        if definition is not None and definition.must_compile and count(name):
            found.append(XlaFunction(name, count(name)))
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def _read_definition(name: str) -> _Definition | None:
    function_def = tensorflow_internals.function_def_of(name)
    if function_def is None:
        return None
    attributes = function_def.attr
    calls = []
    for node in function_def.node_def:
        for value in node.attr.values():
            if value.HasField("func"):
                calls.append(value.func.name)
            elif value.HasField("list"):
                calls += [function.name for function in value.list.func]
    return _Definition(
        "_XlaMustCompile" in attributes and attributes["_XlaMustCompile"].b,
        sum(node.op in CONVOLUTION_KINDS for node in function_def.node_def),
        tuple(calls),
    )


def xla_auto_clustering() -> str:
    """The switch that turned XLA on for all graphs; empty if it is off."""
    if tensorflow_internals.is_auto_clustering_on():
        return "tf.config.optimizer.set_jit"
    if re.search(r"--tf_xla_auto_jit=(?!0|-1)\S", os.environ.get("TF_XLA_FLAGS", "")):
        return "TF_XLA_FLAGS"
    return ""
