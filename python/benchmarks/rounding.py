"""Compares the distance of two tensors with the distance that rounding explains."""

from __future__ import annotations

import numpy as np

FACTOR = 8
"""The plugin may move a tensor this many times as far as a change in the last bits does: both are
samples of the same error, and convolutions round at every depth."""

ROUNDINGS = 4 * float(np.finfo(np.float32).eps)
"""Relative rounding of the result itself, in case the change happens to have no effect."""


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """The norm of the difference over the norm of `second`; 1 if only `second` is zero."""
    # In float32 squares of numbers above 1e19 overflow, and the distance would be zero.
    first, second = (np.asarray(each, np.float64) for each in (first, second))
    norm = float(np.linalg.norm(second))
    return float(np.linalg.norm(first - second)) / norm if norm else float(np.any(first))


def share_of_tolerance(moved: float, of_rounding: float) -> float:
    """The distance of a tensor over the tolerance; more than 1 is more than rounding explains.

    Args:
        moved: the distance that the plugin moves it.
        of_rounding: the distance that a change in the last bits moves it.
    """
    return moved / (FACTOR * of_rounding + ROUNDINGS)
