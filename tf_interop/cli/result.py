"""How a command is declared: its examples, its exit status, and its result as text or as JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import click
import msgspec
from rich.console import Console

from tf_interop.cli.exit_status import errors_shown, help_end


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


def command(
    examples: str,
    *,
    group: click.Group | None = None,
    notes: str = "",
    exit_codes: Mapping[int, str] = MappingProxyType({}),
    reads_files: bool = False,
    **settings: Any,
) -> Callable[[Callable[..., Result]], click.Command]:
    """Makes a function a command with `--json`, which prints its result in one form or the other.

    Whatever the function, TensorFlow or the code of a model prints on stdout meanwhile goes to
    stderr under `--json`, so that the document is alone there. After an error nothing is.

    Args:
        examples: for the help, a command a line, without `tf-interop`.
        group: what the command belongs to.
        notes: a paragraph of the help, before the examples.
        exit_codes: meanings that are the command's own.
        reads_files: whether to say on a terminal that files are being read: a profile of many
            thousand measurements takes seconds.
        **settings: those of click.command.
    """

    def declare(function: Callable[..., Result]) -> click.Command:
        @functools.wraps(function)
        def print_result(*arguments: Any, as_json: bool, **options: Any) -> None:
            with errors_shown():
                with contextlib.ExitStack() as stack:
                    if as_json:
                        stack.enter_context(stdout_on_stderr())
                    if reads_files:
                        stack.enter_context(Console(stderr=True).status("Reading"))
                    result = function(*arguments, **options)
                if as_json:
                    print_json(result.document)
                else:
                    result.show()
            click.get_current_context().exit(result.exit_code)

        make = click.command if group is None else group.command
        epilog = help_end(examples, exit_codes, notes)
        declared: click.Command = make(epilog=epilog, **settings)(print_result)
        declared.params.append(
            click.Option(
                ["--json", "as_json"],
                is_flag=True,
                help="Print JSON: one document on stdout, everything else on stderr.",
            )
        )
        return declared

    return declare


class _DefaultGroup(click.Group):
    """A group whose first argument may be a model: then one of its commands is meant."""

    def __init__(self, *arguments: Any, default_command: str, **others: Any) -> None:
        """Makes the group.

        Args:
            *arguments: those of click.Group.
            default_command: the name of the command that is meant.
            **others: those of click.Group.
        """
        super().__init__(*arguments, **others)
        self._default_command = default_command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which they were added."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the default command before arguments that name none."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            self._refuse_misspelled(ctx, args[0])
            args = [self._default_command, *args]
        return super().parse_args(ctx, args)

    def _refuse_misspelled(self, context: click.Context, word: str) -> None:
        """A word that is nearly a command is not taken for a model, which no word alone is."""
        near = difflib.get_close_matches(word, self.commands, n=1, cutoff=0.75)
        if near and re.fullmatch(r"[a-z-]+", word) and not pathlib.Path(word).exists():
            raise click.UsageError(f"No such command '{word}'. Did you mean '{near[0]}'?", context)


def command_group(
    examples: str,
    *,
    default_command: str,
    exit_codes: Mapping[int, str] = MappingProxyType({}),
    short_help: str,
) -> Callable[[Callable[[], None]], click.Group]:
    """Makes a function a group, one of whose commands is meant where the first word names none.

    Args:
        examples: as for `command`.
        default_command: the name of that command.
        exit_codes: as for `command`.
        short_help: as for click.group.
    """
    return click.group(
        cls=_DefaultGroup,
        default_command=default_command,
        epilog=help_end(examples, exit_codes),
        short_help=short_help,
    )


def add_schema_command(group: click.Group, make_schema: Callable[[], object], what: str) -> None:
    """Adds the command `schema` to a group.

    Args:
        group: named as the schema's file in the example.
        make_schema: gives the schema.
        what: whose schema it is, such as `plans`.
    """

    def schema() -> Result:
        document = make_schema()
        return Result(document, lambda: print_json(document))

    example = f"{group.name} schema > {group.name}.schema.json"
    command(example, group=group, help=f"Prints the JSON schema of {what}.")(schema)


def print_json(document: Any) -> None:
    """Prints a document on stdout, indented."""
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))


@contextlib.contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Has what is written to stdout come out on stderr, that of libraries and children, too."""
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
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(kept, descriptor)
    finally:
        os.close(kept)
