"""The limit on a graph pass's time, and the pause of garbage collection while it runs.

The pass runs inside TensorFlow, on a thread that nobody can stop. So it checks the time itself,
between its steps and in every loop that takes more than linear time.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import threading
import time
from collections.abc import Iterator

from tf_interop.errors import TimeLimitError


class _Limit(threading.local):
    """A thread's limit, in seconds of `time.monotonic`; TensorFlow optimizes in several threads."""

    seconds = 0.0
    ends_at = math.inf


_limit = _Limit()


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Makes `check_time_limit` raise in this thread once the block has run for `seconds`."""
    _limit.seconds, _limit.ends_at = seconds, time.monotonic() + seconds
    try:
        yield
    finally:
        _limit.ends_at = math.inf


def check_time_limit() -> None:
    """Raises TimeLimitError if the surrounding `time_limit` block has run too long."""
    if time.monotonic() > _limit.ends_at:
        raise TimeLimitError(
            f"The pass took longer than {_limit.seconds:g} s for a graph. Pass a longer "
            "pass_time_limit_s to tf_interop.enable()."
        )


@contextlib.contextmanager
def collection_pause() -> Iterator[None]:
    """Pauses garbage collection in the block.

    A pass makes many objects and no cycles. The collections it would trigger walk all of
    TensorFlow's objects and took 40 % of the time for a graph of 6,000 nodes. If two threads run
    passes, the second may run with collections again.
    """
    if not gc.isenabled():
        yield
        return
    thread = threading.get_ident()
    _paused_by.add(thread)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _paused_by.discard(thread)


_paused_by: set[int] = set()


def _resume_in_child() -> None:
    """Ends pauses in a forked process, which lacks the threads that would end them."""
    if _paused_by:
        _paused_by.clear()
        gc.enable()


os.register_at_fork(after_in_child=_resume_in_child)
