"""The speed of all cores at the same time."""

from __future__ import annotations

import os

import pytest

from tf_interop.measure import core_speed
from tf_interop.measure.core_speed import CoreSpeed


def test_a_core_is_slow_compared_with_its_own_fastest_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 4})
    seconds = {0: 1.0, 4: 3.0}  # a core may be slower by design
    monkeypatch.setattr(core_speed, "_seconds_on", lambda core: seconds[core])
    cores = CoreSpeed()
    assert cores.is_full()
    assert cores.fastest_seconds(probes=1) == seconds
    seconds[4] = 3.4
    assert cores.is_full()
    seconds[4] = 3.5
    assert not cores.is_full()
    assert not CoreSpeed({0: 1.0, 4: 3.0}).is_full()
    seconds |= {0: 0.8, 4: 3.0}
    assert cores.is_full()
    seconds[0] = 1.0
    assert not cores.is_full()


def test_probes_every_core_of_the_process() -> None:
    cores = os.sched_getaffinity(0)
    found = CoreSpeed().fastest_seconds(probes=2)
    assert found.keys() == cores
    assert all(0 < each < 1 for each in found.values())
    assert os.sched_getaffinity(0) == cores
