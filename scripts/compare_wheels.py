#!/usr/bin/env python3
"""Checks what is in a wheel, and that another one of the same sources holds the same.

    compare_wheels.py WHEEL OTHER_WHEEL

A wheel has to hold the package, its libraries and their build information, and nothing else; to be
small; to name licence, classifiers and extras; and to ask for no TensorFlow, which must stay the
user's. Compiled libraries are compared by name alone: each build draws a number that they hold.
"""

from __future__ import annotations

import argparse
import email.message
import email.parser
import json
import pathlib
import re
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
LARGEST_BYTES = 5_000_000
LIBRARIES = {"tf_interop/libtf_interop.so", "tf_interop/libtf_interop_core.so"}
BUILD_INFO = "tf_interop/build_info.json"
EXTRAS = {"gpu", "report", "dev"}
CLASSIFIERS = {
    "Environment :: GPU :: NVIDIA CUDA :: 12",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3",
}

Files = dict[str, bytes]


def files_of(wheel: pathlib.Path) -> Files:
    """Name and content of each file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def faults_of(files: Files, package: pathlib.Path) -> list[str]:
    """What is wrong with a wheel of the package in that folder; empty where nothing is."""
    return [*_faults_of_files(files, package), *_faults_of_metadata(files)]


def differences(files: Files, others: Files) -> list[str]:
    """Names of files that one of two wheels lacks, or that are others in it."""
    names = files.keys() ^ others.keys()
    return sorted(
        names | {name for name in files.keys() & others.keys() if _is_other(name, files, others)}
    )


def _is_other(name: str, files: Files, others: Files) -> bool:
    # The list of files holds the sums of all, also of the libraries.
    return not name.endswith((".so", "/RECORD")) and files[name] != others[name]


def _faults_of_files(files: Files, package: pathlib.Path) -> list[str]:
    sources = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    expected = sources | LIBRARIES | {BUILD_INFO}
    found = {name for name in files if ".dist-info/" not in name}
    faults = [f"it lacks {name}" for name in sorted(expected - found)]
    faults += [
        f"it holds {name}, which is no part of the package" for name in sorted(found - expected)
    ]
    if BUILD_INFO in files and not json.loads(files[BUILD_INFO])["cudnn_backend"]:
        faults.append("it was built without the cudnn backend: it would never use a GPU")
    return faults


def _faults_of_metadata(files: Files) -> list[str]:
    folder = next(name for name in files if name.endswith(".dist-info/METADATA")).rpartition("/")[0]
    metadata = email.parser.BytesParser().parsebytes(files[f"{folder}/METADATA"])
    faults = []
    if metadata["License-Expression"] != "Apache-2.0":
        faults.append(f"its licence is {metadata['License-Expression']}, not Apache-2.0")
    if files.get(f"{folder}/licenses/LICENSE") != (ROOT / "LICENSE").read_bytes():
        faults.append("it lacks the text of its licence")
    if missing := CLASSIFIERS - set(metadata.get_all("Classifier", [])):
        faults.append(f"it lacks the classifiers {sorted(missing)}")
    if (extras := set(metadata.get_all("Provides-Extra", []))) != EXTRAS:
        faults.append(f"its extras are {sorted(extras)}, not {sorted(EXTRAS)}")
    if b"tf-interop" not in files.get(f"{folder}/entry_points.txt", b""):
        faults.append("it lacks the command tf-interop")
    return faults + _requirements_of_tensorflow(metadata)


def _requirements_of_tensorflow(metadata: email.message.Message) -> list[str]:
    # Developers' tools may: setup.sh names TensorFlow's version beside them.
    return [
        f"it requires {requirement}, which may replace the user's TensorFlow"
        for requirement in metadata.get_all("Requires-Dist", [])
        if re.match(r"tensorflow|tf[-_]", requirement) and 'extra == "dev"' not in requirement
    ]


def main() -> None:
    """Checks and compares the two wheels of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("other", type=pathlib.Path)
    arguments = parser.parse_args()

    size = arguments.wheel.stat().st_size
    files, others = files_of(arguments.wheel), files_of(arguments.other)
    faults = faults_of(files, ROOT / "tf_interop")
    if size > LARGEST_BYTES:
        faults.append(f"it has {size} bytes, more than {LARGEST_BYTES}")
    faults += [f"{name} is another one in {arguments.other}" for name in differences(files, others)]
    if faults:
        raise SystemExit(f"{arguments.wheel.name}: " + "; ".join(faults) + ".")
    print(f"{arguments.wheel.name}: {len(files)} files, {size / 1e6:.1f} MB, the same from both")


if __name__ == "__main__":
    main()
