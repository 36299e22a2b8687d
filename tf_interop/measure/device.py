"""Describes the CPU or the GPUs of this process, and the GPU's hardware queues.

NVIDIA's management library (NVML) describes the GPUs without making a CUDA context. Listing GPUs
with TensorFlow or CUDA would instead fix which of them the process uses.

CUDA spreads the streams of a process over its *hardware queues*. Streams that share a queue may
wait for each other, so a stage gains nothing from more lanes than queues. CUDA reads their number
from `CUDA_DEVICE_MAX_CONNECTIONS` when it starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import platform
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tf_interop import tensorflow_internals
from tf_interop.errors import LibraryError
from tf_interop.measure.core import load_core_library
from tf_interop.profile.types import ProfiledDevice, today

# Has a line "model name : …" for each processor.
_CPU_FILE = pathlib.Path("/proc/cpuinfo")


def identify_device(described: ProfiledDevice) -> ProfiledDevice:
    """The device that the core measures on, for a new profile.

    NVML adds driver and clocks. The GPU is found by its name, because the core reports no bus
    address; of several GPUs with that name, the first visible one is used.
    """
    if described.backend == "host":
        return this_cpu()
    described = dataclasses.replace(described, hardware_queues=hardware_queues())
    gpu = next((each for each in visible_gpus() if each.name == described.name), None)
    if gpu is None:
        return described
    return dataclasses.replace(described, driver=gpu.driver, clocks_mhz=gpu.clocks_mhz)


def running_device(backend: str) -> ProfiledDevice | None:
    """The device that a process would use if it started now; starts neither CUDA nor TensorFlow.

    Args:
        backend: `cudnn` for the first GPU that CUDA shows this process, `host` for the CPU.

    Returns:
        None if there is no visible GPU. `sm_count` is 0 and `cudnn` is empty if unknown.
    """
    if backend == "host":
        return this_cpu()
    gpus = visible_gpus()
    return dataclasses.replace(gpus[0], cudnn=_cudnn_version()) if gpus else None


def running_gpu() -> ProfiledDevice | None:
    """The first GPU that this process may use; None if TensorFlow has none or may not use any."""
    return running_device("cudnn") if tensorflow_internals.may_have_gpus() else None


def this_cpu() -> ProfiledDevice:
    """The CPU, as far as this process may use it."""
    # The core's own description is not used, so that one function describes the CPU that was
    # measured and the CPU that runs a plan.
    return ProfiledDevice(
        backend="host",
        name=_cpu_name(),
        compute_capability="",
        sm_count=len(os.sched_getaffinity(0)),
        cudnn="",
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        driver="",
        cuda="",
        clocks_mhz={},
        sm_limits=None,
        date=today(),
    )


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in _CPU_FILE.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _cudnn_version() -> str:
    try:
        return load_core_library().cudnn_version()
    except LibraryError:
        return ""


_T = TypeVar("_T")

# CUDA cores of an SM by compute capability, from `_ConvertSMVer2Cores` in helper_cuda.h of NVIDIA's
# cuda-samples. NVML counts only cores.
_CORES_PER_SM = dict.fromkeys(("7.0", "7.2", "7.5", "8.0"), 64) | dict.fromkeys(
    ("8.6", "8.7", "8.9", "9.0", "10.0", "10.1", "10.3", "11.0", "12.0", "12.1"), 128
)


def has_nvidia_gpu() -> bool:
    """Whether the machine has an NVIDIA GPU with a driver."""
    with _nvml() as nvml:
        return nvml is not None and bool(_ask(0, nvml.nvmlDeviceGetCount))


def has_bfloat16() -> bool:
    """Whether every visible GPU of known compute capability has bfloat16 arithmetic."""
    capabilities = (gpu.compute_capability for gpu in visible_gpus())
    return all(int(each.partition(".")[0]) >= 8 for each in capabilities if each)


def visible_gpus() -> tuple[ProfiledDevice, ...]:
    """The GPUs that CUDA would show this process, in CUDA's order as far as it is known.

    Values that the driver does not report are 0 or empty; clocks are the current ones, `sm` and
    `memory`. NVML knows neither cuDNN nor the limits of an SM.

    CUDA_VISIBLE_DEVICES is read as CUDA reads it. GPUs are numbered as in `nvidia-smi`. CUDA's
    numbers are the same if all GPUs of the machine are alike or CUDA_DEVICE_ORDER=PCI_BUS_ID;
    otherwise CUDA puts the fastest first, by an undocumented rule.
    """
    with _nvml() as nvml:
        if nvml is None:
            return ()
        return tuple(_describe(nvml, handle) for handle in _visible_handles(nvml))


def free_memory_bytes() -> int | None:
    """Memory of the first visible GPU that this process can use.

    It includes memory that the process already holds, as far as the driver reports it: TensorFlow
    takes nearly all of a GPU's memory when it first uses the GPU.

    Returns:
        None if there is no visible GPU or its driver does not report it.
    """
    with _nvml() as nvml:
        handles = [] if nvml is None else _visible_handles(nvml)
        if not handles:
            return None
        memory = _ask(None, nvml.nvmlDeviceGetMemoryInfo, handles[0])
        processes: list[Any] = _ask([], nvml.nvmlDeviceGetComputeRunningProcesses, handles[0])
    if memory is None:
        return None
    own = [each.usedGpuMemory or 0 for each in processes if each.pid == os.getpid()]
    return int(memory.free) + sum(own)


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """The module pynvml with NVML open, or None if there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _visible_handles(nvml: Any) -> list[Any]:
    handles = [
        nvml.nvmlDeviceGetHandleByIndex(index) for index in range(_ask(0, nvml.nvmlDeviceGetCount))
    ]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return handles
    identifiers = [_ask("", nvml.nvmlDeviceGetUUID, handle) for handle in handles]
    visible: list[Any] = []
    # CUDA Programming Guide, "CUDA Environment Variables": the first illegal item ends the list,
    # and a UUID may be abbreviated.
    for item in (each.strip() for each in chosen.split(",")):
        if item.isdecimal():
            found = handles[int(item) : int(item) + 1]
        else:
            by_identifier = zip(handles, identifiers, strict=True)
            found = [handle for handle, each in by_identifier if item and each.startswith(item)]
        if len(found) != 1:
            break
        visible += found
    return visible


