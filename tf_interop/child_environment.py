"""What a child process needs to import tf_interop from where this one did."""

from __future__ import annotations

import os
import pathlib
import sys


def child_environment() -> dict[str, str]:
    """This process' environment, with its import path, which a source tree may be on.

    A child that is started with `-c` finds its working directory in front of that path, and has to
    take it out: a source tree there is not the package that this process runs.
    """
    folders = [path or str(pathlib.Path.cwd()) for path in sys.path]
    return os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
