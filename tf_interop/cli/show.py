"""The commands `tf-interop show`, which shows a file, and `tf-interop schema`."""

from __future__ import annotations

import pathlib
import re

import click
from rich.console import Console

from tf_interop.benchmark.result import benchmark_schema, load_benchmark
from tf_interop.benchmark.show import show_benchmark, write_csv
from tf_interop.cli.command import Result, command, print_json
from tf_interop.cli.options import written_option
from tf_interop.errors import TfInteropError
from tf_interop.parallel.costs.devices import device_graph_schema
from tf_interop.parallel.types import parallel_plan_schema
from tf_interop.planning.show import explain_stages
from tf_interop.planning.types import load_plan, plan_schema
from tf_interop.profile.file import load_profile, profile_document, profile_schema
from tf_interop.profile.tables import show_profile
from tf_interop.versioned_file import read_file

_SCHEMAS = {
    "plan": plan_schema,
    "parallel-plan": parallel_plan_schema,
    "device-graph": device_graph_schema,
    "profile": profile_schema,
    "benchmark": benchmark_schema,
}


@command(
    """
show plan.json
show profile.json
show results.json --csv results.csv
"""
)
@click.argument("file")
@written_option("--csv", "csv_path", "OUT.csv", "Also write the results of a benchmark as CSV.")
def show(file: str, csv_path: pathlib.Path | None) -> Result:
    """Prints a plan, a profile or results of a benchmark.

    It explains a plan stage by stage: the algorithm of each lane, its time alone and together,
    measured or modelled, its memory, its kernels' shares of a streaming multiprocessor (SM), and
    other algorithms, with the reason why they were not taken.

    For a profile it prints each convolution with its fastest algorithm, and each stage's time
    against that of the same convolutions one after another, in µs.

    For a benchmark it prints milliseconds per step, and how they compare.

    With --json it prints the whole content of the file. For an invalid file the error names the
    place.
    """
    # A profile of many thousand measurements takes seconds.
    with Console(stderr=True).status("Reading"):
        kind = _kind_of(file)
        if csv_path is not None and kind != "benchmark":
            raise click.UsageError(
                f"--csv needs results of a benchmark, got a {kind}. Leave it out."
            )
        if kind == "plan":
            plan = load_plan(file)
            return Result(plan, lambda: explain_stages(plan, Console()))
        if kind == "profile":
            profile = load_profile(file)
            return Result(profile_document(profile), lambda: show_profile(profile, Console()))
        results = load_benchmark(file)
        if csv_path is not None:
            write_csv(results, csv_path)
        return Result(results, lambda: show_benchmark(results, Console()))


def _kind_of(file: str) -> str:
    # By its first words, since it may be damaged: then its own reader says where.
    content = read_file(file, "plan, profile or benchmark", TfInteropError)
    found = re.search(rb'"format":\s*"tf_interop\.(plan|profile|benchmark)"', content)
    if found is None:
        raise TfInteropError(
            f"'{file}' is not a plan, a profile or results of a benchmark. Check the path."
        )
    return found[1].decode()


@command("schema plan > plan.schema.json")
@click.argument("kind", type=click.Choice(list(_SCHEMAS)))
def schema(kind: str) -> Result:
    """Prints the JSON schema of a kind of file.

    The schema of a profile describes one line.
    """
    document = _SCHEMAS[kind]()
    return Result(document, lambda: print_json(document))
