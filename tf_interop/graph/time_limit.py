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
    """This thread's limit, in seconds of `time.monotonic`; TensorFlow optimizes in several."""

    seconds = math.inf
    ends_at = math.inf


_limit = _Limit()


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Makes `check_time_limit` raise in this thread once the block has run for `seconds`.

    A nested block gets no more time than the outer one has left.
    """
    before = _limit.seconds, _limit.ends_at
    _limit.seconds = seconds
    _limit.ends_at = min(_limit.ends_at, time.monotonic() + seconds)
    try:
        yield
    finally:
        _limit.seconds, _limit.ends_at = before


def check_time_limit() -> None:
    """Raises TimeLimitError after the time of the `time_limit` block that this runs in."""
    if time.monotonic() > _limit.ends_at:
        raise TimeLimitError(
            f"The pass took longer than {_limit.seconds:g} s for a graph. Give "
            "tf_interop.enable() a longer pass_time_limit_s."
        )


class _CollectionPause:
    """Pauses garbage collection while any pass runs.

    A pass makes many objects and no cycles. The collections it would trigger walk all of
    TensorFlow's objects and took 40 percent of the time for a graph of 6,000 nodes.

    It sets the threshold instead of calling `gc.disable`, because programs use that themselves, and
    their choice has to survive the pass.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0  # guarded by _lock
        self._thresholds = gc.get_threshold()  # from before the first pass
        os.register_at_fork(after_in_child=self._end_in_child)

    def __enter__(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._thresholds = gc.get_threshold()
                gc.set_threshold(0)
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._restore()

    def _restore(self) -> None:
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*self._thresholds)

    def _end_in_child(self) -> None:
        # The child lacks the threads that run a pass.
        self._lock = threading.Lock()
        if self._depth:
            self._depth = 0
            self._restore()


collection_pause = _CollectionPause()
