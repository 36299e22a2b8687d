"""What XLA compiles, by the definitions of functions that TensorFlow keeps."""

from __future__ import annotations

import pytest
from tensorflow.core.framework import function_pb2

from tf_interop import tensorflow_internals
from tf_interop.graph.xla_functions import XlaFunction, XlaFunctionFinder


def _function(
    name: str, *calls: str, convolutions: int = 0, must_compile: bool = False
) -> function_pb2.FunctionDef:
    function = function_pb2.FunctionDef()
    function.signature.name = name
    for number in range(convolutions):
        function.node_def.add(name=f"conv_{number}", op="Conv2D")
    for number, called in enumerate(calls):
        node = function.node_def.add(name=f"call_{number}", op="PartitionedCall")
        node.attr["f"].func.name = called
    if must_compile:
        function.attr["_XlaMustCompile"].b = True
    return function


def _find(
    monkeypatch: pytest.MonkeyPatch, *functions: function_pb2.FunctionDef
) -> tuple[XlaFunction, ...]:
    definitions = {function.signature.name: function for function in functions}
    monkeypatch.setattr(tensorflow_internals, "function_names", lambda: sorted(definitions))
    monkeypatch.setattr(tensorflow_internals, "function_def_of", definitions.get)
    return XlaFunctionFinder().find()


def test_counts_what_a_compiled_function_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _find(
        monkeypatch,
        _function("compiled", "twice", "twice", "unknown", convolutions=1, must_compile=True),
        _function("twice", convolutions=2),
        _function("without", must_compile=True),
        _function("not_compiled", "compiled", convolutions=1),
    )
    assert found == (XlaFunction("compiled", 5),)
