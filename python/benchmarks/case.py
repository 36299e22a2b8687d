"""What is measured of networks, one after another: `python/benchmarks/run.py` runs it."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Case:
    """Something to measure of each of several networks.

    Attributes:
        title: the heading of its result.
        says: what the values are, a paragraph.
        networks: the names of those that it is measured of by default.
        measure: a row of the result, by the name of a network; called in a process of its own.
        is_right: whether a row is as it has to be.
    """

    title: str
    says: str
    networks: Sequence[str]
    measure: Callable[[str], dict[str, Any]]
    is_right: Callable[[dict[str, Any]], bool] = lambda row: True


def in_new_process(function: Any, *arguments: Any) -> Any:
    """Runs a function where nothing has been in memory before, and frees what it leaves there."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        return executor.submit(function, *arguments).result()
