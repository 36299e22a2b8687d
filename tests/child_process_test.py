"""Modules in processes of their own."""

from __future__ import annotations

import pathlib
import sys
import time

import pytest

import tf_interop
from tf_interop.child_process import run_module


@pytest.fixture(name="module")
def fixture_module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The file of a module that processes can import."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "made_up_program.py"


def test_a_module_reads_a_request_and_writes_a_result(
    module: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Sources in the working directory do not hide this package.
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "tf_interop.py").write_text("raise SystemExit('the sources')")
    monkeypatch.chdir(tmp_path / "sources")
    module.write_text(
        "import pathlib, sys, tf_interop\n"
        "request, result = map(pathlib.Path, sys.argv[1:])\n"
        "result.write_bytes(request.read_bytes() * 2)\n"
        "print(sys.executable, flush=True)\n"
        "sys.exit(tf_interop.__file__)\n"
    )
    ended = run_module(module.stem, b"twice ", 60.0)
    assert (ended.code, ended.result) == (1, b"twice twice ")
    assert ended.said.split() == [sys.executable, tf_interop.__file__]


def test_kills_a_process_that_takes_too_long_or_should_stop(
    module: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    # Its children are killed too; they would go on using the device.
    grandchild = f"import time, pathlib; time.sleep(3); pathlib.Path('{tmp_path}/alive').touch()"
    module.write_text(
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {grandchild!r}])\n"
        "time.sleep(60)\n"
    )
    begin = time.monotonic()
    assert run_module(module.stem, b"", 1.0).code is None
    assert run_module(module.stem, b"", 60.0, should_stop=lambda: True).code is None
    assert time.monotonic() - begin < 30
    time.sleep(4)
    assert not (tmp_path / "alive").exists()
