"""Calls of a tf.function with arguments of the types that an earlier call had.

In each call TensorFlow makes a type of the arguments, searches the ConcreteFunctions that it has
traced for the best one, and binds the arguments to its parameters. This takes a twentieth of a call
of MobileNetV2 (AMD EPYC, two cores), because the network has filled the caches. While this is on,
an eager call finds its ConcreteFunction by the shapes and dtypes of tensors:

    before                                              after

    f(image) -> type, context, search, bind             f(image) -> look up
             -> ConcreteFunction._call_flat                      -> ConcreteFunction._call_flat

Guaranteed: the ConcreteFunction is the one that TensorFlow chooses for such arguments; it does not
change its choice. TensorFlow's own call runs in graphs, in scopes of distribution strategies, while
a model is saved, and for arguments other than eager tensors of numbers and constants of Python.

This module changes a method of a class that TensorFlow does not document: `Function._call`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import (
    function_type_utils,
    polymorphic_function,
    tracing_compilation,
)
from tensorflow.python.framework import ops
from tensorflow.python.saved_model import save_context

_ATTRIBUTE = "_tf_interop_known_calls"
_MOST_CALLS = 64
"""Of a function, with different arguments. One more, and all are forgotten."""
_CONSTANTS = (bool, int, str, type(None))
_NO_NUMBERS = {tf.resource.as_datatype_enum, tf.variant.as_datatype_enum}

_Function = polymorphic_function.Function
_stock_call = _Function._call


class _KnownCall(NamedTuple):
    """What a call runs.

    Attributes:
        concrete: a ConcreteFunction.
        places: for each of its inputs, which argument it is.
    """

    concrete: Any
    places: tuple[int, ...]


def turn_on() -> None:
    """Finds ConcreteFunctions by shapes and dtypes from now on."""
    _Function._call = _call


def turn_off() -> None:
    """Finds them as TensorFlow does from now on."""
    if _Function._call is _call:
        _Function._call = _stock_call


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    config = (
        self._no_variable_creation_config
        if self._created_variables
        else self._variable_creation_config
    )
    key = None if config is None else _key(args, kwargs)
    if (
        key is None
        or not context.executing_eagerly()
        or ops.get_default_graph()._distribution_strategy_stack
        or save_context.in_save_context()
    ):
        return _stock_call(self, *args, **kwargs)
    calls: dict[Any, _KnownCall | None] = config.__dict__.setdefault(_ATTRIBUTE, {})
    known = calls.get(key)
    if known is not None:
        arguments = [*args, *kwargs.values()]
        return known.concrete._call_flat(
            [arguments[place] for place in known.places], known.concrete.captured_inputs
        )
    count = self.experimental_get_tracing_count()
    result = _stock_call(self, *args, **kwargs)
    if key not in calls and count == self.experimental_get_tracing_count():
        tensors = [id(each) for each in (*args, *kwargs.values()) if type(each) is ops.EagerTensor]
        if len({*tensors}) == len(tensors):  # or it would not be clear which is which
            if len(calls) >= _MOST_CALLS:
                calls.clear()
            calls[key] = _known_call(self, config, args, kwargs)
    return result


def _key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Equal for arguments of the same types; None for arguments that this module leaves alone."""
    key: list[Any] = [*kwargs]
    for values in (args, kwargs.values()):
        for value in values:
            kind = type(value)
            if kind is ops.EagerTensor:
                dtype = value._datatype_enum()
                if dtype in _NO_NUMBERS:
                    return None
                key.append((dtype, value._shape_tuple()))
            elif kind in _CONSTANTS:
                key.append((kind, value))
            else:
                return None
    return tuple(key)


def _known_call(
    function: Any, config: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _KnownCall | None:
    """What TensorFlow ran for these arguments; None if it converts some of them.

    None, too, if an argument is also the default of another: which is which would not be clear.
    """
    bound = function_type_utils.bind_function_inputs(
        args, kwargs, function._function_type, function._default_values
    )
    concrete = tracing_compilation.trace_function(bound.args, bound.kwargs, config)
    bound = concrete.function_type.bind(*bound.args, **bound.kwargs)
    arguments = [*map(id, args), *map(id, kwargs.values())]
    inputs = [id(each) for each in concrete.function_type.unpack_inputs(bound)]
    if not {*inputs} <= {*arguments} or len({*inputs}) < len(inputs):
        return None
    return _KnownCall(concrete, tuple(arguments.index(each) for each in inputs))
