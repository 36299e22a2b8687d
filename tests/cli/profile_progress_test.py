"""What is said while a profile is measured."""

from __future__ import annotations

import io

import pytest
from rich import progress
from rich.console import Console

from tf_interop.cli.profile_progress import Lines, in_bar, shown_progress
from tf_interop.measure.jobs import Phase
from tf_interop.measure.run import Progress


def _now(phase: Phase, done: int, total: int, what: str = "", *, is_end: bool = False) -> Progress:
    return Progress(phase, done, total, what, is_end, 42.0)


def test_lines_come_with_each_phase_and_every_few_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    lines = Lines(clock=lambda: now)
    for number in range(3):
        lines(_now(Phase.OWN_CHOICE, number, 3))
        lines(_now(Phase.OWN_CHOICE, number, 3, f"convolution {number}"))
        now += 6
    lines(_now(Phase.OWN_CHOICE, 3, 3, is_end=True))
    lines(_now(Phase.STAGES, 0, 1))
    assert capsys.readouterr().err.splitlines() == [
        "convolutions, as the backend chooses: 0 of 3 done; 42 s left",
        "convolutions, as the backend chooses: 2 of 3 done; now convolution 2; 42 s left",
        "convolutions, as the backend chooses: 3 of 3 done; 42 s left",
        "stages: 0 of 1 done; 42 s left",
    ]


def test_without_a_terminal_there_are_lines() -> None:
    with shown_progress() as say:
        assert isinstance(say, Lines)


def test_a_bar_shows_the_phase_what_is_measured_and_the_time_left() -> None:
    text = io.StringIO()
    columns = (
        progress.TextColumn("{task.description} {task.completed}/{task.total}"),
        progress.TextColumn("{task.fields[left]}{task.fields[what]}"),
    )
    console = Console(file=text, force_terminal=True, width=120)
    with progress.Progress(*columns, console=console, auto_refresh=False) as bar:
        show = in_bar(bar)
        show(_now(Phase.OWN_CHOICE, 0, 3))
        show(_now(Phase.STAGES, 1, 2, "x" * 200))
        bar.refresh()
        show(_now(Phase.STAGES, 2, 2, is_end=True))
        bar.refresh()
    assert "stages 1/2 42 s left, " + "x" * 60 in text.getvalue()
    assert "x" * 61 not in text.getvalue()
    assert "stages 2/2" in text.getvalue()
