"""The devices of this process: their full names, their presence, and how they are measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf

from python.benchmarks.divided_training import make_devices
from python.benchmarks.result_file import in_new_process
from tf_interop import tensorflow_internals
from tf_interop.errors import PlanError
from tf_interop.parallel.costs import local_devices
from tf_interop.parallel.costs.devices import Device, DeviceGraph, save_device_graph
from tf_interop.parallel.costs.local_devices import full_device_names, measure_devices
from tf_interop.planning.types import ValueSource


def test_short_names_are_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert full_device_names(["/device:GPU:1", "CPU:0", "/job:w/task:2/device:CPU:0"]) == (
        "/job:localhost/replica:0/task:0/device:GPU:1",
        "/job:localhost/replica:0/task:0/device:CPU:0",
        "/job:w/replica:0/task:2/device:CPU:0",
    )
    monkeypatch.setattr(tensorflow_internals, "local_task", lambda: ("worker", 1))
    assert full_device_names(["/device:CPU:0"]) == ("/job:worker/replica:0/task:1/device:CPU:0",)


@pytest.mark.parametrize("name", ["", "GPU", "/device:GPU", "/job:worker/task:1", "gpu zero", "/:"])
def test_refuses_names_of_no_device(name: str) -> None:
    with pytest.raises(PlanError, match=f"'{name}' is not the name of a device"):
        full_device_names([name])


def test_refuses_two_names_of_one_device() -> None:
    with pytest.raises(PlanError, match=r"'CPU:0' and '/cpu:0' both mean the device /job:"):
        full_device_names(["CPU:0", "/cpu:0"])


def measured() -> DeviceGraph:
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
    for table in (graph.bytes_per_s, graph.latency_s, graph.message_s):
        assert table[0][1] == table[1][0] >= 0
    assert graph.busy_s_of_message == graph.busy_s_of_byte == 0  # they send each other nothing
    assert graph.slowdown >= 1 and graph.memory_slowdown >= 1
    save_device_graph(graph, tmp_path / "devices.json")


def test_the_plugin_is_off_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[bool | None] = []
    option = tensorflow_internals.plugin_optimizers_option

    def measure(name: str, _: str) -> Device:
        options.append(option())
        return Device(name, 1.0, 1.0)

    monkeypatch.setattr(local_devices, "_measure_device", measure)
    before = option()
    tensorflow_internals.set_plugin_optimizers_option(True)
    try:
        measure_devices(["/device:CPU:0"])
        assert options == [False]
        assert option() is True
    finally:
        tensorflow_internals.set_plugin_optimizers_option(before)


def test_the_time_of_a_message_is_that_of_the_exchanges_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([local_devices._Time(5.0, 4.0), local_devices._Time(1.0, 2.0)])
    monkeypatch.setattr(local_devices, "_time", lambda run: next(times))
    # A device sends and receives.
    exchange = local_devices._time_exchange("/device:CPU:0", "/device:CPU:0", 4, 2)
    assert exchange == (4.0 / 8, 2.0 / 2 / 8)


def rolls_of_an_exchange() -> list[list[tuple[str, str, int]]]:
    """The device of each copy, that of the copy before it, and its number of readers."""
    names = make_devices(2)
    graphs: list[tf.Graph] = []

    def build(run: Callable[[], tf.Tensor]) -> object:
        graphs.append(tf.function(run).get_concrete_function().graph)
        return local_devices._Time(1.0, 0.0)

    def before(roll: tf.Operation) -> str:
        source = roll.inputs[0].op
        return source.device[-1] if source.type == "Roll" else ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_devices, "_time", build)
        local_devices._time_exchange(*names, 4, count=3)
    rolls = [[op for op in graph.get_operations() if op.type == "Roll"] for graph in graphs]
    return [
        [(op.device[-1], before(op), len(op.outputs[0].consumers())) for op in its] for its in rolls
    ]


def test_exchanged_values_travel_in_both_directions() -> None:
    exchange, stay = in_new_process(rolls_of_an_exchange)
    # All are used, so that TensorFlow leaves no message out.
    assert min(readers for *_, readers in [*exchange, *stay]) >= 1
    ways = [(before, device) for device, before, _ in exchange if before]
    assert sorted(ways) == [("0", "1")] * 2 + [("1", "0")] * 2
    assert {device for device, *_ in stay} == {"0"} and len(stay) == 3


def test_devices_slow_each_other_by_their_fastest_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([3.0, 2.0, 9.0, 1.0, 2.5, 1.0, 4.0, 1.0, 2.0, 1.0])
    monkeypatch.setattr(local_devices, "_time", lambda run: local_devices._Time(next(times), 0.0))
    devices = [Device(f"/device:CPU:{at}", 1.0, 1.0, pool=f"pool {at}") for at in range(2)]
    make = local_devices._convolution
    assert local_devices._slowdown(devices, make) == 2.0


def test_what_cores_do_while_they_send_is_a_share_of_what_they_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two cores, one sends for three of four seconds, and for 15 more for 15 messages more."""
    times = local_devices._Time

    def exchange(
        first: str, second: str, value_count: int, message_count: int = 1, count: int = 8
    ) -> object:
        if count == 1:
            return times(2.5, 0.0)
        if message_count > 1:
            return times(31.0, 15.0)
        return times(5.0, 3.0) if value_count > 1000 else times(1.0, 0.0)

    monkeypatch.setattr(local_devices, "_time_exchange", exchange)
    monkeypatch.setattr(local_devices, "_time", lambda run: times(1.0, 2.0))
    monkeypatch.setattr(
        local_devices, "_measure_device", lambda name, _: Device(name, 1.0, 1.0, pool=name)
    )
    names = [f"/job:worker/task:{task}/device:CPU:0" for task in range(2)]
    monkeypatch.setattr(local_devices, "_convolution", lambda name: lambda: None)
    monkeypatch.setattr(local_devices, "_copy", lambda name: lambda: None)
    graph = local_devices._measure(names)
    large, small = local_devices._MESSAGE_VALUES[1], local_devices._MESSAGE_VALUES[0]
    assert graph.busy_s_of_byte == pytest.approx(3 / 2 / (4 * (large - small)))
    assert graph.busy_s_of_message == pytest.approx(1 / 2)
    assert graph.call_s == 2.5
