"""Arguments and options of several commands."""

from __future__ import annotations

import inspect
import os
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from tf_interop.duration import parse_duration
from tf_interop.errors import did_you_mean

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_MODEL_IS = """MODEL is the name of a Keras application (ResNet50), a .keras or .h5 file, the folder
of a SavedModel, a GraphDef in a .pb or .pbtxt file, or module:function, a function without
required arguments that returns a Keras model, a function or a GraphDef"""


class Text(click.ParamType):  # type: ignore[type-arg]
    """A value parsed by a function, which raises ValueError for wrong usage."""

    def __init__(self, metavar: str, parse: Callable[[str], Any]) -> None:
        self.name = metavar
        self._parse = parse

    def get_metavar(self, *_: Any, **__: Any) -> str:
        """The value's name in the help."""
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parses a string; a default may already be a value."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _output_of(text: str) -> pathlib.Path:
    """Refuses a file that cannot be written, before any work is done."""
    path = pathlib.Path(text)
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir():
        raise ValueError(f"'{text}' is not a file in an existing folder. Choose another file.")
    if path.is_file() or not path.exists():
        try:
            # Permissions are not enough: a file system may be read-only.
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise ValueError(
                f"'{text}' cannot be written: {error.strerror}. Choose another file."
            ) from error
    return path


def _batches_of(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise ValueError(f"'{text}' is not a list of batch sizes, such as 8 or 1,8,32.")
    return tuple(dict.fromkeys(map(int, text.split(","))))


def _bytes_of(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([kMGT])(i?))?B?", text)
    size = 0
    if match is not None:
        base = 1024 if match[3] else 1000
        size = int(float(match[1]) * base ** " kMGT".index(match[2] or " "))
    if not size:
        raise ValueError(f"'{text}' is not a size, such as 8GB or 512MiB.")
    return size


def _image_size_of(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
    if match is None:
        raise ValueError(f"'{text}' is not an image size, such as 224 or 299x299.")
    return int(match[1]), int(match[2] or match[1])


def _target_of(text: str) -> str:
    if text != "cpu" and not re.fullmatch(r"\d+\.\d", text):
        raise ValueError(
            f"'{text}' is neither cpu nor the compute capability of a GPU, such as 9.0."
        )
    return text


def _model_of(text: str) -> str:
    """Refuses a missing file before TensorFlow is imported to load it."""
    path = pathlib.Path(text)
    file, _, function = text.rpartition(":")
    if file.endswith(".py") and not path.exists():
        module = file.removesuffix(".py").replace(os.sep, ".")
        raise ValueError(f"'{file}' is a file, not a module. Write {module}:{function}.")
    # A .json file is a list of convolutions, which profile reads without TensorFlow.
    is_path = os.sep in text or (":" not in text and path.suffix not in ("", ".json"))
    if is_path and not path.exists():
        hint = did_you_mean(str(path), map(str, path.parent.glob("*"))) or " Check the path."
        raise ValueError(f"There is no file or folder '{text}'.{hint}")
    return text


MODEL = Text("MODEL", _model_of)
"""The name of a model, or its existing file or folder."""
TIME = Text("TIME", parse_duration)
"""Seconds, from `90`, `90s`, `10m` or `1.5h`."""
SIZE = Text("SIZE", _bytes_of)
"""Bytes, from `8GB`, `8GiB`, `691MB` or `4096`."""
OUTPUT = Text("FILE", _output_of)
"""A file to write, in an existing folder."""


def count(
    *names: str, default: int, least: int = 0, most: int = 1_000_000, **settings: Any
) -> Decorator:
    """A number from `least` to `most`."""
    return click.option(*names, default=default, type=click.IntRange(least, most), **settings)


def modes_of(inference: bool, training: bool) -> list[bool]:
    """The requested modes: False for inference, True for training."""
    modes = [False] * inference + [True] * training
    if not modes:
        raise click.UsageError("--no-inference alone leaves nothing to look at. Add --training.")
    return modes


def given(context: click.Context) -> dict[str | None, str]:
    """The options on the command line, such as `--batch`, by the names of their parameters."""
    return {
        each.name: each.opts[0]
        for each in context.command.params
        if context.get_parameter_source(each.name or "") is ParameterSource.COMMANDLINE
    }


def _describe(command: Callable[..., Any], paragraph: str) -> Callable[..., Any]:
    """Appends a paragraph to the docstring of a command, and so to its help."""
    command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n{paragraph}"
    return command


def model(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument MODEL, described in the help."""
    return click.argument("model", type=MODEL)(_describe(command, f"{_MODEL_IS}."))


def models(command: Callable[..., Any]) -> Callable[..., Any]:
    """One or more models or lists of convolutions, described in the help."""
    listed = "or a .json file from --export-configurations, which needs no TensorFlow."
    argument = click.argument("models", metavar="MODEL...", type=MODEL, nargs=-1, required=True)
    return argument(_describe(command, f"{_MODEL_IS}; {listed}"))


def output(metavar: str, help_text: str, **settings: Any) -> Decorator:
    """`-o`, the main file that a command writes."""
    names = ("-o", "--output", "output_path")
    return click.option(*names, type=OUTPUT, metavar=metavar, help=help_text, **settings)


def written(name: str, parameter: str, metavar: str, help_text: str) -> Decorator:
    """Another file to write."""
    return click.option(name, parameter, type=OUTPUT, metavar=metavar, help=help_text)


def profile(help_text: str, **settings: Any) -> Decorator:
    """`--profile`, the profile to use."""
    names, kind = ("--profile", "profile_path"), click.Path(path_type=pathlib.Path)
    return click.option(*names, type=kind, metavar="PROFILE.json", help=help_text, **settings)


def target(what: str, default: str) -> Decorator:
    """`--for`, a kind of device."""
    help_text = (
        f"{what}: cpu, or a GPU of a compute capability such as 9.0, which may be elsewhere. "
        f"[default: {default}]"
    )
    return click.option("--for", "target", type=Text("cpu|CC", _target_of), help=help_text)


batches = click.option(
    "--batch",
    "batch_sizes",
    type=Text("N,…", _batches_of),
    default="1",
    help="One or more batch sizes.",
)
inference = click.option("--inference/--no-inference", default=True, help="Inference.")
training = click.option("--training", is_flag=True, help="Also a training step.")
jit_compile = click.option(
    "--jit-compile", is_flag=True, help="The model as XLA compiles it (jit_compile=True)."
)
image_size = click.option(
    "--image-size",
    type=Text("N|HxW", _image_size_of),
    help="Height and width in pixels, if the model leaves them open, is a Keras application, or is "
    "a function with the argument image_size.",
)


def steps(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose the steps of a model; `modes_of` reads two of them."""
    for each in (image_size, training, inference, batches):
        command = each(command)
    return command
