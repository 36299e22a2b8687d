"""Commands suppress TensorFlow's startup messages, and nothing else."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tf_interop.tensorflow_messages import LOG_LEVEL

ROOT = pathlib.Path(__file__).resolve().parents[1]
STARTS = "I0000 00:00:1795292847.034241    3447 port.cc:153] oneDNN custom operations are on."
# Compiled code writes past Python's stderr.
PROGRAM = f"""
import os, sys
from tf_interop.tensorflow_messages import tensorflow_hushed
with tensorflow_hushed():
    os.write(2, b"{STARTS}\\nF0000 needs AVX\\n")
    print("I0000 of Python", file=sys.stderr)
    if sys.argv[1:]:
        os.abort()
os.write(2, b"{STARTS} Again.\\n")
print(os.environ["{LOG_LEVEL}"])
"""


def _run(*command: str, log_level: str | None = None) -> subprocess.CompletedProcess[str]:
    others = {name: value for name, value in os.environ.items() if name != LOG_LEVEL}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    level = {} if log_level is None else {LOG_LEVEL: log_level}
    return subprocess.run(
        [sys.executable, *command],
        env={**others, **level, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("log_level", "ends"),
    [(None, False), (None, True), ("0", False), ("1", False), ("2", False)],
)
def test_leaves_out_only_the_start_of_tensorflow_unless_the_log_level_asks_for_it(
    log_level: str | None, ends: bool
) -> None:
    starts = log_level in ("0", "1")
    process = _run("-c", PROGRAM, *(["abort"] if ends else []), log_level=log_level)
    assert (process.returncode < 0) == ends
    others = [STARTS] * starts + [f"{STARTS} Again."] * (not ends)
    assert sorted(process.stderr.splitlines()) == ["F0000 needs AVX", *others, "I0000 of Python"]
    if log_level is not None:
        assert process.stdout == f"{log_level}\n"
