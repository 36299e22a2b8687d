"""Modules in processes of their own."""

from __future__ import annotations

import pathlib
import signal
import subprocess
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


def test_a_process_ends_with_the_one_that_started_it(
    module: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    started, ended = tmp_path / "started", tmp_path / "ended"
    module.write_text(
        "import pathlib, time\n"
        f"pathlib.Path({str(started)!r}).touch()\n"
        "time.sleep(3)\n"
        f"pathlib.Path({str(ended)!r}).touch()\n"
    )
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        f"from tf_interop.child_process import run_module; run_module({module.stem!r}, b'', 60.0)"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as parent:
        end = time.monotonic() + 60
        while not started.exists() and time.monotonic() < end:
            time.sleep(0.05)
        parent.send_signal(signal.SIGTERM)
    assert started.exists()
    time.sleep(4)
    assert not ended.exists()


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
