"""How much of the cores others take, from made-up statistics of the system."""

from __future__ import annotations

import os
import pathlib

import pytest

from tf_interop.tuning import other_load


@pytest.fixture
def statistics(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "stat"
    monkeypatch.setattr(other_load, "_STATISTICS", path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(other_load, "_own_seconds", iter([1.0, 1.5]).__next__)
    return path


def test_others_are_who_is_busy_and_not_this_process(statistics: pathlib.Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    statistics.write_text("cpu 9 9 9 9\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n")
    load = other_load.OtherLoad()
    # Of two seconds: 0.5 busy here, of which half a second is ours, 0.3 stolen, the rest idle.
    statistics.write_text(
        f"cpu0 {tick // 2} 0 0 {tick // 2} 0 0 0 0 0 0\n"
        f"cpu1 0 0 0 {7 * tick // 10} 0 0 0 {3 * tick // 10} 0 0\ncpu2 {tick} 0 0 0 0 0 0 0 0 0\n"
    )
    assert load.share() == pytest.approx(0.15)


def test_a_system_that_does_not_tell_has_no_others(statistics: pathlib.Path) -> None:
    assert other_load.OtherLoad().share() == 0
