"""Feeds damaged files to a reader under a coverage-guided fuzzer (atheris, which is libFuzzer).

    python tests/fuzz/fuzz_files.py READER [LIBFUZZER OPTIONS]

READER is one of plan, problem, profile, configurations, nsight. A reader may refuse a
file with an error of this package. Whatever else it raises is a finding, and so is a file that it
accepts and that is another one after it was written and read again.
"""

from __future__ import annotations

import contextlib
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import atheris

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

with atheris.instrument_imports(include=["tf_interop"]):
    from tf_interop.errors import TfInteropError
    from tf_interop.planning.file import load_plan, save_plan
    from tf_interop.planning.problem_file import load_problem, save_problem
    from tf_interop.profile.file import load_profile, open_profile, save_profile
    from tf_interop.profile.nsight_compute import read_nsight_csv
    from tf_interop.profile.worklist_file import (
        load_configurations,
        save_configurations,
    )

import configuration_values  # noqa: E402 (the path is set above)
import plan_values  # noqa: E402
import planning_values  # noqa: E402
import profile_values  # noqa: E402
from fuzz.json_edits import edit_json  # noqa: E402

Path = pathlib.Path

PAIR = (profile_values.SMALL, "eng4_k2=1"), (profile_values.LARGE, None)
NSIGHT_CSV = """\
"ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit","Metric Value"
"0","gemm(float*)","(128, 1, 1)","(4, 1, 1)","gpu__time_duration.sum","nsecond","1,024"
"1","copy<int>(int)","(32, 1, 1)","(9, 2, 1)","launch__registers_per_thread","","64"
"""


def read_and_write(
    load: Callable[[Path], Any], save: Callable[[Any, Path], None], path: Path
) -> None:
    """Reads a file, writes what it says and reads that."""
    value = load(path)
    save(value, path)
    again = load(path)
    if again != value:
        raise AssertionError(f"Expected {value} after writing it, got {again}.")


def go_on_with_profile(path: Path) -> None:
    """Reads a profile, and opens it as a run does, which reads it to the same end."""
    read = None
    with contextlib.suppress(TfInteropError):
        read = load_profile(path)
    with open_profile(path, profile_values.GPU) as file:
        opened = file.profile
    if read is not None and opened.entries != read.entries:
        raise AssertionError(f"Expected {read} to be opened, got {opened}.")
    read_and_write(load_profile, save_profile, path)


def make_problem() -> Any:
    return planning_values.make_problem(
        {"a": "", "b": "", "c": "a b"}, {"a": 1.0, "b": 2.0, "c": 3.0}, {"a b": 2.5}
    )


def make_profile() -> Any:
    return profile_values.make_profile(
        profile_values.make_algorithm(),
        profile_values.make_algorithm_failure(),
        profile_values.make_stage(*PAIR),
        profile_values.make_stage_failure(*PAIR),
    )


WRITERS: dict[str, Callable[[Path], None]] = {
    "plan": lambda path: save_plan(plan_values.PLAN, path),
    "problem": lambda path: save_problem(make_problem(), path),
    "profile": lambda path: save_profile(make_profile(), path),
    "configurations": lambda path: save_configurations(configuration_values.LIST, path),
    "nsight": lambda path: path.write_text(NSIGHT_CSV),
}
READERS: dict[str, Callable[[Path], None]] = {
    "plan": lambda path: read_and_write(load_plan, save_plan, path),
    "problem": lambda path: read_and_write(load_problem, save_problem, path),
    "profile": go_on_with_profile,
    "configurations": lambda path: read_and_write(load_configurations, save_configurations, path),
    "nsight": read_nsight_csv,
}


def damage(content: bytes, data: atheris.FuzzedDataProvider) -> bytes:
    """Edits a whole file, or gives bytes that have nothing to do with it."""
    if data.ConsumeIntInRange(0, 9) == 0:
        return data.ConsumeBytes(data.remaining_bytes())
    lines = content.decode().splitlines()
    place = data.ConsumeIntInRange(0, len(lines) - 1)
    with contextlib.suppress(ValueError):
        return edit_json("\n".join(lines), data)
    # Not one document: a profile has one for each line, a table none.
    with contextlib.suppress(ValueError):
        lines[place] = edit_json(lines[place], data).decode("utf-8", "surrogateescape")
        return "\n".join(lines).encode("utf-8", "surrogateescape")
    changed = bytearray(content)
    for _ in range(data.ConsumeIntInRange(1, 6)):
        at = data.ConsumeIntInRange(0, len(changed) - 1)
        changed[at : at + data.ConsumeIntInRange(0, 3)] = data.ConsumeBytes(4)
    return bytes(changed)


def main() -> None:
    """Fuzzes the reader that the command line names."""
    if len(sys.argv) < 2 or sys.argv[1] not in READERS:
        raise SystemExit(f"Expected one of {', '.join(READERS)}, got {sys.argv[1:2]}.")
    name = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        WRITERS[name](path)
        whole = path.read_bytes()
        READERS[name](path)

        def read_damaged(fuzzed: bytes) -> None:
            path.write_bytes(damage(whole, atheris.FuzzedDataProvider(fuzzed)))
            with contextlib.suppress(TfInteropError):
                READERS[name](path)

        atheris.Setup(sys.argv, read_damaged)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
