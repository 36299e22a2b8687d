"""The command line, `tf-interop`: its commands, in the order in which one needs them."""

from __future__ import annotations

import io
import os
import signal
import sys

import click

import tf_interop
from tf_interop.cli.command import STOPPED, CommandLine, Stopped, help_end

_COMMANDS = (
    *("doctor", "tune", "tuned", "analyze", "profile", "plan", "parallelize"),
    *("show", "report", "benchmark", "run", "schema"),
)


@click.group(
    cls=CommandLine,
    modules={name: {"tuned": "tune", "schema": "show"}.get(name, name) for name in _COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=help_end(
        """
doctor
analyze InceptionV3 --batch 1
tune InceptionV3 -o plan.json
report plan.json --model InceptionV3 -o report.html

On a GPU:
profile InceptionV3 --budget 10m -o profile.json
plan InceptionV3 --profile profile.json -o plan.json
"""
    ),
)
@click.version_option(tf_interop.__version__, prog_name="tf-interop")
def cli() -> None:
    """Makes TensorFlow models faster by running independent operations at the same time."""


def main() -> None:
    """The entry point. Ends the process with the command's or the program's exit code."""
    # What reads the output may go away, as `head` does: that ends the process, and is no error.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # What the encoding of stdout lacks is a question mark, and no error.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        cli.main()
    except Stopped:
        # Not the interpreter's own end, which waits a second for TensorFlow's threads.
        os._exit(STOPPED)
