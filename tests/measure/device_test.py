"""What a profile was measured on and what a process would run on. NVML is a stand-in here."""

from __future__ import annotations

import dataclasses
import os
import sys

import pytest
from fake_nvml import A100, H200, SECOND_H200, FakeNvml
from profile_values import GPU, HOPPER_SM

from tf_interop.measure import device as profiled_device
from tf_interop.measure.device import identify_device, running_device
from tf_interop.measure.nvidia import free_memory_bytes, has_nvidia_gpu, visible_gpus
from tf_interop.profile.types import why_foreign


@pytest.fixture(autouse=True)
def fixture_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(profiled_device, "_cudnn_version", lambda: "9.10.2")


def install(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> FakeNvml:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


# What the core would say.
DESCRIBED = dataclasses.replace(
    GPU, memory_bytes=150109880320, cuda="12.9", driver="", clocks_mhz={}
)


def test_a_process_runs_on_the_first_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = install(monkeypatch, FakeNvml(H200, A100))
    device = running_device("cudnn")
    assert device is not None
    assert dataclasses.replace(device, date=GPU.date, sm_limits=HOPPER_SM) == GPU
    assert nvml.open_count == 0


def test_memory_that_this_process_holds_is_free_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml(A100, H200))
    assert free_memory_bytes() == A100.memory // 2 + 1000
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert free_memory_bytes() == H200.memory // 2 + 1000
    install(monkeypatch, FakeNvml(A100, H200, refused=("nvmlDeviceGetComputeRunningProcesses",)))
    assert free_memory_bytes() == H200.memory // 2


@pytest.mark.parametrize("nvml", [FakeNvml(), FakeNvml(has_driver=False)])
def test_a_process_without_gpu_runs_on_none(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml
) -> None:
    install(monkeypatch, nvml)
    assert running_device("cudnn") is None
    assert not has_nvidia_gpu()
    assert free_memory_bytes() is None
    install(monkeypatch, FakeNvml(H200, refused=("nvmlDeviceGetMemoryInfo",)))
    assert free_memory_bytes() is None


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("1", ["GPU-bbbb0000"]),
        ("2,0", ["GPU-aaaa2222", "GPU-aaaa1111"]),
        ("0,-1,1", ["GPU-aaaa1111"]),
        ("7,0", []),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("GPU-bbbb,0", ["GPU-bbbb0000", "GPU-aaaa1111"]),
        ("GPU-aaaa2222", ["GPU-aaaa2222"]),
        # More than one begins so.
        ("GPU-aaaa", []),
    ],
)
def test_reads_cuda_visible_devices_as_cuda_does(
    monkeypatch: pytest.MonkeyPatch, variable: str, expected: list[str]
) -> None:
    gpus = (H200, A100, SECOND_H200)
    install(monkeypatch, FakeNvml(*(dataclasses.replace(gpu, name=gpu.uuid) for gpu in gpus)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert [gpu.name for gpu in visible_gpus()] == expected
    # The machine has it, whatever the process sees.
    assert has_nvidia_gpu()


def test_what_a_gpu_does_not_answer_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = (
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetNumGpuCores",
        "nvmlDeviceGetMemoryInfo",
        "nvmlSystemGetCudaDriverVersion_v2",
    )
    install(monkeypatch, FakeNvml(H200, refused=refused))
    (gpu,) = visible_gpus()
    assert (gpu.name, gpu.driver) == ("NVIDIA H200", "570.86.15")
    assert (gpu.sm_count, gpu.memory_bytes, gpu.cuda, gpu.clocks_mhz) == (0, 0, "", {})
    # Of an architecture that is not known SMs cannot be counted.
    install(monkeypatch, FakeNvml(dataclasses.replace(H200, capability=(99, 0))))
    assert visible_gpus()[0].sm_count == 0


def test_identifies_what_the_core_measures_on(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml(A100, H200))
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16")
    device = identify_device(DESCRIBED)
    assert device.hardware_queues == 16
    assert (device.name, device.memory_bytes, device.cuda) == ("NVIDIA H200", 150109880320, "12.9")
    assert (device.driver, device.clocks_mhz) == ("570.86.15", {"sm": 1980, "memory": 3201})
    assert device.sm_limits == HOPPER_SM
    install(monkeypatch, FakeNvml(H200))
    here = running_device("cudnn")
    assert here is not None
    assert why_foreign(identify_device(DESCRIBED), here) is None
    install(monkeypatch, FakeNvml(has_driver=False))
    device = identify_device(DESCRIBED)
    assert (device.name, device.driver, device.clocks_mhz) == ("NVIDIA H200", "", {})


def test_what_is_measured_on_this_cpu_fits_it() -> None:
    here = running_device("host")
    assert here is not None
    assert here.name
    assert here.sm_count == len(os.sched_getaffinity(0))
    # The core calls it otherwise.
    assert identify_device(dataclasses.replace(DESCRIBED, backend="host", name="CPU")) == here


DIFFERENT = {
    "backend": "host",
    "name": "NVIDIA A100",
    "compute_capability": "8.0",
    "sm_count": 114,
    "cudnn": "9.3.0",
}


def test_each_of_five_fields_makes_a_profile_foreign() -> None:
    for field, value in DIFFERENT.items():
        reason = why_foreign(dataclasses.replace(GPU, **{field: value}), GPU)
        assert reason == f"{field}: expected {getattr(GPU, field)!r}, got {value!r}"
    reason = why_foreign(dataclasses.replace(GPU, **DIFFERENT), GPU)
    assert reason is not None
    assert all(field in reason for field in DIFFERENT)
    # An unknown cuDNN is not the right one; SMs that cannot be counted are not compared.
    assert why_foreign(GPU, dataclasses.replace(GPU, cudnn="")) is not None
    assert why_foreign(GPU, dataclasses.replace(GPU, sm_count=0)) is None


def test_driver_clocks_memory_and_day_make_nothing_foreign() -> None:
    other = {"memory_bytes": 1, "driver": "1", "cuda": "1.0", "clocks_mhz": {}, "sm_limits": None}
    assert why_foreign(dataclasses.replace(GPU, date="2020-01-01", **other), GPU) is None
