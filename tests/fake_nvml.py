"""A stand-in for pynvml, with GPUs of its own."""

from __future__ import annotations

import dataclasses
import os
import types
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
    """The part of pynvml that is used; what is in `refused` raises."""

    NVMLError = FakeNvmlError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2

    def __init__(self, *gpus: FakeGpu, has_driver: bool = True, refused: tuple[str, ...] = ()):
        super().__init__("pynvml")
        self.gpus = gpus
        self.has_driver = has_driver
        self.open_count = 0
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

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:  # noqa: N802
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:  # noqa: N802
        return gpu.name

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:  # noqa: N802
        return gpu.capability

    def nvmlDeviceGetNumGpuCores(self, gpu: FakeGpu) -> int:  # noqa: N802
        return gpu.cores

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> object:  # noqa: N802
        return types.SimpleNamespace(total=gpu.memory, free=gpu.memory // 2)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[object]:  # noqa: N802
        used = {os.getpid(): 1000, 1: 5000}
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in used.items()]

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: int) -> int:  # noqa: N802
        return {1: gpu.sm_clock, 2: 3201}[kind]

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"570.86.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 12080
