"""The device of a profile and the device of a process, with a stand-in for NVML."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from profile_values import GPU, HOPPER_SM
from unnoticed import run_python

from tf_interop.measure import device
from tf_interop.measure.device import (
    free_memory_bytes,
    has_bfloat16,
    has_nvidia_gpu,
    identify_device,
    running_device,
    visible_gpus,
)
from tf_interop.profile.types import why_foreign


class FakeNvmlError(Exception):
    pass


@dataclasses.dataclass
class FakeGpu:
    name: str
    uuid: str
    capability: tuple[int, int] = (9, 0)
    cores: int = 132 * 128
    memory: int = 150754820096
    sm_clock: int = 1980


H200 = FakeGpu("NVIDIA H200", "GPU-aaaa1111")
SECOND_H200 = FakeGpu("NVIDIA H200", "GPU-aaaa2222", memory=1)
A100 = FakeGpu("NVIDIA A100-SXM4-80GB", "GPU-bbbb0000", (8, 0), 108 * 64, 85899345920, 1410)


class FakeNvml(types.ModuleType):
    """The used part of pynvml; functions in `refused` raise."""

    NVMLError = FakeNvmlError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2

    def __init__(self, *gpus: FakeGpu, has_driver: bool = True, refused: tuple[str, ...] = ()):
        super().__init__("pynvml")
        self.has_driver = has_driver
        self.open_count = 0
        answers: dict[str, Callable[..., Any]] = {
            "DeviceGetCount": lambda: len(gpus),
            "DeviceGetHandleByIndex": lambda index: gpus[index],
            "DeviceGetUUID": lambda gpu: gpu.uuid,
            "DeviceGetName": lambda gpu: gpu.name,
            "DeviceGetCudaComputeCapability": lambda gpu: gpu.capability,
            "DeviceGetNumGpuCores": lambda gpu: gpu.cores,
            "DeviceGetMemoryInfo": lambda gpu: types.SimpleNamespace(
                total=gpu.memory, free=gpu.memory // 2
            ),
            "DeviceGetComputeRunningProcesses": lambda gpu: [
                types.SimpleNamespace(pid=os.getpid(), usedGpuMemory=1000),
                types.SimpleNamespace(pid=1, usedGpuMemory=5000),
            ],
            "DeviceGetClockInfo": lambda gpu, kind: {1: gpu.sm_clock, 2: 3201}[kind],
            "SystemGetDriverVersion": lambda: "570.86.15",
            "SystemGetCudaDriverVersion_v2": lambda: 12080,
        }
        for name, answer in answers.items():
            setattr(self, f"nvml{name}", answer)
        for name in refused:
            setattr(self, name, self._refuse)

    def _refuse(self, *_: object) -> Any:
        raise FakeNvmlError("Not Supported")

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.has_driver:
            raise FakeNvmlError("NVML Shared Library Not Found")
        self.open_count += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open_count -= 1


@pytest.fixture(autouse=True)
def fixture_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    # Set first, so that monkeypatch restores it after a test that sets it.
    monkeypatch.setenv(device.QUEUES_VARIABLE, "1")
    monkeypatch.delenv(device.QUEUES_VARIABLE)
    monkeypatch.setattr(device, "_cudnn_version", lambda: "9.10.2")


def install(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> FakeNvml:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


# The core's description.
DESCRIBED = dataclasses.replace(
    GPU, memory_bytes=150109880320, cuda="12.9", driver="", clocks_mhz={}
)


def test_the_running_gpu_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = install(monkeypatch, FakeNvml(H200, A100))
    found = running_device("cudnn")
    assert dataclasses.replace(found, date=GPU.date, sm_limits=HOPPER_SM) == GPU
    assert nvml.open_count == 0


def test_a_gpu_before_8_0_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    t4 = dataclasses.replace(H200, capability=(7, 5))
    unknown = FakeNvml(t4, refused=("nvmlDeviceGetCudaComputeCapability",))
    for nvml, expected in (
        (FakeNvml(A100, H200), True),
        (FakeNvml(A100, t4), False),
        (FakeNvml(), True),
        (unknown, True),
    ):
        install(monkeypatch, nvml)
        assert has_bfloat16() == expected


def test_memory_of_this_process_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml(A100, H200))
    assert free_memory_bytes() == A100.memory // 2 + 1000
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert free_memory_bytes() == H200.memory // 2 + 1000
    install(monkeypatch, FakeNvml(A100, H200, refused=("nvmlDeviceGetComputeRunningProcesses",)))
    assert free_memory_bytes() == H200.memory // 2


@pytest.mark.parametrize("nvml", [FakeNvml(), FakeNvml(has_driver=False)])
def test_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> None:
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
        # Two GPUs begin like this.
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
    # The machine has a GPU even if this process sees none.
    assert has_nvidia_gpu()


def test_unanswered_questions_about_a_gpu_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
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
    # The SMs of an unknown architecture cannot be counted.
    install(monkeypatch, FakeNvml(dataclasses.replace(H200, capability=(99, 0))))
    assert visible_gpus()[0].sm_count == 0


def test_identifies_the_gpu_that_the_core_measures_on(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml(A100, H200))
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16")
    found = identify_device(DESCRIBED)
    assert found.hardware_queues == 16
    assert (found.name, found.memory_bytes, found.cuda) == ("NVIDIA H200", 150109880320, "12.9")
    assert (found.driver, found.clocks_mhz) == ("570.86.15", {"sm": 1980, "memory": 3201})
    assert found.sm_limits == HOPPER_SM
    install(monkeypatch, FakeNvml(H200))
    here = running_device("cudnn")
    assert why_foreign(identify_device(DESCRIBED), here) is None
    install(monkeypatch, FakeNvml(has_driver=False))
    found = identify_device(DESCRIBED)
    assert (found.name, found.driver, found.clocks_mhz) == ("NVIDIA H200", "", {})


def test_a_profile_of_this_cpu_fits_it() -> None:
    here = running_device("host")
    assert here.name
    assert here.sm_count == len(os.sched_getaffinity(0))
    # The core has another name for it.
    assert identify_device(dataclasses.replace(DESCRIBED, backend="host", name="CPU")) == here


DIFFERENT = {
    "backend": "host",
    "name": "NVIDIA A100",
    "compute_capability": "8.0",
    "sm_count": 114,
    "cudnn": "9.3.0",
}


def test_only_five_fields_make_a_profile_foreign() -> None:
    reason = why_foreign(dataclasses.replace(GPU, **DIFFERENT), GPU)
    for field, value in DIFFERENT.items():
        assert f"{field}: expected {getattr(GPU, field)!r}, got {value!r}" in reason
    # An unknown cuDNN is foreign; SMs that cannot be counted are not compared.
    assert why_foreign(GPU, dataclasses.replace(GPU, cudnn="")) is not None
    assert why_foreign(GPU, dataclasses.replace(GPU, sm_count=0)) is None

    other = {"memory_bytes": 1, "driver": "1", "cuda": "1.0", "clocks_mhz": {}, "sm_limits": None}
    assert why_foreign(dataclasses.replace(GPU, date="2020-01-01", **other), GPU) is None


_DRIVER = """
static int has_started = 0;
extern "C" int cuInit(unsigned) { has_started = 1; return 0; }
extern "C" int cuDeviceGetCount(int*) { return has_started ? 0 : 3; }
"""

_STARTS_CUDA = """
import ctypes, os
from tf_interop.measure import device
assert not device.has_cuda_started()
driver = ctypes.CDLL(os.environ["DRIVER"])
assert not device.has_cuda_started()
driver.cuInit(0)
assert device.has_cuda_started()
assert "CUDA_DEVICE_MAX_CONNECTIONS=32" in device.ask_for_all_hardware_queues()
assert device.hardware_queues() == 8
"""


@pytest.mark.parametrize(
    ("value", "count"), [("1", 1), ("16", 16), ("64", 32), ("0", 1), ("many", 8)]
)
def test_keeps_the_users_number_of_queues(
    monkeypatch: pytest.MonkeyPatch, value: str, count: int
) -> None:
    monkeypatch.setenv(device.QUEUES_VARIABLE, value)
    assert not device.ask_for_all_hardware_queues()
    assert os.environ[device.QUEUES_VARIABLE] == value
    assert device.hardware_queues() == count


def test_asks_for_all_queues_before_cuda_starts() -> None:
    assert device.hardware_queues() == 8
    assert not device.ask_for_all_hardware_queues()
    assert device.hardware_queues() == 32


def test_warns_if_cuda_has_started(tmp_path: pathlib.Path) -> None:
    source, library = tmp_path / "driver.cc", tmp_path / "libcuda.so.1"
    source.write_text(_DRIVER)
    command = ["g++", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source]
    subprocess.run(command, check=True)
    run_python(_STARTS_CUDA, DRIVER=str(library))
