"""Device names."""

from __future__ import annotations

import functools

from tf_interop import tensorflow_internals


@functools.lru_cache(maxsize=256)
def device_type_of(device: str) -> str:
    """The type in a full or partial device name, in capitals; empty where it names none."""
    for part in device.upper().split("/"):
        key, *rest = part.removeprefix("DEVICE:").split(":")
        if key not in ("", "JOB", "REPLICA", "TASK") and (rest or part.startswith("DEVICE:")):
            return key
    return ""


def is_local(device: str) -> bool:
    """Whether a full or partial device name may be of this process.

    TensorFlow optimizes parts of a graph for other processes too, which may not have our ops.
    """
    return _is_of_task(device, *tensorflow_internals.local_task())


@functools.lru_cache(maxsize=256)
def _is_of_task(device: str, job: str, task: int) -> bool:
    parts = dict(part.split(":", 1) for part in device.lower().split("/") if ":" in part)
    is_job = parts.get("job", job.lower()) == job.lower()
    is_task = parts.get("task", str(task)) == str(task)
    # TensorFlow has more replicas than the first in names alone.
    return is_job and is_task and parts.get("replica", "0") == "0"
