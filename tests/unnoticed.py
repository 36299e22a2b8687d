"""Runs programs without and with the plugin, which they must not notice.

All values are small whole numbers, so sums are exact and results are compared to the bit.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import pathlib
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from command_line import ROOT, python_output

import tf_interop
from tf_interop.runtime.plugin import get_plugin

v1 = tf.compat.v1

TIMEOUT_S = 60


def digits(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float32)


IMAGE = digits(0, 2, 6, 6, 4)
FILTERS = [digits(seed + 1, 3, 3, 4, 4) for seed in range(4)]

Program = Callable[[tf.Tensor], Any]


def run_python(program: str, folder: pathlib.Path = ROOT, **environment: str) -> str:
    """Runs the text of a program in a process; returns its output."""
    return python_output("-c", textwrap.dedent(program), folder=folder, **environment)


def conv(image: tf.Tensor, number: int, name: str | None = None) -> tf.Tensor:
    return tf.nn.conv2d(tf.clip_by_value(image, -2, 2), FILTERS[number], 1, "SAME", name=name)


def branches(image: tf.Tensor) -> tf.Tensor:
    return conv(image, 0) + conv(image, 1)


def stages_run() -> int:
    return tf_interop.status().counters.stages_run


def stages_run_by(call: Callable[[], Any], expected: Any) -> int:
    """Counts the stages that a call runs, and compares its result."""
    before = stages_run()
    assert_same(tf.nest.flatten(call()), tf.nest.flatten(expected))
    return stages_run() - before


def is_rewritten() -> bool:
    """Whether a graph has stages or units."""
    return tf_interop.status().op_count > 0


@contextlib.contextmanager
def counted() -> Iterator[types.SimpleNamespace]:
    """The changes of the counters in the block, by the names of `Counters`."""
    new = types.SimpleNamespace()
    before = tf_interop.status().counters
    yield new
    after = tf_interop.status().counters
    for name, value in vars(after).items():
        if isinstance(value, int):
            setattr(new, name, value - getattr(before, name))
    counts = collections.Counter(after.fallbacks)
    new.fallbacks = dict(counts - collections.Counter(before.fallbacks))


def in_threads(call: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
    """Calls with each argument in its own thread, all together; raises the first error."""
    arguments = list(arguments)
    with concurrent.futures.ThreadPoolExecutor(len(arguments)) as pool:
        return [each.result(TIMEOUT_S) for each in [pool.submit(call, one) for one in arguments]]


def assert_same(ours: Iterable[Any], theirs: Iterable[Any], **tolerance: float) -> None:
    """Compares tensors one by one, to the bit without a tolerance."""
    compare: Any = np.testing.assert_allclose if tolerance else np.testing.assert_array_equal
    for one, other in zip(ours, theirs, strict=True):
        compare(one, other, **tolerance)


def outcome(make: Callable[[], Program], image: np.ndarray) -> list[np.ndarray] | type[Exception]:
    try:
        return [np.asarray(tensor) for tensor in tf.nest.flatten(make()(tf.constant(image)))]
    except tf.errors.OpError as error:
        return type(error)


def assert_unnoticed(make: Callable[[], Program], image: np.ndarray = IMAGE) -> None:
    """Makes and runs the program without and with the plugin; compares results or errors."""
    tf_interop.disable()
    expected = outcome(make, image)
    get_plugin().forget_reports()
    tf_interop.enable("always")
    result = outcome(make, image)
    assert tf_interop.status().failures == ()
    if isinstance(expected, type) or isinstance(result, type):
        assert result == expected
        return
    assert is_rewritten(), "the program has no stage: the test proves nothing"
    assert [each.dtype for each in result] == [each.dtype for each in expected]
    assert_same(result, expected)


def in_function(program: Program, **options: Any) -> Callable[[], Program]:
    return lambda: tf.function(program, autograph=False, **options)


def gradients(program: Program) -> Program:
    """The program's result and its gradient with respect to the image."""

    def compute(image: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(image)
            result = program(image)
            # Numbers are exact only while they are small.
            loss = tf.reduce_sum(tf.clip_by_value(result, -2, 2))
        return [result, tape.gradient(loss, image)]

    return compute


def in_session(
    build_and_run: Callable[[Any], Any], *, disable_model_pruning: bool = False
) -> Callable[[], Program]:
    """A program that builds and runs a Session's graph; it fails if the run does not end."""
    config = v1.ConfigProto(operation_timeout_in_ms=1000 * TIMEOUT_S)
    options = config.graph_options.rewrite_options
    options.disable_model_pruning = disable_model_pruning
    options.min_graph_nodes = -1
    options.use_plugin_optimizers = options.ON  # a Session has its own option

    def run(_: tf.Tensor) -> Any:
        with tf.Graph().as_default(), v1.Session(config=config) as session:
            return build_and_run(session)

    return lambda: run
