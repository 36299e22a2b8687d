"""Help texts: examples that parse, exit codes, and a help for every option."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from click.testing import CliRunner
from command_line import COMMANDS, parse

from tf_interop.cli.main import cli


def _help(name: str) -> str:
    return CliRunner().invoke(cli, [*name.split(), "--help"]).stdout


def _examples(help_text: str) -> list[list[str]]:
    lines = help_text.replace("\\\n", " ").splitlines()
    found = [re.fullmatch(r"    tf-interop (.*)", line) for line in lines]
    return [shlex.split(match[1].partition(" > ")[0]) for match in found if match is not None]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_parse_exit_codes_and_a_text_for_every_option(name: str) -> None:
    text = _help(name)
    assert re.search(r"^  Exit codes:\n    0    \w", text, re.MULTILINE)
    examples = _examples(text)
    for words in examples:
        if "--help" not in words:
            parse(words)
    assert any(" ".join(words).startswith(name) for words in examples)
    options = [each for each in COMMANDS[name].params if isinstance(each, click.Option)]
    assert [each.opts[0] for each in options if not each.help] == []


def test_lists_commands_in_a_line_each() -> None:
    listed = _help("").split("\nCommands:\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == cli.list_commands(click.Context(cli))
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)
