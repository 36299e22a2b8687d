"""The load of other programs."""

from __future__ import annotations

import os
import pathlib

import pytest

from tf_interop.measure import other_load
from tf_interop.measure.other_load import OtherLoad


def test_the_load_of_others_leaves_this_process_out(
    monkeypatch: pytest.MonkeyPatch, path: pathlib.Path
) -> None:
    monkeypatch.setattr(other_load, "_STATISTICS", path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    # User and system time of this process, then of its children.
    own = iter([(0.5, 0.5, 0.0, 0.0), *[(0.5, 0.6, 0.3, 0.1)] * 5])
    monkeypatch.setattr(os, "times", lambda: (*next(own), 0.0))
    tick = os.sysconf("SC_CLK_TCK")
    path.write_text("cpu 9 9 9 9\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n")
    load = OtherLoad()
    # Two seconds: 0.5 busy here, all of it ours; 0.3 stolen by the host; the rest idle.
    path.write_text(
        f"cpu0 {tick // 2} 0 0 {tick // 2} 0 0 0 0 0 0\n"
        f"cpu1 0 0 0 {7 * tick // 10} 0 0 0 {3 * tick // 10} 0 0\ncpu2 {tick} 0 0 0 0 0 0 0 0 0\n"
    )
    assert load.share() == pytest.approx(0.15)
    assert OtherLoad().share() == 0  # no time has passed
    path.unlink()
    assert OtherLoad().share() == 0
