"""Parsing of options, and lines and bars of progress."""

from __future__ import annotations

import time

import click
import pytest
from click.testing import CliRunner

from tf_interop.cli import options
from tf_interop.cli.progress import phases, shown_progress
from tf_interop.terminal import ProgressLines


@click.command()
@click.argument("model", type=options.MODEL, default="ResNet50")
@options.image_size
@options.target("What it is for", "nothing")
@options.output("OUT", "The result.")
@options.batches
@click.option("--time", type=options.TIME)
@click.option("--bytes", type=options.SIZE)
@click.pass_obj
def _command(values: dict[str, object], **parsed: object) -> None:
    values.update(parsed)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ("--image-size 299x224", (299, 224)), ("--image-size 64", (64, 64)),
        ("--for 9.0", "9.0"), ("--for cpu", "cpu"), ("--batch 8,1,8", (8, 1)),
        ("--time 90", 90.0), ("--time 10m", 600.0), ("--time 1.5h", 5400.0), ("--time 500ms", 0.5),
        ("--time 1.5min", 90.0),
        ("--bytes 8GB", 8 * 10**9), ("--bytes 512MiB", 512 << 20), ("--bytes 4096", 4096),
        ("--bytes 1.5kB", 1500),
    ],
)  # fmt: skip
def test_gives_commands_values_and_not_texts(arguments: str, value: object) -> None:
    values: dict[str, object] = {}
    result = CliRunner().invoke(_command, arguments.split(), obj=values)
    assert result.exit_code == 0, result.output
    assert value in values.values()


@pytest.mark.parametrize(
    "arguments",
    [
        "--image-size 64x", "--for gpu", "-o none/out", "-o .", "--batch 0",
        *(f"--time {text}" for text in ("m", "-1m", "0", "10d", "inf", "nan")),
        *(f"--bytes {text}" for text in ("0", "8GBs", "much", "-1")), "--batch 1,",
    ],
)  # fmt: skip
def test_refuses_other_texts_and_names_the_option(arguments: str) -> None:
    option, value = arguments.split()
    result = CliRunner().invoke(_command, [option, value], obj={})
    assert result.exit_code == 2
    assert option in result.output and f"'{value}'" in result.output


@pytest.mark.parametrize(
    ("model", "module"), [("models.py:build", "models"), ("src/models.py:build", "src.models")]
)
def test_names_the_module_of_a_file(model: str, module: str) -> None:
    result = CliRunner().invoke(_command, [model], obj={})
    assert result.exit_code == 2
    assert f"Write {module}:build." in result.output


def test_progress_is_a_line_for_each_phase_and_every_ten_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ProgressLines(seconds=0.2) as echo:
        say = phases(echo)
        for number in range(3):
            say("pairs", number, 3, f"now pair {number}")
        time.sleep(0.3)
        say("pairs", 3, 3, "42 s left ")
        say("stages", 0, 1, "")
        say("pairs", 0, 3, "")  # repeated
    with shown_progress() as say:  # not a terminal
        say("others", 0, 2, "")
    assert capsys.readouterr().err.splitlines() == [
        "pairs: 0 of 3 done; now pair 0",
        "pairs: 2 of 3 done; now pair 2 (0 s)",
        "pairs: 3 of 3 done; 42 s left",
        "stages: 0 of 1 done",
        "others: 0 of 2 done",
    ]


def test_the_first_line_comes_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLines() as echo:
        for text in ("Importing TensorFlow", "Loading ResNet50"):
            echo(text)
        assert capsys.readouterr().err == "Importing TensorFlow\n"


def test_progress_is_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with shown_progress() as say:
        say("stages", 1, 2, "x" * 200)
    said = capsys.readouterr().err
    assert "1/2" in said and "stages " + "x" * 60 in said and "x" * 61 not in said
