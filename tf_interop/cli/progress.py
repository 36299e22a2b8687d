"""Messages of a command on stderr: its progress, and errors in a model's code."""

from __future__ import annotations

import contextlib
import pathlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import click
from rich import progress
from rich.console import Console

import tf_interop
from tf_interop.errors import INSTALL_TENSORFLOW, TfInteropError
from tf_interop.tensorflow_messages import tensorflow_hushed
from tf_interop.terminal import ProgressLines

Say = Callable[[str, int, int, str], object]
"""Gets the phase, how much of it is done, how much there is, and the current item."""
_MOST_COLUMNS = 60


@contextlib.contextmanager
def shown_progress() -> Iterator[Say]:
    """Shows a bar during the `with` block, or lines if stderr is not a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        with ProgressLines() as echo:
            yield phases(echo)
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


def phases(echo: ProgressLines) -> Say:
    """Prints a line at once when a phase begins or ends."""
    said: set[tuple[str, bool]] = set()

    def say(label: str, done: int, total: int, detail: str) -> None:
        milestone = label, done == total
        more = f"; {detail.strip()}" if detail.strip() else ""
        echo(f"{label}: {done} of {total} done{more}", at_once=milestone not in said)
        said.add(milestone)

    return say


@contextlib.contextmanager
def shown_status(text: str) -> Iterator[Callable[[str], None]]:
    """Shows the current work; if stderr is not a terminal, in a line every ten seconds."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(text) as status:
            yield status.update
        return
    with ProgressLines() as echo:
        echo(text)
        yield echo


@contextlib.contextmanager
def work_on_model(
    model: str, *, parameter: str = "MODEL", hint: str = ""
) -> Iterator[Callable[[str], None]]:
    """Imports TensorFlow, and yields a function that shows the progress.

    An error in a model's code, or in a library that runs it, becomes a click.ClickException without
    a traceback. `hint` names an alternative to installing TensorFlow.
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
        except (Exception, SystemExit) as error:
            if not _is_raised_by_tf_interop(error):
                raise click.ClickException(
                    f"'{model}' fails: {type(error).__name__}: {error}"
                ) from error
            if isinstance(error, ValueError):
                raise click.UsageError(str(error)) from error
            raise


def _is_raised_by_tf_interop(error: BaseException) -> bool:
    """Whether the error comes neither from a model's code nor from a library."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return pathlib.Path(tf_interop.__file__).parent in pathlib.Path(last.filename).parents


@contextlib.contextmanager
def model_loaded(
    model: str,
    image_size: tuple[int, int] | None,
    *,
    training: bool = False,
    parameter: str = "MODEL",
) -> Iterator[tuple[Any, Callable[[str], None]]]:
    """As `work_on_model`, and loads the model; `training` requires a Keras model."""
    with work_on_model(model, parameter=parameter) as say:
        from tf_interop.model.load import check_trains, load_model

        loaded = load_model(model, image_size=image_size)
        if training:
            check_trains(loaded, model)
        yield loaded, say
