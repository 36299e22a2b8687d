"""Runs modules in separate processes with this process's import path.

A separate process shares no memory, tuned algorithms, threads or compiled functions, a crash ends
only it, and it can be ended at any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

# With -c, Python searches the working directory first, where another copy of the package may be.
_RUN_MODULE = """
import ctypes
import os
import runpy
import signal
import sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit()
if sys.path[0] == "":
    del sys.path[0]
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def describe_end(code: int) -> str:
    """Describes a return code of `subprocess`, such as `was ended by SIGSEGV`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"was ended by signal {-code}"


LOG_NAME = "log.txt"
"""The file beside the request that has the output of the process so far."""
_SECONDS_BETWEEN_LOOKS = 0.1


_LONGEST_END = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """The end of a module's process.

    Attributes:
        code: a return code of `subprocess`; None if it was killed after its time or when told.
        result: what it has written into the file that its second argument names.
        said: the end of its output.
    """

    code: int | None
    result: bytes
    said: str


def run_module(
    module: str,
    request: bytes,
    timeout_seconds: float,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> Ended:
    """Runs a module in a new process, and kills it after `timeout_seconds` or `should_stop()`.

    The process ends with this one, or with the thread that calls. Its arguments are a file with the
    request, and one to write.
    """
    with tempfile.TemporaryDirectory(prefix="tf_interop_") as name:
        folder = pathlib.Path(name)
        request_path, result_path = folder / "request", folder / "result"
        log_path = folder / LOG_NAME
        request_path.write_bytes(request)
        result_path.touch()
        folders = [path or str(pathlib.Path.cwd()) for path in sys.path]
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _RUN_MODULE, str(os.getpid())),
                    *(module, str(request_path), str(result_path)),
                ],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches only the parent, and the process can be killed with its children.
                start_new_session=True,
            )
        end = time.monotonic() + timeout_seconds
        try:
            while process.poll() is None and not should_stop() and time.monotonic() < end:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_SECONDS_BETWEEN_LOOKS)
        finally:
            # Do not kill a process that has ended: its number may belong to another.
            code = process.poll()
            if code is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return Ended(code, result_path.read_bytes(), _end_of(log_path))


def _end_of(log: pathlib.Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LONGEST_END))
        return file.read().decode(errors="replace")
