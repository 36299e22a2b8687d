"""Measures networks, each in a process of its own, and writes a result file.

    python python/benchmarks/run.py pass_time --network InceptionV3 -o docs/results/pass_time.json

`pass_time` times the graph pass, and `kept_parameters` calls after an update. `applications`
compares the numbers of networks with and without the plugin, `compiled_applications` those of
networks that XLA compiles, `folded_applications` those of folded networks, and `random_networks`
those of random ones whose variables change. `mixed_precision` compares networks in bfloat16 with
float32. `predictions` compares what `tune` and simulated runs say with new programs, and `serving`
serves a network for fifteen minutes.
`parallel_papers` and `parallel_scaling` model networks whose layers many GPUs share, and
`parallel_time` times the search for that. `divided_training` compares training on several devices
and on one, and `divided_speed` times it on two and four processes.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import json
import pathlib
import pkgutil
import sys
from typing import Any

import click
from rich.console import Console

# This program runs from a checkout, which is not on Python's path.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from python.benchmarks.result_file import Case, in_new_process, write_result

CASES = {
    "pass_time": "pass_time:CASE",
    "applications": "applications:CASE",
    "compiled_applications": "applications:COMPILED_CASE",
    "folded_applications": "folded_applications:CASE",
    "mixed_precision": "mixed_precision:CASE",
    "kept_parameters": "kept_parameters:CASE",
    "random_networks": "random_networks:CASE",
    "predictions": "predictions:CASE",
    "serving": "serving:CASE",
    "parallel_papers": "parallel_papers:CASE",
    "parallel_scaling": "parallel_papers:SCALING_CASE",
    "parallel_time": "parallel_papers:TIME_CASE",
    "divided_training": "divided_training:CASE",
    "divided_speed": "divided_speed:CASE",
}


@click.command(help=__doc__)
@click.argument("case", type=click.Choice(CASES))
@click.option("--network", "names", multiple=True, help="One of them instead of all.")
@click.option("-o", "--output", type=click.Path(path_type=pathlib.Path), help="JSON file to write.")
@click.option("--resume", is_flag=True, help="Keep the networks already in the JSON file.")
def main(case: str, names: tuple[str, ...], output: pathlib.Path | None, resume: bool) -> None:
    """Runs a case."""
    if resume and output is None:
        raise click.UsageError("--resume needs --output.")
    console = Console(stderr=True)
    measured: Case = pkgutil.resolve_name(f"python.benchmarks.{CASES[case]}")
    rows: dict[str, dict[str, Any]] = {}
    if resume and output is not None and output.exists():
        rows = {row["network"]: row for row in json.loads(output.read_text())["rows"]}
    names = names or tuple(measured.networks)
    for name in names:
        if name in rows:
            continue
        with console.status(name):
            rows[name] = {"network": name, **in_new_process(measured.measure, name)}
        if output is not None:
            # After every network, because all of them together may take long.
            order = {name: place for place, name in enumerate(measured.networks)}
            in_order = sorted(rows.values(), key=lambda row: order.get(row["network"], len(order)))
            write_result(output, measured.title, measured.says, in_order)
    if output is None:
        write_result(None, measured.title, measured.says, list(rows.values()))
    if wrong := [name for name, row in rows.items() if not measured.is_right(row)]:
        console.print(f"With the plugin these networks compute other numbers: {', '.join(wrong)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
