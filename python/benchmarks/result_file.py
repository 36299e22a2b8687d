"""Result files under docs/results/: tables with their machine, date, versions and command.

`python/benchmarks/run.py` measures a `Case` into such a file, and `scripts/write_results.py` writes
a page from them.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import importlib.metadata
import itertools
import multiprocessing
import pathlib
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import rich
import rich.table

from tf_interop.measure.device import this_cpu
from tf_interop.versioned_file import in_lines

FORMAT = "tf_interop.result"


@dataclasses.dataclass(frozen=True)
class Case:
    """A measurement of each of several networks.

    Attributes:
        title: the heading of its result.
        says: a paragraph that explains the values.
        networks: the names of the default networks.
        measure: returns a row of the result for a network's name; called in a new process.
        is_right: whether a row is correct.
    """

    title: str
    says: str
    networks: Sequence[str]
    measure: Callable[[str], dict[str, Any]]
    is_right: Callable[[dict[str, Any]], bool] = lambda row: True


def in_new_process(function: Any, *arguments: Any) -> Any:
    """Calls a function in a new process, which frees all memory afterwards."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        return executor.submit(function, *arguments).result()


def write_result(
    path: pathlib.Path | None,
    title: str,
    says: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    command: str | None = None,
    made_with: Sequence[str] = ("tensorflow", "keras"),
    **versions: str,
) -> None:
    """Writes a result to a file, or prints it.

    Args:
        path: the JSON file; None prints.
        title: the heading on the page.
        says: a paragraph that explains the values.
        rows: values by column; another table begins where the columns change.
        command: the command that measured; None for the running program.
        made_with: packages whose versions matter.
        **versions: of other software.
    """
    if path is None:
        _print(title, rows)
        return
    cpu = this_cpu()
    result = {
        "format": FORMAT,
        "title": title,
        "says": " ".join(says.split()),
        "date": cpu.date,
        "machine": f"{cpu.name}, {cpu.sm_count} cores",
        "command": command or shlex.join(["python", *sys.argv]),
        "made_with": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("tf-interop", *made_with)},
            **versions,
        },
        "rows": rows,
    }
    path.write_text(in_lines(result) + "\n")


def _print(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    for columns, group in itertools.groupby(rows, key=tuple):
        table = rich.table.Table(*columns, title=title)
        for row in group:
            cells = (f"{each:.4g}" if isinstance(each, float) else each for each in row.values())
            table.add_row(*map(str, cells))
        rich.print(table)
