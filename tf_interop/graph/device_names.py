"""Device names."""

from __future__ import annotations

import functools


@functools.lru_cache(maxsize=256)
def device_type_of(device: str) -> str:
    """The type in a full or partial device name, in capitals; empty where it names none."""
    for part in device.upper().split("/"):
        key, *rest = part.removeprefix("DEVICE:").split(":")
        if key not in ("", "JOB", "REPLICA", "TASK") and (rest or part.startswith("DEVICE:")):
            return key
    return ""
