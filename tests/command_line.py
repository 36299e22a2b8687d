"""Runs commands for tests, in this process and in others."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
import time
from typing import Any

import click
from click.testing import CliRunner, Result

from tf_interop.cli.main import cli

ROOT = pathlib.Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"


def import_path(folder: pathlib.Path) -> str:
    """The PYTHONPATH of processes that tests start in a folder."""
    return os.pathsep.join(map(str, (ROOT, folder, TESTS, TESTS / "without_matplotlib")))


_CONTEXT = click.Context(cli)
COMMANDS: dict[str, Any] = {
    "": cli,
    **{name: cli.get_command(_CONTEXT, name) for name in cli.list_commands(_CONTEXT)},
}
"""All commands by their names."""


def parse(arguments: list[str]) -> None:
    """Parses arguments as the command line does, without running the command."""
    with cli.make_context(None, list(arguments)) as context:
        words = [*context.protected_args, *context.args]
        name, command, rest = cli.resolve_command(context, words)
        command.make_context(name, rest).close()


def invoke(command_line: str, *, exit_code: int = 0) -> Result:
    """Runs a command in this process, and checks its exit code."""
    result = CliRunner().invoke(cli, command_line.split())
    assert result.exit_code == exit_code, result.output
    return result


def words_of(result: Result) -> str:
    """The output of a command without its line breaks."""
    return " ".join(result.output.split())


def python_output(*words: str, folder: pathlib.Path = ROOT, **environment: str) -> str:
    """Runs Python in a process that can import the helpers of tests, and returns its output."""
    ended = run_process(*words, program=(), folder=folder, **environment)
    assert ended.returncode == 0, f"{words}: {ended.stderr[-4000:]}"
    return ended.stdout


def free_addresses(count: int) -> list[str]:
    """Free addresses on this machine for servers."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    addresses = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


def start_process(
    *arguments: str,
    program: tuple[str, ...] = ("-m", "tf_interop"),
    folder: pathlib.Path | None = None,
    stdout: int = subprocess.PIPE,
    blocked: tuple[str, ...] = (),
    **env: str,
) -> subprocess.Popen[str]:
    """Starts a command in a folder. It can import modules there and ours, but none in `blocked`."""
    folder = folder or pathlib.Path.cwd()
    path = [import_path(folder)]
    for module in blocked:
        (folder / "blocked").mkdir(exist_ok=True)
        (folder / "blocked" / f"{module}.py").write_text("raise ImportError('blocked')")
        path = [str(folder / "blocked"), *path]
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **env},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",  # a test may ask for another encoding
    )


def end_of(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Waits until a process ends."""
    output, errors = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def run_process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command as `start_process` does, and waits until it ends."""
    return end_of(start_process(*arguments, **options))


def wait_for(path: pathlib.Path, process: subprocess.Popen[str], lines: int = 0) -> None:
    """Waits until a process has written this many lines to a file."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.001)
    raise AssertionError(f"no {lines} lines in {path}: {process.communicate()}")
