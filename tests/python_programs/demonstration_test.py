"""The demonstration, at small sizes."""

from __future__ import annotations

import pathlib
import re

from command_line import python_output

import tf_interop


def test_tunes_both_networks_and_ends_in_a_sentence_and_a_report(tmp_path: pathlib.Path) -> None:
    printed = python_output(
        *("python/examples/demonstration.py", "--image-size", "75"),
        *("--budget", "2s", "--plan-dir", str(tmp_path)),
        XDG_CACHE_HOME=str(tmp_path),
        TF_INTEROP_HOST_STAGES="0",
    )
    differences = re.findall(r"stock TensorFlow's by (\S+) of", printed)
    assert len(differences) == 2 and all(float(each) < 1e-4 for each in differences)
    for name, convolutions in (("NASNetMobile", 356), ("InceptionV3", 94)):
        (graph,) = tf_interop.load_plan(tmp_path / f"{name}.json").graphs
        assert (graph.convolution_count, graph.mode) == (convolutions, "inference")
        said = "times as fast as stock" if graph.changes_graph else "No significant gain"
        assert re.search(f"^{name}, inference, batch 1: .*{said}", printed, re.MULTILINE)
        assert f"The report is in {tmp_path / name}.html." in printed
        assert f"<h1>{name}</h1>" in (tmp_path / f"{name}.html").read_text()
