"""What a command says while it imports TensorFlow and works on a model, and of what fails then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click
from rich.console import Console
from rich.status import Status

from tf_interop.errors import TfInteropError
from tf_interop.tensorflow_messages import tensorflow_hushed


@contextlib.contextmanager
def work_on_model(
    model: str, *, parameter: str = "MODEL", hint: str = "Install it."
) -> Iterator[Status]:
    """Imports TensorFlow, and says on a terminal what is being done.

    Args:
        model: what the user calls it.
        parameter: what names it on the command line.
        hint: what to do where there is no TensorFlow.

    Yields:
        What to tell how far the work is.

    Raises:
        click.ClickException: there is no TensorFlow, or the model cannot be loaded or traced.
            Its code is not that of tf_interop: no traceback, but where the fault is.
    """
    with Console(stderr=True).status("Importing TensorFlow") as status:
        try:
            with tensorflow_hushed():
                from tf_interop.model.load import ModelArgumentError
        except ImportError as error:
            raise click.ClickException(
                f"Expected to import TensorFlow for '{model}', got: {error}. {hint}"
            ) from error
        status.update(f"Loading {model}")
        try:
            yield status
        except ModelArgumentError as error:
            raise click.BadParameter(str(error), param_hint=parameter) from error
        except (TfInteropError, click.ClickException):
            raise
        except Exception as error:
            # So TensorFlow begins to say what was raised by code that it traces.
            if "in user code:" in str(error):
                raise click.ClickException(
                    f"Expected to trace '{model}', got {type(error).__name__}: {error}"
                ) from error
            if isinstance(error, ValueError):
                raise click.UsageError(str(error)) from error
            raise
