"""Pictures of timelines."""

from __future__ import annotations

import pathlib
import struct
import sys

import pytest
from report_values import network_plan, plan_without_figures

from tf_interop.errors import PlanError
from tf_interop.use.report.timeline_picture import save_timeline_picture


def test_draws_a_png(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    path = tmp_path / "timeline.png"
    save_timeline_picture(network_plan(simulated="made up"), ["batch 8"], path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert width > 1000 and height > 300
    assert "matplotlib.pyplot" not in sys.modules


def test_refuses_a_plan_without_times(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(PlanError, match=r"got one without\. Make it"):
        save_timeline_picture(plan_without_figures(), ["x"], tmp_path / "timeline.png")


def test_says_what_to_install(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PlanError, match=r"pip install 'tf-interop\[report\]'"):
        save_timeline_picture(network_plan(), ["x"], tmp_path / "timeline.png")


def test_says_where_it_could_not_write(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(PlanError, match="No such file or directory"):
        save_timeline_picture(network_plan(), ["x"], tmp_path / "none" / "timeline.png")
