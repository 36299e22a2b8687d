"""How far two tensors are apart, and how far rounding may move one."""

from __future__ import annotations

import numpy as np

FACTOR = 8
"""How many times as far as a change that stands for rounding the plugin may move a tensor: both are
samples of the same, and convolutions round at every depth."""

ROUNDINGS = 4 * float(np.finfo(np.float32).eps)
"""Rounding of the result itself, relative, where the change happens to do nothing."""


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """The norm of the difference over the norm of `second`; over 1 where that is zero."""
    # In float32 squares of numbers above 1e19 overflow, and any distance would come out as zero.
    first, second = (np.asarray(each, np.float64) for each in (first, second))
    norm = float(np.linalg.norm(second))
    return float(np.linalg.norm(first - second)) / norm if norm else float(np.any(first))


def share_of_tolerance(moved: float, of_rounding: float) -> float:
    """How far a tensor was moved, over how far it may be: above 1 is more than rounding explains.

    Args:
        moved: the distance that the plugin moves it.
        of_rounding: the distance that the change which stands for rounding moves it.
    """
    return moved / (FACTOR * of_rounding + ROUNDINGS)
