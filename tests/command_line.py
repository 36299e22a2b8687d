"""The command line for tests: all of its commands, and processes that run it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import click

from tf_interop.cli.main import cli

ROOT = pathlib.Path(__file__).resolve().parents[1]


def _walk(command: click.Command, *names: str) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(names), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _walk(inner, *names, name)


COMMANDS = dict(_walk(cli))
"""All commands by their names, groups among them."""


def parse(command: click.Command, arguments: list[str]) -> None:
    """Goes through the arguments as the command line does, without running the command."""
    with command.make_context(command.name, list(arguments)) as context:
        if isinstance(command, click.Group):
            words = [*context.protected_args, *context.args]
            _, inner, rest = command.resolve_command(context, words)
            assert inner is not None
            parse(inner, rest)


def start_process(
    *arguments: str, folder: pathlib.Path | None = None, stdout: int = subprocess.PIPE, **env: str
) -> subprocess.Popen[str]:
    """Starts a command in a folder, whose modules it can import.

    Args:
        *arguments: what follows `tf-interop`.
        folder: where to run it; where the tests run by default.
        stdout: where its output goes.
        **env: environment variables.
    """
    folder = folder or pathlib.Path.cwd()
    return subprocess.Popen(
        [sys.executable, "-m", "tf_interop", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", **env},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_process(
    *arguments: str, folder: pathlib.Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command as `start_process` does, and waits for its end."""
    process = start_process(*arguments, folder=folder, **env)
    output, errors = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
