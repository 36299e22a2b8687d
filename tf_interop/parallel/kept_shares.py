"""Variables of which devices keep shares from one call of a function to the next.

The pass divides the first call of a training step with all variables where they are, and offers the
variables whose updates can be divided. Later calls run a copy of the function, which the pass
divides so that each device reads and updates its own share (`rules/shares.py`):

    call 1      f(batch, v)     every device is sent its part of v, and v's gradient is sent back
                                v is cut into shares; v's own memory is freed
    call 2, …   f'(batch, v)    each device updates its share of v
    v.numpy(), assign, save, another function that captured v:  first v is put together again
    call n      f'(batch, v)    v is cut into shares again

Guaranteed: whoever uses a variable, or calls a function that captured it, finds the current value
there. Not seen are uses of a handle that was taken before, as by a tf.data pipeline. What another
thread writes to a variable while a step runs counts as written after the step.

This module changes a method and an attribute of classes that TensorFlow does not document:
`ConcreteFunction._call_flat`, and `BaseResourceVariable._handle`, which TensorFlow's C++ reads
where an eager operation is given a variable.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import function_pb2
from tensorflow.python.eager import context, record
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from tf_interop import tensorflow_internals
from tf_interop.parallel.regions import Box, sizes

_ATTRIBUTE = "_tf_interop_kept_shares"
_ConcreteFunction = concrete_function.ConcreteFunction
_Variable = resource_variable_ops.BaseResourceVariable
_stock_call_flat = _ConcreteFunction._call_flat


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """A box of a variable, which a device keeps.

    Attributes:
        place: the number of the part of the layer that has it.
        device: TensorFlow's name for the device.
        box: in coordinates of the variable.
    """

    place: int
    device: str
    box: Box


@dataclasses.dataclass(frozen=True, slots=True)
class SharedVariable:
    """A variable of which devices may keep shares.

    Attributes:
        argument: its number among the function's arguments.
        shape: its shape.
        dtype: its dtype.
        shares: disjoint; together they are all of it.
    """

    argument: int
    shape: tuple[int, ...]
    dtype: tf.DType
    shares: tuple[Share, ...]


class KeptShares:
    """The shares of the variables of one function, and the copy of the function that uses them.

    Attributes:
        name: the name of the copy, and the beginning of the names of all shares.
        is_divided: whether the pass has divided the copy.
    """

    def __init__(self, name: str, function: Any, variables: dict[SharedVariable, Any]) -> None:
        """Prepares to keep shares for a copy of a function; `variables` has their handles."""
        self.name = name
        self.is_divided = False
        self._function = function
        self._handles = variables
        self._are_current = False  # the shares have the values, and the variables need not
        # Those that the variables had when they were last cut or put together. Other values are
        # newer than those of the shares.
        self._seen: dict[SharedVariable, np.ndarray[Any, Any]] = {}
        self._calls = 0  # that run now
        self._caller = 0  # the thread of the last call

    @property
    def variables(self) -> tuple[SharedVariable, ...]:
        """The variables."""
        return tuple(self._handles)

    def fits(self, inputs: Sequence[Any]) -> bool:
        """Whether a call passes these variables."""
        return all(inputs[each.argument] is handle for each, handle in self._handles.items())

    def has(self, handle: Any) -> bool:
        """Whether it keeps shares of the variable that has this handle."""
        return any(handle is each for each in self._handles.values())

    def is_used_elsewhere(self) -> bool:
        """Whether a running step of another function has shares of these variables."""
        holders = (_holders.get(id(handle)) for handle in self._handles.values())
        return any(each is not None and each is not self and each._calls for each in holders)

    def call(self, inputs: Sequence[Any]) -> Any:
        """Calls the copy, with the variables' values in shares if the pass has divided it."""
        with _lock:
            if self._are_current:
                self._take_newer()
            elif not self._calls or not self._seen:
                for variable in self._handles:
                    self._cut(variable, self._read(variable))
            self._calls += 1
            self._caller = threading.get_ident()
        try:
            result = self._function.call_preflattened(inputs)
        finally:
            with _lock:
                self._calls -= 1
        with _lock:
            is_kept = _kept.get(self.name) is self  # unless another thread has turned it off
            if is_kept and self.is_divided and not self._are_current and self._seen:
                self._hold()
        return result

    def _hold(self) -> None:
        """Frees the variables' own memory after their first step in shares."""
        newer = self._newer()
        self._seen.clear()
        if newer:
            # Another thread wrote to them, or the graph that ran was not divided.
            for variable, handle in self._handles.items():
                if variable not in newer:
                    _assign(handle, self._joined(variable))
            return
        for handle in self._handles.values():
            _holders[id(handle)] = self
        self._are_current = True
        running = [id(each) for inputs in [*_running.values()] for each in inputs]
        for variable, handle in self._handles.items():
            # Another thread may read a variable long after it has got the handle.
            if _users[id(handle)] <= {self._caller} and id(handle) not in running:
                _assign(handle, np.zeros([0], variable.dtype.as_numpy_dtype))

    def put_together(self, *, is_last: bool = False) -> None:
        """Gives the variables their values again. The caller holds the lock.

        While another thread runs a step, they get the values of this moment, and the shares go on,
        unless this is the last time.
        """
        if not self._are_current:
            return
        self._take_newer()
        for variable, handle in self._handles.items():
            self._seen[variable] = self._joined(variable)
            _assign(handle, self._seen[variable])
        if self._calls and not is_last:
            return
        self._seen.clear()
        for handle in self._handles.values():
            _holders.pop(id(handle), None)
        self._are_current = False

    def remove(self) -> None:
        """Puts the variables together, and frees the shares. The caller holds the lock."""
        self.put_together(is_last=True)
        for variable in self._handles:
            for share in variable.shares:
                resource = self._handle_of(variable, share)
                tf.raw_ops.DestroyResourceOp(resource=resource, ignore_lookup_error=True)
        _kept.pop(self.name, None)
        left = {id(handle) for each in _kept.values() for handle in each._handles.values()}
        for handle in self._handles.values():
            if id(handle) not in left:
                _users.pop(id(handle), None)

    def _newer(self) -> dict[SharedVariable, np.ndarray[Any, Any]]:
        """The values of variables that somebody has written to."""
        values = {variable: self._read(variable) for variable in self._seen}
        return {
            variable: value
            for variable, value in values.items()
            if value.tobytes() != self._seen[variable].tobytes()
        }

    def _take_newer(self) -> None:
        """Cuts variables again that somebody has written to."""
        for variable, value in self._newer().items():
            self._cut(variable, value)
        self._seen.clear()

    def _read(self, variable: SharedVariable) -> np.ndarray[Any, Any]:
        resource = self._handles[variable]
        value = tf.raw_ops.ReadVariableOp(resource=resource, dtype=variable.dtype).numpy()
        return np.asarray(value)

    def _cut(self, variable: SharedVariable, value: np.ndarray[Any, Any]) -> None:
        self._seen[variable] = value
        for share in variable.shares:
            its = np.ascontiguousarray(value[tuple(itertools.starmap(slice, share.box))])
            _assign(self._handle_of(variable, share), its)

    def _joined(self, variable: SharedVariable) -> np.ndarray[Any, Any]:
        """The value of a variable that is in shares."""
        value = np.empty(variable.shape, variable.dtype.as_numpy_dtype)
        for share in variable.shares:
            resource = self._handle_of(variable, share)
            its = tf.raw_ops.ReadVariableOp(resource=resource, dtype=variable.dtype)
            value[tuple(itertools.starmap(slice, share.box))] = its.numpy()
        return value

    def _handle_of(self, variable: SharedVariable, share: Share) -> Any:
        with tf.device(share.device):
            return tf.raw_ops.VarHandleOp(
                dtype=variable.dtype,
                shape=sizes(share.box),
                shared_name=f"{self.name}/{variable.argument}/{share.place}",
            )