def _describe(nvml: Any, handle: Any) -> ProfiledDevice:
    major, minor = _ask((0, 0), nvml.nvmlDeviceGetCudaComputeCapability, handle)
    capability = f"{major}.{minor}" if major else ""
    cores = _ask(0, nvml.nvmlDeviceGetNumGpuCores, handle)
    cuda = _ask(0, nvml.nvmlSystemGetCudaDriverVersion_v2)
    clocks = {
        name: _ask(-1, nvml.nvmlDeviceGetClockInfo, handle, kind)
        for name, kind in (("sm", nvml.NVML_CLOCK_SM), ("memory", nvml.NVML_CLOCK_MEM))
    }
    memory = _ask(None, nvml.nvmlDeviceGetMemoryInfo, handle)
    return ProfiledDevice(
        backend="cudnn",
        name=_ask("", nvml.nvmlDeviceGetName, handle),
        compute_capability=capability,
        sm_count=cores // _CORES_PER_SM[capability] if capability in _CORES_PER_SM else 0,
        cudnn="",
        memory_bytes=0 if memory is None else int(memory.total),
        driver=_ask("", nvml.nvmlSystemGetDriverVersion),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        clocks_mhz={name: clock for name, clock in clocks.items() if clock >= 0},
        sm_limits=None,
        date=today(),
    )


def _ask(default: _T, function: Callable[..., _T], *arguments: object) -> _T:
    import pynvml

    # A GPU or driver may refuse any single query.
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return default


QUEUES_VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
_MOST_QUEUES = 32
_DEFAULT_QUEUES = 8
_CUDA_ERROR_NOT_INITIALIZED = 3


def hardware_queues() -> int:
    """The number of queues that CUDA reads, or has read, from the environment: 1 to 32."""
    try:
        return min(max(int(os.environ[QUEUES_VARIABLE]), 1), _MOST_QUEUES)
    except (KeyError, ValueError):
        return _DEFAULT_QUEUES


def ask_for_all_hardware_queues() -> str:
    """Makes CUDA give this process all its queues, unless the user chose a number.

    Returns:
        A warning if CUDA has started already, with fewer queues; else empty.
    """
    if QUEUES_VARIABLE in os.environ:
        return ""
    if not has_cuda_started():
        os.environ[QUEUES_VARIABLE] = str(_MOST_QUEUES)
        return ""
    return (
        f"CUDA has already started, with {_DEFAULT_QUEUES} hardware queues; more lanes than that "
        f"wait for each other. Set {QUEUES_VARIABLE}={_MOST_QUEUES} before the program starts, or "
        "call tf_interop.enable before anything uses the GPU."
    )


def has_cuda_started() -> bool:
    """Whether this process has initialized CUDA's driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    count = ctypes.c_int()
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) != _CUDA_ERROR_NOT_INITIALIZED)
