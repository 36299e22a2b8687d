"""Says on stderr what is being measured and what is left: a bar, or a line for each process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tf_interop.benchmark.run import Listener


@contextlib.contextmanager
def shown_progress() -> Iterator[Listener]:
    """A bar on stderr, or a line for each process where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress)


class _Bar(Listener):
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def begin(self, what: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=what, completed=done, total=total)


class _Lines(Listener):
    def begin(self, what: str, done: int, total: int) -> None:
        click.echo(f"{done} of {total} done; now {what}", err=True)
