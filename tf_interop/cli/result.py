"""What a command has to say, for people or as JSON, and how it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec
from rich.console import Console

from tf_interop.cli.exit_status import errors_shown

JSON_HELP = "Print JSON: one document on stdout, everything else on stderr."


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What a command found out or did.

    Attributes:
        document: what `--json` prints: plain values or dataclasses, for msgspec to encode.
        show: prints the same for people.
        exit_code: what the process ends with once one of them is printed.
    """

    document: Any
    show: Callable[[], object]
    exit_code: int = 0


def prints_result(command: Callable[..., Result]) -> Callable[..., None]:
    """Gives a command `--json`, and prints its answer in one form or the other.

    Whatever a command, TensorFlow or the code of a model prints on stdout meanwhile goes to stderr
    under `--json`, so that the document is alone there. After an error nothing is.

    Args:
        command: what click calls, with its options; below this decorator.
    """

    @click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
    @functools.wraps(command)
    def answered(*arguments: Any, as_json: bool, **options: Any) -> None:
        with errors_shown():
            with stdout_on_stderr() if as_json else contextlib.nullcontext():
                answer = command(*arguments, **options)
            if as_json:
                print_json(answer.document)
            else:
                answer.show()
        click.get_current_context().exit(answer.exit_code)

    return answered


def reading(command: Callable[..., Result]) -> Callable[..., Result]:
    """Says on a terminal that files are being read, for as long as a command runs.

    A profile of many thousand measurements takes seconds to read and check.
    """

    @functools.wraps(command)
    def read(*arguments: Any, **options: Any) -> Result:
        with Console(stderr=True).status("Reading"):
            return command(*arguments, **options)

    return read


def print_json(document: Any) -> None:
    """Prints a document on stdout, indented."""
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))


@contextlib.contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Has what is written to stdout come out on stderr, that of libraries and children, too."""
    descriptor = _descriptor_of_stdout()
    if descriptor is None:
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    sys.stdout.flush()  # what was written before goes where it was to go
    kept = os.dup(descriptor)
    try:
        os.dup2(sys.stderr.fileno(), descriptor)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(kept, descriptor)
    finally:
        os.close(kept)


def _descriptor_of_stdout() -> int | None:
    """None where stdout or stderr is closed, or stands for something within the process."""
    try:
        sys.stderr.fileno()
        return sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return None
