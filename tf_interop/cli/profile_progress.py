"""Says on stderr what is being measured and what is left: a bar, or now and then a line."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from tf_interop.measure.jobs import Phase
from tf_interop.measure.run import Listener

_SECONDS_BETWEEN_LINES = 10.0
MOST_COLUMNS = 60


class HasTime(Protocol):
    """What knows how much time is left."""

    @property
    def seconds_left(self) -> float | None:
        """None where time is not limited."""


@contextlib.contextmanager
def shown_progress(run: HasTime) -> Iterator[Listener]:
    """A listener for `ProfileRun.run`, for as long as the `with` block lasts."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(run)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}{task.fields[what]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bar(run, progress)


class Bar:
    """A bar for each phase, with what is being measured beside it."""

    def __init__(self, run: HasTime, progress: Progress) -> None:
        self._run = run
        self._progress = progress
        self._task: TaskID | None = None
        self._phase: Phase | None = None

    def begin(self, phase: Phase, done: int, total: int) -> None:
        """Moves the bar, or begins a new one."""
        if phase is not self._phase:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(phase.value, total=total, what="", left="")
            self._phase = phase
        assert self._task is not None
        self._progress.update(self._task, completed=done, total=total)

    def measure(self, what: str) -> None:
        """Says what is being measured."""
        assert self._task is not None
        self._progress.update(
            self._task, what=what[:MOST_COLUMNS], left=_time_left(self._run, "{}, ")
        )

    def end(self, phase: Phase, done: int, total: int) -> None:
        """Moves the bar to where the phase ended."""
        self.begin(phase, done, total)


class Lines:
    """A line when a phase begins and when it ends, and one every few seconds."""

    def __init__(self, run: HasTime, clock: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._clock = clock
        self._phase: Phase | None = None
        self._position = ""
        self._last = clock()

    def begin(self, phase: Phase, done: int, total: int) -> None:
        """Says a line where a phase begins."""
        self._position = f"{phase.value}: {done} of {total} done"
        if phase is not self._phase:
            self._phase = phase
            self._say(self._position)

    def measure(self, what: str) -> None:
        """Says a line where none was said for some time."""
        if self._clock() - self._last >= _SECONDS_BETWEEN_LINES:
            self._say(f"{self._position}; now {what}")

    def end(self, phase: Phase, done: int, total: int) -> None:
        """Says how far the phase has come."""
        self._say(f"{phase.value}: {done} of {total} done")

    def _say(self, text: str) -> None:
        self._last = self._clock()
        click.echo(text + _time_left(self._run, "; {}"), err=True)


def _time_left(run: HasTime, form: str) -> str:
    seconds = run.seconds_left
    return "" if seconds is None else form.format(f"{seconds:.0f} s left")
