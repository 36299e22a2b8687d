"""The journal of a profiling run: one line for each measurement, on disk before the next begins.

A run that is killed loses at most the measurement that it was in. The journal lies beside the
profile, as `<profile>.journal`; when all is measured it is merged into the profile and removed.

{"format":"tf_interop.profile_journal","version":1,"device":{…}}
{"algorithm":{"configuration":{…},"algorithm":"eng4_k2=1",…}}
{"stage":{"convolutions":[…],…}}
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import pathlib
from types import TracebackType
from typing import NoReturn

import msgspec

from tf_interop.errors import ProfileError
from tf_interop.profile.check import check_configuration, check_device, check_entry
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    Entry,
    StageFailure,
    StageMeasurement,
)
from tf_interop.profile.file import load_profile, save_profile
from tf_interop.profile.foreign import why_foreign
from tf_interop.profile.merge import merge_profiles
from tf_interop.profile.types import Profile, ProfiledDevice, profile_of
from tf_interop.versioned_file import PathLike

JOURNAL_FORMAT = "tf_interop.profile_journal"
JOURNAL_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class _Header:
    """The first line."""

    format: str
    version: int
    device: ProfiledDevice


@dataclasses.dataclass(frozen=True, slots=True)
class _Line:
    """Every other line: one of the fields is there."""

    algorithm: AlgorithmMeasurement | None = None
    algorithm_failure: AlgorithmFailure | None = None
    stage: StageMeasurement | None = None
    stage_failure: StageFailure | None = None


_FIELDS: dict[type, str] = {
    AlgorithmMeasurement: "algorithm",
    AlgorithmFailure: "algorithm_failure",
    StageMeasurement: "stage",
    StageFailure: "stage_failure",
}


def journal_path(profile_path: PathLike) -> pathlib.Path:
    """Where the journal of a profile lies."""
    path = pathlib.Path(profile_path)
    return path.with_name(f"{path.name}.journal")


class ProfileJournal:
    """An open journal, held by this process alone. Use `ProfileJournal.open`, in a `with`."""

    def __init__(self, path: pathlib.Path, file: int, device: ProfiledDevice) -> None:
        self._path = path
        self._file = file
        self._device = device
        self._entries: list[Entry] = []

    @classmethod
    def open(cls, path: PathLike, device: ProfiledDevice) -> ProfileJournal:
        """Opens a journal, a new one or one that a run left behind.

        A last line that was only half written is dropped.

        Args:
            path: the journal's file; see `journal_path`.
            device: what is measured on. Day, driver and clocks may be others than when the journal
                was begun; the profile will have those that are given here.

        Raises:
            ProfileError: another process holds the journal, it is of another device, or it is
                damaged.
        """
        path = pathlib.Path(path)
        file = _open_locked(path)
        try:
            journal = cls(path, file, device)
            journal._read()
        except BaseException:
            os.close(file)
            raise
        return journal

    def __enter__(self) -> ProfileJournal:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def entries(self) -> Profile:
        """Everything in the journal; of entries with one key the last."""
        return profile_of(self._device, self._entries)

    def append(self, entry: Entry) -> None:
        """Adds an entry; it is on disk when this returns.

        Raises:
            ProfileError: the entry is not one that a profile may hold, or cannot be written.
        """
        field = _FIELDS[type(entry)]
        try:
            check_entry(entry, f"$.{field}")
            _check_configurations(entry, f"$.{field}")
            line = msgspec.json.encode({field: entry})
            # What will be read: bounds of types are checked only there.
            msgspec.json.decode(line, type=_Line)
        except (ValueError, msgspec.ValidationError) as error:
            raise ProfileError(
                f"{error}, in an entry for journal '{self._path}'. This is an error of whatever "
                "measured."
            ) from error
        self._write(line)
        self._entries.append(entry)

    def finish(self, out_path: PathLike) -> Profile:
        """Merges the journal into a profile file, a new one or one that is there; then removes it.

        What the journal holds goes before what the profile held, unless that has a later date.

        Returns:
            The whole profile, as it is in the file.

        Raises:
            ProfileError: the file that is there is not a profile of this device, or cannot be
                written. The journal stays then.
        """
        profile = self.entries
        if pathlib.Path(out_path).exists():
            profile = merge_profiles([load_profile(out_path), profile])
        save_profile(profile, out_path)
        self._path.unlink()
        self.close()
        return profile

    def close(self) -> None:
        """Lets go of the file, which stays; no more after that. A second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self) -> None:
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        header, *lines = whole.split(b"\n")[:-1] or [b""]
        if not header:
            os.ftruncate(self._file, 0)
            self._write(
                msgspec.json.encode(
                    _Header(JOURNAL_FORMAT, JOURNAL_VERSION, self._device),
                    order="deterministic",
                )
            )
            _sync_folder(self._path.parent)
            return
        self._take_header(header)
        self._entries += [self._parse(line, number) for number, line in enumerate(lines, start=2)]
        if len(whole) < len(content):
            os.ftruncate(self._file, len(whole))

    def _take_header(self, line: bytes) -> None:
        try:
            raw = msgspec.json.decode(line)
            form = (raw.get("format"), raw.get("version")) if isinstance(raw, dict) else raw
            if form != (JOURNAL_FORMAT, JOURNAL_VERSION):
                raise ValueError(
                    f"Expected {(JOURNAL_FORMAT, JOURNAL_VERSION)} for format and version, got "
                    f"{form}"
                )
            device = msgspec.convert(raw, _Header).device
            check_device(device, "$.device")
        except (ValueError, msgspec.ValidationError, RecursionError) as error:
            self._refuse(error, 1)
        difference = why_foreign(device, self._device)
        if difference is not None:
            raise ProfileError(
                f"Expected journal '{self._path}' to be of this device, got one of another: "
                f"{difference}. Go on with it there, or remove it, or choose another file."
            )

    def _parse(self, line: bytes, number: int) -> Entry:
        try:
            read = msgspec.json.decode(line, type=_Line)
            (entry,) = (
                value for name in _FIELDS.values() if (value := getattr(read, name)) is not None
            )
            check_entry(entry, "$")
            _check_configurations(entry, "$")
        except (ValueError, msgspec.ValidationError, RecursionError) as error:
            self._refuse(error, number)
        result: Entry = entry
        return result

    def _refuse(self, error: Exception, number: int) -> NoReturn:
        raise ProfileError(
            f"{str(error).replace(' - at ', ' at ')}, in line {number} of journal '{self._path}'. "
            "The file is damaged: remove that line, or the file, and measure anew."
        ) from error

    def _write(self, line: bytes) -> None:
        # One write: a line that ends is whole.
        data = line + b"\n"
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, data)
            if written != len(data):
                raise OSError(f"{written} of {len(data)} bytes written")
            os.fsync(self._file)
        except OSError as error:
            # The next line must not be joined to half of this one.
            os.ftruncate(self._file, size)
            raise ProfileError(
                f"Expected to write journal '{self._path}', got: {error.strerror or error}. Make "
                "room and run the same command again; it goes on from there."
            ) from error


def _open_locked(path: pathlib.Path) -> int:
    """Opens the file at `path` and locks it, for as long as it is open."""
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ProfileError(
                f"Expected to open journal '{path}', got: {error.strerror}. Choose a file in a "
                "folder that exists and may be written to."
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(file)
            raise ProfileError(
                f"Expected journal '{path}' to be free, got one that another process writes. Wait "
                "until it has ended, or choose another file."
            ) from error
        if _is_file_at(file, path):
            return file
        # The process that held it finished, and removed it, between the two calls.
        os.close(file)


def _is_file_at(file: int, path: pathlib.Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _sync_folder(folder: pathlib.Path) -> None:
    """Puts a new file's name on disk; that of its content alone does not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_configurations(entry: Entry, place: str) -> None:
    if isinstance(entry, (AlgorithmMeasurement, AlgorithmFailure)):
        check_configuration(entry.configuration, f"{place}.configuration")
        return
    for index, measured in enumerate(entry.convolutions):
        check_configuration(measured.configuration, f"{place}.convolutions[{index}].configuration")
