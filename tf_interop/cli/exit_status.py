"""How commands end: exit codes, errors in one line, Ctrl-C, and readers that go away."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import click

from tf_interop.errors import TfInteropError

STOPPED = 130
"""As a shell says of a program that Ctrl-C ended: 128 and the number of the signal."""
_READER_GONE = 141
"""As of a program that SIGPIPE ended."""
# Click keeps the lines of a paragraph that starts with this.
_AS_IT_IS = "\b\n"
_MEANINGS = {
    0: "success",
    1: "an error that tf_interop reports",
    2: "wrong usage",
    STOPPED: "stopped by Ctrl-C",
}


def help_end(
    examples: str, exit_codes: Mapping[int, str] = MappingProxyType({}), notes: str = ""
) -> str:
    """The end of a help text: notes, examples and exit codes.

    Args:
        examples: a command a line, without `tf-interop`; a line that is indented goes on with the
            one before. What is to stand above further ones follows an empty line and ends with a
            colon.
        exit_codes: meanings that are a command's own, in place of the usual ones or beside them.
        notes: paragraphs before the examples, a line each.
    """
    first, *others = examples.strip().split("\n\n")
    paragraphs = [f"Examples:\n{first}", *others]
    shown = [re.sub(r"\n(?! )", "\n  tf-interop ", each) for each in paragraphs]
    meanings = sorted({**_MEANINGS, **exit_codes}.items())
    codes = "\n".join(["Exit codes:", *(f"  {code:<3}  {meaning}" for code, meaning in meanings)])
    return "\n\n".join(_AS_IT_IS + each for each in (*filter(None, [notes]), *shown, codes))


@contextlib.contextmanager
def errors_shown() -> Iterator[None]:
    """Errors of tf_interop as click shows them: in one line."""
    try:
        yield
    except TfInteropError as error:
        raise click.ClickException(error.on_command_line) from error


class EndsReported:
    """A mixin for click's outermost group: no traceback for what a user can cause."""

    def make_context(self, *arguments: Any, **others: Any) -> click.Context:
        """Makes the context as click does; help and version are printed meanwhile."""
        with _ends_reported():
            return super().make_context(*arguments, **others)  # type: ignore[misc,no-any-return]

    def invoke(self, context: click.Context) -> Any:
        """Runs the command as click does."""
        with _ends_reported():
            return super().invoke(context)  # type: ignore[misc]


@contextlib.contextmanager
def _ends_reported() -> Iterator[None]:
    try:
        with _unknown_characters_replaced():
            try:
                yield
            except click.exceptions.Exit:
                _flush_stdout()
                raise
            _flush_stdout()
    except KeyboardInterrupt:
        click.echo("Stopped.", err=True)
        raise click.exceptions.Exit(STOPPED) from None
    except BrokenPipeError:
        drop_stdout()
        raise click.exceptions.Exit(_READER_GONE) from None
    except OSError as error:
        if error.filename:
            what = f"to read or write '{error.filename}', got: {error.strerror}. Check the path."
        else:
            drop_stdout()
            what = f"to write all output, got: {error.strerror or error}. Check where stdout goes."
        raise click.ClickException(f"Expected {what}") from error


@contextlib.contextmanager
def _unknown_characters_replaced() -> Iterator[None]:
    """Prints a question mark for what the encoding of stdout lacks, and does not fail."""
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper):
        yield
        return
    before = stdout.errors
    stdout.reconfigure(errors="replace")
    yield
    # Only where all is well: it writes what is left, and a program that is run follows.
    stdout.reconfigure(errors=before)


def _flush_stdout() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def drop_stdout() -> None:
    """Has Python not try again, when it ends, to write what could not be written."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def print_error(text: str) -> None:
    """Prints an error as click does."""
    click.echo(f"Error: {text}", err=True)


def end_with(error: TfInteropError) -> NoReturn:
    """Ends the process with an error that tf_interop reports."""
    print_error(error.on_command_line)
    raise SystemExit(1)
