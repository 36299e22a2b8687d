#!/usr/bin/env python3
"""Checks a wheel: small enough, and the same files as another one of the same sources.

    compare_wheels.py WHEEL OTHER_WHEEL

Compiled libraries are compared by name alone: they hold a number that is drawn for each build.
"""

from __future__ import annotations

import argparse
import pathlib
import zipfile

LARGEST_BYTES = 5_000_000


def files_of(wheel: pathlib.Path) -> dict[str, bytes]:
    """Name and content of each file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def is_compared(name: str) -> bool:
    """Whether a file has the same bytes in both wheels."""
    # The list of files holds the sums of all, also of the libraries.
    return not name.endswith((".so", "RECORD"))


def main() -> None:
    """Compares the two wheels of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("other", type=pathlib.Path)
    arguments = parser.parse_args()

    size = arguments.wheel.stat().st_size
    if size > LARGEST_BYTES:
        raise SystemExit(f"Expected a wheel of at most {LARGEST_BYTES} bytes, got {size}.")
    files, others = files_of(arguments.wheel), files_of(arguments.other)
    if files.keys() != others.keys():
        raise SystemExit(
            f"Expected the same files, got {sorted(files.keys() ^ others.keys())} in one."
        )
    different = [name for name in files if is_compared(name) and files[name] != others[name]]
    if different:
        raise SystemExit(f"Expected files with the same content, got others in {different}.")
    libraries = [name for name in files if name.endswith(".so")]
    if len(libraries) != 2:
        raise SystemExit(f"Expected two libraries, got {libraries}.")
    print(f"{arguments.wheel.name}: {len(files)} files, {size / 1e6:.1f} MB, the same from both")


if __name__ == "__main__":
    main()
