"""Pictures of timelines."""

from __future__ import annotations

import pathlib
import struct
import sys
from typing import Any

import pytest
from report_values import network_plan, plan_without_values

from tf_interop.errors import PlanError
from tf_interop.planning.types import GraphPlan, GraphPrediction, Plan, UnstagedConvolution
from tf_interop.report.timeline_picture import save_timeline_picture


def test_draws_a_png(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    path = tmp_path / "timeline.png"
    save_timeline_picture(network_plan(simulated="made up"), path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert width > 1000 and height > 300
    assert "matplotlib.pyplot" not in sys.modules


def test_says_what_a_plan_lacks_and_what_it_is_of(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure_module = pytest.importorskip("matplotlib.figure")
    figures = []

    class Kept(figure_module.Figure):  # type: ignore[misc, name-defined]
        def savefig(self, *arguments: Any, **options: Any) -> None:
            figures.append(self)
            super().savefig(*arguments, **options)

    monkeypatch.setattr(figure_module, "Figure", Kept)
    unstaged = UnstagedConvolution("a", "GEMM", 2500.0, 10, before_stage=0)
    prediction = GraphPrediction(2500.0, 2500.0, 10, 10, None, "exact", unmeasured_count=2)
    graph = GraphPlan("f" * 16, 3, (), 8, prediction, (unstaged,), mode="training")
    plan = Plan((graph,), made_with={"backend": "host"})
    save_timeline_picture(plan, tmp_path / "timeline.png")
    [figure] = figures
    [axes] = figure.axes
    title = axes.get_title(loc="left")
    assert title.startswith("batch 8, training, one after another: 2.500 ms, sum of measured")
    assert "incomplete: 1 of 3" in title
    assert axes.get_xlabel() == "ms"
    assert axes.get_xlim()[1] == pytest.approx(2.525)
    assert "say nothing of any GPU" in figure.get_suptitle()


def test_refuses_a_plan_without_times(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(PlanError, match="predicted times"):
        save_timeline_picture(plan_without_values(), tmp_path / "timeline.png")


def test_says_what_to_install(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PlanError, match="matplotlib"):
        save_timeline_picture(network_plan(), tmp_path / "timeline.png")


def test_says_where_it_could_not_write(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(PlanError, match="No such file or directory"):
        save_timeline_picture(network_plan(), tmp_path / "none" / "timeline.png")
