"""The command line `tf-interop`: how commands are declared, found and ended."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import click
import msgspec

import tf_interop
from tf_interop.errors import TfInteropError

# In the order in which users need them. A command is in the module of its name, or in _MODULES.
_COMMANDS = (
    *("doctor", "tune", "tuned", "analyze", "profile", "plan", "parallelize"),
    *("show", "report", "benchmark", "run", "schema"),
)
_MODULES = {"tuned": "tune", "report": "show", "schema": "show"}

_STOPPED = 128 + signal.SIGINT  # a shell's code for a program that Ctrl-C ended
# Click keeps the line breaks of a paragraph that starts with this.
_VERBATIM = "\b\n"
_MEANINGS = {
    0: "success",
    1: "an error that tf_interop reports",
    2: "wrong usage",
    _STOPPED: "stopped by Ctrl-C",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The result of a command.

    Attributes:
        document: what `--json` prints: plain values, paths or dataclasses, for msgspec to encode.
        show: prints the same for people.
        exit_code: ends the process after printing.
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
    """Declares a function as a command that prints its result, as JSON with `--json`.

    With `--json` stdout contains only the document, and nothing after an error: everything that the
    function, TensorFlow or a model's code prints goes to stderr. The first line of the docstring is
    the short help; the other arguments are those of `help_end`.
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

        # Click would shorten it.
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

    Examples have one command a line, without `tf-interop`; an indented line continues the one
    before. A heading may follow an empty line. `exit_codes` are the command's own.
    """
    first, *others = examples.strip().split("\n\n")
    paragraphs = [f"Examples:\n{first}", *others]
    shown = [re.sub(r"\n(?! )", "\n  tf-interop ", each) for each in paragraphs]
    meanings = sorted({**_MEANINGS, **(exit_codes or {})}.items())
    codes = "\n".join(["Exit codes:", *(f"  {code:<3}  {meaning}" for code, meaning in meanings)])
    return "\n\n".join(_VERBATIM + each for each in (*filter(None, [notes]), *shown, codes))


def print_error(text: str) -> None:
    """Prints an error as click does."""
    click.echo(f"Error: {text}", err=True)


def end_with(error: TfInteropError) -> NoReturn:
    """Ends the process with an error that tf_interop reports."""
    print_error(str(error))
    sys.exit(1)


def print_json(document: Any) -> None:
    """Prints a document on stdout, indented; paths as strings."""
    click.echo(msgspec.json.format(msgspec.json.encode(document, enc_hook=str), indent=2))


@contextlib.contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Redirects stdout to stderr, for libraries and child processes too."""
    try:
        sys.stderr.fileno()
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        # One of them is closed, or has no file.
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    sys.stdout.flush()
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

    A second signal ends it at once.
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


class _Stopped(SystemExit):
    """Ends a command that Ctrl-C stopped, after everything was restored."""


class _CommandLine(click.Group):
    """Imports a command when it is needed, and reports in a line errors that a user can cause."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which users need them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command; None if it does not exist."""
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"tf_interop.cli.{_MODULES.get(cmd_name, cmd_name)}")
        found = getattr(module, cmd_name)
        assert isinstance(found, click.Command)
        return found

    def main(self, *arguments: Any, **others: Any) -> NoReturn:
        """Runs a command, and ends the process with its exit code."""
        try:
            result = super().main(*arguments, **{**others, "standalone_mode": False})
            # A program may run with stdout closed; then this is None.
            if sys.stdout is not None:
                sys.stdout.flush()
        except click.Abort:
            click.echo("Stopped.", err=True)
            raise _Stopped(_STOPPED) from None
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
        # The program of `run` is called here because click would handle its exceptions.
        sys.exit(result() if callable(result) else result)


@click.group(
    cls=_CommandLine,
    commands={name: click.Command(name) for name in _COMMANDS},  # for click's suggestions
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog=help_end(
        """
doctor
analyze InceptionV3 --batch 1
tune InceptionV3 -o plan.json
report plan.json --model InceptionV3 -o report.html

On a GPU:
benchmark InceptionV3 --variants stock,xla,xla-enabled -o results.json
"""
    ),
)
@click.version_option(tf_interop.__version__, prog_name="tf-interop")
def cli() -> None:
    """Makes TensorFlow models faster by running independent operations together."""


def main() -> None:
    """The entry point. Ends the process with the command's or the program's exit code."""
    # If the reader of the output closes it, as `head` does, the process ends without an error.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # A character that stdout's encoding lacks becomes a question mark.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        cli.main()
    except _Stopped:
        # A normal exit would wait a second for TensorFlow's threads.
        os._exit(_STOPPED)
