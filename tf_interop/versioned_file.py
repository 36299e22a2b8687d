"""JSON files that say which format and version they are: read strictly, written atomically."""

from __future__ import annotations

import dataclasses
import inspect
import os
import pathlib
import secrets
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from tf_interop.errors import TfInteropError

T = TypeVar("T")
PathLike = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True, slots=True)
class VersionedFormat(Generic[T]):
    """How values of one type are kept in files.

    Attributes:
        noun: what messages call such a file, such as `plan`.
        name: what the field `format` of such a file says.
        version: the version in the field `version` that this release reads and writes.
        value_type: the dataclass that a file holds.
        check: raises ValueError for a value that the types allow and the format does not. The
            message names the place as msgspec does: "... at `$.graphs[0]`".
        error: the class of the errors raised.
        remedy: what to do about a file that is not legal, as a sentence.
    """

    noun: str
    name: str
    version: int
    value_type: type[T]
    check: Callable[[T], None]
    error: type[TfInteropError]
    remedy: str


def load_versioned(path: PathLike, file_format: VersionedFormat[T]) -> T:
    """Reads a file and checks everything it says; a field that nothing reads is an error.

    Raises:
        TfInteropError: of the class `file_format.error`, if there is no such file, or it is not
            whole, of another format or version, or not legal. Says where in the file.
    """
    try:
        content = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise file_format.error(
            f"Expected a {file_format.noun} file at '{os.fspath(path)}', got: {error.strerror}. "
            "Check the path."
        ) from error
    return _value_from(content, path, file_format)


def save_versioned(value: T, path: PathLike, file_format: VersionedFormat[T]) -> None:
    """Writes a file that `load_versioned` reads back as an equal value.

    Equal values give equal bytes. The file appears whole or not at all, and a file that was there
    stays until then: another process may read it, and a crash may come, at any moment.

    Raises:
        TfInteropError: of the class `file_format.error`, if the value is not legal or the file
            cannot be written.
    """
    content = msgspec.json.encode(value, order="deterministic")
    # What will be read, not `value`: JSON has no infinity, for one.
    _value_from(content, path, file_format)
    indented = msgspec.json.format(content, indent=2) + b"\n"
    write_file(indented, path, file_format.noun, file_format.error)


def write_file(content: bytes, path: PathLike, noun: str, error_type: type[TfInteropError]) -> None:
    """Writes a file as `write_atomically` does; an error is of this package, and names the file.

    Raises:
        TfInteropError: of the class `error_type`, if it cannot be written.
    """
    try:
        write_atomically(content, path)
    except OSError as error:
        raise error_type(
            f"Expected to write {noun} '{os.fspath(path)}', got: {error.strerror}. "
            "Choose a file in a folder that exists and may be written to."
        ) from error


def write_atomically(content: bytes, path: PathLike) -> None:
    """Writes a file that appears whole or not at all; one that was there stays until then.

    What is no file, such as /dev/stdout, is written to as it is.

    Raises:
        OSError: it cannot be written.
    """
    target = pathlib.Path(path).resolve()
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        # "x" and not tempfile, whose files nobody else may read.
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def versioned_schema(file_format: VersionedFormat[Any]) -> dict[str, Any]:
    """JSON schema (2020-12) of the files that `load_versioned` reads, apart from `check`."""
    schema = msgspec.json.schema(file_format.value_type)
    for definition in schema["$defs"].values():
        if "description" in definition:
            # Docstrings: which indentation they keep depends on the version of Python.
            definition["description"] = inspect.cleandoc(definition["description"])
        if "properties" in definition:
            definition["additionalProperties"] = False
    top = schema["$defs"][file_format.value_type.__name__]
    top["properties"]["format"] = {"const": file_format.name}
    top["properties"]["version"] = {"const": file_format.version}
    top["required"] = sorted({*top["required"], "format", "version"})
    return schema


def check_header(raw: object, file_format: VersionedFormat[Any]) -> None:
    """Refuses a foreign file before its content is looked at: that would only say what differs."""
    if not isinstance(raw, dict):
        raise ValueError(f"Expected `object`, got `{type(raw).__name__}` at `$`")
    if raw.get("format") != file_format.name:
        raise ValueError(
            f"Expected format {file_format.name!r}, got {raw.get('format')!r} at `$.format`"
        )
    version = raw.get("version")
    if version != file_format.version or isinstance(version, bool):
        raise ValueError(
            f"Expected version {file_format.version}, got {version!r} at `$.version`. Another "
            "release made the file"
        )


def check_all_fields_read(raw: object, read: object, place: str) -> None:
    """Refuses fields that the conversion to dataclasses passed over, such as misspelled ones."""
    if isinstance(raw, dict) and isinstance(read, dict):
        for name, field in raw.items():
            if name not in read:
                known = ", ".join(f"`{each}`" for each in read)
                raise ValueError(f"Expected only the fields {known}, got `{name}` at `{place}`")
            check_all_fields_read(field, read[name], f"{place}.{name}")
    elif isinstance(raw, (list, tuple)) and isinstance(read, (list, tuple)):
        for index, (raw_item, read_item) in enumerate(zip(raw, read, strict=True)):
            check_all_fields_read(raw_item, read_item, f"{place}[{index}]")


def _value_from(content: bytes, path: PathLike, file_format: VersionedFormat[T]) -> T:
    in_file = f"{file_format.noun} '{os.fspath(path)}'"
    try:
        raw = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise file_format.error(
            f"Expected JSON in {in_file}, got {len(content)} bytes that are not: {error}. The file "
            f"is damaged or was only half written. {file_format.remedy}"
        ) from error
    try:
        check_header(raw, file_format)
        value = msgspec.convert(raw, file_format.value_type)
        check_all_fields_read(raw, msgspec.to_builtins(value), "$")
        file_format.check(value)
    except (msgspec.ValidationError, ValueError) as error:
        reason = str(error).replace(" - at ", " at ")
        raise file_format.error(f"{reason}, in {in_file}. {file_format.remedy}") from error
    return value
