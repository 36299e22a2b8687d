"""Runs modules in separate processes with this process's import path."""

from __future__ import annotations

import os
import pathlib
import signal
import sys

# With -c, Python searches the working directory first, where another copy of the package may be.
_RUN_MODULE = """
import runpy
import sys
if sys.path[0] == "":
    del sys.path[0]
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def module_command(module: str, *arguments: object) -> list[str]:
    """The command line that runs a module; it needs the environment `child_environment()`."""
    return [sys.executable, "-c", _RUN_MODULE, module, *map(str, arguments)]


def child_environment() -> dict[str, str]:
    """This process's environment, with its import path."""
    folders = [path or str(pathlib.Path.cwd()) for path in sys.path]
    return os.environ | {"PYTHONPATH": os.pathsep.join(folders)}


def describe_end(code: int) -> str:
    """Describes a return code of `subprocess`, such as `was ended by SIGSEGV`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"was ended by signal {-code}"
