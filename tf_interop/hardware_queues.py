"""How many hardware queues CUDA spreads the streams of this process over.

Streams that share a queue may wait for each other, so a stage gains by no more lanes than there are
queues. CUDA reads the number from `CUDA_DEVICE_MAX_CONNECTIONS` when it starts.
"""

from __future__ import annotations

import ctypes
import os

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
_MOST = 32
_CUDAS_DEFAULT = 8
_CUDA_ERROR_NOT_INITIALIZED = 3


def hardware_queues() -> int:
    """The number that CUDA takes, or took, from this process' environment: 1 to 32."""
    try:
        return min(max(int(os.environ[VARIABLE]), 1), _MOST)
    except (KeyError, ValueError):
        return _CUDAS_DEFAULT


def ask_for_all_hardware_queues() -> str:
    """Has CUDA give this process all its queues, unless the user chose a number.

    Returns:
        Why there are fewer, where CUDA has started already with its default; else empty.
    """
    if VARIABLE in os.environ:
        return ""
    if not has_cuda_started():
        os.environ[VARIABLE] = str(_MOST)
        return ""
    return (
        f"CUDA has started with {_CUDAS_DEFAULT} hardware queues, and lanes beyond that wait for "
        f"each other. Set {VARIABLE}={_MOST} before the program starts, or call "
        "tf_interop.enable before anything uses the GPU."
    )


def has_cuda_started() -> bool:
    """Whether anything in this process has initialized CUDA's driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    count = ctypes.c_int()
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) != _CUDA_ERROR_NOT_INITIALIZED)
