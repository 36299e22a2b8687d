"""The load that other programs put on the cores during a measurement."""

from __future__ import annotations

import os
import pathlib

MOST_OTHER_LOAD = 0.2
"""A measurement is not reliable if other programs take this share of the cores or more."""
_STATISTICS = pathlib.Path("/proc/stat")
_IDLE_FIELDS = (3, 4)  # idle, and waiting for a disk


class OtherLoad:
    """The load that other programs put on this process's cores, from now on.

    Units that win on idle cores may lose on busy ones, where an operation on all cores waits for
    its slowest part. So results include this load.
    """

    def __init__(self) -> None:
        self._busy, self._all = _core_seconds()
        self._own = _own_seconds()

    def share(self) -> float:
        """The share of the cores' time, from 0 to 1; 0 if the system does not count it."""
        busy, everything = _core_seconds()
        others = (busy - self._busy) - (_own_seconds() - self._own)
        elapsed = everything - self._all
        return min(1.0, max(0.0, others / elapsed)) if elapsed > 0 else 0.0


def _own_seconds() -> float:
    """The time of this process on cores, with that of its ended children."""
    return sum(os.times()[:4])


def _core_seconds() -> tuple[float, float]:
    """Busy and total time of this process's cores. Time that the host takes away is busy."""
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    busy = total = 0
    try:
        lines = _STATISTICS.read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    for line in lines:
        name, *fields = line.split()
        if name in cores:
            ticks = [int(field) for field in fields[:8]]  # these include the time of guests
            total += sum(ticks)
            busy += sum(ticks) - sum(ticks[place] for place in _IDLE_FIELDS)
    tick = os.sysconf("SC_CLK_TCK")
    return busy / tick, total / tick
