"""Names of nodes, short enough for a drawing."""

from __future__ import annotations

import collections
from collections.abc import Iterable

# What TensorFlow puts before the names of what it inlined, and of gradients.
_SCOPES = frozenset({"StatefulPartitionedCall", "PartitionedCall", "gradient_tape", "gradients"})
# What a layer calls its convolution, and the ops.
_LAST = ("convolution", "Conv", "_FusedConv", "DepthwiseConv")


def short_names(names: Iterable[str]) -> dict[str, str]:
    """The layer that each node is of, as far as that tells it from the others.

    Returns:
        By name; the whole name, without scopes that say nothing, where several are of one layer.
    """
    parts = {name: _telling_parts(name) for name in names}
    counts = collections.Counter(its[-1] for its in parts.values())
    return {name: its[-1] if counts[its[-1]] == 1 else "/".join(its) for name, its in parts.items()}


def has_scopes_of_functions(names: Iterable[str]) -> bool:
    """Whether one of the names begins with what TensorFlow puts before an inlined function's."""
    return any(name.split("/")[0] in _SCOPES and "Call" in name.split("/")[0] for name in names)


def _telling_parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in _SCOPES] or [name]
    while len(parts) > 1 and parts[-1].startswith(_LAST):
        parts.pop()
    return parts
