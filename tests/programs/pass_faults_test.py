"""What happens to a program where the pass raises, is interrupted, takes too long or goes wrong."""

from __future__ import annotations

import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from absl import logging
from tensorflow.core.framework import graph_pb2, node_def_pb2
from unnoticed import IMAGE, conv, in_function, stages_run

import tf_interop
from tf_interop.errors import TimeLimitError
from tf_interop.graph import time_limit as time_limit_module
from tf_interop.graph.program import decode_stage, encode_stage
from tf_interop.graph.time_limit import check_time_limit, time_limit
from tf_interop.runtime import graph_pass as conv_stage_pass
from tf_interop.runtime import plugin as plugin_module
from tf_interop.runtime.graph_pass import run_conv_stage_pass
from tf_interop.runtime.settings import Policy, Settings

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


def branches(image: tf.Tensor) -> tf.Tensor:
    return conv(conv(image, 0), 1) + conv(image, 2)


make_branches = in_function(branches)


def expected_of_branches() -> np.ndarray:
    return branches(tf.constant(IMAGE)).numpy()


@pytest.fixture(name="logged")
def fixture_logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    logged: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *args, **_: logged.append(text % args))
    return logged


def assert_left_alone(logged: list[str], cause: str) -> None:
    """Two functions run as they are, and what was wrong is recorded and each cause logged once."""
    before = stages_run()
    for _ in range(2):
        np.testing.assert_array_equal(make_branches()(IMAGE), expected_of_branches())
    assert stages_run() == before
    status = tf_interop.status()
    assert all(cause in failure.cause for failure in status.failures)
    assert sum(failure.count for failure in status.failures) >= 2
    assert logged == [
        f"tf_interop left a graph as it was: {failure.cause}" for failure in status.failures
    ]
    for failure in status.failures:
        assert f"{failure.count} graphs left as they were: {failure.cause}" in str(status)
    assert status.graphs == ()


STEPS = ["find_convolutions", "_plan_stages", "check_stages", "rewrite_stages", "check_rewrite"]


