"""What of this process XLA compiles, as far as TensorFlow lets it be seen.

A function with `jit_compile=True` never reaches Grappler. But TensorFlow's eager context keeps the
definition of every function that has been traced and is still in use, and the definition says so.
Functions of TensorFlow 1 are not among them.
"""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from typing import Any

from tf_interop import tensorflow_internals
from tf_interop.graph.convolution_ops import CONVOLUTION_KINDS

_MUST_COMPILE = "_XlaMustCompile"


@dataclasses.dataclass(frozen=True)
class XlaFunction:
    """A function with convolutions that XLA compiles.

    Attributes:
        name: TensorFlow's name of it, which holds the one that it has in Python.
        convolution_count: convolutions in it and in the functions that it calls.
    """

    name: str
    convolution_count: int


@dataclasses.dataclass(frozen=True)
class _Definition:
    """What matters here of a function's definition.

    Attributes:
        must_compile: whether it was made with `jit_compile=True`.
        convolution_count: convolutions in it.
        calls: the functions that its nodes name, once for each node.
    """

    must_compile: bool
    convolution_count: int
    calls: tuple[str, ...]


class XlaFunctionFinder:
    """Looks through the functions of the process. It looks at each once."""

    def __init__(self) -> None:
        self._definitions: dict[str, _Definition] = {}  # guarded by _lock
        self._lock = threading.Lock()

    def find(self) -> tuple[XlaFunction, ...]:
        """The functions with convolutions that XLA compiles, by name.

        One that a compiled function calls is counted with it.
        """
        names = tensorflow_internals.function_names()
        with self._lock:
            known = self._definitions
        # No lock while TensorFlow is asked: what two threads find out twice is the same.
        definitions = {}
        for name in names:
            definition = known.get(name)
            if definition is None:
                function_def = tensorflow_internals.function_def_of(name)
                if function_def is None:
                    continue
                definition = _read_definition(function_def)
            definitions[name] = definition
        with self._lock:
            self._definitions = definitions
        counted = _ConvolutionCount(definitions)
        found = [
            XlaFunction(name, counted.of(name))
            for name, definition in sorted(definitions.items())
            if definition.must_compile
        ]
        return tuple(function for function in found if function.convolution_count)


class _ConvolutionCount:
    """Counts the convolutions of functions, with those of the functions that they call."""

    def __init__(self, definitions: dict[str, _Definition]) -> None:
        self._definitions = definitions
        self._counts: dict[str, int] = {}

    def of(self, name: str) -> int:
        definition = self._definitions.get(name)
        if definition is None:
            return 0
        if name not in self._counts:
            # Of one that calls itself, as an imported graph may hold, what comes up again is none.
            self._counts[name] = 0
            calls = sum(map(self.of, definition.calls))
            self._counts[name] = definition.convolution_count + calls
        return self._counts[name]


def _read_definition(function_def: Any) -> _Definition:
    attributes = function_def.attr
    calls = []
    convolution_count = 0
    for node in function_def.node_def:
        convolution_count += node.op in CONVOLUTION_KINDS
        for value in node.attr.values():
            if value.HasField("func"):
                calls.append(value.func.name)
            elif value.HasField("list"):
                calls += [function.name for function in value.list.func]
    must_compile = _MUST_COMPILE in attributes and attributes[_MUST_COMPILE].b
    return _Definition(must_compile, convolution_count, tuple(calls))


def xla_auto_clustering() -> str:
    """How XLA was turned on for all graphs: what turned it on, or empty where it is off."""
    if tensorflow_internals.is_auto_clustering_on():
        return "tf.config.optimizer.set_jit"
    if re.search(r"--tf_xla_auto_jit=(?!0|-1)\S", os.environ.get("TF_XLA_FLAGS", "")):
        return "TF_XLA_FLAGS"
    return ""
