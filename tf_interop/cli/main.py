"""The command line, `tf-interop`: its commands, in the order in which one needs them."""

from __future__ import annotations

import importlib
import sys

import click

import tf_interop
from tf_interop.cli.exit_status import STOPPED, EndsReported, help_end, print_error

_COMMANDS = ("doctor", "analyze", "profile", "plan", "report", "benchmark", "run")
"""Each is a module of this folder that holds a command of the same name."""


class _CommandLine(EndsReported, click.Group):
    """The outermost group. A command is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which one needs them."""
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command; None where there is none of that name."""
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(importlib.import_module(f"tf_interop.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=_CommandLine,
    commands={name: click.Command(name) for name in _COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=help_end(
        """
doctor
analyze InceptionV3 --batch 1
profile InceptionV3 --budget 10m -o profile.json
plan InceptionV3 --profile profile.json -o plan.json
report plan.json --model InceptionV3 -o report.html
"""
    ),
)
@click.version_option(tf_interop.__version__, prog_name="tf-interop")
def cli() -> None:
    """Runs independent convolutions of one TensorFlow graph at the same time."""


def main() -> None:
    """The entry point. Ends the process with the command's or the program's exit code."""
    try:
        result = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        print_error("Stopped.")
        sys.exit(STOPPED)
    if callable(result):
        # The program of `run`. Not inside click, which would take its exceptions for its own.
        result()
    elif isinstance(result, int):
        sys.exit(result)
