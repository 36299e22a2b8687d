"""Steps of Keras 3 run one by one, where `steps_per_execution` asks for several in one graph.

Layers in a loop cannot be divided, so there is a graph of one step:

    before    train_function(iterator)    while step < 4: step(next(iterator))    in one graph
    after     train_function(iterator)    step(next(iterator)), four times        in four calls

Guaranteed: the same steps in the same order, and the same calls of callbacks. Functions that Keras
makes while this is on do as before while it is off.

This module changes two methods of a class that Keras does not document, `TensorFlowTrainer`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

_is_on = False


class _SingleStep:
    """A model as the code sees it that makes its functions, but with one step in each execution."""

    steps_per_execution = 1

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def turn_on() -> None:
    """Runs steps one by one, in functions that Keras makes from now on."""
    global _is_on
    _is_on = True
    try:
        _change_keras()
    except (ImportError, AttributeError) as error:
        logging.warning("tf_interop leaves several steps of Keras in one graph whole: %s", error)


def turn_off() -> None:
    """Runs steps as Keras does from now on."""
    global _is_on
    _is_on = False


@functools.cache
def _change_keras() -> None:
    # Not imported with this module, because it takes a second.
    from keras.src.backend.tensorflow import trainer

    changed = trainer.TensorFlowTrainer
    make_function, make_predict_function = changed._make_function, changed.make_predict_function

    def has_several(model: Any) -> bool:
        return _is_on and not model.run_eagerly and model.steps_per_execution > 1

    @functools.wraps(make_function)
    def make(self: Any, step_function: Callable[..., Any]) -> Callable[..., Any]:
        several: Callable[..., Any] = make_function(self, step_function)
        if not has_several(self):
            return several
        single = make_function(_SingleStep(self), step_function)

        def function(iterator: Any) -> Any:
            if not _is_on or not isinstance(iterator, tf.data.Iterator):
                return several(iterator)
            outputs = single(iterator)
            for _ in range(1, self.steps_per_execution):
                try:
                    outputs = single(iterator)
                except (StopIteration, tf.errors.OutOfRangeError):
                    break
            return outputs

        return function

    @functools.wraps(make_predict_function)
    def make_predict(self: Any, force: bool = False) -> Any:
        is_new = force or self.predict_function is None
        make_predict_function(self, force)
        if not is_new or not has_several(self):
            return self.predict_function
        several = self.predict_function
        model = _SingleStep(self)
        make_predict_function(model, force=True)

        def function(batches: Sequence[Any]) -> Any:
            if not _is_on:
                return several(batches)
            outputs = [model.predict_function([batch]) for batch in batches]
            return trainer.tree.map_structure(lambda *each: trainer.concat(each), *outputs)

        self.predict_function = function
        return function

    changed._make_function, changed.make_predict_function = make, make_predict
