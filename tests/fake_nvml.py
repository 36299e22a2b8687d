"""A stand-in for pynvml, with GPUs of its own."""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Callable
from typing import Any


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
