"""Arguments that several commands have, each once."""

from __future__ import annotations

import functools
import inspect
import math
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]
"""What decorators of click take and give: a function, or a command of it."""
Decorator = Callable[[Command], Command]

_MODEL_IS = """MODEL is the name of a Keras application (ResNet50), a .keras or .h5 file, the folder
of a SavedModel, a GraphDef in a .pb or .pbtxt file, or module:function, which is called without
arguments and gives a Keras model, a function or a GraphDef"""


class OutputFile(click.Path):
    """A file to write, in a folder that is there."""

    def __init__(self, *, is_gone_on_with: bool = False) -> None:
        """Makes the type.

        Args:
            is_gone_on_with: whether a file that is there is read first; then it has to be one.
        """
        super().__init__(dir_okay=False, path_type=pathlib.Path)
        self._is_gone_on_with = is_gone_on_with

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> pathlib.Path:
        """Refuses, before anything is done, what could not be written at the end."""
        path = pathlib.Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.resolve().parent.is_dir():
            self.fail(f"Expected a folder that exists, got '{value}'.", param, ctx)
        if self._is_gone_on_with and path.exists() and not path.is_file():
            self.fail(f"Expected a file, got '{value}', which is none.", param, ctx)
        return path


def all_of(*options: Decorator) -> Decorator:
    """Several options as one decorator; the first of them is the first in the help."""

    def decorate(command: Command) -> Command:
        return functools.reduce(lambda decorated, option: option(decorated), options[::-1], command)

    return decorate


def described_by(paragraph: str) -> Decorator:
    """Puts a paragraph after the docstring of a command, and so into its help."""

    def decorate(command: Command) -> Command:
        command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n{paragraph}"
        return command

    return decorate


def model_argument(command: Command) -> Command:
    """The argument MODEL, and in the help what it may be."""
    return click.argument("model")(described_by(f"{_MODEL_IS}.")(command))


def models_argument(command: Command) -> Command:
    """One or more of MODEL or lists of convolutions, and in the help what they may be."""
    described = described_by(
        f"{_MODEL_IS}; or a .json file that --export-configurations wrote, which needs no "
        "TensorFlow."
    )
    return click.argument("models", metavar="MODEL...", nargs=-1, required=True)(described(command))


def output_option(
    metavar: str, help_text: str, *, required: bool = False, is_gone_on_with: bool = False
) -> Decorator:
    """`-o`, the file that a command is for.

    Args:
        metavar: what the help calls it.
        help_text: what it is.
        required: whether there is no default.
        is_gone_on_with: as in `OutputFile`.
    """
    return click.option(
        "-o",
        "--output",
        "output_path",
        required=required,
        type=OutputFile(is_gone_on_with=is_gone_on_with),
        metavar=metavar,
        help=help_text,
    )


def written_option(name: str, parameter: str, metavar: str, help_text: str) -> Decorator:
    """A further file to write."""
    return click.option(name, parameter, type=OutputFile(), metavar=metavar, help=help_text)


def profile_option(
    help_text: str, *, required: bool = False, cls: type[click.Option] = click.Option
) -> Decorator:
    """`--profile`, what is gone by.

    Args:
        help_text: what it is.
        required: whether the command does nothing without.
        cls: what click makes of it.
    """
    return click.option(
        "--profile",
        "profile_path",
        cls=cls,
        required=required,
        type=click.Path(path_type=pathlib.Path),
        metavar="PROFILE.json",
        help=help_text,
    )


def allow_foreign_profile_option(command: Command) -> Command:
    """`--allow-foreign-profile`."""
    return click.option(
        "--allow-foreign-profile",
        is_flag=True,
        help="Go by the profile even where it is of another device or cuDNN version.",
    )(command)


def batches_option(help_text: str) -> Decorator:
    """`--batch`, one or more batch sizes."""
    return parsed_option("--batch", parse_batches, "N,…", help_text, default="1")


