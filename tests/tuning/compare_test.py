"""Comparing a graph with stock TensorFlow in new processes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import tensorflow as tf
from tuning_graphs import branches, training_step

from tf_interop.child_process import Ended
from tf_interop.errors import GraphError
from tf_interop.model.graphs import TracedGraph, trace
from tf_interop.planning.types import OURS, STOCK, XLA, ComparedStep
from tf_interop.tuning import compare
from tf_interop.tuning.compare import compare_with_stock, time_xla
from tf_interop.tuning.timed_steps import Timed


def timed(ratio: float, *, error: float = 0.01, way: str | None = "on 2 cores") -> Timed:
    steps = ComparedStep(STOCK, 20.0, 1.0, 0.0), ComparedStep(OURS, 20 / ratio, ratio, error)
    return Timed(steps, way)


def compare_made_up(results: list[Timed], monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    ended = [Ended(0, msgspec.json.encode(each), "") for each in results]
    monkeypatch.setattr(compare, "run_module", lambda *_: ended.pop(0))
    return compare_with_stock(trace(branches()), **options)


def test_says_the_middle_and_how_much_processes_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_MOST_PROCESSES", 5)
    made_up = [timed(each) for each in (2.0, 1.5, 1.7, 1.9, 1.8)]
    found = compare_made_up(made_up, monkeypatch, budget_s=60.0)
    stock, ours = found.compared
    assert (stock.step_ms, ours.ratio, found.way) == (20.0, 1.8, "on 2 cores")
    # Their standard deviation, for Student's t of four degrees of freedom.
    assert ours.error == pytest.approx(0.19235 * 2.776 * (6 / 5) ** 0.5, rel=1e-3)


def test_runs_three_processes_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    alike = [timed(2.0, error=0.5)] * 3
    found = compare_made_up(alike, monkeypatch, budget_s=0.0)
    assert (found.ours.ratio, found.ours.error) == (2.0, 0.5)
    tries = [timed(2.0), timed(2.0, way=None), timed(2.0)]
    assert compare_made_up(tries, monkeypatch, budget_s=0.0).way is None


def test_a_process_that_crashes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "run_module", lambda *_: Ended(-9, b"", "one\ntwo\n"))
    with pytest.raises(GraphError, match=r"ran its steps was ended by SIGKILL\. It said last: two"):
        compare_with_stock(trace(branches()), budget_s=0.0)
    assert "that compiled it was ended by SIGKILL" in time_xla(trace(branches()), limit_s=1)


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
    ("traced", "results"), [(trace(branches()), ["joined"]), (trace(training_step()), [])]
)
def test_what_has_side_effects_is_not_fetched(traced: TracedGraph, results: list[str]) -> None:
    assert compare._work_of(traced, timed_s=1.0).results == results
