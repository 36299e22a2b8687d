"""Profile files: one JSON document a line, in the order of the measurements.

{"format":"tf_interop.profile","version":1,"device":{"backend":"cudnn","name":"NVIDIA H200",…}}
{"algorithm":{"configuration":{…},"algorithm":"eng4_k2=1","tf32":true,"latency_us":12.5,…}}
{"stage":{"stage":{"lanes":[{"steps":[{"operation":{…},"algorithm":"FFT"}],…}]},…}}

The first line is a header. Any later line is an entry, or the header of another run on the same
device. The last entry with a key counts. So a run continues a file by appending to it, and files of
one device are merged by concatenation.

Every entry is on disk before the next measurement begins. A run that is killed loses at most its
last entry, because a last line that is not a complete JSON document is ignored.
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
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    Entry,
    StageFailure,
    StageMeasurement,
    check_entry,
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line of each run's part of a profile.

    Attributes:
        format: always `tf_interop.profile`.
        version: version of the format.
    """

    format: Literal["tf_interop.profile"] = "tf_interop.profile"
    version: Literal[1] = 1
    device: ProfiledDevice


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """Any other line of a profile; it has one of these fields."""

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
_LINE_DECODER = msgspec.json.Decoder(Line)


def load_profile(path: PathLike) -> Profile:
    """Reads a profile file.

    Raises:
        ProfileError: the file does not exist or has another format or version, or a line is
            damaged, invalid or from another device. The message names the line and the remedy.
    """
    content = read_file(path, "profile", ProfileError)
    _FORMAT.refuse_another_kind(content, path)
    return _parse(content, path)


def save_profile(profile: Profile, path: PathLike) -> None:
    """Writes a profile file, atomically; equal profiles give equal bytes.

    Raises:
        ProfileError: an entry is invalid, or the file cannot be written.
    """
    lines = [_header_line(profile.device), *(_entry_line(entry) for entry in profile.entries)]
    write_file(b"".join(lines), path, "profile", ProfileError)


def profile_document(profile: Profile) -> list[Any]:
    """The documents of a profile's lines, for msgspec to encode."""
    entries = ({_FIELDS[type(entry)]: entry} for entry in profile.entries)
    return [Header(device=profile.device), *entries]


def profile_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of each line of a profile file: types, fields and bounds."""
    lines, definitions = msgspec.json.schema_components(
        (Header, Line), ref_template="#/$defs/{name}"
    )
    make_strict(definitions.values())
    # The defaults of the dataclass would make these fields optional.
    definitions["Header"]["required"] = ["device", "format", "version"]
    definitions["Line"] |= {"minProperties": 1, "maxProperties": 1}
    return {"oneOf": list(lines), "$defs": definitions}


class ProfileWriter:
    """A profile file that only this process appends to; see `open_profile`."""

    def __init__(self, path: PathLike, file: int, profile: Profile) -> None:
        self._path = path
        self._file = file
        self._device = profile.device
        self._entries = list(profile.entries)

    @property
    def profile(self) -> Profile:
        """The content of the file."""
        return profile_of(self._device, self._entries)

    def append(self, entry: Entry) -> None:
        """Adds an entry; it is on disk when this returns.

        Raises:
            ProfileError: the entry is invalid or cannot be written.
        """
        _append(self._path, self._file, _entry_line(entry))
        self._entries.append(entry)


@contextlib.contextmanager
def open_profile(path: PathLike, device: ProfiledDevice) -> Iterator[ProfileWriter]:
    """Opens a new profile file, or an existing one to continue it.

    Date, driver and clocks of the device may differ from those in the file.

    Raises:
        ProfileError: another process writes the file, or it is damaged or from another device.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        _lock(file, path)
        content = pathlib.Path(path).read_bytes()
        whole = _whole_lines(content)
        before = profile_of(device, ())
        if whole:
            before = _parse(whole, path)
            _check_device(before.device, device, f"profile '{os.fspath(path)}'")
        elif content[: len(_BEGINNING)] != _BEGINNING[: len(content)]:
            # Truncating would destroy a file of another kind.
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
    """Removes a last line that was only half written, and ends a complete one."""
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
    header = msgspec.json.decode(line, type=Header)
    check_all_fields_read(raw, msgspec.to_builtins(header), "$")
    return header


def _parse_entry(line: bytes) -> Entry | None:
    """Parses a line; None if it has no entry, as for a header."""
    read = _LINE_DECODER.decode(line)
    given: dict[str, Entry] = {
        name: value for name in _FIELDS.values() if (value := getattr(read, name)) is not None
    }
    if not given:
        return None
    if len(given) > 1:
        raise ValueError(f"Expected one of {', '.join(_FIELDS.values())}, got {len(given)} at `$`")
    # A line that this release has written has no unknown fields, and checking each field is slow.
    if msgspec.json.encode(given) != line:
        check_all_fields_read(msgspec.json.decode(line), msgspec.to_builtins(read), "$")
    ((field, entry),) = given.items()
    check_entry(entry, f"$.{field}")
    return entry


def _header_line(device: ProfiledDevice) -> bytes:
    return msgspec.json.encode(Header(device=device)) + b"\n"


def _entry_line(entry: Entry) -> bytes:
    field = _FIELDS[type(entry)]
    try:
        line = msgspec.json.encode({field: entry})
        # Only reading checks the bounds of types. JSON stores values that are not finite as null.
        if _parse_entry(line) != entry:
            raise ValueError(f"Expected finite values, got others at `$.{field}`: {entry}")
    except (ValueError, msgspec.MsgspecError) as error:
        raise ProfileError(
            f"{error}, in an entry for a profile. This is a bug in the measurement."
        ) from error
    return line + b"\n"


def _append(path: PathLike, file: int, data: bytes) -> None:
    # A single write, so a line with an end is complete.
    size = os.fstat(file).st_size
    try:
        written = os.write(file, data)
        if written != len(data):
            raise OSError(f"{written} of {len(data)} bytes written")
        os.fsync(file)
    except OSError as error:
        # Otherwise the next line would continue this partial one.
        os.ftruncate(file, size)
        raise _cannot_write(path, error) from error


def _lock(file: int, path: PathLike) -> None:
    """Locks a regular file until it is closed."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise ProfileError(f"'{os.fspath(path)}' is not a regular file. Choose another.")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ProfileError(
            f"Another process is writing profile '{os.fspath(path)}'. Wait for it to end, or "
            "choose another file."
        ) from error


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
