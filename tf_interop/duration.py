"""Durations as users write them."""

from __future__ import annotations

import re

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?\s*")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_duration(duration: str | float) -> float:
    """A duration in seconds, from a number or a text such as `"30s"`, `"500ms"`, `"2m"`, `"1.5h"`.

    Raises:
        ValueError: it is not a positive duration.
    """
    match = _DURATION.fullmatch(str(duration))
    seconds = float(match[1]) * _SECONDS[match[2] or "s"] if match else 0.0
    if not seconds > 0:
        raise ValueError(f"Expected a time such as '90s', '10m' or '1.5h', got {duration!r}.")
    return seconds
