"""Runs one request of a benchmark in a process of its own, whatever becomes of it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import msgspec

from tf_interop.benchmark.child import Answer, Request
from tf_interop.benchmark.result import Failure, FailureKind
from tf_interop.child_environment import child_environment
from tf_interop.tensorflow_messages import CHATTER

_SECONDS_BETWEEN_LOOKS = 0.1
_LINES_SHOWN = 5

# Python puts the working directory first; a source tree there is not the package that is measured.
_CHILD = """
import runpy
import sys
if sys.path[0] == "":
    del sys.path[0]
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def run_child(
    request: Request,
    timeout_seconds: float,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    module: str = "tf_interop.benchmark.child",
) -> Answer:
    """Runs a request in a new process.

    Args:
        request: what to do.
        timeout_seconds: when to kill it.
        should_stop: asked while it runs; it is killed where that is True.
        module: what to run; it takes the files of request and answer.

    Returns:
        What it answered; a failure where it did not; an empty answer where it was stopped.
    """
    with tempfile.TemporaryDirectory(prefix="tf_interop_benchmark_") as folder:
        request_path = pathlib.Path(folder, "request.json")
        answer_path = pathlib.Path(folder, "answer.json")
        log_path = pathlib.Path(folder, "log.txt")
        request_path.write_bytes(msgspec.json.encode(request))
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, module, str(request_path), str(answer_path)],
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the parent, which decides; and what the process starts ends with it.
                start_new_session=True,
            )
        try:
            failure = _wait(process, timeout_seconds, should_stop)
        finally:
            _kill(process)
        if failure is not None:
            return Answer(failure=failure)
        if answer_path.exists():
            return msgspec.json.decode(answer_path.read_bytes(), type=Answer)
        if should_stop():
            return Answer()
        return Answer(failure=_crash(process.returncode, log_path))


def _wait(
    process: subprocess.Popen[bytes], timeout_seconds: float, should_stop: Callable[[], bool]
) -> Failure | None:
    end = time.monotonic() + timeout_seconds
    while process.poll() is None and not should_stop():
        if time.monotonic() >= end:
            return Failure(
                FailureKind.TIMED_OUT, f"the process took longer than {timeout_seconds:g} s"
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_BETWEEN_LOOKS)
    return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    # Once it has ended its number may be another process's.
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _crash(code: int, log_path: pathlib.Path) -> Failure:
    how = f"the process ended with exit code {code}"
    if code < 0:
        how = f"the process was ended by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            how += ", as the system does when its memory is used up"
    said = log_path.read_text(errors="replace").splitlines()
    lines = [line for line in said if line.strip() and not re.match(CHATTER, line)][-_LINES_SHOWN:]
    return Failure(FailureKind.CRASHED, ": ".join([how, *([" | ".join(lines)] if lines else [])]))
