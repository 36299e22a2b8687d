"""Variants are timed in turns, and share nodes."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import tensorflow as tf
from tuning_graphs import training_step

from tf_interop.tuning import step_bench
from tf_interop.tuning.step_bench import Variant, steps_of


def test_the_first_round_does_not_count_and_ratios_are_to_the_first_variant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps_s = {"stock": [0.9, 0.02, 0.04], "other": [0.1, 0.01, 0.01]}
    monkeypatch.setattr(step_bench, "_turn", lambda times, count: [times.pop(0)])
    stock, other = step_bench.compare_in_turns(steps_s, budget_s=0)
    assert dataclasses.astuple(stock) == pytest.approx(("stock", 30, 1, 0))
    # The quartiles of 2 and 4 are 2.5 and 3.5.
    assert dataclasses.astuple(other) == pytest.approx(("other", 10, 3, 1 / 2**0.5))


def test_variants_of_a_training_step_share_variables_and_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs: list[tf.Graph] = []
    make_session = step_bench._session_with

    def look(threads: int, graph: tf.Graph) -> Any:
        graphs.append(graph)
        return make_session(threads, graph)

    monkeypatch.setattr(step_bench, "_session_with", look)
    variants = [
        Variant("stock", training_step(), ["update"]),
        Variant("other", training_step(), ["update"]),
        Variant("one", training_step(), ["update"], intra_op_threads=1),
    ]
    with steps_of(variants) as steps:
        for step in steps.values():
            step()
    assert len(graphs) == 2  # Sessions
    operations = graphs[0].get_operations()
    counts = collections.Counter(each.type for each in operations)
    assert (counts["VarHandleOp"], counts["AssignSubVariableOp"]) == (1, 3)
    # Shared nodes are always ready, so nothing waits for them.
    assert [each.name for each in operations if each.type == "Conv2D" and each.control_inputs] == []
