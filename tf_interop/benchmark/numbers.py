"""The numbers that a benchmark computes with: weights, inputs, and a comparison of outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tf_interop.errors import BenchmarkError

Outputs = list[np.ndarray[Any, Any]]
"""The outputs of a step, flattened."""

TOLERANCE = 1e-3
"""The largest difference from stock's outputs, as a share of the largest one of them. Kernels of
other runtimes add in another order."""
_LEAST_CHANGE = 2 * TOLERANCE
"""How much outputs must change with the inputs. If another input passes the comparison, wrong
kernels may pass, too."""
_IMAGES = 4  # so that a channel of one pixel has a variance, too


def set_weights(model: Any, specs: Any) -> None:
    """Gives a Keras model weights like those of a trained one, the same in every process.

    With fresh weights activations vanish in a deep network: its outputs are those of the last
    biases, whatever its input, so that wrong kernels pass a comparison. And normalizations with a
    mean of 0 and a variance of 1 do not show whether they were folded into filters correctly.
    Here the filters keep the size of activations (He et al., "Delving Deep into Rectifiers", 2015),
    `gamma`, `beta` and biases are random, and the moving statistics are those of a batch of noise.

    Args:
        model: its variables are changed.
        specs: the specs of its inputs, every dimension known.
    """
    import tensorflow as tf

    random = np.random.default_rng(0)
    for variable in model.variables:
        name, shape = _name(variable), tuple(variable.shape)
        if name == "gamma":
            variable.assign(random.uniform(0.8, 1.2, shape))
        elif name in ("beta", "bias"):
            variable.assign(random.normal(0, 0.05, shape))
        elif name.endswith("kernel") and len(shape) == 4:
            variable.assign(random.normal(0, math.sqrt(2 / math.prod(shape[:-1])), shape))
    if all(tensor.shape[0] is None for tensor in getattr(model, "inputs", None) or ()):
        specs = tf.nest.map_structure(
            lambda spec: tf.TensorSpec([_IMAGES, *spec.shape[1:]], spec.dtype), specs
        )
    settle_statistics(model, noise(specs, seed=1))
    _soften(model, specs)


_SETTINGS = (
    ("Normalization", "momentum"),
    ("Dropout", "rate"),
    ("StochasticDepth", "drop_path_rate"),
)
"""Kinds of layers, and their attributes that are 0 while statistics settle."""


def settle_statistics(model: Any, images: Any) -> None:
    """Sets the moving statistics of normalizations to those of these images, without dropout.

    With random statistics activations grow from layer to layer. Gradients are then so large that
    the last bit of a pixel changes all of their digits, and comparing them shows nothing.
    """
    settings = [
        (layer, name, getattr(layer, name))
        for layer in _layers(model)
        for kind, name in _SETTINGS
        if kind in type(layer).__name__ and hasattr(layer, name)
    ]
    for layer, name, _ in settings:
        setattr(layer, name, 0.0)
    model(images, training=True)
    for layer, name, value in settings:
        setattr(layer, name, value)


def _soften(model: Any, specs: Any) -> None:
    """Scales the last filter if one class would take all of the probability, whatever the input."""
    outputs = flat_outputs(model(noise(specs, seed=1), training=False))
    kernels = [each for each in model.trainable_variables if _name(each).endswith("kernel")]
    if not kernels or len(outputs) > 1 or not (outputs[0] > 0).all():
        return
    # Of a softmax, these are its inputs up to a constant.
    deviation = float(np.log(outputs[0]).std(axis=-1).max())
    if deviation > 1:
        kernels[-1].assign(kernels[-1] / deviation)


def _name(variable: Any) -> str:
    """The last part of a variable's name, in Keras 3 and tf_keras."""
    return str(getattr(variable, "path", variable.name)).split("/")[-1].split(":")[0]


def _layers(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from _layers(layer)
        else:
            yield layer


def noise(specs: Any, seed: int) -> Any:
    """Tensors of these specs, always the same ones for a seed."""
    import tensorflow as tf

    def make(spec: Any) -> Any:
        if not spec.dtype.is_floating:
            return tf.cast(tf.fill(spec.shape, seed), spec.dtype)
        return tf.random.stateless_normal(spec.shape, (0, seed), dtype=spec.dtype)

    return tf.nest.map_structure(make, specs)


def outputs_of_stock(run: Callable[[Any], Any], specs: Any) -> Outputs:
    """Runs stock TensorFlow on `noise(specs, seed=0)`, for `check_outputs`.

    Raises:
        BenchmarkError: the outputs are not finite, or are nearly the same for other inputs.
    """
    outputs, others = (flat_outputs(run(noise(specs, seed))) for seed in (0, 2))
    if not all(np.isfinite(each).all() for each in outputs if _has_numbers(each)):
        raise BenchmarkError(
            "Stock TensorFlow's outputs are not finite, so nothing can be compared with them. Use "
            "a model with other weights."
        )
    change = max(map(_difference, outputs, others), default=0.0)
    if change < _LEAST_CHANGE:
        raise BenchmarkError(
            f"Stock TensorFlow's outputs change by only {change:.1e} of their largest value when "
            f"the inputs change (expected at least {_LEAST_CHANGE:g}), so a comparison with them "
            "would show no error. Use a model with other weights."
        )
    return outputs


def check_outputs(outputs: Outputs, stock: Outputs) -> None:
    """Compares a variant's outputs with stock's.

    Raises:
        BenchmarkError: they differ by more than `TOLERANCE`.
    """
    shapes, expected = ([each.shape for each in both] for both in (outputs, stock))
    if shapes != expected:
        raise BenchmarkError(
            f"Expected outputs of the shapes {expected} as in stock TensorFlow, got {shapes}. The "
            "variant computes something else, so it was not timed."
        )
    # NaN is larger than any number.
    difference = np.max([_difference(*each) for each in zip(stock, outputs, strict=True)])
    if not difference <= TOLERANCE:
        raise BenchmarkError(
            f"The outputs differ from stock TensorFlow's by {difference:.1e} of the largest one "
            f"(expected at most {TOLERANCE:g}). The variant computes something else, so it was not "
            "timed."
        )


def flat_outputs(outputs: Any) -> Outputs:
    """The tensors of any structure as arrays."""
    import tensorflow as tf

    return [np.asarray(each) for each in tf.nest.flatten(outputs)]


def _has_numbers(values: np.ndarray[Any, Any]) -> bool:
    return values.dtype != bool and values.dtype.kind not in "OSU"


def _difference(expected: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """The largest difference, as a share of the largest expected value.

    Of outputs that are no numbers, the share that differs.
    """
    if not _has_numbers(expected):
        return float(np.mean(expected != other)) if expected.size else 0.0
    largest = np.abs(expected).max(initial=0.0)
    difference = np.abs(expected - other).max(initial=0.0)
    return float(difference / largest) if largest else float(difference)
