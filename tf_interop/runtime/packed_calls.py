"""Calls of functions that pass all variables in one tensor.

TensorFlow passes a function every variable that it captured, in each call, and hashes the types of
all of them: two to five microseconds for each variable, as much as a quarter of a call of a network
with a thousand variables. While this is on, an eager call runs a copy of the function instead:

    before                          after

    f(images, v0, v1, ..., vn)      f'(images, packed)
                                    f' begins with UnpackVariables: packed -> v0, v1, ..., vn

Guaranteed: the copy has the nodes, attributes and names of the function, and lives as long as the
ConcreteFunction. TensorFlow's own call runs where a tape or an accumulator may record, in graphs,
for functions that XLA compiles, and for those with fewer than 16 variables on this process's CPU.
Variables on other devices, other resources and captured tensors are passed as before.

This module changes methods of classes that TensorFlow does not document: `ConcreteFunction` and
`FunctionType`. A change of TensorFlow that it does not understand leaves TensorFlow's own call.
"""

from __future__ import annotations

import dataclasses
import operator
import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow.core.framework import function_pb2, types_pb2
from tensorflow.core.function.polymorphism import function_type
from tensorflow.python.eager import context, execute, record
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import ops

from tf_interop import tensorflow_internals
from tf_interop.graph.ops import PACK_OP, UNPACK_OP

FEWEST_VARIABLES = 16
_MOST_BYTES = 32 << 20
"""Of a function's definition. Larger ones have large constants, which would exist twice."""
_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
_PACKED = "tf_interop_packed"
_UNPACKED = "tf_interop_unpacked"
_ATTRIBUTE = "_tf_interop_packed_call"
_EXECUTOR = "TF_INTEROP"
"""See cc_kernels/tf/inline_executor.h."""
_HASH = "_tf_interop_hash"

_ConcreteFunction = concrete_function.ConcreteFunction
_FunctionType = function_type.FunctionType
_stock_call_flat = _ConcreteFunction._call_flat
_stock_captured_inputs = _ConcreteFunction.captured_inputs
_stock_hash = _FunctionType.__hash__
_lock = threading.RLock()  # a signal handler may call another function meanwhile


@dataclasses.dataclass(frozen=True)
class _PackedCall:
    """How a ConcreteFunction is called.

    Attributes:
        captured: all that it captures, in order.
        function: its copy; None to call the function itself.
        others: what it captures beside packed variables, in order.
        packed: the packed variables.
    """

    captured: list[Any]
    function: Any = None
    others: tuple[Any, ...] = ()
    packed: Any = None


def turn_on() -> None:
    """Packs the variables of functions that are called from now on."""
    _ConcreteFunction._call_flat = _call_flat
    _ConcreteFunction.captured_inputs = property(_captured_inputs)
    _FunctionType.__hash__ = _hash


def turn_off() -> None:
    """Calls functions as TensorFlow does, from now on."""
    if not is_on():
        return
    _ConcreteFunction._call_flat = _stock_call_flat
    _ConcreteFunction.captured_inputs = _stock_captured_inputs
    _FunctionType.__hash__ = _stock_hash


def is_on() -> bool:
    """Whether variables are packed."""
    return _ConcreteFunction._call_flat is _call_flat


def _hash(self: Any) -> int:
    # TensorFlow's dictionaries have it as a key, so it does not change.
    found = self.__dict__.get(_HASH)
    if found is None:
        found = self.__dict__[_HASH] = _stock_hash(self)
    return int(found)


def _captured_inputs(self: Any) -> list[Any]:
    call: _PackedCall | None = self.__dict__.get(_ATTRIBUTE)
    if call is not None and _are_same(call.captured, self._captured_inputs):
        return call.captured.copy() if call.function is None else call.captured
    return list(_stock_captured_inputs.fget(self))


def _are_same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(map(operator.is_, first, second))


def _call_flat(self: Any, tensor_inputs: Sequence[Any], captured_inputs: list[Any]) -> Any:
    # Nothing of a call that may be recorded, or that is part of a graph, is changed.
    if (
        len(captured_inputs) >= FEWEST_VARIABLES
        and context.executing_eagerly()
        and not record.could_possibly_record()
        and not ops.get_default_graph().building_function
        and not tensorflow_internals.are_plugins_turned_off()
    ):
        call = self.__dict__.get(_ATTRIBUTE)
        if call is None or (
            call.captured is not captured_inputs and not _are_same(call.captured, captured_inputs)
        ):
            call = _make_call(self, captured_inputs)
        if call is not None and call.function is not None:
            options = context.context().function_call_options
            chosen = options.executor_type
            options.executor_type = chosen or _EXECUTOR
            try:
                return call.function.call_preflattened([*tensor_inputs, *call.others, call.packed])
            finally:
                options.executor_type = chosen
    return _stock_call_flat(self, tensor_inputs, captured_inputs)


