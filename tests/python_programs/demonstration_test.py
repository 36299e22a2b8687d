"""The demonstration, at small sizes."""

from __future__ import annotations

import pathlib
import re

from command_line import python_output

import tf_interop


def test_tunes_and_ends_in_a_sentence_and_a_report(tmp_path: pathlib.Path) -> None:
    printed = python_output(
        *("python/examples/demonstration.py", "--network", "InceptionV3", "--image-size", "75"),
        *("--budget", "2s", "--plan-dir", str(tmp_path)),
        XDG_CACHE_HOME=str(tmp_path),
        TF_INTEROP_HOST_STAGES="0",
    )
    [difference] = re.findall(r"stock TensorFlow's by (\S+) of", printed)
    assert float(difference) < 1e-4
    (graph,) = tf_interop.load_plan(tmp_path / "InceptionV3.json").graphs
    assert (graph.convolution_count, graph.mode) == (94, "inference")
    said = "times as fast as stock" if graph.changes_graph else "No significant gain"
    assert re.search(f"^InceptionV3, inference, batch 1: .*{said}", printed, re.MULTILINE)
    assert f"The page is in {tmp_path}/InceptionV3.html." in printed
    assert "<h1>InceptionV3</h1>" in (tmp_path / "InceptionV3.html").read_text()
