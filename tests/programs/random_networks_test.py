"""Some random networks with updates of their variables; check_numbers.sh runs thousands."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from python.benchmarks.random_networks import (
    CASE,
    RandomNetwork,
    Updates,
    compare,
    is_right,
    run_script,
    worst_share,
)

ROOT = pathlib.Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.usefixtures("units_on_cpus")


def test_results_after_and_during_updates_are_stocks() -> None:
    rows = {seed: compare(seed) for seed in range(32)}
    assert not [row | {"seed": seed} for seed, row in rows.items() if not is_right(row)]
    assert sum(row["folds"] for row in rows.values()) > len(rows)
    assert sum(row["during"] is not None for row in rows.values()) >= 5
    assert any(row["same_bits"] and row["kept"] for row in rows.values())


@pytest.mark.usefixtures("plugin_off")
def test_a_stale_value_would_be_far_outside_of_the_tolerance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = RandomNetwork(0)
    stock, nudged = run_script(network), run_script(network, nudged=True)
    monkeypatch.setattr(Updates, "_restore", lambda *_: None)
    missed = run_script(network)
    assert max(map(worst_share, missed, stock, nudged)) > 100
    again = run_script(network)
    for one, other in zip(missed, again, strict=True):
        assert all(map(np.array_equal, one, other))


def test_the_committed_results_are_right() -> None:
    path = ROOT / "docs" / "results" / "random_networks.json"
    rows = json.loads(path.read_text())["rows"]
    assert [row["network"] for row in rows] == list(CASE.networks)
    assert all(map(CASE.is_right, rows))
