"""How long a command may take, as people write it."""

from __future__ import annotations

import math


def parse_budget(text: str) -> float:
    """Seconds from `90`, `90s`, `10m` or `1.5h`.

    Raises:
        ValueError: it is none of these.
    """
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise ValueError(f"Expected a time such as 90s, 10m or 1.5h, got '{text}'.")
    return seconds
