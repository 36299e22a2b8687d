#!/usr/bin/env python3
"""Checks what is in a wheel, and that another one of the same sources holds the same.

    compare_wheels.py WHEEL OTHER_WHEEL

A wheel has to hold the package, what is built of it and the licence, and nothing else; to be small;
and to ask for no TensorFlow, which must stay the user's. Compiled libraries are compared by name
alone: each build draws a number that they hold.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
LARGEST_BYTES = 5_000_000
BUILD_INFO = "tf_interop/build_info.json"
BUILT = {
    BUILD_INFO,
    "tf_interop/libtf_interop_core.h",
    "tf_interop/libtf_interop.so",
    "tf_interop/libtf_interop_core.so",
}

Files = dict[str, bytes]


def files_of(wheel: pathlib.Path) -> Files:
    """Name and content of each file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def faults_of(files: Files, package: pathlib.Path) -> list[str]:
    """What is wrong with a wheel of the package in that folder; empty where nothing is."""
    sources = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    found = {name for name in files if ".dist-info/" not in name}
    faults = [f"it lacks {name}" for name in sorted((sources | BUILT) - found)]
    faults += [f"it holds the foreign {name}" for name in sorted(found - sources - BUILT)]
    if BUILD_INFO in files and not json.loads(files[BUILD_INFO])["cudnn_backend"]:
        faults.append("it was built without the cudnn backend: it would never use a GPU")
    if not any(name.endswith("/licenses/LICENSE") for name in files):
        faults.append("it lacks the text of its licence")
    metadata = next(files[name] for name in files if name.endswith(".dist-info/METADATA")).decode()
    # Developers' tools may: setup.sh names TensorFlow's version beside them.
    for requirement in re.findall(r"^Requires-Dist: ((?:tensorflow|tf[-_]).*)", metadata, re.M):
        if 'extra == "dev"' not in requirement:
            faults.append(f"it requires {requirement}, which may replace the user's TensorFlow")
    return faults


def differences(files: Files, others: Files) -> list[str]:
    """Names of files that one of two wheels lacks, or that are others in it."""
    return sorted(
        name
        for name in files.keys() | others.keys()
        if name not in files
        or name not in others
        # The list of files holds the sums of all, also of the libraries.
        or (not name.endswith((".so", "/RECORD")) and files[name] != others[name])
    )


def main() -> None:
    """Checks and compares the two wheels of the command line."""
    wheel, other = map(pathlib.Path, sys.argv[1:])
    files = files_of(wheel)
    faults = faults_of(files, ROOT / "tf_interop")
    if (size := wheel.stat().st_size) > LARGEST_BYTES:
        faults.append(f"it has {size} bytes, more than {LARGEST_BYTES}")
    faults += [f"{name} is another one in {other}" for name in differences(files, files_of(other))]
    if faults:
        raise SystemExit(f"{wheel.name}: " + "; ".join(faults) + ".")
    print(f"{wheel.name}: {len(files)} files, {size / 1e6:.1f} MB, the same from both")


if __name__ == "__main__":
    main()
