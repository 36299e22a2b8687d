"""Files that say what the plugin did in a run."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from report_values import run_record

from tf_interop.errors import ProfileError
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.run_record import load_run, save_run

ROOT = pathlib.Path(__file__).resolve().parents[2]

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


def test_a_record_is_read_as_it_was_written(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.json"
    save_run(run_record(), path)
    assert load_run(path) == run_record()


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("latency_us", 0, r"\$\.timings\[0\]\.latency_us"),
        ("what", "", r"\$\.timings\[0\]\.what"),
        ("batch_size", 0, r"\$\.timings\[0\]\.batch_size"),
    ],
)
def test_refuses_what_is_not_legal_with_the_place(
    tmp_path: pathlib.Path, place: str, value: object, message: str
) -> None:
    path = tmp_path / "run.json"
    save_run(run_record(), path)
    content = json.loads(path.read_text())
    content["timings"][0][place] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ProfileError, match=message):
        load_run(path)


def test_run_writes_what_the_plugin_did_also_where_the_program_fails(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    library = str(get_plugin().library.build_info.path)
    result = subprocess.run(
        [
            *(sys.executable, "-m", "tf_interop", "run", "--policy", "always"),
            *("--save-run", "run.json", "program.py", "3"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_INTEROP_LIBRARY": library},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 3, result.stderr
    record = load_run(tmp_path / "run.json")
    assert record.command == "program.py 3"
    assert record.stages_run == 1 and record.device
    [graph] = record.graphs
    assert (graph.convolution_count, graph.stage_count, graph.device_type) == (2, 1, "CPU")
    assert [refusal.reason.value for refusal in graph.refusals] == ["dtype"]