def mode_options(to_do: str) -> Decorator:
    """`--inference/--no-inference` and `--training`.

    Args:
        to_do: what is done to them, such as `Measure`.
    """
    return all_of(
        click.option(
            "--inference/--no-inference",
            default=True,
            show_default=True,
            help=f"{to_do} inference.",
        ),
        click.option("--training", is_flag=True, help=f"{to_do} a training step, too."),
    )


def image_size_option(
    help_text: str = "Height and width in pixels, where the model leaves them open or is a Keras "
    "application.",
) -> Decorator:
    """`--image-size`, height and width."""
    return parsed_option("--image-size", _image_size_of, "N|HxW", help_text)


def target_option(what: str, default: str) -> Decorator:
    """`--for`, what kind of device.

    Args:
        what: what is for that device, such as `What to plan for`.
        default: what is taken where the option is not given, in words.
    """
    help_text = (
        f"{what}: cpu, or a GPU of a compute capability such as 9.0, which need not be here. "
        f"[default: {default}]"
    )
    return parsed_option("--for", _target_of, "cpu|CC", help_text, "target")


def time_option(
    name: str, parameter: str, help_text: str, *, default: str | None = None
) -> Decorator:
    """A time in seconds, from `90s`, `10m` or `1.5h`."""
    return parsed_option(name, parse_budget, "TIME", help_text, parameter, default=default)


def parsed_option(
    name: str,
    parse: Callable[[Any], Any],
    metavar: str,
    help_text: str,
    parameter: str | None = None,
    **settings: Any,
) -> Decorator:
    """An option whose text becomes a value.

    Args:
        name: the option's name.
        parse: gives the value, and raises ValueError for what is wrong usage.
        metavar: what the help calls it.
        help_text: what it is.
        parameter: the parameter's name, where it is another than the option's.
        **settings: others of click.option.
    """
    return click.option(
        *filter(None, (name, parameter)),
        callback=parsed_by(parse),
        metavar=metavar,
        help=help_text,
        show_default=settings.get("default") is not None,
        **settings,
    )


def count_option(
    *names: str, default: int, help_text: str, least: int = 0, metavar: str | None = None
) -> Decorator:
    """A number of something.

    Args:
        *names: those of the option and, where it is another, of the parameter.
        default: the number where the option is not given.
        help_text: what is counted, with its unit.
        least: the least number that there may be.
        metavar: what the help calls it.
    """
    return click.option(
        *names,
        default=default,
        show_default=True,
        type=click.IntRange(min=least),
        metavar=metavar,
        help=help_text,
    )


def parse_batches(text: str) -> tuple[int, ...]:
    """Batch sizes such as `1,8,32`, each once.

    Raises:
        ValueError: it is none of these.
    """
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise ValueError(f"Expected batch sizes such as 8 or 1,8,32, got '{text}'.")
    return tuple(dict.fromkeys(int(each) for each in text.split(",")))


def parse_budget(text: str) -> float:
    """Seconds from `90`, `90s`, `10m` or `1.5h`.

    Raises:
        ValueError: it is none of these.
    """
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise ValueError(f"Expected a time such as 90s, 10m or 1.5h, got '{text}'.")
    return seconds


def parse_bytes(text: str) -> int:
    """A number of bytes from `8GB`, `8GiB`, `691MB` or `4096`.

    Raises:
        ValueError: it is none of these.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([kMGT])(i?))?B?", text)
    size = 0
    if match is not None:
        base = 1024 if match[3] else 1000
        size = int(float(match[1]) * base ** " kMGT".index(match[2] or " "))
    if not size:
        raise ValueError(f"Expected a size such as 8GB or 512MiB, got '{text}'.")
    return size


def parsed_by(parse: Callable[[str], Any]) -> Callable[..., Any]:
    """A click callback of a function that raises ValueError for what is wrong usage."""

    def callback(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Any:
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def _image_size_of(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
    if match is None:
        raise ValueError(f"Expected a size such as 224 or 299x299, got '{text}'.")
    return int(match[1]), int(match[2] or match[1])


def _target_of(text: str) -> str:
    if text != "cpu" and not re.fullmatch(r"\d+\.\d", text):
        raise ValueError(
            f"Expected cpu or the compute capability of a GPU such as 9.0, got '{text}'."
        )
    return text