def _make_call(concrete: Any, captured: list[Any]) -> _PackedCall | None:
    """How to call a function; None with other tensors than it captures.

    A gradient is called with the values that its forward pass left, and must not keep them.
    """
    if not _are_same(concrete._captured_inputs, captured):
        return None
    with _lock:
        captured = list(captured)
        call = _PackedCall(captured)
        found: _PackedCall | None = concrete.__dict__.get(_ATTRIBUTE)
        if found is not None and _are_same(found.captured, captured):
            return found
        # If what is captured changes, it is passed as it is from then on.
        if found is None:
            try:
                call = _pack(concrete._inference_function, captured) or call
            except Exception as error:
                # Whatever cannot be packed can still be called.
                logging.warning(
                    "tf_interop calls %s as TensorFlow does, because its variables cannot be "
                    "packed: %s",
                    concrete.name,
                    error,
                )
        concrete.__dict__[_ATTRIBUTE] = call
        return call


def _pack(function: Any, captured: list[Any]) -> _PackedCall | None:
    packed = [place for place, tensor in enumerate(captured) if _is_variable_here(tensor)]
    if len(packed) < FEWEST_VARIABLES or _has_random_state(function):
        return None
    chosen = set(packed)
    definition = function.definition
    first = len(definition.signature.input_arg) - len(captured)
    specs = [tensorflow_internals.variable_spec(captured[place]) for place in packed]
    copy = _copy(definition, [first + place for place in packed], specs)
    if copy is None:
        return None
    changed = tensorflow_internals.add_changed_copy(function, copy)
    with tf.device(_CPU):
        [handles] = execute.execute(
            PACK_OP.encode(),
            num_outputs=1,
            inputs=[captured[place] for place in packed],
            attrs=("N", len(packed)),
            ctx=context.context(),
        )
    return _PackedCall(
        captured,
        changed,
        tuple(tensor for place, tensor in enumerate(captured) if place not in chosen),
        handles,
    )


def _has_random_state(function: Any) -> bool:
    """Whether an operation continues a sequence of random numbers; a copy would begin another."""
    return any("seed2" in node.attr for node in function.definition.node_def) or any(
        map(_has_random_state, function.children)
    )


def _is_variable_here(tensor: Any) -> bool:
    return (
        type(tensor) is ops.EagerTensor
        and tensor.dtype == tf.resource
        and tensor.device == _CPU
        and tensorflow_internals.variable_spec(tensor) is not None
    )


def _copy(
    definition: function_pb2.FunctionDef, places: Sequence[int], specs: Sequence[tf.TensorSpec]
) -> function_pb2.FunctionDef | None:
    """A copy that takes its arguments at `places` packed, as the last one.

    Returns None if that is not possible.
    """
    signature = definition.signature
    is_compiled = "_XlaMustCompile" in definition.attr and definition.attr["_XlaMustCompile"].b
    if is_compiled or definition.ByteSize() > _MOST_BYTES:
        return None
    copy = function_pb2.FunctionDef()
    copy.CopyFrom(definition)
    copy.signature.name = f"{signature.name}_{_PACKED}"
    chosen = set(places)
    kept = [place for place in range(len(signature.input_arg)) if place not in chosen]
    del copy.signature.input_arg[:]
    copy.signature.input_arg.extend(signature.input_arg[place] for place in kept)
    copy.signature.input_arg.add(name=_PACKED, type=types_pb2.DT_VARIANT)
    for field in (copy.arg_attr, copy.resource_arg_unique_id):
        field.clear()
    for new, old in enumerate(kept):
        if old in definition.arg_attr:
            copy.arg_attr[new].CopyFrom(definition.arg_attr[old])
        if old in definition.resource_arg_unique_id:
            copy.resource_arg_unique_id[new] = definition.resource_arg_unique_id[old]
    copy.attr.pop("_input_shapes", None)
    new_texts = {
        signature.input_arg[place].name: f"{_UNPACKED}:handles:{number}"
        for number, place in enumerate(places)
    }
    for node in copy.node_def:
        for position, text in enumerate(node.input):
            if text in new_texts:
                node.input[position] = new_texts[text]
            elif text.startswith("^") and text[1:] in new_texts:
                return None
    node = copy.node_def.add(name=_UNPACKED, op=UNPACK_OP, input=[_PACKED], device=_CPU)
    node.attr["N"].i = len(places)
    node.attr["dtypes"].list.type.extend(spec.dtype.as_datatype_enum for spec in specs)
    node.attr["shapes"].list.shape.extend(spec.shape.as_proto() for spec in specs)
    return copy
