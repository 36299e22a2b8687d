"""Profile files: one JSON document a line, in the order in which they were measured.

{"format":"tf_interop.profile","version":1,"device":{"backend":"cudnn","name":"NVIDIA H200",…}}
{"algorithm":{"configuration":{…},"algorithm":"eng4_k2=1","tf32":true,"latency_us":12.5,…}}
{"stage":{"stage":{"lanes":[{"steps":[{"operation":{…},"algorithm":"FFT"}],…}]},…}}

The first line is a header. Each later line is a header, too, which begins what another run of the
same device measured, or an entry. Of entries with one key the last counts. So a run goes on with a
file by appending to it, and files of one device are merged by putting one after the other.

Every entry is on disk before the next measurement begins. A run that is killed loses at most the
line that it was writing: a last line that is no whole JSON document is passed over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import stat
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from tf_interop.errors import ProfileError
from tf_interop.profile.check import check_entry
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    Entry,
    StageFailure,
    StageMeasurement,
)
from tf_interop.profile.types import Profile, ProfiledDevice, profile_of, why_foreign
from tf_interop.versioned_file import (
    PathLike,
    VersionedFormat,
    check_all_fields_read,
    make_strict,
    read_file,
    write_file,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """The first line of a profile, and of what each later run measured.

    Attributes:
        device: what was measured on.
        format: always `tf_interop.profile`.
        version: version of the format.
    """

    device: ProfiledDevice
    format: Literal["tf_interop.profile"] = "tf_interop.profile"
    version: Literal[1] = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """Every other line of a profile: one of the fields is there."""

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
_REMEDY = "Remove the line, or measure again."
_FORMAT = VersionedFormat(Header, "profile", ProfileError, _REMEDY)
_BEGINNING = b'{"format":"tf_interop.profile","version":1,'
_HEADER_DECODER = msgspec.json.Decoder(Header)
_LINE_DECODER = msgspec.json.Decoder(Line)


def load_profile(path: PathLike) -> Profile:
    """Reads a profile file.

    Raises:
        ProfileError: there is no such file, it is of another format or version, or a line is
            damaged, not legal or of another device. Names the line and what to do.
    """
    return _parse(read_file(path, "profile", ProfileError), path)


def save_profile(profile: Profile, path: PathLike) -> None:
    """Writes a profile file, atomically; equal profiles give equal bytes.

    Raises:
        ProfileError: an entry is not legal, or the file cannot be written.
    """
    lines = [_header_line(profile.device), *(_entry_line(entry) for entry in profile.entries)]
    write_file(b"".join(lines), path, "profile", ProfileError)


def profile_document(profile: Profile) -> list[Any]:
    """The documents of a profile's lines, for msgspec to encode."""
    entries = ({_FIELDS[type(entry)]: entry} for entry in profile.entries)
    return [Header(profile.device), *entries]