def _assign(handle: Any, value: np.ndarray[Any, Any]) -> None:
    with tf.device(handle.device):
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(value))
    # A function's part on another host would not wait for it.
    context.async_wait()


_lock = threading.RLock()  # held while shares or variables change; guards the rest
_offers: dict[str, tuple[SharedVariable, ...]] = {}  # by the name of the function
_kept: dict[str, KeptShares] = {}  # by the name of the function's copy
_holders: dict[int, KeptShares] = {}  # by the id of the handle of a variable that is not current
_users: dict[int, set[int]] = {}  # the threads that used a variable, by the id of its handle
_running: dict[int, Sequence[Any]] = {}  # the inputs of calls that run now, by their id
_dropped: list[KeptShares] = []  # of functions that are gone; freed at the next call
_numbers = itertools.count()  # of copies
_is_on = False


def turn_on() -> None:
    """Keeps shares for functions that are called from now on."""
    global _is_on
    _is_on = True
    _ConcreteFunction._call_flat = call_flat
    _Variable._handle = property(_handle, _set_handle)


def turn_off() -> None:
    """Puts all variables together, and calls functions as TensorFlow does from now on.

    Raises:
        tf.errors.OpError: a device is gone that had shares. Uses of their variables go on to raise
            it, and all other variables are put together.
    """
    global _is_on
    with _lock:
        _offers.clear()
        lost = [error for kept in [*_kept.values()] if (error := _remove(kept)) is not None]
        if _is_on and not lost:
            _is_on = False
            _ConcreteFunction._call_flat = _stock_call_flat
            del _Variable._handle  # an attribute of each variable, as before
    if lost:
        raise lost[0]


