r"""Writes the gain of using all cores without loss, next to the measured gain.

    taskset -c 0 scripts/benchmark_cpu.sh one_core.json --repetitions 1 --variants stock
    scripts/benchmark_cpu.sh all_cores.json --repetitions 1 --variants stock
    python python/benchmarks/core_limits.py one_core.json all_cores.json docs/results/cpu.json \
        -o docs/results/cpu_limits.json

Measure the first two one right after the other.
"""

from __future__ import annotations

import pathlib
import sys

import click
import msgspec

# This program runs from a checkout, which is not on Python's path.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from python.benchmarks.result_file import write_result
from tf_interop.benchmark.result import Benchmark, Variant

PATH = click.Path(path_type=pathlib.Path)
SAYS = """The limit is how many times as fast as stock a step would be if both cores shared one
core's work without loss: the time of stock on all cores, over half its time on one core. A network
whose operations depend on each other cannot reach it at batch 1. "Ours" is from cpu.json, measured
at another time."""


@click.command(help=__doc__)
@click.argument("one_core", type=PATH)
@click.argument("all_cores", type=PATH)
@click.argument("tuned", type=PATH)
@click.option("-o", "--output", type=PATH, help="JSON file to write.")
def main(
    one_core: pathlib.Path, all_cores: pathlib.Path, tuned: pathlib.Path, output: pathlib.Path
) -> None:
    """Writes the table."""
    alone, together, compared = (
        msgspec.json.decode(path.read_bytes(), type=Benchmark)
        for path in (one_core, all_cores, tuned)
    )
    cores = together.device.sm_count / alone.device.sm_count
    rows = []
    for case in compared.by_case:
        on_one, on_all, ours = (
            benchmark.summarize(benchmark.of(case, variant))
            for benchmark, variant in (
                (alone, Variant.STOCK),
                (together, Variant.STOCK),
                (compared, Variant.OURS),
            )
        )
        if on_one is None or on_all is None or ours is None:
            continue
        stock_again = compared.of(case, Variant.OURS).ran_as_stock
        rows.append(
            {
                "network": case.name_on(together.device),
                "stock_ms": on_all.median_ms,
                "one_core_ms": on_one.median_ms,
                "limit": on_all.median_ms / on_one.median_ms * cores,
                "ours": 1.0 if stock_again else ours.speedup,
            }
        )
    write_result(output, "The limit on two cores", SAYS, rows)


if __name__ == "__main__":
    main()
