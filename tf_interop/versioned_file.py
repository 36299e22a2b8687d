"""JSON files that say which format and version they are: read strictly, written atomically."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import os
import pathlib
import secrets
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec

from tf_interop.errors import TfInteropError

T = TypeVar("T")
PathLike = str | os.PathLike[str]
_LONGEST_LINE = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class VersionedFormat(Generic[T]):
    """How values of one type are kept in files.

    Attributes:
        value_type: the dataclass that a file holds. The defaults of its fields `format` and
            `version` are what this release reads and writes.
        noun: what messages call such a file, such as `plan`.
        error: the class of the errors raised.
        remedy: what to do about a file that is not legal, as a sentence.
        check: raises ValueError for a value that the types allow and the format does not. The
            message names the place as msgspec does: "... at `$.graphs[0]`".
    """

    value_type: type[T]
    noun: str
    error: type[TfInteropError]
    remedy: str
    check: Callable[[T], None] = lambda value: None

    @property
    def header(self) -> dict[str, Any]:
        """The fields by which a file says what it is."""
        fields = dataclasses.fields(self.value_type)  # type: ignore[arg-type]
        return {each.name: each.default for each in fields if each.name in ("format", "version")}

    def load(self, path: PathLike) -> T:
        """Reads a file and checks everything it says; a field that nothing reads is an error."""
        return self._parse(read_file(path, self.noun, self.error), path)

    def save(self, value: T, path: PathLike) -> None:
        """Writes a file that `load` reads back as an equal value; equal values give equal bytes."""
        content = msgspec.json.encode(value, order="deterministic")
        # What will be read, not `value`: JSON has no infinity, for one.
        self._parse(content, path)
        text = in_lines(msgspec.json.decode(content))
        write_file(f"{text}\n".encode(), path, self.noun, self.error)

    def schema(self) -> dict[str, Any]:
        """JSON schema (2020-12) of the files that `load` reads, apart from `check`."""
        schema = msgspec.json.schema(self.value_type)
        make_strict(schema["$defs"].values())
        top = schema["$defs"][self.value_type.__name__]
        top["properties"] |= {name: {"const": value} for name, value in self.header.items()}
        top["required"] = sorted({*top["required"], *self.header})
        return schema

    def check_header(self, raw: object) -> None:
        """Raises ValueError for another format or version, before the content is looked at."""
        if not isinstance(raw, dict):
            raise ValueError(f"Expected `object`, got `{type(raw).__name__}` at `$`")
        for name, expected in self.header.items():
            if raw.get(name) != expected or isinstance(raw[name], bool):
                raise ValueError(
                    f"Expected {name} {expected!r}, got {raw.get(name)!r} at `$.{name}`. Another "
                    "program or another release made the file"
                )

    def _parse(self, content: bytes, path: PathLike) -> T:
        in_file = f"{self.noun} '{os.fspath(path)}'"
        try:
            raw = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.error(
                f"The {in_file} is not JSON: {error}. The file ({len(content)} bytes) is "
                f"damaged or incomplete. {self.remedy}"
            ) from error
        try:
            self.check_header(raw)
            value = msgspec.convert(raw, self.value_type)
            check_all_fields_read(raw, msgspec.to_builtins(value), "$")
            self.check(value)
        except (msgspec.ValidationError, ValueError) as error:
            reason = str(error).replace(" - at ", " at ")
            raise self.error(f"{reason}, in {in_file}. {self.remedy}") from error
        return value


def in_lines(value: Any, indent: str = "") -> str:
    """JSON for people and for version control: what fits into a line is one."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _LONGEST_LINE or not isinstance(value, dict | list):
        return text
    inner = indent + "  "
    if isinstance(value, dict):
        items = [f"{json.dumps(name)}: {in_lines(each, inner)}" for name, each in value.items()]
    else:
        items = [in_lines(each, inner) for each in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(items) + f"\n{indent}{closing}"


def read_file(path: PathLike, noun: str, error_type: type[TfInteropError]) -> bytes:
    """Reads a file; an error is of this package, and names the file."""
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise error_type(
            f"The {noun} file '{os.fspath(path)}' cannot be read: {error.strerror}. Check the path."
        ) from error


def write_file(content: bytes, path: PathLike, noun: str, error_type: type[TfInteropError]) -> None:
    """Writes a file that appears whole or not at all; one that was there stays until then.

    Another process may read it, and a crash may come, at any moment. What is no file, such as
    /dev/stdout, is written to as it is.
    """
    target = pathlib.Path(path).resolve()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)
            return
        # "x" and not tempfile, whose files nobody else may read.
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise error_type(
            f"The {noun} '{os.fspath(path)}' cannot be written: {error.strerror}. Choose a file "
            "in a folder that exists and is writable."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def make_strict(definitions: Iterable[dict[str, Any]]) -> None:
    """Changes definitions of a schema to those of files of which every field is read."""
    for definition in definitions:
        if "description" in definition:
            # Docstrings: which indentation they keep depends on the version of Python.
            definition["description"] = inspect.cleandoc(definition["description"])
        if "properties" in definition:
            definition["additionalProperties"] = False


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
