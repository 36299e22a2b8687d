"""scripts/gpu.sh over fake tools: it runs its steps in order, even if some fail."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess

import pytest
from command_line import ROOT

SCRIPT = ROOT / "scripts/gpu.sh"
FIRST = "machine device configure build build_tests geometry algorithms transforms build_launch"

# A fake Python with TensorFlow.
SEES_GPU = 'case "$*" in *"import tensorflow"*) echo yes; exit;; esac;'


def _run(
    folder: pathlib.Path,
    python: str = "exit 7",
    script: str = SCRIPT.read_text(),
    gpu_test: str | None = None,
    **variables: str,
) -> tuple[list[list[str]], subprocess.CompletedProcess[str]]:
    """Runs the script in a tree where nothing can be built; also returns the lines of steps.txt."""
    tools = folder / "bin"
    tools.mkdir()
    (folder / "scripts").mkdir()
    copy = folder / "scripts/gpu.sh"
    copy.write_text(script)
    copy.chmod(0o755)
    (folder / "lists").mkdir()
    (folder / "lists/one.json").touch()
    for name, command in (("cmake", "exit 6"), ("python", python), ("nvidia-smi", "exit 9")):
        (tools / name).write_text(f"#!/bin/sh\n{command}\n")
        (tools / name).chmod(0o755)
    if gpu_test is not None:
        program = folder / "build/gpu/tests/cc/gpu_test"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{gpu_test}\n")
        program.chmod(0o755)
    ended = subprocess.run(
        [copy, folder / "results", "1000"],
        env={
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHON": str(tools / "python"),
            "LISTS": str(folder / "lists"),
            **variables,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=100,
    )
    lines = (folder / "results/steps.txt").read_text().splitlines()
    return [line.split(", ") for line in lines], ended


def test_an_algorithm_that_crashes_or_hangs_does_not_stop_the_others(
    tmp_path: pathlib.Path,
) -> None:
    script = SCRIPT.read_text()
    # The first of two convolutions has algorithms that crash and hang.
    steps, _ = _run(
        tmp_path,
        script=script.replace("--kill-after=5 60", "--kill-after=5 1"),
        gpu_test="""
            case "$*" in *list_tests*) printf 'All.\\n  a/0\\n  a/1\\n'; exit;; esac
            for number in 0 1 2 3; do
              [ "$number" -ge "$TF_INTEROP_FIRST_ALGORITHM" ] || continue
              echo "algorithm $number"
              case "$GTEST_SHARD_INDEX $number" in
                "0 0") kill -SEGV $$;;
                "0 2") exec sleep 30;;
              esac
              echo "tried $GTEST_SHARD_INDEX $number"
            done
            echo "[  PASSED  ] 1 test."
        """,
        STEPS="tests",
    )
    assert ["algorithms", "1"] in [step[:2] for step in steps]
    tried = re.findall("tried (.*)", (tmp_path / "results/algorithms.log").read_text())
    assert tried == ["0 1", "0 3", "1 0", "1 1", "1 2", "1 3"]


def test_steps_end_in_each_way_and_none_stops_another(tmp_path: pathlib.Path) -> None:
    steps, ended = _run(
        tmp_path,
        """
        case "$*" in
          *"import tensorflow"*) echo yes;;
          *save_device*) exec sleep 90;;
          *"tf_interop profile"*) [ -e again ] || { touch again; exit 3; };;
          *"tf_interop benchmark"*--training*) echo half a table; exit 9;;
          *"tf_interop benchmark"*) echo tables; exit 3;;
          *inception*) echo 2 skipped;;
          *) echo 1 passed, 2 skipped;;
        esac
        """,
        script=SCRIPT.read_text().replace("device                60", "device                1 "),
        gpu_test="""
        case "$*" in
          *Transformed*) echo "[  PASSED  ] 2 tests."; echo "[  SKIPPED ] 1 test.";;
          *) echo "[  PASSED  ] 0 tests."; echo "[  SKIPPED ] 2 tests.";;
        esac
        """,
    )
    names = [name for name, _, _ in steps]
    assert " ".join(names).startswith(FIRST)
    statuses = {name: int(status) for name, status, _ in steps}
    assert len(statuses) == len(steps)
    assert ended.returncode == sum(status != 0 for status in statuses.values())
    assert all(f"{name} (" in ended.stdout for name in names)
    expected = {
        "configure": 6,
        "device": 124,  # its limit
        **dict.fromkeys(("geometry", "module"), 77),  # all skipped
        **dict.fromkeys(("transforms", "op_tests"), 0),  # some skipped
        "profile": 0,  # continues in a new process after the device failed
        "inference": 0,  # a variant failed
        "training": 9,  # keeps the earlier tables
    }
    assert expected.items() <= statuses.items()
    assert (tmp_path / "results/tables.txt").read_text() == "tables\n"


@pytest.mark.parametrize(
    ("python", "variables", "steps", "said"),
    [
        ("exit 7", {"BACKEND": "host"}, "machine configure build packages profile check",
         "skipped inference"),
        # Without a GPU that TensorFlow sees no group that needs it.
        (SEES_GPU.replace("yes", "blind"), {"STEPS": "op launch"},
         "machine configure build build_launch launch packages", "TensorFlow sees no GPU"),
    ],
)  # fmt: skip
def test_skips_what_needs_a_gpu(
    python: str, variables: dict[str, str], steps: str, said: str, tmp_path: pathlib.Path
) -> None:
    done, ended = _run(tmp_path, f"{python} exit 7", **variables)
    assert [name for name, _, _ in done] == steps.split()
    assert said in ended.stdout
