"""Copies of functions whose shapes are unknown, one for each shape that they are called with.

The pass divides a layer only if its shapes are known when TensorFlow optimizes the graph. If they
are not, it asks for copies here, and later calls of the function run them. A step of Keras' `fit`
takes its batch from an iterator, so the batch is taken before the call, which then passes it:

    f(iterator, v)            iterator --> IteratorGetNext --> x: [None, 8, 8, 4] --> step

    f'(iterator, v, batch)    batch --> x: [16, 8, 8, 4] --> step      for full batches
    f"(iterator, v, batch)    batch --> x: [4, 8, 8, 4] --> step       for the last one

The pass sees each copy as any other function: it divides those that the plan has an entry for, with
shares of variables from the next call on (`kept_shares.py`), and says why it leaves the others.

Guaranteed: a copy computes what the function computes. An iterator is read first, which nothing in
the function can tell: only where the read waits for nothing, and once in each call.

This module changes a method of a class that TensorFlow does not document:
`ConcreteFunction._call_flat`.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow.core.framework import function_pb2, types_pb2
from tensorflow.python.eager.polymorphic_function import concrete_function

from tf_interop import tensorflow_internals
from tf_interop.parallel import kept_shares

MOST_COPIES = 4
"""The most shapes of one function that get copies. All others share a copy of unknown shapes."""
_ATTRIBUTE = "_tf_interop_known_shapes"
_SUFFIX = "_tf_interop_shapes_"
_SHAPES = "_output_shapes"
_ConcreteFunction = concrete_function.ConcreteFunction
_HANDLES = (types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT)
_Shapes = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Batch:
    """What a function takes from an iterator.

    Attributes:
        iterator: the number of the iterator among the function's arguments.
        types: the dtypes of its components.
        shapes: what is known of their shapes.
    """

    iterator: int
    types: tuple[tf.DType, ...]
    shapes: tuple[tf.TensorShape, ...]


class _Copies:
    """The copies of one function."""

    def __init__(self, concrete: Any) -> None:
        self._function = function = concrete._inference_function
        self._graph = concrete._func_graph
        self._definition, self._batches = _pass_batches(function.definition)
        self._copies: dict[_Shapes | None, Any] = {}

    def call(self, tensor_inputs: Sequence[Any], captured_inputs: list[Any]) -> Any:
        """Calls the copy for the shapes of the inputs, which is made if it is new."""
        inputs = [*tensor_inputs, *captured_inputs]
        batches: list[Any] = []
        for batch in self._batches:
            batches += tf.raw_ops.IteratorGetNext(
                iterator=inputs[batch.iterator],
                output_types=batch.types,
                output_shapes=batch.shapes,
            )
        shapes = tuple(tuple(each.shape) for each in (*tensor_inputs, *batches))
        copy = self._copies.get(shapes) or self._make(shapes, len(tensor_inputs))
        return kept_shares.call_flat(copy, tensor_inputs, [*captured_inputs, *batches])

    def _make(self, shapes: _Shapes, first_captured: int) -> Any:
        with _lock:
            known = shapes if len(self._copies) < MOST_COPIES else None
            if known not in self._copies:
                self._copies[known] = self._copy(known, first_captured)
            return self._copies[known]

    def _copy(self, shapes: _Shapes | None, first_captured: int) -> Any:
        definition = function_pb2.FunctionDef()
        definition.CopyFrom(self._definition)
        definition.signature.name += f"{_SUFFIX}{len(self._copies)}"
        arguments = definition.signature.input_arg
        captured_count = len(arguments) - len(shapes or ())
        for number, shape in enumerate(shapes or ()):
            place = number if number < first_captured else number + captured_count
            if arguments[place].type not in _HANDLES:
                _state_shape(definition, place, tf.TensorShape(shape))
        copy = tensorflow_internals.add_changed_copy(self._function, definition, self._graph)
        return _ConcreteFunction(copy)


_lock = threading.Lock()  # held while copies are made; guards the rest
_asked: set[str] = set()  # names of functions


def turn_on() -> None:
    """Calls copies of functions from now on; shares of variables must be on."""
    _ConcreteFunction._call_flat = _call_flat


def turn_off() -> None:
    """Calls functions themselves from now on."""
    if _ConcreteFunction._call_flat is _call_flat:
        _ConcreteFunction._call_flat = kept_shares.call_flat
        _asked.clear()


def ask(function: str) -> bool:
    """Asks for copies of a function whose shapes the pass does not know; False if it has none."""
    if not function or _SUFFIX in function or _ConcreteFunction._call_flat is not _call_flat:
        return False
    _asked.add(function)
    return True


def _call_flat(self: Any, tensor_inputs: Sequence[Any], captured_inputs: list[Any]) -> Any:
    if not kept_shares.may_change_calls():
        return kept_shares.call_flat(self, tensor_inputs, captured_inputs)
    copies: _Copies | None = self.__dict__.get(_ATTRIBUTE)
    if copies is not None:
        return copies.call(tensor_inputs, captured_inputs)
    result = kept_shares.call_flat(self, tensor_inputs, captured_inputs)
    if _asked:
        _answer(self)
    return result


def _answer(concrete: Any) -> None:
    """Prepares copies for the next calls, if that was asked for."""
    name = concrete.name.decode()
    with _lock:
        if name not in _asked:
            return
        _asked.discard(name)
        try:
            concrete.__dict__[_ATTRIBUTE] = _Copies(concrete)
        except Exception as error:
            # Whatever cannot be copied can still be called.
            logging.warning("tf_interop leaves the shapes of %s unknown: %s", name, error)


def _pass_batches(
    definition: function_pb2.FunctionDef,
) -> tuple[function_pb2.FunctionDef, tuple[_Batch, ...]]:
    """A copy of a function that is passed its batches, as its last arguments."""
    number_of = {each.name: number for number, each in enumerate(definition.signature.input_arg)}
    reads = [
        node
        for node in definition.node_def
        if node.op == "IteratorGetNext" and len(node.input) == 1 and node.input[0] in number_of
    ]
    batches = tuple(
        _Batch(
            number_of[node.input[0]],
            tuple(map(tf.as_dtype, node.attr["output_types"].list.type)),
            tuple(map(tf.TensorShape, node.attr["output_shapes"].list.shape)),
        )
        for node in reads
    )
    components = [
        (f"{node.name}:components:{port}", dtype, shape)
        for node, batch in zip(reads, batches, strict=True)
        for port, (dtype, shape) in enumerate(zip(batch.types, batch.shapes, strict=True))
    ]
    names = {text: f"tf_interop_batch_{number}" for number, (text, *_) in enumerate(components)}
    copy = _without_nodes(definition, {node.name for node in reads}, names)
    copy.attr.pop("_input_shapes", None)
    for text, dtype, shape in components:
        copy.signature.input_arg.add(name=names[text], type=dtype.as_datatype_enum)
        _state_shape(copy, len(copy.signature.input_arg) - 1, shape)
    return copy, batches


def _without_nodes(
    definition: function_pb2.FunctionDef, nodes: Collection[str], names: Mapping[str, str]
) -> function_pb2.FunctionDef:
    """A copy of a function without some nodes; `names` tells what replaces their outputs."""
    copy = function_pb2.FunctionDef()
    copy.CopyFrom(definition)
    del copy.node_def[:]
    for node in definition.node_def:
        if node.name not in nodes:
            inputs = [text for text in node.input if text.removeprefix("^") not in nodes]
            copy.node_def.add().CopyFrom(node)
            copy.node_def[-1].input[:] = [names.get(text, text) for text in inputs]
    for result, text in definition.ret.items():
        copy.ret[result] = names.get(text, text)
    for result, node in definition.control_ret.items():
        if node in nodes:
            del copy.control_ret[result]
            copy.signature.control_output.remove(result)
    return copy


def _state_shape(definition: function_pb2.FunctionDef, place: int, shape: tf.TensorShape) -> None:
    stated = definition.arg_attr[place].attr[_SHAPES].list.shape
    del stated[:]
    stated.append(shape.as_proto())
