"""A program goes on if the pass raises, is interrupted, takes too long or goes wrong."""

from __future__ import annotations

import gc
import os
import signal
import threading
import types
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from unnoticed import IMAGE, conv, in_function, run_python, stages_run_by

import tf_interop
from tf_interop.errors import TimeLimitError
from tf_interop.graph import time_limit as time_limit_module
from tf_interop.graph.program import CONV_STAGE_OP
from tf_interop.runtime import graph_pass
from tf_interop.runtime import plugin as plugin_module
from tf_interop.runtime.graph_pass import change_graph
from tf_interop.runtime.kernel_library import HandedGraph
from tf_interop.runtime.plugin import get_plugin

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


def branches(image: tf.Tensor) -> tf.Tensor:
    return conv(conv(image, 0), 1) + conv(image, 2)


make_branches = in_function(branches)


def stages_of(function: Any) -> int:
    """Counts the stages of a call, and checks its result."""
    return stages_run_by(lambda: function(IMAGE), branches(tf.constant(IMAGE)))


def assert_left_alone(logged: list[str], cause: str) -> None:
    """Two functions run unchanged; failures are recorded, and each cause is logged once."""
    tf_interop.enable("always")
    assert [stages_of(make_branches()) for _ in range(2)] == [0, 0]
    status = tf_interop.status()
    assert all(cause in failure.cause for failure in status.failures)
    assert sum(failure.count for failure in status.failures) >= 2
    assert logged == [
        f"tf_interop left a graph unchanged: {failure.cause}" for failure in status.failures
    ]
    for failure in status.failures:
        assert failure.cause in str(status)
    assert status.graphs == ()


STEPS = ["find_convolutions", "_plan_stages", "check_stages", "rewrite_stages", "check_rewrite"]


@pytest.mark.parametrize("step", STEPS)
def test_a_pass_that_takes_too_long_changes_nothing(
    step: str, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    original, now = getattr(graph_pass, step), [0.0]

    def slow(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        now[0] += 61
        return result

    monkeypatch.setattr(time_limit_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(graph_pass, step, slow)
    assert_left_alone(logged, "longer pass_time_limit_s")
    tf_interop.enable("always", pass_time_limit_s=1000)
    assert stages_of(make_branches()) > 0


@pytest.mark.parametrize("is_on", [True, False])
def test_pauses_garbage_collection_only_while_the_pass_runs(
    is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, seen = graph_pass.find_convolutions, []

    def find_convolutions(*arguments: Any, **options: Any) -> Any:
        seen.append(gc.isenabled())
        return original(*arguments, **options)

    monkeypatch.setattr(graph_pass, "find_convolutions", find_convolutions)
    tf_interop.enable("always")
    try:
        if not is_on:
            gc.disable()
        assert stages_of(make_branches()) > 0
        assert gc.isenabled() == is_on
    finally:
        gc.enable()
    assert set(seen) == {False}
    # A process that is forked during a pass collects garbage.
    with time_limit_module.collection_pause():
        child = os.fork()
        if not child:
            os._exit(not gc.isenabled())
        assert os.waitpid(child, 0)[1] == 0


WAITING = """
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from tf_interop.runtime.plugin import get_plugin
    from unnoticed import IMAGE, conv
    tf_interop.enable("always")
    tf.config.experimental.set_synchronous_execution(False)

    def run():
        inner = tf.function(
            lambda x: conv(x, 0) + conv(x, 1),
            autograph=False,
            experimental_attributes={{"_noinline": True}},
        )
        outer = tf.function(lambda x: inner(x) * 1, autograph=False)
        outer = outer.get_concrete_function(tf.constant(IMAGE))
        result = outer(tf.constant(IMAGE))
        {call}
        np.testing.assert_array_equal(result, conv(IMAGE, 0) + conv(IMAGE, 1))
"""


def test_a_change_waits_for_functions_that_run_asynchronously() -> None:
    run_python(
        WAITING.format(call="change()")
        + """
    for change in (tf_interop.enable, tf_interop.disable):
        tf_interop.enable("always")
        run()
        assert tf_interop.status().failures == ()
    """
    )


def test_a_pass_that_cannot_get_the_interpreter_is_given_up() -> None:
    """TensorFlow holds it, and waits for the function whose graph the pass should change."""
    run_python(
        WAITING.format(call="tf.random.set_seed(1)")
        + """
    failures = ()
    while not failures:
        get_plugin().forget_reports()  # of a pass that got the interpreter before TensorFlow
        run()
        # A report is written once the pass has the interpreter.
        while not (failures := tf_interop.status().failures) and not tf_interop.status().graphs:
            pass
    [failure] = failures
    assert "The pass did not get Python's interpreter" in failure.cause, failure
    assert tf_interop.status().graphs == ()
    """
    )


def test_a_pass_that_does_not_end_is_given_up() -> None:
    is_given_up, is_over = threading.Event(), threading.Event()
    seen: list[object] = []

    def late(handed: HandedGraph) -> bool:
        serialized = handed.serialized
        assert is_given_up.wait(60)
        seen.extend([handed.item.device_type, handed.item.infer_output_shapes("conv")])
        with pytest.raises(TimeLimitError, match="longer pass_time_limit_s"):
            handed.set_result(serialized)
        is_over.set()
        return True

    tf_interop.enable("always")
    get_plugin().library.set_pass(late, 0.01)
    assert stages_of(make_branches()) == 0
    is_given_up.set()
    assert is_over.wait(60)
    assert seen == ["CPU", None]


def recurse() -> None:
    recurse()


@pytest.mark.parametrize(
    "error", [MemoryError, RecursionError, SystemExit], ids=lambda e: e.__name__
)
def test_whatever_the_pass_raises_the_program_goes_on(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        if error is RecursionError:
            recurse()
        raise error

    monkeypatch.setattr(plugin_module, "change_graph", fail)
    assert_left_alone(logged, error.__name__)


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_during_the_pass_reaches_the_program_and_not_the_pass(
    number: signal.Signals, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    went_on: list[object] = []

    def signalled(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), number)
        for _ in range(1000):  # enough for the interpreter to look for signals
            pass
        result = change_graph(*arguments, **options)
        went_on.append(result)
        return result

    def end(*_: object) -> None:
        raise error

    monkeypatch.setattr(plugin_module, "change_graph", signalled)
    tf_interop.enable("always")
    function = make_branches()
    before = signal.signal(number, end)
    try:
        with pytest.raises(error):
            function(IMAGE)
    finally:
        signal.signal(number, before)
    assert went_on
    assert tf_interop.status().failures == ()
    assert stages_of(function) > 0


# check_test.py has every kind of fault.
def test_a_wrong_graph_is_not_handed_over(
    monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    original = graph_pass.rewrite_stages

    def rewrite_wrongly(*arguments: Any, **options: Any) -> graph_pb2.GraphDef:
        graph_def = original(*arguments, **options)
        next(node for node in graph_def.node if node.op == CONV_STAGE_OP).input.reverse()
        return graph_def

    monkeypatch.setattr(graph_pass, "rewrite_stages", rewrite_wrongly)
    assert_left_alone(logged, "as before the rewrite")
