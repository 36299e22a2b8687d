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
from tf_interop.parallel.devices import device_graph_schema
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
    """Shows what a plan, a profile or results of a benchmark hold.

    Of a plan, stage by stage, why it is as it is: the algorithm of each lane, what it takes alone
    and together, whether that was measured or modelled, memory, what its kernels take of a
    streaming multiprocessor (SM), and other algorithms, with the reason why they were not taken.

    Of a profile, for each convolution its fastest algorithm, for each stage its time against that
    of the same convolutions one after another, in microseconds.

    Of a benchmark, milliseconds for each step, and how they compare.

    With --json all that the file holds. A file that is not legal is an error that says where.
    """
    # A profile of many thousand measurements takes seconds.
    with Console(stderr=True).status("Reading"):
        kind = _kind_of(file)
        if csv_path is not None and kind != "benchmark":
            raise click.UsageError(f"Expected --csv with results of a benchmark, got a {kind}.")
        if kind == "plan":
            plan = load_plan(file)
            return Result(plan, lambda: explain_stages(plan, Console()))
        if kind == "profile":
            profile = load_profile(file)
            return Result(profile_document(profile), lambda: show_profile(profile))
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
            f"Expected a plan, a profile or results of a benchmark, got '{file}', which does not "
            "say that it is one. Check the path."
        )
    return found[1].decode()


@command("schema plan > plan.schema.json")
@click.argument("kind", type=click.Choice(list(_SCHEMAS)))
def schema(kind: str) -> Result:
    """Prints the JSON schema of a kind of file.

    Of a profile it is that of a line.
    """
    document = _SCHEMAS[kind]()
    return Result(document, lambda: print_json(document))
