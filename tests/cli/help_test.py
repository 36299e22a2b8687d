"""Help texts: an example of every command that parses, exit codes, and words for every option."""

from __future__ import annotations

import pathlib
import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tf_interop.cli.main import cli


def _commands(command: click.Command, *names: str) -> Iterator[tuple[str, click.Command]]:
    """All commands, groups among them."""
    yield " ".join(names), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(inner, *names, name)


COMMANDS = dict(_commands(cli))


def _examples(help_text: str) -> list[list[str]]:
    lines = help_text.replace("\\\n", " ").splitlines()
    found = [re.fullmatch(r"    tf-interop (.*)", line) for line in lines]
    return [shlex.split(match[1].partition(" > ")[0]) for match in found if match is not None]


def _parse(command: click.Command, arguments: list[str]) -> None:
    """Goes through the arguments as the command line does, without running the command."""
    with command.make_context(command.name, list(arguments)) as context:
        if isinstance(command, click.Group):
            words = [*context.protected_args, *context.args]
            _, inner, rest = command.resolve_command(context, words)
            assert inner is not None
            _parse(inner, rest)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_parse_and_exit_codes(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = CliRunner().invoke(cli, [*name.split(), "--help"]).stdout
    assert re.search(r"^  Exit codes:\n    0    \w", text, re.MULTILINE)
    examples = _examples(text)
    assert examples
    for words in examples:
        if "--help" in words:
            continue
        _parse(cli, words)
    # At least one is of the command itself, said as users would.
    of_itself = {name, name.replace("plan make", "plan").replace(" measure", "")}
    assert any(" ".join(words).startswith(tuple(of_itself)) for words in examples)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is(name: str) -> None:
    silent = [
        parameter.opts[0]
        for parameter in COMMANDS[name].params
        if isinstance(parameter, click.Option) and not parameter.help
    ]
    assert silent == []


@pytest.mark.parametrize(
    "name", [name for name, command in COMMANDS.items() if isinstance(command, click.Group)]
)
def test_lists_commands_in_a_line_each(name: str) -> None:
    text = CliRunner().invoke(cli, [*name.split(), "--help"]).stdout
    group = COMMANDS[name]
    assert isinstance(group, click.Group)
    listed = text.split("\nCommands:\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == group.list_commands(click.Context(group))
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


def test_commands_are_in_the_order_in_which_one_needs_them() -> None:
    assert cli.list_commands(click.Context(cli)) == [
        "doctor", "analyze", "profile", "plan", "report", "benchmark", "run",
    ]  # fmt: skip
