"""Names of nodes, short enough for a drawing."""

from __future__ import annotations

import collections
from collections.abc import Iterable

# What TensorFlow puts before the names of a function that it inlined.
_CALLS = ("StatefulPartitionedCall", "PartitionedCall")
_GRADIENTS = {"BackpropFilter": " ∂w", "BackpropInput": " ∂x"}


def short_names(names: Iterable[str]) -> dict[str, str]:
    """The part of each name that no other has, which is that of its layer.

    Gradients share it with what they are the gradient of, and say so: `stem`, `stem ∂w`.

    Returns:
        By name; the whole name where it has no such part.
    """
    gradient_of = {name: _gradient(name) for name in names}
    counts = collections.Counter(
        (gradient, part) for name, gradient in gradient_of.items() for part in set(name.split("/"))
    )
    short = {}
    for name, gradient in gradient_of.items():
        own = [part for part in name.split("/") if counts[gradient, part] == 1]
        # An op's name is behind its layer's.
        short[name] = own[0] + gradient if own else name
    return short


def has_scopes_of_functions(names: Iterable[str]) -> bool:
    """Whether one of the names begins with what TensorFlow puts before an inlined function's."""
    return any(name.startswith(_CALLS) for name in names)


def _gradient(name: str) -> str:
    op = name.split("/")[-1]
    return next((sign for kind, sign in _GRADIENTS.items() if kind in op), "")
