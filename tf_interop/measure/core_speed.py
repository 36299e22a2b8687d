"""The speed of a CPU's cores, all at the same time.

The host of a virtual machine may run two of its cores on the two threads of one real core, for
seconds. Both then have little more than half their speed, which no counter of the system shows.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping
from concurrent import futures

_WORK = bytes(2**18)  # about 0.3 ms; it fits into the cache of any core
_FULL_SPEED = 1.15
"""A core has its full speed if a probe takes at most this many times as long as its fastest one."""


class CoreSpeed:
    """Probes whether all cores of this process have their full speed at the same time.

    A probe takes about a millisecond. Run it while nothing else of this process runs.
    """

    def __init__(self, fastest_seconds: Mapping[int, float] | None = None) -> None:
        """Begins with the times of other probes, by core; see `fastest_seconds`."""
        self._fastest_seconds = dict(fastest_seconds or {})
        self._cores = sorted(os.sched_getaffinity(0))
        self._threads = futures.ThreadPoolExecutor(len(self._cores), "core_speed")

    def is_full(self) -> bool:
        """Probes all cores."""
        # Each core has a speed of its own: some are made for efficiency.
        is_full = True
        for core, seconds in zip(
            self._cores, self._threads.map(_seconds_on, self._cores), strict=True
        ):
            fastest = min(seconds, self._fastest_seconds.get(core, seconds))
            self._fastest_seconds[core] = fastest
            is_full = is_full and seconds <= _FULL_SPEED * fastest
        return is_full

    def fastest_seconds(self, probes: int = 60) -> dict[int, float]:
        """The time of a probe at full speed by core, after some seconds of probing."""
        for _ in range(probes):
            self.is_full()
            time.sleep(0.02)
        return self._fastest_seconds


def _seconds_on(core: int) -> float:
    """The time that a fixed work takes on a core."""
    with contextlib.suppress(OSError):  # not allowed in some sandboxes
        os.sched_setaffinity(0, {core})  # of this thread
    begin = time.perf_counter()
    hashlib.blake2b(_WORK).digest()  # without Python's lock, and full of independent operations
    return time.perf_counter() - begin
