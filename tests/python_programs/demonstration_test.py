"""The demonstration, at small sizes."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import tf_interop

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ("NASNetMobile", "InceptionV3")


def test_tunes_both_networks_writes_plans_and_ends_in_a_sentence(tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("TF_INTEROP_HOST_STAGES", None)
    result = subprocess.run(
        [
            *(sys.executable, "python/examples/demonstration.py"),
            *("--image-size", "75", "--budget", "2s", "--plan-dir", str(tmp_path)),
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    differences = re.findall(r"stock TensorFlow's: (\S+), where the largest", result.stdout)
    assert all(float(each) < 1e-4 for each in differences)
    assert len(differences) == 2
    for name, convolutions in zip(NAMES, (356, 94), strict=True):
        (graph,) = tf_interop.load_plan(tmp_path / f"{name}.json").graphs
        assert (graph.convolution_count, graph.mode) == (convolutions, "inference")
        said = "a step takes" if graph.narrow_units else "stock TensorFlow is fastest here"
        assert re.search(f"^{name}, batch 1, 75x75: {said}", result.stdout, re.MULTILINE)