def profile_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of each line of a profile file: types, fields and bounds."""
    lines, definitions = msgspec.json.schema_components(
        (Header, Line), ref_template="#/$defs/{name}"
    )
    make_strict(definitions.values())
    # Both fields have a default here, and tell a header from an entry there.
    definitions["Header"]["required"] = ["device", "format", "version"]
    definitions["Line"] |= {"minProperties": 1, "maxProperties": 1}
    return {"oneOf": list(lines), "$defs": definitions}


class ProfileWriter:
    """A profile file that a run appends to, held by this process alone; see `open_profile`."""

    def __init__(self, path: PathLike, file: int, profile: Profile) -> None:
        self._path = path
        self._file = file
        self._before = profile
        self._appended: list[Entry] = []

    @property
    def profile(self) -> Profile:
        """All that the file holds."""
        return profile_of(self._before.device, (*self._before.entries, *self._appended))

    def append(self, entry: Entry) -> None:
        """Adds an entry; it is on disk when this returns.

        Raises:
            ProfileError: the entry is not one that a profile may hold, or cannot be written.
        """
        _append(self._path, self._file, _entry_line(entry))
        self._appended.append(entry)


@contextlib.contextmanager
def open_profile(path: PathLike, device: ProfiledDevice) -> Iterator[ProfileWriter]:
    """Opens a profile file to go on with it, or a new one.

    Args:
        path: the file.
        device: what is measured on. Day, driver and clocks may be others than before.

    Raises:
        ProfileError: another process measures into the file, it is of another device, or damaged.
    """
    file = _open_locked(path)
    try:
        content = pathlib.Path(path).read_bytes()
        whole = _whole_lines(content)
        before = profile_of(device, ())
        if whole:
            before = _parse(whole, path)
            _check_device(before.device, device, f"profile '{os.fspath(path)}'")
        elif content[: len(_BEGINNING)] != _BEGINNING[: len(content)]:
            # Half of something else is not to be lost.
            raise ProfileError(f"'{os.fspath(path)}' is not a profile. Choose another file.")
        os.ftruncate(file, min(len(content), len(whole)))
        if len(whole) > len(content):
            _append(path, file, b"\n")
        if not whole or before.device != device:
            _append(path, file, _header_line(device))
        yield ProfileWriter(path, file, dataclasses.replace(before, device=device))
    finally:
        os.close(file)


def _whole_lines(content: bytes) -> bytes:
    """Content without a last line that was only half written, with an end to each line."""
    end = content.rfind(b"\n") + 1
    if end == len(content):
        return content
    try:
        msgspec.json.decode(content[end:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return content[:end]
    return content + b"\n"


def _parse(content: bytes, path: PathLike) -> Profile:
    device: ProfiledDevice | None = None
    entries: list[Entry] = []
    for number, line in enumerate(_whole_lines(content).split(b"\n")[:-1], 1):
        try:
            entry = None if number == 1 else _parse_entry(line)
            if entry is not None:
                entries.append(entry)
                continue
            header = _parse_header(line)
            _check_device(header.device, device or header.device)
            device = header.device
        except (ValueError, msgspec.MsgspecError, RecursionError, ProfileError) as error:
            reason = str(error).replace(" - at ", " at ").rstrip(".")
            raise ProfileError(
                f"{reason}, in line {number} of profile '{os.fspath(path)}'. {_REMEDY}"
            ) from error
    if device is None:
        raise ProfileError(f"Profile '{os.fspath(path)}' has no header. Measure again.")
    return profile_of(device, entries)


def _parse_header(line: bytes) -> Header:
    raw = msgspec.json.decode(line)
    _FORMAT.check_header(raw)
    header = _HEADER_DECODER.decode(line)
    check_all_fields_read(raw, msgspec.to_builtins(header), "$")
    return header


def _parse_entry(line: bytes) -> Entry | None:
    """None if a line holds no entry, as a header does."""
    read = _LINE_DECODER.decode(line)
    given: dict[str, Entry] = {
        name: value for name in _FIELDS.values() if (value := getattr(read, name)) is not None
    }
    if not given:
        return None
    if len(given) > 1:
        raise ValueError(f"Expected one of {', '.join(_FIELDS.values())}, got {len(given)} at `$`")
    # What this release wrote is taken as it is: to look at each field by itself takes long.
    if msgspec.json.encode(given) != line:
        check_all_fields_read(msgspec.json.decode(line), msgspec.to_builtins(read), "$")
    ((field, entry),) = given.items()
    check_entry(entry, f"$.{field}")
    return entry


def _header_line(device: ProfiledDevice) -> bytes:
    header = Header(device)
    fields = {"format": header.format, "version": header.version, "device": device}
    return msgspec.json.encode(fields) + b"\n"


def _entry_line(entry: Entry) -> bytes:
    field = _FIELDS[type(entry)]
    try:
        check_entry(entry, f"$.{field}")
        line = msgspec.json.encode({field: entry})
        # Bounds of types are checked only by reading; and what is not finite is null in JSON.
        if getattr(_LINE_DECODER.decode(line), field) != entry:
            raise ValueError(f"Expected finite values, got others at `$.{field}`: {entry}")
    except (ValueError, msgspec.MsgspecError) as error:
        raise ProfileError(
            f"{error}, in an entry for a profile. This is an error of whatever measured."
        ) from error
    return line + b"\n"


def _append(path: PathLike, file: int, data: bytes) -> None:
    # One write: a line that ends is whole.
    size = os.fstat(file).st_size
    try:
        written = os.write(file, data)
        if written != len(data):
            raise OSError(f"{written} of {len(data)} bytes written")
        os.fsync(file)
    except OSError as error:
        # The next line must not be joined to half of this one.
        os.ftruncate(file, size)
        raise _cannot_write(path, error) from error


def _open_locked(path: PathLike) -> int:
    """Opens a file and locks it, for as long as it is open."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ProfileError(f"'{os.fspath(path)}' is not a regular file. Choose another.")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise ProfileError(
            f"Another process is writing profile '{os.fspath(path)}'. Wait until it has ended, "
            "or choose another file."
        ) from error
    except BaseException:
        os.close(file)
        raise
    return file


def _check_device(profiled: ProfiledDevice, here: ProfiledDevice, what: str = "profiles") -> None:
    difference = why_foreign(profiled, here)
    if difference is not None:
        raise ProfileError(
            f"Expected {what} of one device, got another: {difference}. Keep a file for each "
            "device and cuDNN version."
        )


def _cannot_write(path: PathLike, error: OSError) -> ProfileError:
    return ProfileError(
        f"Profile '{os.fspath(path)}' cannot be written: {error.strerror or error}. Choose a "
        "file in a writable folder with free space; the same command continues."
    )
