"""The command `tf-interop benchmark`: compares TensorFlow, XLA and stages."""

from __future__ import annotations

import pathlib

import click
from rich.console import Console

from tf_interop.benchmark.file import benchmark_schema, load_benchmark
from tf_interop.benchmark.tables import show_benchmark
from tf_interop.cli.benchmark_measure import EXIT_CODES, measure
from tf_interop.cli.benchmark_options import other_forms_options, write_other_forms
from tf_interop.cli.result import Result, add_schema_command, command, command_group


@command_group(
    """
benchmark ResNet50 --profile profile.json --batch 1,32 -o results.json
benchmark measure --help
benchmark show results.json --plot results.png
""",
    default_command="measure",
    exit_codes=EXIT_CODES,
    short_help="Compares TensorFlow, XLA and the plugin.",
)
def benchmark() -> None:
    """Measures models with stock TensorFlow, with XLA and with the plugin, by turns.

    `tf-interop benchmark MODEL… -o out.json` is short for `tf-interop benchmark measure MODEL… …`.
    """


benchmark.add_command(measure)


@command(
    "benchmark show results.json --csv results.csv",
    group=benchmark,
    short_help="Shows what was measured, or draws it.",
    reads_files=True,
)
@click.argument("file", metavar="RESULTS")
@other_forms_options
def show(file: str, csv_path: pathlib.Path | None, plot_path: pathlib.Path | None) -> Result:
    """Shows what is in the file RESULTS: milliseconds for each step, and how they compare."""
    loaded = load_benchmark(file)
    write_other_forms(loaded, csv_path, plot_path)
    return Result(loaded, lambda: show_benchmark(loaded, Console()))


add_schema_command(benchmark, benchmark_schema, "results")
