"""Edits of JSON values that a fuzzer chooses."""

from __future__ import annotations

import json
from typing import Any

import atheris

# What readers that trust a file stumble over.
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    10**30,
    -0.0,
    1e308,
    0.5,
    "",
    "a\x00b",
    "../../etc/passwd",
    [],
    {},
    [[]],
)


def edit_json(text: str, data: atheris.FuzzedDataProvider) -> bytes:
    """Changes some values of a document, then maybe some of its bytes."""
    document = json.loads(text)
    for _ in range(data.ConsumeIntInRange(0, 4)):
        places = list(_places(document))
        container, key = places[data.ConsumeIntInRange(0, len(places) - 1)]
        _edit(container, key, data)
        if not document:
            break
    content = bytearray(json.dumps(document).encode())
    for _ in range(data.ConsumeIntInRange(0, 2)):
        if content:
            content[data.ConsumeIntInRange(0, len(content) - 1)] = data.ConsumeIntInRange(0, 255)
    if data.ConsumeIntInRange(0, 15) == 0:
        del content[data.ConsumeIntInRange(0, len(content)) :]
    return bytes(content)


def _edit(container: Any, key: Any, data: atheris.FuzzedDataProvider) -> None:
    choice = data.ConsumeIntInRange(0, 4)
    if choice == 0:
        del container[key]
    elif choice == 1:
        container[key] = _VALUES[data.ConsumeIntInRange(0, len(_VALUES) - 1)]
    elif choice == 2:
        container[key] = data.ConsumeInt(8)
    elif choice == 3:
        container[key] = data.ConsumeUnicodeNoSurrogates(8)
    elif isinstance(container, list):
        container.insert(key, container[key])
    else:
        container[data.ConsumeUnicodeNoSurrogates(8)] = container[key]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with every key or index that leads to a value."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        container = waiting.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], (dict, list)) and container[key]:
                waiting.append(container[key])
    return found
