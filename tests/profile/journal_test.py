"""The journal of a profiling run: kept through kills, resumed, refused, merged into the profile."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest
from profile_values import (
    EVERY_KIND_OF_ENTRY,
    GPU,
    LARGE,
    MERGED,
    SMALL,
    make_algorithm,
    make_algorithm_failure,
    make_profile,
    make_stage,
)

from tf_interop.errors import ProfileError
from tf_interop.profile.file import load_profile, save_profile
from tf_interop.profile.journal import ProfileJournal, journal_path
from tf_interop.profile.types import ProfiledDevice


@pytest.fixture(name="path")
def fixture_path(tmp_path: pathlib.Path) -> pathlib.Path:
    return journal_path(tmp_path / "profile.json")


def test_lies_beside_the_profile(tmp_path: pathlib.Path) -> None:
    assert journal_path(tmp_path / "h200.json") == tmp_path / "h200.json.journal"


def test_a_new_journal_is_empty(path: pathlib.Path) -> None:
    with ProfileJournal.open(path, GPU) as journal:
        assert journal.entries == make_profile()


def test_goes_on_where_it_was_left(path: pathlib.Path) -> None:
    first, *rest = EVERY_KIND_OF_ENTRY
    with ProfileJournal.open(path, GPU) as journal:
        journal.append(first)
    with ProfileJournal.open(path, GPU) as journal:
        assert journal.entries == make_profile(first)
        for entry in rest:
            journal.append(entry)
        assert journal.entries == make_profile(*EVERY_KIND_OF_ENTRY)
    with ProfileJournal.open(path, GPU) as journal:
        assert journal.entries == make_profile(*EVERY_KIND_OF_ENTRY)


def test_keeps_what_was_merged(path: pathlib.Path) -> None:
    with ProfileJournal.open(path, GPU) as journal:
        for entry in MERGED:
            journal.append(entry)
    with ProfileJournal.open(path, GPU) as journal:
        assert journal.entries == make_profile(*MERGED)
        (stage,) = journal.entries.stages
        with pytest.raises(ProfileError, match=r"alone, two or more, got 1 .*stage.merged\[1\]"):
            journal.append(dataclasses.replace(stage, merged=(True, True)))


def test_the_last_entry_of_a_key_counts(path: pathlib.Path) -> None:
    slow, fast = make_algorithm(latency_us=20.0), make_algorithm(latency_us=10.0)
    with ProfileJournal.open(path, GPU) as journal:
        journal.append(make_algorithm_failure(algorithm=slow.algorithm))
        journal.append(slow)
        journal.append(fast)
        assert journal.entries == make_profile(fast)


def test_keeps_every_whole_line_wherever_the_last_one_is_cut(path: pathlib.Path) -> None:
    with ProfileJournal.open(path, GPU) as journal:
        for entry in EVERY_KIND_OF_ENTRY:
            journal.append(entry)
    content = path.read_bytes()
    before_last = content[:-1].rfind(b"\n") + 1
    whole = make_profile(*EVERY_KIND_OF_ENTRY[:-1])
    for size in range(before_last, len(content)):
        path.write_bytes(content[:size])
        with ProfileJournal.open(path, GPU) as journal:
            assert journal.entries == whole
            journal.append(EVERY_KIND_OF_ENTRY[-1])
        assert path.read_bytes() == content


def test_begins_anew_wherever_the_first_line_is_cut(path: pathlib.Path) -> None:
    ProfileJournal.open(path, GPU).close()
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with ProfileJournal.open(path, GPU) as journal:
            assert journal.entries == make_profile()
        assert path.read_bytes() == content


_WRITER = """
import dataclasses, sys
sys.path[:0] = sys.argv[2:]
from profile_values import GPU, make_algorithm
from tf_interop.profile.journal import ProfileJournal
with ProfileJournal.open(sys.argv[1], GPU) as journal:
    done = len(journal.entries.algorithms)
    for number in range(done, 100_000):
        journal.append(make_algorithm(algorithm=f"eng{number}"))
        print(number, flush=True)
