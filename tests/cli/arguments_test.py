"""Arguments that several commands have."""

from __future__ import annotations

import pathlib

import click
import pytest
from click.testing import CliRunner, Result

from tf_interop.cli.arguments import (
    DefaultGroup,
    image_size_option,
    output_option,
    parse_batches,
    parse_budget,
    parse_bytes,
    target_option,
)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400)]
)
def test_reads_times(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-1m", "0", "10d", "inf", "nan"])
def test_refuses_other_times(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expected a time such as 90s, 10m or 1\.5h"):
        parse_budget(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GB", 8 * 10**9), ("512MiB", 512 << 20), ("4096", 4096), ("1.5kB", 1500)],
)
def test_reads_sizes_of_memory(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "8GBs", "much", "-1"])
def test_refuses_other_sizes_of_memory(text: str) -> None:
    with pytest.raises(ValueError, match="Expected a size such as 8GB or 512MiB"):
        parse_bytes(text)


def test_reads_each_batch_size_once() -> None:
    assert parse_batches("8,1,8") == (8, 1)
    for text in ("", "0", "1,", "x"):
        with pytest.raises(ValueError, match="Expected batch sizes such as 8 or 1,8,32"):
            parse_batches(text)


@click.command()
@image_size_option()
@target_option("What it is for", "nothing")
@output_option("OUT", "The result.")
def _command(**values: object) -> None:
    click.echo(values)


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(_command, arguments)


def test_gives_commands_values_and_not_texts() -> None:
    output = _invoke("--image-size", "299x224", "--for", "9.0").stdout
    assert "'image_size': (299, 224)" in output and "'target': '9.0'" in output
    output = _invoke("--image-size", "64", "--for", "cpu").stdout
    assert "'image_size': (64, 64)" in output and "'target': 'cpu'" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--image-size", "64x"), "Expected a size such as 224 or 299x299, got '64x'"),
        (("--for", "gpu"), "compute capability of a GPU such as 9.0, got 'gpu'"),
        (("-o", "none/out"), "Expected a folder that exists, got 'none/out'"),
        (("-o", "."), "is a directory"),
    ],
)
def test_says_what_is_wrong_usage(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = _invoke(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


@click.group(cls=DefaultGroup, default_command="make")
def _group() -> None:
    pass


@_group.command()
@click.argument("model")
def make(model: str) -> None:
    click.echo(f"make {model}")


@_group.command()
@click.argument("file")
def explain(file: str) -> None:
    click.echo(f"explain {file}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ResNet50",), "make ResNet50\n"),
        (("explain", "plan.json"), "explain plan.json\n"),
        (("make", "explain"), "make explain\n"),
        (("models:explain",), "make models:explain\n"),
    ],
)
def test_takes_what_is_no_command_for_a_model(arguments: tuple[str, ...], said: str) -> None:
    assert CliRunner().invoke(_group, arguments).stdout == said


def test_does_not_take_a_misspelled_command_for_a_model(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(_group, ["explian", "plan.json"])
    assert result.exit_code == 2
    assert "No such command 'explian'. Did you mean 'explain'?" in result.output
    pathlib.Path("explian").mkdir()  # a SavedModel may be called anything
    assert CliRunner().invoke(_group, ["explian"]).stdout == "make explian\n"