@pytest.mark.parametrize("step", STEPS)
def test_a_pass_that_takes_too_long_changes_nothing(
    step: str, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    now = [0.0]
    original = getattr(conv_stage_pass, step)

    def slow(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        now[0] += 61
        return result

    monkeypatch.setattr(conv_stage_pass, step, slow)
    monkeypatch.setattr(time_limit_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    tf_interop.enable("always")
    assert_left_alone(logged, "TimeLimitError")


def test_a_longer_limit_lets_a_slow_pass_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    original = conv_stage_pass.rewrite_stages

    def slow(*arguments: Any) -> Any:
        now[0] += 61
        return original(*arguments)

    monkeypatch.setattr(conv_stage_pass, "rewrite_stages", slow)
    monkeypatch.setattr(time_limit_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    tf_interop.enable("always", pass_time_limit_s=100)
    before = stages_run()
    make_branches()(IMAGE)
    assert stages_run() > before
    assert tf_interop.status().failures == ()


def graph_of(width: int) -> graph_pb2.GraphDef:
    """`width` chains of three convolutions."""
    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder(tf.float32, IMAGE.shape)
        for _ in range(width):
            conv(conv(conv(image, 0), 1), 2)
    return graph.as_graph_def()


class Ticks:
    """A clock that counts how often it is looked at."""

    def __init__(self) -> None:
        self.count = 0

    def monotonic(self) -> float:
        self.count += 1
        return float(self.count)


def looks_at_the_clock(graph_def: graph_pb2.GraphDef, limit: float) -> int:
    ticks = Ticks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_limit_module, "time", ticks)
        run_conv_stage_pass(graph_def, Settings(Policy.ALWAYS, pass_time_limit_s=limit), "CPU")
    return ticks.count


def test_the_pass_looks_at_the_clock_in_every_loop_and_stops_at_once() -> None:
    small, large = graph_of(2), graph_of(8)
    count = looks_at_the_clock(large, 1e9)
    # Finding, independence: once for each of the 18 more convolutions.
    assert count - looks_at_the_clock(small, 1e9) >= 2 * 18
    # The clock stands at 1 where the limit begins, and at `count` at the last look.
    for limit in range(1, count - 1):
        with pytest.raises(TimeLimitError):
            looks_at_the_clock(large, limit)
    assert looks_at_the_clock(large, count - 1) == count


def test_of_limits_inside_each_other_the_earlier_end_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time_limit_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    with time_limit(5), time_limit(100):
        now[0] = 4.0
        check_time_limit()
        now[0] = 6.0
        with pytest.raises(TimeLimitError, match="5 s"):
            check_time_limit()
    check_time_limit()


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_refuses_a_limit_that_is_not_positive(limit: float) -> None:
    with pytest.raises(ValueError, match="pass_time_limit_s"):
        tf_interop.enable("always", pass_time_limit_s=limit)


def recurse() -> None:
    recurse()


def raise_(error: BaseException) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


FAULTS = {
    "MemoryError": raise_(MemoryError()),
    "RecursionError": recurse,
    "KeyboardInterrupt": raise_(KeyboardInterrupt()),
    "SystemExit": raise_(SystemExit(3)),
}


@pytest.mark.parametrize(("cause", "fault"), FAULTS.items(), ids=FAULTS)
def test_whatever_the_pass_raises_the_program_goes_on(
    cause: str, fault: Callable[[], None], monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    monkeypatch.setattr(plugin_module, "run_conv_stage_pass", lambda *_, **__: fault())
    tf_interop.enable("always")
    assert_left_alone(logged, cause)


@pytest.fixture(name="handlers")
def fixture_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)],
    ids=["interrupt", "terminate"],
)
def test_a_signal_during_the_pass_reaches_the_program_and_not_the_pass(
    number: signal.Signals, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = run_conv_stage_pass
    went_on = threading.Event()

    def signalled(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), number)
        for _ in range(1000):  # enough for the interpreter to look for signals
            pass
        result = original(*arguments, **options)
        went_on.set()
        return result

    monkeypatch.setattr(plugin_module, "run_conv_stage_pass", signalled)
    tf_interop.enable("always")
    function = make_branches()
    with pytest.raises(error):
        function(IMAGE)
    assert went_on.is_set()
    assert tf_interop.status().failures == ()
    before = stages_run()
    np.testing.assert_array_equal(function(IMAGE), expected_of_branches())
    assert stages_run() > before


def stage_of(graph_def: graph_pb2.GraphDef) -> node_def_pb2.NodeDef:
    """The stage with two convolutions."""
    stages = [node for node in graph_def.node if node.op == "TfInterop>ConvStage"]
    return max(stages, key=lambda node: len(decode_stage(node).operations))


def readers_of(graph_def: graph_pb2.GraphDef, name: str) -> list[tuple[node_def_pb2.NodeDef, int]]:
    return [
        (node, position)
        for node in graph_def.node
        for position, text in enumerate(node.input)
        if text.partition(":")[0] == name
    ]


def swap_outputs(graph_def: graph_pb2.GraphDef) -> None:
    name = stage_of(graph_def).name
    swapped = {name: f"{name}:1", f"{name}:1": name}
    for reader, position in readers_of(graph_def, name):
        reader.input[position] = swapped[reader.input[position]]


def drop_everything(graph_def: graph_pb2.GraphDef) -> None:
    del graph_def.node[:]


def change_the_padding(graph_def: graph_pb2.GraphDef) -> None:
    node = stage_of(graph_def)
    stage = decode_stage(node)
    stage.operations[0].attr["padding"].s = b"VALID"
    node.attr["program"].CopyFrom(encode_stage(stage).attr["program"])


# check_test.py has every kind of fault.
WRONG_GRAPHS = [swap_outputs, drop_everything, change_the_padding]


@pytest.mark.parametrize("spoil", WRONG_GRAPHS, ids=lambda spoil: spoil.__name__)
def test_a_wrong_graph_is_not_handed_over(
    spoil: Callable[[graph_pb2.GraphDef], None],
    monkeypatch: pytest.MonkeyPatch,
    logged: list[str],
) -> None:
    original = conv_stage_pass.rewrite_stages

    def rewrite(*arguments: Any) -> graph_pb2.GraphDef:
        graph_def = original(*arguments)
        before = graph_def.SerializeToString(deterministic=True)
        spoil(graph_def)
        assert graph_def.SerializeToString(deterministic=True) != before
        return graph_def

    monkeypatch.setattr(conv_stage_pass, "rewrite_stages", rewrite)
    tf_interop.enable("always")
    assert_left_alone(logged, "GraphError")
