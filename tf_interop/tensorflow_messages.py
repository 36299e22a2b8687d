"""Keeps TensorFlow's startup messages out of the output of commands.

TensorFlow prints some of them before it reads its own log level (2.21: two lines for each of the
two libraries that it loads), so the level alone does not suppress them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from tf_interop.measure.device import visible_gpus

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
CHATTER = r"[IW]\d{4} |WARNING: All log messages before|To enable the following"
"""The start of the lines that TensorFlow prints at every log level."""

# A separate process: if the import ends this process, its last message is still printed.
_FILTER = """
import re, sys
for line in sys.stdin.buffer:
    if not re.match(sys.argv[1].encode(), line):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""


@contextlib.contextmanager
def tensorflow_hushed() -> Iterator[None]:
    """Suppresses TensorFlow's messages, except errors, during its import and afterwards.

    Without a GPU it also suppresses errors, because CUDA does not start. TensorFlow's log level in
    the environment takes precedence.
    """
    if "tensorflow" in sys.modules:
        yield
        return
    if LOG_LEVEL not in os.environ:
        os.environ[LOG_LEVEL] = "2" if visible_gpus() else "3"
    wants_chatter = os.environ[LOG_LEVEL] not in ("2", "3")
    with contextlib.nullcontext() if wants_chatter else _lines_left_out(CHATTER):
        yield


@contextlib.contextmanager
def _lines_left_out(pattern: str) -> Iterator[None]:
    """Removes matching lines that compiled code writes to stderr, but none that Python writes."""
    stderr = sys.stderr
    try:
        is_process_stderr = stderr.fileno() == 2
    except (AttributeError, OSError, ValueError):
        is_process_stderr = False
    if not is_process_stderr:
        yield
        return
    stderr.flush()
    kept = os.dup(2)
    with (
        os.fdopen(kept, "w", encoding=stderr.encoding, errors=stderr.errors, buffering=1) as own,
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _FILTER, pattern],
            stdin=subprocess.PIPE,
            # Ctrl-C must reach only this process; the filter ends with it.
            start_new_session=True,
        ) as lines,
    ):
        assert lines.stdin is not None
        os.dup2(lines.stdin.fileno(), 2)
        lines.stdin.close()
        sys.stderr = own
        try:
            yield
        finally:
            sys.stderr = stderr
            os.dup2(kept, 2)
