"""What a profile is measured on, and what a process would run on."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import platform

from tf_interop.errors import LibraryError
from tf_interop.hardware_queues import hardware_queues
from tf_interop.measure.core import load_core_library
from tf_interop.measure.nvidia import visible_gpus
from tf_interop.profile.types import ProfiledDevice, today

# Of each processor a line "model name : …".
_CPU_FILE = pathlib.Path("/proc/cpuinfo")


def identify_device(described: ProfiledDevice) -> ProfiledDevice:
    """The device that the core measures on, for a new profile.

    NVML adds driver and clocks. CUDA's first device is matched with NVML's by its name, because
    the core gives no bus address: of several that are alike, it is the first visible one.

    Args:
        described: what the core says of its device.
    """
    if described.backend == "host":
        return this_cpu()
    described = dataclasses.replace(described, hardware_queues=hardware_queues())
    gpu = next((each for each in visible_gpus() if each.name == described.name), None)
    if gpu is None:
        return described
    return dataclasses.replace(
        described,
        memory_bytes=described.memory_bytes or gpu.memory_bytes,
        driver=gpu.driver,
        cuda=described.cuda or gpu.cuda,
        clocks_mhz=dict(gpu.clocks_mhz),
    )


def running_device(backend: str) -> ProfiledDevice | None:
    """What a process that begins now would run on; neither CUDA nor TensorFlow is initialized.

    Args:
        backend: `cudnn` for the first GPU that CUDA shows this process, `host` for the CPU.

    Returns:
        The device, or None where there is no visible GPU. `sm_count` is 0 and `cudnn` is empty
        where they cannot be told.
    """
    if backend == "host":
        return this_cpu()
    gpus = visible_gpus()
    return dataclasses.replace(gpus[0], cudnn=_cudnn_version()) if gpus else None


def this_cpu() -> ProfiledDevice:
    """The CPU, as far as this process may use it."""
    # All of it is asked for here, whatever the core says, so that what was measured and what runs
    # are described by one function.
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
    try:
        lines = _CPU_FILE.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _cudnn_version() -> str:
    try:
        return load_core_library().cudnn_version()
    except LibraryError:
        return ""
