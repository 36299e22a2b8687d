"""Result files under docs/results/: tables that say where, when, with what and how they were made.

`scripts/write_results.py` writes a page from them.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import pathlib
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import rich
import rich.table

from tf_interop.measure.device import this_cpu
from tf_interop.versioned_file import in_lines

FORMAT = "tf_interop.result"


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
    """Writes a result to a file, or prints it if there is none.

    Args:
        path: of the JSON file; None prints.
        title: the heading on the page.
        says: what the values are, a paragraph.
        rows: what was measured, by column; where columns change another table begins.
        command: what measured it; None for this program.
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
