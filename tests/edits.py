"""Changes one value of a document, for tests of readers."""

from __future__ import annotations

from typing import Any


def set_at(document: Any, place: str, value: object) -> None:
    """Sets the value at a place such as `graphs.0.mode`; numbers are places in lists."""
    *outer, last = (int(each) if each.isdigit() else each for each in place.split("."))
    for each in outer:
        document = document[each]
    document[last] = value
