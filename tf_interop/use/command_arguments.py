"""What several commands have in common: arguments, errors, and a group with a default command."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import click

from tf_interop.errors import TfInteropError


class DefaultGroup(click.Group):
    """A group whose first argument may be a model: then one of its commands is meant."""

    def __init__(self, *arguments: Any, default_command: str, **others: Any) -> None:
        """Makes the group.

        Args:
            *arguments: those of click.Group.
            default_command: the name of the command that is meant.
            **others: those of click.Group.
        """
        super().__init__(*arguments, **others)
        self._default_command = default_command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the default command before arguments that name none."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [self._default_command, *args]
        return super().parse_args(ctx, args)


def parse_image_size(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    """Height and width from `N` for both, or `HxW`."""
    if value is None:
        return None
    match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", value)
    if match is None:
        raise click.BadParameter(f"Expected a size such as 224 or 299x299, got '{value}'.")
    return int(match[1]), int(match[2] or match[1])


image_size_option = click.option(
    "--image-size",
    callback=parse_image_size,
    metavar="N|HxW",
    help="Height and width, where the model leaves them open or is a Keras application.",
)
"""The option of every command that takes a model."""


def parse_batches(
    _context: click.Context, _parameter: click.Parameter, value: str
) -> tuple[int, ...]:
    """Batch sizes such as `1,8,32`, each once."""
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", value):
        raise click.BadParameter(f"Expected batch sizes such as 8 or 1,8,32, got '{value}'.")
    return tuple(dict.fromkeys(int(each) for each in value.split(",")))


def parse_target(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    """`cpu`, or a compute capability."""
    if value is not None and value != "cpu" and not re.fullmatch(r"\d+\.\d", value):
        raise click.BadParameter(
            f"Expected cpu or the compute capability of a GPU such as 9.0, got '{value}'."
        )
    return value


def parse_bytes(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> int | None:
    """A number of bytes from `8GB`, `8GiB`, `691MB` or `4096`."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([kMGT])(i?))?B?", value)
    size = 0
    if match is not None:
        base = 1024 if match[3] else 1000
        size = int(float(match[1]) * base ** " kMGT".index(match[2] or " "))
    if not size:
        raise click.BadParameter(f"Expected a size such as 8GB or 512MiB, got '{value}'.")
    return size


@contextlib.contextmanager
def errors_shown() -> Iterator[None]:
    """Errors of tf_interop as click shows them: in one line."""
    try:
        yield
    except TfInteropError as error:
        raise click.ClickException(str(error)) from error