"""


def test_loses_nothing_that_was_written_when_killed(path: pathlib.Path) -> None:
    generator = random.Random(0)
    roots = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parents[2])]
    written = 0
    for _ in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), *roots], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            # It has begun; then at any moment.
            last = int(writer.stdout.readline())
            time.sleep(generator.uniform(0, 0.05))
            writer.send_signal(signal.SIGKILL)
            for line in writer.stdout:
                last = int(line) if line.endswith("\n") else last
        assert last >= written
        with ProfileJournal.open(path, GPU) as journal:
            entries = journal.entries.algorithms
        # One more than it could say.
        assert len(entries) in (last + 1, last + 2)
        assert [entry.algorithm for entry in entries] == [f"eng{i}" for i in range(len(entries))]
        written = len(entries)


def test_an_entry_is_on_disk_when_append_returns(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    with ProfileJournal.open(path, GPU) as journal:
        journal.append(make_algorithm())
        assert synced[-1] == path.stat().st_size


def test_goes_on_after_a_disk_that_was_full(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    with ProfileJournal.open(path, GPU) as journal:
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
        with pytest.raises(ProfileError, match="Make room and run the same command again"):
            journal.append(make_algorithm())
        monkeypatch.undo()
        journal.append(make_algorithm(LARGE))
        assert journal.entries == make_profile(make_algorithm(LARGE))
    with ProfileJournal.open(path, GPU) as journal:
        assert journal.entries == make_profile(make_algorithm(LARGE))


def test_opens_no_journal_that_is_removed_meanwhile(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As another process does that finishes between the opening and the lock.
    ProfileJournal.open(path, GPU).close()
    flock, removed = fcntl.flock, []

    def lock(file: int, operation: int) -> None:
        if not removed:
            path.unlink()
            removed.append(path)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", lock)
    with ProfileJournal.open(path, GPU) as journal:
        journal.append(make_algorithm())
    with ProfileJournal.open(path, GPU) as journal:
        assert journal.entries == make_profile(make_algorithm())


def test_refuses_a_second_writer(path: pathlib.Path) -> None:
    program = (
        "import sys; from tf_interop.profile.journal import ProfileJournal\n"
        "sys.path[:0] = sys.argv[2:]; from profile_values import GPU\n"
        "ProfileJournal.open(sys.argv[1], GPU)"
    )
    command = [sys.executable, "-c", program, str(path), str(pathlib.Path(__file__).parents[1])]
    with ProfileJournal.open(path, GPU) as journal:
        journal.append(make_algorithm())
        with pytest.raises(ProfileError, match="to be free, got one that another process writes"):
            ProfileJournal.open(path, GPU)
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "to be free, got one that another process writes. Wait until" in second.stderr
        assert journal.entries == make_profile(make_algorithm())
    assert subprocess.run(command, check=False).returncode == 0


def test_refuses_another_device_by_name(path: pathlib.Path) -> None:
    ProfileJournal.open(path, GPU).close()
    other = dataclasses.replace(GPU, name="NVIDIA A100", cudnn="9.3.0")
    with pytest.raises(ProfileError) as raised:
        ProfileJournal.open(path, other)
    assert "name: expected 'NVIDIA A100', got 'NVIDIA H200'" in str(raised.value)
    assert "cudnn: expected '9.3.0', got '9.10.2'" in str(raised.value)


def test_goes_on_another_day_with_another_driver(path: pathlib.Path) -> None:
    out = path.with_name("profile.json")
    ProfileJournal.open(path, GPU).close()
    between = dataclasses.replace(GPU, date="2026-11-25")
    save_profile(make_profile(make_algorithm(latency_us=99.0), device=between), out)
    later = dataclasses.replace(GPU, date="2026-12-01", driver="580.1")
    with ProfileJournal.open(path, later) as journal:
        journal.append(make_algorithm(latency_us=9.0))
        assert journal.finish(out) == make_profile(make_algorithm(latency_us=9.0), device=later)


def test_refuses_a_damaged_line_by_number(path: pathlib.Path) -> None:
    with ProfileJournal.open(path, GPU) as journal:
        journal.append(make_algorithm())
        journal.append(make_algorithm_failure())
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b'"latency_us":12.5', b'"latency_us":-1')
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ProfileError, match=r"at `\$\.algorithm\.latency_us`, in line 2 of journal"):
        ProfileJournal.open(path, GPU)


@pytest.mark.parametrize("line", [b"{}", b"[]", b"{}{}", b"\xff", b'{"stage":null}'])
def test_refuses_a_line_without_an_entry(path: pathlib.Path, line: bytes) -> None:
    ProfileJournal.open(path, GPU).close()
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(ProfileError, match="in line 2 of journal"):
        ProfileJournal.open(path, GPU)


def test_refuses_a_file_of_another_kind(path: pathlib.Path) -> None:
    save_profile(make_profile(), path)
    with pytest.raises(ProfileError, match="in line 1 of journal"):
        ProfileJournal.open(path, GPU)


def test_refuses_an_entry_that_no_profile_may_hold(path: pathlib.Path) -> None:
    unknown = dataclasses.replace(SMALL, image_shape=(None, 28, 28, 16))
    with ProfileJournal.open(path, GPU) as journal:
        for entry, reason in [
            (make_algorithm(latency_us=float("inf")), r"\$\.algorithm\.latency_us"),
            (make_algorithm(latency_us=0.0), r"\$\.algorithm\.latency_us"),
            (make_algorithm(unknown), r"\$\.algorithm\.configuration\.image_shape"),
            (make_stage((SMALL, "FFT"), lanes=(1,)), r"\$\.stage\.lanes"),
        ]:
            with pytest.raises(ProfileError, match=reason):
                journal.append(entry)
        journal.append(make_algorithm())
    with ProfileJournal.open(path, GPU) as journal:
        assert journal.entries == make_profile(make_algorithm())


def test_finish_writes_the_profile_and_removes_the_journal(path: pathlib.Path) -> None:
    out = path.with_name("profile.json")
    with ProfileJournal.open(path, GPU) as journal:
        for entry in EVERY_KIND_OF_ENTRY:
            journal.append(entry)
        assert journal.finish(out) == make_profile(*EVERY_KIND_OF_ENTRY)
    assert load_profile(out) == make_profile(*EVERY_KIND_OF_ENTRY)
    assert list(path.parent.iterdir()) == [out]


def test_finish_merges_into_the_profile_that_is_there(path: pathlib.Path) -> None:
    out = path.with_name("profile.json")
    kept, replaced = make_algorithm(algorithm="GEMM"), make_algorithm(latency_us=99.0)
    save_profile(make_profile(kept, replaced), out)
    later = dataclasses.replace(GPU, date="2026-11-21")
    with ProfileJournal.open(path, later) as journal:
        journal.append(make_algorithm(latency_us=9.0))
        journal.finish(out)
    expected = make_profile(kept, make_algorithm(latency_us=9.0), device=later)
    assert load_profile(out) == expected


@pytest.mark.parametrize("device", [dataclasses.replace(GPU, sm_count=114)])
def test_finish_keeps_the_journal_where_the_profile_is_of_another_device(
    path: pathlib.Path, device: ProfiledDevice
) -> None:
    out = path.with_name("profile.json")
    save_profile(make_profile(device=device), out)
    before = out.read_bytes()
    with ProfileJournal.open(path, GPU) as journal:
        journal.append(make_algorithm())
        with pytest.raises(ProfileError, match="sm_count: expected 132, got 114"):
            journal.finish(out)
    assert out.read_bytes() == before
    with ProfileJournal.open(path, GPU) as journal:
        assert journal.entries == make_profile(make_algorithm())
