"""Variants run and are timed in turns, and share nodes."""

from __future__ import annotations

import collections
import contextlib
import dataclasses

import pytest
from tuning_graphs import FETCHES, branches, training_step

from tf_interop.tuning.step_bench import StepBench, Variant


def test_the_first_round_does_not_count_and_ratios_are_to_the_first_variant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps_s = {"stock": iter([0.9, 0.02, 0.04]), "other": iter([0.1, 0.01, 0.01])}
    variants = [
        Variant(name, branches(sides), FETCHES)
        for name, sides in (("stock", (1, 3)), ("other", (1, 5)))
    ]
    with contextlib.closing(StepBench(variants)) as bench:
        monkeypatch.setattr(bench, "_turn", lambda name, count: [next(steps_s[name])])
        stock, other = bench.time(budget_s=0)
    assert dataclasses.astuple(stock) == pytest.approx(("stock", 30, 1, 0))
    # The quartiles of 2 and 4 are 2.5 and 3.5.
    assert dataclasses.astuple(other) == pytest.approx(("other", 10, 3, 1 / 2**0.5))


def test_variants_of_a_training_step_share_variables_and_inputs() -> None:
    variants = [Variant(name, training_step(), ["update"]) for name in ("stock", "other")]
    with contextlib.closing(StepBench(variants)) as bench:
        _, other = bench.time(budget_s=0.01)
        [session] = bench._sessions.values()
        operations = session.graph.get_operations()
    assert other.step_ms > 0
    counts = collections.Counter(each.type for each in operations)
    assert (counts["VarHandleOp"], counts["AssignSubVariableOp"]) == (1, 2)
    # Shared nodes are always ready, so nothing waits for them.
    assert [each.name for each in operations if each.type == "Conv2D" and each.control_inputs] == []
