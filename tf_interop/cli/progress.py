"""What a command says on stderr while it works, and of what fails in the code of a model."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import click
from rich import progress
from rich.console import Console

from tf_interop.errors import INSTALL_TENSORFLOW, TfInteropError
from tf_interop.tensorflow_messages import tensorflow_hushed

Say = Callable[[str, int, int, str], object]
"""Is told what is being done, how many of it are done, how many there are, and what is in hand."""
_SECONDS_BETWEEN_LINES = 10.0
_MOST_COLUMNS = 60


@contextlib.contextmanager
def shown_progress() -> Iterator[Say]:
    """Shows a bar for as long as the `with` block lasts, or lines where stderr is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lines()
        return
    columns = (
        progress.SpinnerColumn(),
        progress.BarColumn(bar_width=20),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.description} {task.fields[detail]}", markup=False),
    )
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, detail="")
        yield lambda label, done, total, detail: bar.update(
            task, description=label, completed=done, total=total, detail=detail[:_MOST_COLUMNS]
        )


def lines(clock: Callable[[], float] = time.monotonic) -> Say:
    """A line when something begins and when it ends, each once, and one every few seconds."""
    said: set[tuple[str, bool]] = set()
    last = clock()

    def say(label: str, done: int, total: int, detail: str) -> None:
        nonlocal last
        now = clock()
        milestone = label, done == total
        if milestone not in said or now - last >= _SECONDS_BETWEEN_LINES:
            said.add(milestone)
            last = now
            more = f"; {detail.strip()}" if detail.strip() else ""
            click.echo(f"{label}: {done} of {total} done{more}", err=True)

    return say


@contextlib.contextmanager
def shown_status(text: str) -> Iterator[Callable[[str], None]]:
    """Says what is in hand; where stderr is no terminal, in a line every few seconds."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(text) as status:
            yield status.update
        return
    last = time.monotonic()

    def say(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            click.echo(text, err=True)

    yield say


@contextlib.contextmanager
def work_on_model(
    model: str, *, parameter: str = "MODEL", hint: str = ""
) -> Iterator[Callable[[str], None]]:
    """Imports TensorFlow, and yields what to tell how far the work is.

    What the code of a model raises becomes a click.ClickException that says where the fault is,
    without a traceback. `hint` is what else to do if there is no TensorFlow.
    """
    with shown_status("Importing TensorFlow") as say:
        try:
            with tensorflow_hushed():
                from tf_interop.model.load import ModelArgumentError
        except ImportError as error:
            raise click.ClickException(
                f"'{model}' needs TensorFlow, which cannot be imported: {error}. Install it: "
                f"{INSTALL_TENSORFLOW}{hint}"
            ) from error
        say(f"Loading {model}")
        try:
            yield say
        except ModelArgumentError as error:
            raise click.BadParameter(str(error), param_hint=parameter) from error
        except (TfInteropError, click.ClickException):
            raise
        except Exception as error:
            # So TensorFlow begins to say what was raised by code that it traces.
            if "in user code:" in str(error):
                raise click.ClickException(
                    f"'{model}' cannot be traced: {type(error).__name__}: {error}"
                ) from error
            if isinstance(error, ValueError):
                raise click.UsageError(str(error)) from error
            raise
