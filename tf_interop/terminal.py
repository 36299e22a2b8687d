"""Output for the terminal: tables, at most 100 columns wide, and lines of progress."""

from __future__ import annotations

import time
from collections.abc import Callable

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


def now_and_then(clock: Callable[[], float] = time.monotonic) -> Callable[..., None]:
    """Prints a line on stderr every few seconds at most, or `at_once`."""
    last = clock()

    def echo(text: str, *, at_once: bool = False) -> None:
        nonlocal last
        if at_once or clock() - last >= _SECONDS_BETWEEN_LINES:
            last = clock()
            click.echo(text, err=True)

    return echo
