"""Compares every architecture of keras.applications with and without the plugin, on the CPU.

All weights have random values, so that no bias is zero and no scale is one or too small to show.
The moving statistics are those of random images. The sums of an operation with one thread do not
depend on whether it is in a unit, so all numbers should have the same bits. They differ if
TensorFlow fuses other operations once units are made. Outputs and gradients may then move as far as
in stock TensorFlow when the last bit of every pixel, or of every weight, changes. Normalization and
dropout are frozen for these gradients, because normalization by the statistics of two images makes
any rounding as large as the gradients.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tf_interop
from python.benchmarks.result_file import Case
from python.benchmarks.rounding import distance, share_of_tolerance
from tf_interop.benchmark.numbers import settle_statistics

BATCH = 2
CLASSES = 10

# The networks themselves refuse sizes that are too small for `include_top=True`.
_SIZES = (32, 48, 64, 71, 75, 96, 128, 224, 299, 331)

MOST_OF_ROUNDING = 0.1
"""Results that changed last bits move further than this, of their norm, are not compared."""

Numbers = list[np.ndarray]
Compute = Callable[[tf.Tensor], Numbers]


def agrees(row: dict[str, Any]) -> bool:
    """Whether rounding explains all differences."""
    return row["outputs"] <= 1 and (row["gradients"] or 0) <= 1


def application_names() -> list[str]:
    """The names of all architectures of keras.applications."""
    return [name for name, _ in inspect.getmembers(tf.keras.applications, inspect.isfunction)]


def measure(name: str) -> dict[str, Any]:
    """Runs one network without the plugin and with it, with one thread inside an operation.

    Returns:
        A row of the result. `outputs` and `gradients` are distances over the tolerance; gradients
        are None if some are zero without the plugin, and cannot be compared.
    """
    start = time.perf_counter()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    model, pixels = _network_and_images(name)
    size = model.input_shape[1]
    images = tf.constant(pixels)
    infer, train, frozen_gradients = functions_of(model)

    tf_interop.disable()
    stock = [*infer(images), *train(images)]
    if not np.all(np.isfinite(stock[0])) or 2 * sum(map(np.any, stock)) < len(stock):
        raise ValueError(f"Expected {name} to return finite numbers, most of them not zero.")
    # With some weights the step of a deep network overflows. Equal bits then mean less.
    is_finite = all(np.all(np.isfinite(each)) for each in stock)
    tf_interop.enable("always")
    changed = [*infer(images), *train(images)]
    status = tf_interop.status()
    if status.failures:
        raise ValueError(f"Expected no failure of the pass, got {status.failures}.")
    training, inference = status.graphs  # the last first
    same_bits = is_finite and all(map(np.array_equal, changed, stock))
    outputs: float = 0.0
    gradients: float | None = 0.0
    if not same_bits:
        outputs = max(shares_of_tolerance(infer, model, pixels, "always"))
        shares = shares_of_tolerance(frozen_gradients, model, pixels, "always")
        gradients = max(shares, default=None)
    return {
        "image size": size,
        "inference": _changed(inference),
        "training step": _changed(training),
        "left to XLA": sum(each.convolution_count for each in status.xla_functions),
        "numbers": "same bits" if same_bits else "rounded otherwise",
        "outputs": outputs,
        "gradients": gradients,
        "seconds": round(time.perf_counter() - start, 1),
    }


def _network_and_images(name: str) -> tuple[Any, np.ndarray]:
    tf.keras.utils.set_random_seed(0)
    model = build_smallest(name)
    set_random_weights(model)
    size = model.input_shape[1]
    pixels = np.random.default_rng(1).uniform(0, 255, (16 * BATCH, size, size, 3))
    pixels = pixels.astype(np.float32)
    settle_statistics(model, pixels)
    return model, pixels[:BATCH]


def build_smallest(name: str) -> Any:
    """Builds a network for the smallest images that it accepts."""
    refused: Exception | None = None
    for size in _SIZES:
        try:
            return getattr(tf.keras.applications, name)(
                weights=None,
                input_shape=(size, size, 3),
                classes=CLASSES,
                classifier_activation=None,
            )
        except ValueError as error:
            refused = error
    raise ValueError(f"Expected {name} to accept one of the sizes {_SIZES}.") from refused


def set_random_weights(model: Any) -> None:
    """Sets biases, scales and statistics to random values instead of zeros and ones."""
    random = np.random.default_rng(0)
    values = []
    for value in model.get_weights():
        is_vector = value.ndim == 1 and np.issubdtype(value.dtype, np.floating)
        if is_vector and not np.any(value):
            value = 0.1 * random.standard_normal(value.shape)
        elif is_vector:
            value = random.uniform(0.5, 1.5, value.shape)
        values.append(value)
    model.set_weights(values)


def distances(first: Numbers, second: Numbers) -> np.ndarray:
    """The distances between corresponding tensors."""
    return np.array([distance(a, b) for a, b in zip(first, second, strict=True)])


def functions_of(
    model: Any, batch_size: int = BATCH, *, jit_compile: bool = False
) -> tuple[Compute, Compute, Compute]:
    """Inference; a training step with the state after it; gradients with everything frozen.

    Each leaves the model's statistics and seeds of dropout as they were.
    """
    trainable = [getattr(each, "value", each) for each in model.trainable_variables]
    state = model.non_trainable_variables
    cotangent = np.random.default_rng(2).standard_normal((batch_size, CLASSES)).astype(np.float32)

    def gradients_of(images: tf.Tensor, *, training: bool) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            output = model(images, training=training)
            loss = tf.reduce_sum(output * tf.cast(cotangent, output.dtype))
        return [loss, *tape.gradient(loss, trainable)]

    def compute(program: Compute) -> Compute:
        function = tf.function(program, jit_compile=jit_compile, autograph=False)

        def run(images: tf.Tensor) -> Numbers:
            before = [each.numpy() for each in state]
            results = [each.numpy() for each in function(images)]
            after = [each.numpy() for each in state]
            for variable, value in zip(state, before, strict=True):
                variable.assign(value)
            return [*results, *after]

        return run

    return (
        compute(lambda images: [model(images, training=False)]),
        compute(lambda images: gradients_of(images, training=True)),
        compute(lambda images: gradients_of(images, training=False)[1:]),
    )


def shares_of_tolerance(
    compute: Compute, model: Any, pixels: np.ndarray, policy: str
) -> list[float]:
    """How far the plugin moves each result over the tolerance; it is on, and stays on.

    Returns:
        A share for each result, without the state and without those that rounding decides.
    """
    images = tf.constant(pixels)
    count = -len(model.non_trainable_variables) or None
    changed = compute(images)[:count]
    tf_interop.disable()
    stock = compute(images)[:count]
    of_pixels = compute(tf.constant(nudge(pixels)))[:count]
    weights = model.get_weights()
    model.set_weights([nudge(each) for each in weights])
    of_weights = compute(images)[:count]
    model.set_weights(weights)
    tf_interop.enable(policy)
    of_rounding = np.maximum(distances(of_pixels, stock), distances(of_weights, stock))
    moved = distances(changed, stock)
    # Gradients after a saturated gate may be zero. Whether anything passes such a gate depends on
    # the last bit, in stock TensorFlow as well, and zero gives no scale to compare with.
    return [
        share_of_tolerance(*each)
        for value, *each in zip(stock, moved, of_rounding, strict=True)
        if np.any(value) and each[1] <= MOST_OF_ROUNDING
    ]


def nudge(tensor: np.ndarray) -> np.ndarray:
    """The tensor with the last bit of every number changed; whole numbers as they are."""
    if not np.issubdtype(tensor.dtype, np.floating):
        return tensor
    return np.nextafter(tensor, tensor.dtype.type(np.inf))


def _changed(report: Any) -> str:
    """The nodes in units or stages, of all nodes of the graph."""
    return f"{report.operation_count} of {report.node_count}"


def measure_compiled(name: str) -> dict[str, Any]:
    """Runs one network in functions that XLA compiles, without the plugin and with it.

    Stages run on the CPU.

    Returns:
        A row of the result, as from `measure`; "stages" are those that XLA compiled.
    """
    os.environ["TF_INTEROP_HOST_STAGES"] = "1"
    start = time.perf_counter()
    model, pixels = _network_and_images(name)
    infer, _, frozen_gradients = functions_of(model, jit_compile=True)
    before = tf_interop.status().xla_calls
    tf_interop.enable("always")
    outputs = max(shares_of_tolerance(infer, model, pixels, "always"))
    shares = shares_of_tolerance(frozen_gradients, model, pixels, "always")
    status = tf_interop.status()
    if status.failures:
        raise ValueError(f"Expected no failure of the pass, got {status.failures}.")
    return {
        "image size": model.input_shape[1],
        "convolutions": sum(each.convolution_count for each in status.graphs),
        "stages": status.xla_calls.stages - before.stages,
        "outputs": outputs,
        "gradients": max(shares, default=None),
        "compared": f"{len(shares)} of {len(model.trainable_variables)}",
        "seconds": round(time.perf_counter() - start, 1),
    }


def agrees_compiled(row: dict[str, Any]) -> bool:
    """Whether there were stages, and rounding explains all differences."""
    return bool(row["stages"]) and agrees(row)


COMPILED_CASE = Case(
    title="Same results: keras.applications compiled by XLA",
    says="""
