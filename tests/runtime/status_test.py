"""What the plugin did: what the status says in words, and the file of a run."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import tensorflow as tf
from unnoticed import ROOT

import tf_interop
from tf_interop.runtime.kernel_library import Counters
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.status import Status

LIBRARY = str(get_plugin().library.build_info.path)


OFF = Status(is_on=True, why_off="")


def lines_of(counters: Counters) -> list[str]:
    return str(dataclasses.replace(OFF, counters=counters)).split("\n")


def test_counts_what_stages_did() -> None:
    lines = lines_of(Counters(7, {"no memory": 2}, {"no partition": 3}, filters_transformed=5))
    for line in (
        "  stages run: 7",
        "  constant filters transformed once: 5",
        "  fallback, 2 times: no memory",
        "  lanes without the options of the plan, 3 times: no partition",
    ):
        assert line in lines
    assert not any("constant filters" in line for line in lines_of(Counters(7, {})))


def test_says_what_each_of_several_devices_did() -> None:
    gpu = Counters(3, {"no memory": 2}, {"no partition": 1})
    devices = {"CPU:0": Counters(4, {}), "GPU:0": gpu}
    lines = lines_of(Counters(7, {"no memory": 2}, devices=devices))
    assert "  stages run: 7" in lines
    assert "  CPU:0, stages run: 4" in lines
    assert "  GPU:0: fallback, 2 times: no memory" in lines
    assert "  GPU:0: lanes without the options of the plan, 1 times: no partition" in lines
    assert "  fallback, 2 times: no memory" not in lines


def test_sets_graphs_of_earlier_settings_apart(plugin_as_after_import: None) -> None:
    @tf.function
    def branches(image: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(tf.nn.conv2d(image, tf.ones([size, size, 3, 4]), 1, "SAME") for size in (1, 3))

    image = tf.ones([1, 8, 8, 3])
    tf_interop.enable(policy="always")
    branches(image)
    made = tf_interop.status()
    assert made.stage_count == 1
    assert made.current_graphs == made.graphs
    assert "hold no more" not in str(made)

    tf_interop.enable()
    branches(image)
    left = tf_interop.status()
    assert left.graphs == made.graphs
    assert left.current_graphs == ()
    assert str(left).index("nothing is rewritten") < str(left).index("settings that hold no more")

    tf_interop.enable(policy="always")
    assert tf_interop.status().current_graphs == made.graphs


PROGRAM = """
import sys
import tensorflow as tf

@tf.function(jit_compile=False)
def branches(x):
    whole = tf.nn.conv2d(tf.cast(x, tf.int32), tf.ones([1, 1, 2, 2], tf.int32), 1, "SAME")
    single = [tf.nn.conv2d(x, tf.ones([side, side, 2, 2]), 1, "SAME") for side in (1, 3)]
    return tf.concat([tf.cast(whole, tf.float32), *single], -1)

branches(tf.ones([1, 4, 4, 2]))
sys.exit(int(sys.argv[1]))
"""


def test_run_writes_what_the_plugin_did_also_where_the_program_fails(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ["--policy", "always", "--save-run", "run.json"]
    result = subprocess.run(
        [sys.executable, "-m", "tf_interop", "run", *options, "program.py", "3"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_INTEROP_LIBRARY": LIBRARY},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 3, result.stderr
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["command"] == "program.py 3"
    assert record["stages_run"] == 1 and record["device"]
    [graph] = record["graphs"]
    assert (graph["convolutions"], graph["stages"], graph["device_type"]) == (2, 1, "CPU")
    assert [refusal["reason"] for refusal in graph["refusals"]] == ["dtype"]
