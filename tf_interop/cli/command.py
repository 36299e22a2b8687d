"""How a command is declared and how it ends: help, results as text or JSON, exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import click
import msgspec

from tf_interop.errors import TfInteropError

STOPPED = 128 + signal.SIGINT  # as a shell says of a program that Ctrl-C ended
# Click keeps the lines of a paragraph that starts with this.
_AS_IT_IS = "\b\n"
_MEANINGS = {
    0: "success",
    1: "an error that tf_interop reports",
    2: "wrong usage",
    STOPPED: "stopped by Ctrl-C",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What a command found out or did.

    Attributes:
        document: what `--json` prints: plain values, paths or dataclasses, for msgspec to encode.
        show: prints the same for people.
        exit_code: what the process ends with once one of them is printed.
    """

    document: Any
    show: Callable[[], object]
    exit_code: int = 0


def command(
    examples: str,
    *,
    notes: str = "",
    exit_codes: Mapping[int, str] | None = None,
    kind: type[click.Command] = click.Command,
) -> Callable[[Callable[..., Result]], click.Command]:
    """Makes a function a command with `--json`, which prints its result in one form or the other.

    Under `--json` stdout holds the document alone, and after an error nothing: everything that the
    function, TensorFlow or the code of a model prints goes to stderr. The first line of the
    docstring is the short help; `help_end` describes the other arguments.
    """

    def declare(function: Callable[..., Result]) -> click.Command:
        @functools.wraps(function)
        def print_result(*arguments: Any, as_json: bool, **options: Any) -> None:
            with stdout_on_stderr() if as_json else contextlib.nullcontext():
                result = function(*arguments, **options)
            if as_json:
                print_json(result.document)
            else:
                result.show()
            click.get_current_context().exit(result.exit_code)

        # Click's own short help would be cut short.
        first_line = (function.__doc__ or "").partition("\n")[0]
        epilog = help_end(examples, exit_codes, notes)
        declared = click.command(cls=kind, epilog=epilog, short_help=first_line)(print_result)
        declared.params.append(
            click.Option(
                ["--json", "as_json"],
                is_flag=True,
                help="Print JSON: one document on stdout, everything else on stderr.",
            )
        )
        return declared

    return declare


def help_end(examples: str, exit_codes: Mapping[int, str] | None = None, notes: str = "") -> str:
    """The end of a help text: notes, examples and exit codes.

    Examples are a command a line, without `tf-interop`; an indented line goes on with the one
    before. A heading of further ones follows an empty line. `exit_codes` are a command's own.
    """
    first, *others = examples.strip().split("\n\n")
    paragraphs = [f"Examples:\n{first}", *others]
    shown = [re.sub(r"\n(?! )", "\n  tf-interop ", each) for each in paragraphs]
    meanings = sorted({**_MEANINGS, **(exit_codes or {})}.items())
    codes = "\n".join(["Exit codes:", *(f"  {code:<3}  {meaning}" for code, meaning in meanings)])
    return "\n\n".join(_AS_IT_IS + each for each in (*filter(None, [notes]), *shown, codes))


class Stopped(SystemExit):
    """Ends a command that Ctrl-C stopped, after everything was restored."""


class CommandLine(click.Group):
    """The outermost group.

    A command is imported when it is asked for. What a user can cause ends in a line on stderr,
    without a traceback.
    """

    def __init__(self, *, modules: Mapping[str, str], **others: Any) -> None:
        """Makes the group of the commands that are in these modules of this folder, by name."""
        commands = {name: click.Command(name) for name in modules}
        super().__init__(commands=commands, **others)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which one needs them."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command; None if there is none of that name."""
        if cmd_name not in self._modules:
            return None
        module = importlib.import_module(f"tf_interop.cli.{self._modules[cmd_name]}")
        found = getattr(module, cmd_name)
        assert isinstance(found, click.Command)
        return found

    def main(self, *arguments: Any, **others: Any) -> NoReturn:
        """Runs a command, and ends the process with its exit code."""
        try:
            result = super().main(*arguments, **{**others, "standalone_mode": False})
            # None if stdout is closed, which is no reason not to run a program.
            if sys.stdout is not None:
                sys.stdout.flush()
        except click.Abort:
            click.echo("Stopped.", err=True)
            raise Stopped(STOPPED) from None
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except TfInteropError as error:
            end_with(error)
        except OSError as error:
            what = f"read or write '{error.filename}'", "Check the path."
            if not error.filename:
                # Python would try to write it again when it ends.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                what = "write all output", "Check where stdout goes."
            print_error(f"Cannot {what[0]}: {error.strerror or error}. {what[1]}")
            sys.exit(1)
        # The program of `run`. Not inside click, which would take its exceptions for its own.
        sys.exit(result() if callable(result) else result)


def print_error(text: str) -> None:
    """Prints an error as click does."""
    click.echo(f"Error: {text}", err=True)


def end_with(error: TfInteropError) -> NoReturn:
    """Ends the process with an error that tf_interop reports."""
    print_error(str(error))
    sys.exit(1)


def print_json(document: Any) -> None:
    """Prints a document on stdout, indented; paths as texts."""
    click.echo(msgspec.json.format(msgspec.json.encode(document, enc_hook=str), indent=2))


@contextlib.contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Redirects stdout to stderr, also that of libraries and child processes."""
    try:
        sys.stderr.fileno()
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        # One of them is closed, or stands for something within the process.
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    sys.stdout.flush()  # what was written before goes where it was to go
    kept = os.dup(descriptor)
    try:
        os.dup2(sys.stderr.fileno(), descriptor)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, descriptor)
        os.close(kept)


@contextlib.contextmanager
def signals_caught() -> Iterator[list[int]]:
    """Collects Ctrl-C and SIGTERM in a list, so that a run can end after its current measurement.

    A second one ends it at once.
    """
    caught: list[int] = []

    def catch(number: int, _frame: object) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        click.echo("Stopping …", err=True)

    before = {number: signal.signal(number, catch) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
