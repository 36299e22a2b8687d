"""Runs one request of a benchmark in a process of its own, whatever becomes of it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable

import msgspec

from tf_interop.benchmark.child import Outcome, Request
from tf_interop.benchmark.result import Failure, FailureKind
from tf_interop.child_process import child_environment, describe_end, module_command
from tf_interop.tensorflow_messages import CHATTER

_SECONDS_BETWEEN_LOOKS = 0.1
_LINES_SHOWN = 5


def run_child(
    request: Request,
    timeout_seconds: float,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    module: str = "tf_interop.benchmark.child",
) -> Outcome:
    """Runs a request in a new process.

    Args:
        request: what to do.
        timeout_seconds: when to kill it.
        should_stop: asked while it runs; it is killed where that is True.
        module: what to run; it takes the files of request and outcome.

    Returns:
        What it gave; a failure where it gave nothing; an empty outcome where it was stopped.
    """
    with tempfile.TemporaryDirectory(prefix="tf_interop_benchmark_") as name:
        folder = pathlib.Path(name)
        request_path, outcome_path = folder / "request.json", folder / "outcome.json"
        request_path.write_bytes(msgspec.json.encode(request))
        with (folder / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                module_command(module, request_path, outcome_path),
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the parent, which decides; and what the process starts ends with it.
                start_new_session=True,
            )
        end = time.monotonic() + timeout_seconds
        try:
            while process.poll() is None and not should_stop() and time.monotonic() < end:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_SECONDS_BETWEEN_LOOKS)
        finally:
            # Once it has ended its number may be another process's.
            has_ended = process.poll() is not None
            if not has_ended:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if outcome_path.exists() and has_ended:
            return msgspec.json.decode(outcome_path.read_bytes(), type=Outcome)
        if should_stop():
            return Outcome()
        if not has_ended:
            message = f"the process took longer than {timeout_seconds:g} s"
            return Outcome(failure=Failure(FailureKind.TIMED_OUT, message))
        said = (folder / "log.txt").read_text(errors="replace")
        return Outcome(failure=_crash(process.returncode, said))


def _crash(code: int, said: str) -> Failure:
    how = f"the process {describe_end(code)}"
    if code == -signal.SIGKILL:
        how += ", as the system does when its memory is used up"
    lines = [line for line in said.splitlines() if line.strip() and not re.match(CHATTER, line)]
    message = ": ".join(filter(None, [how, " | ".join(lines[-_LINES_SHOWN:])]))
    return Failure(FailureKind.CRASHED, message)