def _remove(kept: KeptShares) -> tf.errors.OpError | None:
    """Removes shares; returns the error if their values are lost."""
    try:
        kept.remove()
    except tf.errors.OpError as error:
        return error
    return None


def offer(function: str, variables: Sequence[SharedVariable]) -> None:
    """Records the variables of which devices can keep shares, as the pass has found them."""
    with _lock:
        if _is_on:
            _offers[function] = tuple(variables)


def find(function: str) -> KeptShares | None:
    """The shares of a copy of a function; None for any other function."""
    return _kept.get(function)


def _handle(self: Any) -> Any:
    try:
        handle = self.__dict__["_handle"]
    except KeyError:
        raise AttributeError("_handle") from None
    if id(handle) in _users and context.executing_eagerly():
        _put_together([handle])
    return handle


def _set_handle(self: Any, handle: Any) -> None:
    self.__dict__["_handle"] = handle


def _put_together(handles: Sequence[Any], but: KeptShares | None = None) -> None:
    """Gives variables their values again, unless `but` has their shares."""
    with _lock:
        while _dropped:
            _remove(_dropped.pop())  # what is lost raises where it is used
        for handle in handles:
            users = _users.get(id(handle))
            if users is None:
                continue
            if but is None or not but.has(handle):
                users.add(threading.get_ident())
            holder = _holders.get(id(handle))
            if holder is not None and holder is not but:
                holder.put_together()


def _runs_now() -> bool:
    return context.executing_eagerly() and not ops.get_default_graph().building_function


def may_change_calls() -> bool:
    """Whether a call runs now, with the plugin, and no tape records it."""
    return (
        _runs_now()
        and not record.could_possibly_record()
        and not tensorflow_internals.are_plugins_turned_off()
    )


def call_flat(self: Any, tensor_inputs: Sequence[Any], captured_inputs: list[Any]) -> Any:
    """Calls a ConcreteFunction, with the values of variables in shares if devices keep them."""
    if not _runs_now():
        return _stock_call_flat(self, tensor_inputs, captured_inputs)
    inputs = [*tensor_inputs, *captured_inputs]
    may_keep = may_change_calls()
    kept: KeptShares | None = self.__dict__.get(_ATTRIBUTE) if may_keep else None
    if kept is not None and (_kept.get(kept.name) is not kept or not kept.fits(inputs)):
        kept = None
    if kept is not None and kept.is_used_elsewhere():
        kept = None
    if kept is not None:
        _put_together(inputs, but=kept)
        try:
            return kept.call(inputs)
        except tf.errors.OpError as error:
            # TensorFlow optimized the copy again, and the pass failed: the variables were empty. If
            # the step had taken a batch from an iterator, that is lost.
            if kept.is_divided:
                if not isinstance(error, tf.errors.OutOfRangeError):
                    with _lock:
                        kept.put_together()  # so that the next call finds out what runs
                raise
        finally:
            if not kept.is_divided:
                with _lock:
                    kept.remove()
    _running[id(inputs)] = inputs
    try:
        if _users or _dropped:
            _put_together(inputs)
        result = _stock_call_flat(self, tensor_inputs, captured_inputs)
    finally:
        del _running[id(inputs)]
    if may_keep and _offers:
        _take_offer(self, inputs, len(tensor_inputs))
    return result


def _take_offer(concrete: Any, inputs: Sequence[Any], first_captured: int) -> None:
    """Prepares to keep shares from the next call on, if that was offered."""
    function = concrete._inference_function
    with _lock:
        variables = _offers.pop(function.name.decode(), ())
        # Other variables could come as arguments of the next call.
        if not variables or min(each.argument for each in variables) < first_captured:
            return
        definition = function_pb2.FunctionDef()
        definition.CopyFrom(function.definition)
        # A function may be copied again, before the shares of its first copy are freed.
        name = f"{definition.signature.name}_tf_interop_{next(_numbers)}_shares"
        definition.signature.name = name
        copy = tensorflow_internals.add_changed_copy(function, definition)
        kept = KeptShares(name, copy, {each: inputs[each.argument] for each in variables})
        _kept[name] = kept
        for each in variables:
            _users.setdefault(id(inputs[each.argument]), set())
        concrete.__dict__[_ATTRIBUTE] = kept
        weakref.finalize(concrete, _dropped.append, kept).atexit = False
