"""What a step would take, by a simulation of TensorFlow's executor on a CPU.

Items (narrow units, and single operations on all cores) become ready when what they read has run.
Ready ones start in the order in which they became ready, at most one for each inter-op thread.
Where those that run ask for more cores than there are, each gets its share. A narrow item asks for
its cores. An operation on all cores asks for what it uses of them: twice as fast as on one core is
two cores, and no faster than on one core is one, the rest of its time being spent on waking
threads.

The result is a model, not a measurement. It ignores caches and memory bandwidth, so it orders
candidates that are then measured.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """What the executor runs as one.

    Attributes:
        latency_us: how long it takes with the cores that it asks for.
        cores: how many it asks for, 1 or more.
        sources: the items that it waits for, by number.
    """

    latency_us: float
    cores: float
    sources: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Simulation:
    """A simulated step.

    Attributes:
        step_us: from the first item's start to the last one's end.
        company: for each item the share of the cores that it left which others asked for while it
            ran; on two cores, of its time in which another one ran.
    """

    step_us: float
    company: tuple[float, ...]


def simulate(items: Sequence[Item], *, cores: int, threads: int) -> Simulation:
    """Simulates a step.

    Args:
        items: acyclic.
        cores: of the machine.
        threads: inter-op threads.
    """
    waits = [len(set(item.sources)) for item in items]
    readers: list[list[int]] = [[] for _ in items]
    for number, item in enumerate(items):
        for source in set(item.sources):
            readers[source].append(number)
    ready = collections.deque(number for number, count in enumerate(waits) if not count)
    left = [item.latency_us for item in items]
    running: list[int] = []
    spent = [0.0] * len(items)
    accompanied = [0.0] * len(items)
    now = 0.0

    def finish(number: int) -> None:
        for reader in readers[number]:
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)

    while ready or running:
        while ready and len(running) < threads:
            number = ready.popleft()
            if left[number] > 0:
                running.append(number)
            else:
                finish(number)
        if not running:
            continue
        asked = sum(items[number].cores for number in running)
        speed = min(1.0, cores / asked)
        elapsed = min(left[number] for number in running) / speed
        now += elapsed
        still = []
        for number in running:
            spent[number] += elapsed
            own = items[number].cores
            accompanied[number] += elapsed * min(1.0, (asked - own) / max(1.0, cores - own))
            left[number] -= elapsed * speed
            if left[number] <= 1e-9:
                finish(number)
            else:
                still.append(number)
        running = still
    company = tuple(
        beside / whole if whole else 0.0 for beside, whole in zip(accompanied, spent, strict=True)
    )
    return Simulation(now, company)
