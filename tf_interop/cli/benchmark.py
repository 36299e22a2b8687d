"""The command `tf-interop benchmark`: compares TensorFlow, XLA and stages."""

from __future__ import annotations

import pathlib

import click
from rich.console import Console

from tf_interop.benchmark.file import benchmark_schema, load_benchmark
from tf_interop.benchmark.tables import show_benchmark
from tf_interop.cli.arguments import DefaultGroup
from tf_interop.cli.benchmark_measure import EXIT_CODES, measure
from tf_interop.cli.benchmark_options import other_forms_options, write_other_forms
from tf_interop.cli.exit_status import AS_IT_IS, example
from tf_interop.cli.result import Result, print_json, prints_result, reading

_GROUP_EPILOG = f"""{AS_IT_IS}Examples:
  tf-interop benchmark ResNet50 --profile profile.json --batch 1,32 -o results.json
  tf-interop benchmark measure --help
  tf-interop benchmark show results.json --plot results.png

{EXIT_CODES}"""


@click.group(
    cls=DefaultGroup,
    default_command="measure",
    epilog=_GROUP_EPILOG,
    short_help="Compares TensorFlow, XLA and the plugin.",
)
def benchmark() -> None:
    """Measures models with stock TensorFlow, with XLA and with the plugin, by turns.

    `tf-interop benchmark MODEL… -o out.json` is short for `tf-interop benchmark measure MODEL… …`.
    """


benchmark.add_command(measure)


@benchmark.command(
    epilog=example("benchmark show results.json --csv results.csv"),
    short_help="Shows what was measured, or draws it.",
)
@click.argument("file", metavar="RESULTS")
@other_forms_options
@prints_result
@reading
def show(file: str, csv_path: pathlib.Path | None, plot_path: pathlib.Path | None) -> Result:
    """Shows what is in the file RESULTS: milliseconds for each step, and how they compare."""
    loaded = load_benchmark(file)
    write_other_forms(loaded, csv_path, plot_path)
    return Result(loaded, lambda: show_benchmark(loaded, Console()))


@benchmark.command(epilog=example("benchmark schema > benchmark.schema.json"))
@prints_result
def schema() -> Result:
    """Prints the JSON schema of results."""
    document = benchmark_schema()
    return Result(document, lambda: print_json(document))
