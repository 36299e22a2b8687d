"""The demonstration of stages, at small sizes."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import tf_interop

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_shows_both_networks_and_writes_plans(tmp_path: pathlib.Path) -> None:
    result = subprocess.run(
        [
            *(sys.executable, "python/examples/stages_demonstration.py"),
            *("--batch", "1", "--image-size", "75", "--plan-dir", str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    rows = {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for line in result.stdout.splitlines()
        if len(cells := line.strip("│┃ ").split("│")) == 3
    }
    assert "NO" not in result.stdout
    assert rows["stages"]
    assert result.stdout.count("same bits on one lane") == 2
    counts = {"googlenet": (57, 170), "inception_v3": (94, 281)}
    for name, convolutions in counts.items():
        plan = tf_interop.load_plan(tmp_path / f"{name}.json")
        assert tuple(graph.convolution_count for graph in plan.graphs) == convolutions
        assert any(len(stage.stage.lanes) > 1 for graph in plan.graphs for stage in graph.stages)
