"""Where the compiled libraries of this package are."""

from __future__ import annotations

import os
import pathlib


def find_library_file(name: str, variable: str) -> pathlib.Path | None:
    """A library's file, or None where it has not been built.

    Args:
        name: the name of the file.
        variable: an environment variable that names another file than the one that was installed
            with the package.
    """
    named = os.environ.get(variable)
    if named:
        return pathlib.Path(named)
    # An editable install keeps the Python files and the library in two folders of one package.
    import tf_interop

    for folder in tf_interop.__path__:
        candidate = pathlib.Path(folder) / name
        if candidate.is_file():
            return candidate
    return None
