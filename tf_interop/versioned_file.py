"""JSON files with a format and a version: read strictly, written atomically."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import os
import pathlib
import re
import secrets
import shlex
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec

from tf_interop.errors import TfInteropError

T = TypeVar("T")

_MODEL_SIGNATURES = (b"PK\x03\x04", b"\x89HDF")
"""How .keras and .h5 files begin."""
PathLike = str | os.PathLike[str]
_LONGEST_LINE = 1000
SHOWN_KINDS = ("plan", "parallel_plan", "profile", "benchmark")
"""The kinds of files that `tf-interop show` prints."""


@dataclasses.dataclass(frozen=True, slots=True)
class VersionedFormat(Generic[T]):
    """The file format for one type of value.

    Attributes:
        value_type: a dataclass. The defaults of its fields `format` and `version` are the ones
            that this release reads and writes.
        noun: the word for such a file in messages, such as `plan`.
        error: the class of the errors.
        remedy: the advice for an invalid file, as a sentence.
        check: raises ValueError for a violation of a rule that the types cannot express. The
            message names the place as msgspec does: "... at `$.graphs[0]`".
    """

    value_type: type[T]
    noun: str
    error: type[TfInteropError]
    remedy: str
    check: Callable[[T], None] = lambda value: None

    @property
    def header(self) -> dict[str, Any]:
        """The fields that identify the format."""
        fields = dataclasses.fields(self.value_type)  # type: ignore[arg-type]
        return {each.name: each.default for each in fields if each.name in ("format", "version")}

    def load(self, path: PathLike) -> T:
        """Reads and checks a file; an unknown field is an error."""
        content = read_file(path, self.noun, self.error)
        self.refuse_another_kind(content, path)
        return self._parse(content, path)

    def save(self, value: T, path: PathLike) -> None:
        """Writes a file that `load` reads back as an equal value; equal values give equal bytes."""
        content = msgspec.json.encode(value, order="deterministic")
        # Checks the encoded value, because JSON has no infinity, for example.
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

    def refuse_another_kind(self, content: bytes, path: PathLike) -> None:
        """Raises the error for another kind of file of this package, and for models."""
        if content.startswith(_MODEL_SIGNATURES):
            raise self.error(
                f"'{os.fspath(path)}' is a model or an archive, not a {self.noun}, which is JSON. "
                f"Choose the {self.noun}'s file."
            )
        kind = kind_of(content)
        if kind and self.header["format"] != f"tf_interop.{kind}":
            cure = "Choose another file."
            if kind in SHOWN_KINDS:
                cure = f"Print it with: tf-interop show {shlex.quote(os.fspath(path))}"
            found = kind.replace("_", " ")
            raise self.error(f"'{os.fspath(path)}' is a {found} file, not a {self.noun}. {cure}")

    def check_header(self, raw: object) -> None:
        """Raises ValueError for another format or version, before the content is checked."""
        if not isinstance(raw, dict):
            raise ValueError(f"Expected `object`, got `{type(raw).__name__}` at `$`")
        for name, expected in self.header.items():
            if raw.get(name) != expected or isinstance(raw[name], bool):
                raise ValueError(
                    f"Expected {name} {expected!r}, got {raw.get(name)!r} at `$.{name}`. Another "
                    "program or release made the file"
                )

    def _parse(self, content: bytes, path: PathLike) -> T:
        in_file = f"{self.noun} '{os.fspath(path)}'"
        try:
            raw = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.error(
                f"The {in_file} is not JSON ({error}); it may be damaged. {self.remedy}"
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


def kind_of(content: bytes) -> str:
    """The kind of a file of this package, such as `plan`, even if it is damaged; else empty."""
    found = re.search(rb'"format":\s*"tf_interop\.(\w+)"', content)
    return found[1].decode() if found else ""


def in_lines(value: Any, indent: str = "") -> str:
    """Formats JSON for people and for version control, with short values on one line."""
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
    """Reads a file, with this package's errors."""
    try:
        return pathlib.Path(path).read_bytes()
    except FileNotFoundError as error:
        raise error_type(f"File not found: '{os.fspath(path)}'. Expected a {noun}.") from error
    except (OSError, UnicodeEncodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise error_type(
            f"The {noun} {os.fspath(path)!r} cannot be read: {why}. Choose another file."
        ) from error


def write_file(content: bytes, path: PathLike, noun: str, error_type: type[TfInteropError]) -> None:
    """Replaces a file atomically, even if something reads it or crashes meanwhile.

    It writes directly to a path that is not a regular file, such as /dev/stdout.
    """
    temporary = None
    try:
        given = pathlib.Path(path)
        if given.exists() and not given.is_file():
            given.write_bytes(content)  # a pipe has no path that it could be resolved to
            return
        target = given.resolve()
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        # Not with tempfile, whose files only their owner may read.
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    # A loop of symbolic links is a RuntimeError before Python 3.13.
    except (OSError, RuntimeError, UnicodeEncodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise error_type(
            f"The {noun} {os.fspath(path)!r} cannot be written: {why}. Choose a file in a folder "
            "that exists and is writable."
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError, UnicodeEncodeError):
                temporary.unlink()


def make_strict(definitions: Iterable[dict[str, Any]]) -> None:
    """Forbids unknown fields in a schema's definitions."""
    for definition in definitions:
        if "description" in definition:
            # The indentation of docstrings depends on the version of Python.
            definition["description"] = inspect.cleandoc(definition["description"])
        if "properties" in definition:
            definition["additionalProperties"] = False


def check_all_fields_read(raw: object, read: object, place: str) -> None:
    """Refuses fields that the conversion to dataclasses ignored, such as misspelled ones."""
    if isinstance(raw, dict) and isinstance(read, dict):
        for name, field in raw.items():
            if name not in read:
                known = ", ".join(f"`{each}`" for each in read)
                raise ValueError(f"Expected only the fields {known}, got `{name}` at `{place}`")
            check_all_fields_read(field, read[name], f"{place}.{name}")
    elif isinstance(raw, (list, tuple)) and isinstance(read, (list, tuple)):
        for index, (raw_item, read_item) in enumerate(zip(raw, read, strict=True)):
            check_all_fields_read(raw_item, read_item, f"{place}[{index}]")
