"""Files of profiles: read back, continued after a kill, and refused if invalid."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from typing import Any

import pytest
from edits import set_at
from profile_values import (
    EVERY_KIND_OF_ENTRY,
    GPU,
    KERNEL,
    LARGE,
    MERGED,
    SMALL,
    make_algorithm,
    make_algorithm_failure,
    make_profile,
    make_stage,
    make_stage_failure,
)

from tf_interop.errors import ProfileError
from tf_interop.profile.entries import Entry
from tf_interop.profile.file import load_profile, open_profile, save_profile
from tf_interop.profile.types import Profile

ENTRIES = (*EVERY_KIND_OF_ENTRY, *MERGED)
PROFILE = make_profile(*ENTRIES)
LATER = dataclasses.replace(GPU, date="2026-12-01", driver="580.1")
OTHER_DEVICE = dataclasses.replace(GPU, name="NVIDIA A100", cudnn="9.3.0")
MERGING: dict[str, Any] = {"lanes": (0, 0), "merged": (True,)}
INF, NAN = float("inf"), float("nan")


def append(path: pathlib.Path, *entries: Entry) -> Profile:
    """The content of the file after one more run."""
    with open_profile(path, GPU) as file:
        for entry in entries:
            file.append(entry)
        return file.profile


def test_appends_the_lines_that_saving_writes(path: pathlib.Path) -> None:
    append(path, *PROFILE.entries)
    appended = path.read_bytes()
    save_profile(PROFILE, path)
    assert load_profile(path) == PROFILE
    assert path.read_bytes() == appended
    header, *lines = map(json.loads, appended.splitlines())
    assert (header["format"], header["version"]) == ("tf_interop.profile", 1)
    names = {"algorithm": 2, "algorithm_failure": 1, "stage": 2, "stage_failure": 2}
    assert [name for line in lines for name in line] == [n for n in names for _ in range(names[n])]


@pytest.mark.parametrize("split", range(len(ENTRIES) + 1))
def test_a_run_continues_another(path: pathlib.Path, split: int) -> None:
    assert append(path, *ENTRIES[:split]) == make_profile(*ENTRIES[:split])
    assert append(path, *ENTRIES[split:]) == PROFILE
    assert load_profile(path) == PROFILE


def test_the_last_entry_of_a_key_counts(path: pathlib.Path) -> None:
    slow, fast = make_algorithm(latency_us=20.0), make_algorithm(latency_us=10.0)
    append(path, make_algorithm_failure(algorithm=slow.algorithm), slow)
    assert append(path, fast) == load_profile(path) == make_profile(fast)
    append(path, make_algorithm_failure(algorithm=slow.algorithm))
    assert not load_profile(path).algorithms


def test_concatenated_files_are_merged(tmp_path: pathlib.Path) -> None:
    profiles = [
        make_profile(make_algorithm(), make_stage((SMALL, None))),
        make_profile(make_algorithm(latency_us=9.0), make_algorithm(LARGE), device=LATER),
    ]
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for profile, path in zip(profiles, paths, strict=True):
        save_profile(profile, path)
    both = tmp_path / "both.json"
    both.write_bytes(b"".join(path.read_bytes() for path in paths))
    expected = make_profile(
        make_algorithm(latency_us=9.0),
        make_algorithm(LARGE),
        make_stage((SMALL, None)),
        device=LATER,
    )
    assert load_profile(both) == expected


def test_keeps_all_lines_before_one_that_was_cut(path: pathlib.Path) -> None:
    append(path, *ENTRIES)
    content = path.read_bytes()
    whole = make_profile(*ENTRIES[:-1])
    for size in range(content[:-1].rfind(b"\n") + 1, len(content) - 1, 7):
        path.write_bytes(content[:size])
        assert load_profile(path) == whole
        assert append(path, ENTRIES[-1]) == PROFILE
        assert path.read_bytes() == content
    # The last line lacks only its end.
    path.write_bytes(content[:-1])
    assert load_profile(path) == append(path) == PROFILE
    assert path.read_bytes() == content


def test_begins_again_after_a_header_that_was_cut(path: pathlib.Path) -> None:
    append(path)
    content = path.read_bytes()
    for size in range(len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(ProfileError):
            load_profile(path)
        append(path)
        assert path.read_bytes() == content


def test_refuses_a_second_writer(path: pathlib.Path) -> None:
    with (
        open_profile(path, GPU),
        pytest.raises(ProfileError, match="Another process"),
        open_profile(path, GPU),
    ):
        pass
    append(path, make_algorithm())


def test_an_entry_is_on_disk_when_append_returns(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    with open_profile(path, GPU) as file:
        file.append(make_algorithm())
        assert synced[-1] == path.stat().st_size


def test_continues_after_a_full_disk(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with open_profile(path, GPU) as file:
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
        with pytest.raises(ProfileError):
            file.append(make_algorithm())
        monkeypatch.undo()
        file.append(make_algorithm(LARGE))
        assert file.profile == make_profile(make_algorithm(LARGE))
    assert load_profile(path) == make_profile(make_algorithm(LARGE))


def test_names_both_devices_in_a_refusal(path: pathlib.Path) -> None:
    append(path, make_algorithm())
    before = path.read_bytes()
    with (
        pytest.raises(ProfileError, match=r"A100.*H200.*9\.3\.0.*9\.10\.2"),
        open_profile(path, OTHER_DEVICE),
    ):
        pass
    assert path.read_bytes() == before
    other = path.with_name("other.json")
    save_profile(make_profile(device=OTHER_DEVICE), other)
    path.write_bytes(before + other.read_bytes())
    with pytest.raises(ProfileError, match=r"A100.*line 3"):
        load_profile(path)


def test_refuses_a_path_that_is_no_file(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing" / "profile.json", tmp_path / "pipe"):
        with pytest.raises(ProfileError), open_profile(path, GPU):
            pass


@pytest.mark.parametrize("content", [b"notes", b"{ ", b'{"format":"tf_interop.plan"', b"a\nb\n"])
def test_does_not_touch_a_file_of_another_kind(path: pathlib.Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ProfileError):
        append(path)
    assert path.read_bytes() == content


# Lines of `EVERY_KIND_OF_ENTRY`, after the header.
ALGORITHM, _, FAILURE, STAGE = range(1, 5)
CONFIGURATION = "algorithm.configuration"
LANES = "stage.stage.lanes"


@pytest.mark.parametrize(
    ("number", "field", "value"),
    [
        (0, "device.backend", "cuda"),
        (0, "device.date", "21.11.2026"),
        (ALGORITHM, "algorithm.algorithm", "fastest"),
        (ALGORITHM, "algorithm.kernels.0.alu_utilization", 70),
        (ALGORITHM, f"{CONFIGURATION}.dtype", "int8"),
        (ALGORITHM, f"{CONFIGURATION}.layout", "NHWX"),
        (ALGORITHM, f"{CONFIGURATION}.strides", [0, 1]),
        (ALGORITHM, f"{CONFIGURATION}.image_shape", [None, 28, 28, 16]),
        (ALGORITHM, f"{CONFIGURATION}.filter_shape", None),
        (FAILURE, "algorithm_failure.kind", "no"),
        (STAGE, "stage.latency_us", 0),
        (STAGE, "stage.workspace_bytes", 2**63),
        (STAGE, "stage.sequential_algorithms.1", "ALGO_1"),
        (STAGE, "stage.sequential_algorithms", ["GEMM"]),
        (STAGE, LANES, []),
        (STAGE, f"{LANES}.0.priority", 2**31),
        (STAGE, f"{LANES}.0.steps.0.algorithm", "ALGO_1"),
        (STAGE, f"{LANES}.0.steps.0.operation.image_shape", None),
    ],
)
def test_names_line_and_place_of_an_invalid_value(
    path: pathlib.Path, number: int, field: str, value: object
) -> None:
    save_profile(make_profile(*EVERY_KIND_OF_ENTRY), path)
    lines = path.read_text().splitlines()
    line = json.loads(lines[number])
    set_at(line, field, value)
    lines[number] = json.dumps(line)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ProfileError) as raised:
        load_profile(path)
    place = re.sub(r"\.(\d+)", r"[\1]", field)
    assert re.search(rf"`\$\.{re.escape(place)}`.* in line {number + 1} of", str(raised.value))
    assert str(path) in str(raised.value)
    with pytest.raises(ProfileError), open_profile(path, GPU):
        pass


@pytest.mark.parametrize("line", [b"{}", b"[]", b"{}{}", b"\xff", b'{"stage":null}', b""])
def test_refuses_a_line_without_an_entry(path: pathlib.Path, line: bytes) -> None:
    append(path)
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(ProfileError, match="in line 2 of"):
        load_profile(path)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (make_stage_failure((SMALL, "FFT"), (LARGE, "FFT"), **MERGING), "merged lane"),
        (make_stage((SMALL, "FFT"), (SMALL, "GEMM"), **MERGING), "merged lane"),
        *((make_algorithm(latency_us=value), "latency_us") for value in (0.0, -1.0, INF, NAN)),
        *((make_stage((SMALL, None), latency_us=value), "latency_us") for value in (0.0, NAN)),
        *((make_algorithm(relative_error=value), "relative_error") for value in (INF, NAN)),
        # In a file, null would mean that it is unknown.
        (make_algorithm(kernels=(dataclasses.replace(KERNEL, alu_utilization=NAN),)), "finite"),
    ],
)
def test_writes_only_what_it_would_read(path: pathlib.Path, entry: Entry, reason: str) -> None:
    with pytest.raises(ProfileError, match=reason):
        save_profile(make_profile(entry), path)
    assert not path.exists()
    with pytest.raises(ProfileError, match=reason):
        append(path, entry)
