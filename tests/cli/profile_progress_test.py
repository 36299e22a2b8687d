"""What is said while a profile is measured."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from tf_interop.cli import profile_progress
from tf_interop.cli.profile_progress import Bar, Lines, shown_progress
from tf_interop.measure.jobs import Phase


class _Run:
    seconds_left: float | None = 42.0


def test_lines_come_with_each_phase_and_every_few_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    lines = Lines(_Run(), clock=lambda: now)
    lines.begin(Phase.OWN_CHOICE, 0, 3)
    for number in range(3):
        lines.begin(Phase.OWN_CHOICE, number, 3)
        lines.measure(f"convolution {number}")
        now += 6
    lines.end(Phase.OWN_CHOICE, 3, 3)
    lines.begin(Phase.STAGES, 0, 1)
    assert capsys.readouterr().err.splitlines() == [
        "convolutions, as the backend chooses: 0 of 3 done; 42 s left",
        "convolutions, as the backend chooses: 2 of 3 done; now convolution 2; 42 s left",
        "convolutions, as the backend chooses: 3 of 3 done; 42 s left",
        "stages: 0 of 1 done; 42 s left",
    ]


def test_without_a_terminal_there_are_lines() -> None:
    with shown_progress(_Run()) as listener:
        assert isinstance(listener, Lines)


def test_a_bar_shows_the_phase_what_is_measured_and_the_time_left() -> None:
    text = io.StringIO()
    columns = (
        TextColumn("{task.description} {task.completed}/{task.total}"),
        TextColumn("{task.fields[left]}{task.fields[what]}"),
    )
    console = Console(file=text, force_terminal=True, width=120)
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        bar = Bar(_Run(), progress)
        bar.begin(Phase.OWN_CHOICE, 0, 3)
        bar.begin(Phase.STAGES, 1, 2)
        bar.measure("x" * 200)
        progress.refresh()
        bar.end(Phase.STAGES, 2, 2)
        progress.refresh()
        assert len(progress.tasks) == 1
    assert f"stages 1/2 42 s left, {'x' * profile_progress.MOST_COLUMNS}" in text.getvalue()
    assert "stages 2/2 42 s left" in text.getvalue()
    assert "as the backend chooses" not in text.getvalue().splitlines()[-1]
