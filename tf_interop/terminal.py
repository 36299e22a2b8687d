"""Output for the terminal: tables, at most 100 columns wide, and lines of progress."""

from __future__ import annotations

import contextlib
import threading
import time

import click
from rich.console import Console, RenderableType
from rich.table import Table

UNKNOWN = "–"

_WIDTH = 100
_SECONDS_BETWEEN_LINES = 10.0


class _Plain(Console):
    """Output that is not a terminal."""

    def on_broken_pipe(self) -> None:
        """Lets the command line end the process; rich would use another exit code."""
        raise BrokenPipeError


def print_on(console: Console, renderable: RenderableType) -> None:
    """Prints a table or text."""
    # Without a terminal rich would use 80 columns.
    if not console.is_terminal:
        console = _Plain(file=console.file, width=_WIDTH)
    console.print(renderable, width=min(console.width, _WIDTH), highlight=False, markup=False)


def new_table(title: str, first: str = "", *numbers: str) -> Table:
    """A table without rules. `first` heads the first column; the other columns contain numbers."""
    table = Table(
        title=f"\n{title}",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    table.add_column(first, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def percent(share: float | None) -> str:
    """Formats a share between 0 and 1."""
    return UNKNOWN if share is None else f"{100 * share:.0f} %"


def count_of(number: int, noun: str) -> str:
    """Formats a number with a noun, such as `1 stage` and `2 stages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class ProgressLines:
    """Prints on stderr what the program does, during a `with` block.

    It prints the first text and urgent ones at once, and the latest one every ten seconds, with the
    time since the beginning, so that nobody thinks that the program hangs.
    """

    def __init__(self, seconds: float = _SECONDS_BETWEEN_LINES) -> None:
        self._seconds = seconds
        self._text = ""
        self._begun = self._printed = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="progress", daemon=True)

    def __enter__(self) -> ProgressLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def __call__(self, text: str, *, at_once: bool = False) -> None:
        """Changes the text."""
        at_once = at_once or not self._text
        self._text = text
        if at_once:
            self._print(text)

    def _repeat(self) -> None:
        while not self._is_over.wait(max(0.0, self._printed + self._seconds - time.monotonic())):
            if self._text and time.monotonic() >= self._printed + self._seconds:
                self._print(f"{self._text} ({time.monotonic() - self._begun:.0f} s)")

    def _print(self, line: str) -> None:
        self._printed = time.monotonic()
        with contextlib.suppress(OSError, ValueError):  # nobody reads stderr any more
            click.echo(line, err=True)
