"""Some random networks with updates of their variables; check_numbers.sh runs thousands."""

from __future__ import annotations

import pathlib

import pytest

from python.benchmarks import random_networks
from python.benchmarks.random_networks import (
    RandomNetwork,
    Updates,
    compare,
    is_right,
    run_script,
    worst_share,
)

pytestmark = pytest.mark.usefixtures("units_on_cpus")


@pytest.mark.slow
def test_results_after_and_during_updates_are_stocks() -> None:
    rows = {seed: compare(seed) for seed in range(32)}
    assert not [row | {"seed": seed} for seed, row in rows.items() if not is_right(row)]
    assert sum(row["folds"] for row in rows.values()) > len(rows)
    assert sum(row["during"] is not None for row in rows.values()) >= 5
    exact = compare(46)  # keeps a value, and folds nothing
    assert exact["same_bits"] and exact["kept"] and not exact["folds"]


class NoUpdates(Updates):
    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self.kinds = dict.fromkeys(self.kinds, lambda *_: None)


@pytest.mark.usefixtures("plugin_off")
def test_missed_updates_are_far_outside_of_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    network = RandomNetwork(0)
    stock, nudged = run_script(network), run_script(network, nudged=True)
    assert max(map(worst_share, run_script(network), stock, nudged)) == 0
    monkeypatch.setattr(random_networks, "Updates", NoUpdates)
    assert max(map(worst_share, run_script(network), stock, nudged)) > 100
