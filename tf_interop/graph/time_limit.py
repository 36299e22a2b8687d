"""A limit on how long the graph pass may take.

The pass runs inside TensorFlow, on a thread that nobody can stop: it looks at the time by itself,
between its steps and in the loops that take more than linear time.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator

from tf_interop.errors import TimeLimitError


class _Limit(threading.local):
    """The limit of this thread, in seconds of `time.monotonic`: graphs are optimized in several."""

    seconds = math.inf
    ends_at = math.inf


_limit = _Limit()


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Lets `check_time_limit` raise in this thread when the block has taken so many seconds.

    A block inside of another has no longer than that has left.
    """
    before = _limit.seconds, _limit.ends_at
    _limit.seconds = seconds
    _limit.ends_at = min(_limit.ends_at, time.monotonic() + seconds)
    try:
        yield
    finally:
        _limit.seconds, _limit.ends_at = before


def check_time_limit() -> None:
    """Does nothing outside of a `time_limit` block.

    Raises:
        TimeLimitError: the block has taken longer than its limit.
    """
    if time.monotonic() > _limit.ends_at:
        raise TimeLimitError(
            f"The pass took longer than {_limit.seconds:g} s for a graph. Give "
            "tf_interop.enable() a longer pass_time_limit_s."
        )
