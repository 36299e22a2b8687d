"""The devices of this process, measured: what holds whatever they take."""

from __future__ import annotations

import pytest

from python.benchmarks.result_file import in_new_process
from tf_interop.errors import PlanError
from tf_interop.parallel.costs import local_devices as module
from tf_interop.parallel.costs.devices import DeviceGraph, save_device_graph
from tf_interop.parallel.costs.local_devices import measure_devices
from tf_interop.planning.problem import ValueSource


def measured() -> DeviceGraph:
    from parallel.dividing import make_devices

    return measure_devices(make_devices(2))


def test_measures_devices_and_their_links(tmp_path: object) -> None:
    graph = in_new_process(measured)
    assert graph.names == ("/device:CPU:0", "/device:CPU:1")
    assert graph.source is ValueSource.MEASURED
    # They share the cores and the memory of this machine.
    assert graph.pools == (0, 0)
    memory = {device.memory_bytes for device in graph.devices}
    assert len(memory) == 1 and memory.pop() > 1 << 28
    for device in graph.devices:
        assert 1e8 < device.multiply_adds_per_s < 1e14
        assert 1e7 < device.memory_bytes_per_s < 1e14
    for table in (graph.bytes_per_s, graph.latency_s):
        assert table[0][1] == table[1][0] > 0
    save_device_graph(graph, tmp_path / "devices.json")


def test_rates_are_work_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_time", lambda run: 0.5)
    device = module._measure_device("/device:CPU:0", "/job:a/replica:0/task:1/device:CPU:0")
    assert device.multiply_adds_per_s == 8 * 56 * 56 * 64 * 3 * 3 * 64 / 0.5
    assert device.memory_bytes_per_s == 2 * 4 * (1 << 22) / 0.5
    assert device.pool == "CPUs of /job:a/task:1"


def test_a_message_takes_what_hops_add(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5.0, 1.0])
    monkeypatch.setattr(module, "_time", lambda run: next(times))
    assert module._time_message("/device:CPU:0", "/device:CPU:0", 4) == 4.0 / 8


def test_refuses_a_device_that_is_not_there() -> None:
    with pytest.raises(PlanError, match=r"Missing: .*CPU:7"):
        measure_devices(["/device:CPU:7"])
