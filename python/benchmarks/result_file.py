"""Result files under docs/results/: what every one of them says, from which its page is written."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import pathlib
import platform
import shlex
import sys
from typing import Any

from tf_interop.versioned_file import in_lines


def write_result(path: pathlib.Path | None, name: str, **values: Any) -> None:
    """Writes a result with where, when, with what and by which command it was made.

    Args:
        path: of the JSON file; None writes nothing.
        name: of the kind of result.
        **values: what was measured.
    """
    if path is None:
        return
    origin = {
        "format": f"tf_interop.{name}",
        "version": 1,
        "date": datetime.date.today().isoformat(),
        "machine": _machine(),
        "command": shlex.join(["python", *sys.argv]),
        "python": platform.python_version(),
        "tf_interop": importlib.metadata.version("tf-interop"),
        "tensorflow": importlib.metadata.version("tensorflow"),
        "keras": importlib.metadata.version("keras"),
    }
    path.write_text(in_lines(origin | values) + "\n")


def _machine() -> str:
    """The CPU's name and the number of its cores that this process may use."""
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.split(':')[1].strip()}, {len(os.sched_getaffinity(0))} cores"
    return platform.processor()
