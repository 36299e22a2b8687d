"""Profiles, plans and benchmarks all networks in order of value, as far as a budget of time goes.

Each round takes some networks with some batch sizes; what published comparisons are of comes
first. For every network of a round the convolutions are measured (`tf-interop profile`), then the
network is run in all variants by turns, with a plan by that profile (`tf-interop benchmark`). After
each of them the folder holds what there is so far:

    profile.json    what was measured of convolutions and stages
    results.json    every timed step (docs/benchmarking.md)
    results.csv     a line for each variant
    results.png     a picture, where matplotlib is installed
    tables.txt      tables to read

Given again, the command goes on where it ended.

Example: python python/benchmarks/compare_networks.py results --budget 25m
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import time
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import click

# This program runs from a checkout, which is not on Python's path.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from python.benchmarks.networks import NETWORKS
from tf_interop.benchmark.result import Precision
from tf_interop.cli.options import BATCHES, TIME

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIRST, OTHERS = tuple(NETWORKS)[:3], tuple(NETWORKS)[3:]
INFERENCE = ("--inference",)
TRAINING = ("--no-inference", "--training")
PROFILED_SHARE = 0.4
SHORTEST_SECONDS = 10.0
# What is stopped ends after the measurement in hand.
GRACE_SECONDS = 60.0
# A variant that runs out of memory is a result, too.
BENCHMARK_HOLDS_FAILURES = 3


class Round(NamedTuple):
    """What is measured before the next round begins.

    Attributes:
        networks: their names.
        batches: batch sizes.
        steps: options that choose inference or training.
        precision: what convolutions compute in.
    """

    networks: tuple[str, ...]
    batches: tuple[int, ...]
    steps: tuple[str, ...]
    precision: Precision = Precision.TF32


ROUNDS = (
    Round(FIRST, (1, 32), INFERENCE),
    Round(FIRST, (32,), TRAINING),
    Round(FIRST, (8, 128), INFERENCE),
    Round(FIRST, (1, 8, 128), TRAINING),
    Round(OTHERS, (1, 32), INFERENCE),
    Round(FIRST, (1, 8, 32, 128), INFERENCE, Precision.FLOAT16),
    Round(OTHERS, (32,), TRAINING),
    Round(FIRST, (1, 8, 32, 128), TRAINING, Precision.FLOAT16),
    Round(FIRST, (1, 32), INFERENCE, Precision.FLOAT32),
    Round(FIRST, (32,), TRAINING, Precision.FLOAT32),
    Round(OTHERS, (8, 128), INFERENCE),
    Round(OTHERS, (1, 32), INFERENCE, Precision.FLOAT16),
    Round(FIRST, (2, 4, 16, 64, 256), INFERENCE),
    Round(FIRST, (64, 256), TRAINING),
)


def run_command(folder: pathlib.Path, seconds: float, *arguments: object) -> bool:
    """Runs a command of tf-interop, says how it ended, and whether that is as it should be."""
    words = list(map(str, arguments))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    begin = time.monotonic()
    with (folder / "commands.log").open("a") as log, (folder / "tables.txt").open("a") as tables:
        print("tf-interop", *words, file=log, flush=True)
        if words[0] == "benchmark":
            # It prints those of all results that there are.
            tables.truncate(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "tf_interop", *words],
            stdout=tables if words[0] == "benchmark" else log,
            stderr=log,
            env=environment,
        )
        for wait_seconds, end in (
            (seconds + GRACE_SECONDS, process.terminate),
            (GRACE_SECONDS, process.kill),
        ):
            try:
                process.wait(wait_seconds)
                break
            except subprocess.TimeoutExpired:
                end()
        code = process.wait()
    is_fine = code == 0 or (code == BENCHMARK_HOLDS_FAILURES and words[0] == "benchmark")
    took = f"{time.monotonic() - begin:.0f} s"
    click.echo(f"{'ok    ' if is_fine else f'exit {code}'}  {' '.join(words)} ({took})")
    return is_fine


def share_of(seconds_left: float, units_left: int) -> float:
    """The time for the next of so many units: the first ones may take more than the last."""
    return 2 * seconds_left / (units_left + 1)


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(file_okay=False, path_type=pathlib.Path))
@click.option("--budget", required=True, type=TIME, help="Such as 90s, 25m or 1.5h.")
@click.option(
    "--network",
    "names",
    multiple=True,
    type=click.Choice(list(NETWORKS)),
    help="Take these alone.",
)
@click.option(
    "--batch",
    type=BATCHES,
    help="In place of the rounds: inference and training with these batch sizes.",
)
@click.option("--backend", type=click.Choice(["cudnn", "host"]), help="What profiles.")
@click.option("--image-size", metavar="N|HxW", help="In place of each network's own.")
@click.option("--repetitions", default=2, show_default=True, type=click.IntRange(min=1))
@click.option("--steps", default=20, show_default=True, type=click.IntRange(min=1))
@click.option("--seconds", default=2.0, show_default=True, type=click.FloatRange(min=0))
def main(
    folder: pathlib.Path,
    budget: float,
    names: tuple[str, ...],
    batch: tuple[int, ...] | None,
    backend: str | None,
    image_size: str | None,
    repetitions: int,
    steps: int,
    seconds: float,
) -> None:
    """Runs the comparison; ends with 1 where a command failed."""
    end = time.monotonic() + budget
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    networks = [network for network in NETWORKS if not names or network in names]
    rounds = ROUNDS
    if batch:
        rounds = (Round(OTHERS + FIRST, batch, INFERENCE), Round(OTHERS + FIRST, batch, TRAINING))
    units = [(each, name) for each in rounds for name in networks if name in each.networks]
    profile = folder / "profile.json"
    outputs = ["-o", folder / "results.json", "--csv", folder / "results.csv"]
    if importlib.util.find_spec("matplotlib"):
        outputs += ["--plot", folder / "results.png"]
    is_fine = True
    for index, (wanted, name) in enumerate(units):
        left = end - time.monotonic()
        if left < SHORTEST_SECONDS and index > 0:
            click.echo(f"time is over: {len(units) - index} of {len(units)} left")
            break
        # However short the time is: something is better than nothing.
        share = max(share_of(left, len(units) - index), SHORTEST_SECONDS)
        common = [NETWORKS[name], "--batch", ",".join(map(str, wanted.batches)), *wanted.steps]
        common += ["--image-size", image_size] if image_size else []
        is_fine &= run_command(
            folder,
            share,
            *("profile", *common, "--dtype", wanted.precision.keras_policy),
            *("--tf32", "off" if wanted.precision is Precision.FLOAT32 else "on"),
            *(("--backend", backend) if backend else ()),
            *("--budget", f"{max(share * PROFILED_SHARE, SHORTEST_SECONDS):.0f}s", "-o", profile),
        )
        rest = max(share - (left - (end - time.monotonic())), SHORTEST_SECONDS)
        is_fine &= run_command(
            folder,
            rest,
            *("benchmark", *common),
            # What needs no plan is of use without a profile.
            *(("--profile", profile) if profile.exists() else ("--variants", "stock,xla")),
            *("--precision", wanted.precision.value, "--repetitions", repetitions),
            *("--steps", steps, "--seconds", seconds, "--budget", f"{rest:.0f}s", *outputs),
        )
    sys.exit(0 if is_fine else 1)


if __name__ == "__main__":
    main()