The architectures of keras.applications in functions with `jit_compile=True`, with every convolution
in a stage, compared with XLA alone, in batches of two of the smallest images that they take. Stages
run on the CPU here, in the reference kernels of tests. "Convolutions" and "stages" are those of
inference and of all gradients together. "Outputs" and "gradients" are the largest change as a share
of the tolerance, with normalization and dropout frozen. The tolerance is eight times the change
that altered last bits cause under XLA alone, plus four roundings; a share above 1 would be an
error. "Compared" counts the gradients that these bits move by at most a tenth: in the deepest
networks they change every digit of most gradients.
""",
    networks=application_names(),
    measure=measure_compiled,
    is_right=agrees_compiled,
)


CASE = Case(
    title="Same results: keras.applications",
    says="""
The architectures of keras.applications with all units on one core each, compared with stock
TensorFlow, in batches of two of the smallest images that they take, with one intra-op thread.
"Inference" and "training step" count the nodes in units among all nodes of the graph. "Left to
XLA" counts convolutions in functions that XLA compiles. "Numbers" compares the outputs of
inference, the loss and all gradients of a training step, and the state after it. If bits differ,
"outputs" and "gradients" are the largest change as a share of the tolerance, with normalization
and dropout frozen. The tolerance is eight times the change that altered last bits cause in stock
TensorFlow, plus four roundings; a share above 1 would be an error.
""",
    networks=application_names(),
    measure=measure,
    is_right=agrees,
)
