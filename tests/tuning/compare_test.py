"""Comparing a graph with stock TensorFlow in new processes."""

from __future__ import annotations

import statistics
import types
from typing import Any

import msgspec
import pytest
import tensorflow as tf
from tuning_graphs import branches, training_step

from tf_interop.child_process import Ended
from tf_interop.errors import GraphError
from tf_interop.model.graphs import TracedGraph, trace
from tf_interop.planning.types import OURS, STOCK, XLA, ComparedStep, MeasuredStep
from tf_interop.tuning import compare
from tf_interop.tuning.compare import compare_with_stock, time_xla
from tf_interop.tuning.timed_steps import Timed


def timed(ratio: float, *, error: float = 0.01, way: str | None = "on 2 cores") -> Timed:
    steps = ComparedStep(STOCK, 20.0, 1.0, 0.0), ComparedStep(OURS, 20 / ratio, ratio, error)
    return Timed(steps, way)


def compare_made_up(
    results: list[Timed | str], monkeypatch: pytest.MonkeyPatch, budget_s: float = 0.0
) -> MeasuredStep:
    """Takes the results that it needs from the list; each takes a second."""
    count = len(results)

    def run(*_: Any) -> Ended:
        return Ended(0, msgspec.json.encode(results.pop(0)), "")

    monkeypatch.setattr(compare, "run_module", run)
    clock = types.SimpleNamespace(perf_counter=lambda: float(count - len(results)))
    monkeypatch.setattr(compare, "time", clock)
    return compare_with_stock(trace(branches()), budget_s=budget_s)


@pytest.mark.parametrize(
    ("ratios", "middle", "quantile"),
    [
        ([2.0, 1.5, 1.7, 1.9], 1.7, 3.182 * (5 / 4) ** 0.5),
        ([2.0, 1.5, 1.7, 1.9, 1.8], 1.8, 2.776 * (6 / 5) ** 0.5),
    ],
)
def test_says_the_middle_and_where_95_percent_of_programs_are(
    ratios: list[float], middle: float, quantile: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up: list[Timed | str] = [*map(timed, ratios)]
    found = compare_made_up(made_up, monkeypatch, budget_s=len(ratios) + 0.5)
    assert (found.stock_ms, found.ours.ratio, found.way) == (20.0, middle, "on 2 cores")
    assert found.ours.error == pytest.approx(statistics.stdev(ratios) * quantile)


@pytest.mark.parametrize(("budget_s", "count"), [(0.0, 3), (4.5, 4), (60.0, 6)])
def test_runs_processes_for_the_budget_but_three_in_any_case(
    budget_s: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up: list[Timed | str] = [timed(2.0, error=0.5) for _ in range(9)]
    found = compare_made_up(made_up, monkeypatch, budget_s)
    assert len(made_up) == 9 - count
    assert (found.ours.ratio, found.ours.error) == (2.0, 0.5)


def test_a_graph_that_one_process_still_tries_is_still_trying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert compare_made_up([timed(2), timed(2), timed(2, way=None)], monkeypatch).way is None


def test_a_process_that_fails_is_an_error_if_there_are_too_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few: list[Timed | str] = [timed(2.0), timed(2.0), "NotFoundError: no op"]
    with pytest.raises(GraphError, match="timed in a new process: NotFoundError: no op"):
        compare_made_up(few, monkeypatch)
    enough: list[Timed | str] = [timed(2.0), timed(2.0), timed(2.0), "out of memory"]
    assert compare_made_up(enough, monkeypatch, budget_s=9.0).ours.ratio == 2.0


def test_says_how_a_process_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "run_module", lambda *_: Ended(-9, b"", "one\ntwo\n"))
    assert time_xla(trace(branches()), limit_s=1) == "it was ended by SIGKILL; last it said: two"
    monkeypatch.setattr(compare, "run_module", lambda *_: Ended(None, b"", ""))
    assert time_xla(trace(branches()), limit_s=1) == "it took longer than 1 s"


def test_refuses_to_call_python() -> None:
    @tf.function(input_signature=[tf.TensorSpec((1, 8, 8, 4))])
    def function(images: tf.Tensor) -> tf.Tensor:
        called = tf.numpy_function(lambda each: each, [images], tf.float32)
        return tf.nn.conv2d(tf.ensure_shape(called, images.shape), tf.ones((1, 1, 4, 4)), 1, "SAME")

    with pytest.raises(ValueError, match="calls Python, at 'PyFunc'"):
        compare_with_stock(trace(function), budget_s=0.0)


def test_a_function_is_timed_with_xla_at_a_batch_size() -> None:
    filters = tf.Variable(tf.ones((3, 3, 4, 4)))

    @tf.function(input_signature=[tf.TensorSpec((None, 8, 8, 4))])
    def function(images: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(images, filters, 1, "SAME")

    step = time_xla(trace(function, batch_size=2), limit_s=120)
    assert isinstance(step, ComparedStep)
    assert (step.name, step.error) == (XLA, None)
    assert step.step_ms > 0 and step.ratio > 0


@pytest.mark.parametrize(
    ("traced", "results"),
    [(trace(branches()), ["joined:0"]), (trace(training_step()), ["update"])],
)
def test_what_has_side_effects_runs_for_no_result(traced: TracedGraph, results: list[str]) -> None:
    assert compare._work_of(traced, timed_s=1.0).results == results
