"""Variants run and are timed in turns, and share nodes."""

from __future__ import annotations

import collections

import pytest
from tuning_graphs import FETCHES, branches, training_step

from tf_interop.tuning.step_bench import StepBench


def test_times_variants_by_turns() -> None:
    with StepBench() as bench:
        for name, sides in (("stock", (1, 3)), ("other", (1, 5))):
            bench.add(name, branches(sides), FETCHES)
        times = bench.time(["stock", "other"], budget_s=0.05)
    assert times["stock"].ratio == 1
    assert times["stock"].error == 0
    for each in times.values():
        assert each.median_ms > 0 and each.ratio > 0 <= each.error


def test_a_ratio_is_how_many_times_as_fast_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_s = {"stock": iter([0.9, 0.02, 0.04]), "other": iter([0.1, 0.01, 0.01])}
    with StepBench() as bench:
        monkeypatch.setattr(bench, "_turn", lambda name, count: [next(steps_s[name])])
        times = bench.time(["stock", "other"], budget_s=0)
    # The first round, which fills caches, does not count.
    assert (times["stock"].ratio, times["other"].ratio) == (1, 3)
    assert times["stock"].median_ms == pytest.approx(30)
    # The quartiles of 2 and 4 are 2.5 and 3.5.
    assert times["other"].error == pytest.approx(1 / 2**0.5)


def test_variants_of_a_training_step_share_variables_and_inputs() -> None:
    with StepBench() as bench:
        for name in ("stock", "other"):
            bench.add(name, training_step(), ["update"])
        times = bench.time(["stock", "other"], budget_s=0.01)
        operations = bench._graph.get_operations()
    assert times["other"].median_ms > 0
    counts = collections.Counter(each.type for each in operations)
    assert (counts["VarHandleOp"], counts["AssignSubVariableOp"]) == (1, 2)
    # Shared nodes are always ready, so nothing waits for them.
    assert [each.name for each in operations if each.type == "Conv2D" and each.control_inputs] == []
