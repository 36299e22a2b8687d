"""How much of the cores other programs take while steps are timed.

What is faster on idle cores need not be on cores that others use: an operation on all cores then
waits for its slowest part. So who tunes is told.
"""

from __future__ import annotations

import os
import pathlib
import resource

_STATISTICS = pathlib.Path("/proc/stat")
_IDLE_FIELDS = (3, 4)  # idle, and waiting for a disk


class OtherLoad:
    """What others take of the cores that this process may use, since it was made."""

    def __init__(self) -> None:
        self._busy, self._all = _core_seconds()
        self._own = _own_seconds()

    def share(self) -> float:
        """Of the cores' time, from 0 to 1; 0 if the system does not tell."""
        busy, everything = _core_seconds()
        others = (busy - self._busy) - (_own_seconds() - self._own)
        elapsed = everything - self._all
        return min(1.0, max(0.0, others / elapsed)) if elapsed > 0 else 0.0


def _core_seconds() -> tuple[float, float]:
    """Busy time of this process' cores, of virtual ones what the host took too, and all time."""
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    tick = os.sysconf("SC_CLK_TCK")
    busy = everything = 0.0
    try:
        lines = _STATISTICS.read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    for line in lines:
        name, *fields = line.split()
        if name in cores:
            ticks = [int(field) for field in fields[:8]]  # what guests take is in these already
            everything += sum(ticks) / tick
            busy += (sum(ticks) - sum(ticks[place] for place in _IDLE_FIELDS)) / tick
    return busy, everything


def _own_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
