"""Says on stderr what is being measured and what is left: a bar, or now and then a line."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import click
from rich import progress
from rich.console import Console

from tf_interop.measure.jobs import Phase
from tf_interop.measure.run import Progress

_SECONDS_BETWEEN_LINES = 10.0
_MOST_COLUMNS = 60


@contextlib.contextmanager
def shown_progress() -> Iterator[Callable[[Progress], None]]:
    """What to tell `ProfileRun.run`, for as long as the `with` block lasts."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines()
        return
    columns = (
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=20),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[left]}{task.fields[what]}", markup=False),
    )
    with progress.Progress(*columns, console=console, transient=True) as bar:
        yield in_bar(bar)


def in_bar(bar: progress.Progress) -> Callable[[Progress], None]:
    """Shows progress in a bar, with what is being measured beside it."""
    task = bar.add_task("", what="", left="")

    def show(now: Progress) -> None:
        bar.update(
            task,
            description=now.phase.value,
            completed=now.done,
            total=now.total,
            what=now.what[:_MOST_COLUMNS],
            left=_time_left(now, "{}, "),
        )

    return show


class Lines:
    """A line when a phase begins and when it ends, and one every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase: Phase | None = None
        self._last = clock()

    def __call__(self, now: Progress) -> None:
        """Says a line where it is time for one."""
        is_late = bool(now.what) and self._clock() - self._last >= _SECONDS_BETWEEN_LINES
        if now.phase is not self._phase or now.is_end or is_late:
            self._phase = now.phase
            self._last = self._clock()
            what = f"; now {now.what}" if now.what else ""
            text = f"{now.phase.value}: {now.done} of {now.total} done{what}"
            click.echo(text + _time_left(now, "; {}"), err=True)


def _time_left(now: Progress, form: str) -> str:
    return "" if now.seconds_left is None else form.format(f"{now.seconds_left:.0f} s left")
