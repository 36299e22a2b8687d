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

import dataclasses
import os
import pathlib
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import click

# This program runs from a checkout, which is not on Python's path.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from python.benchmarks.networks import NETWORKS, Network
from tf_interop.cli.options import BATCHES, TIME

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIRST = tuple(network.name for network in NETWORKS[:3])
OTHERS = tuple(network.name for network in NETWORKS[3:])
INFERENCE = ("--inference",)
TRAINING = ("--no-inference", "--training")
PROFILED_SHARE = 0.4
SHORTEST_SECONDS = 10.0
# What is stopped ends after the measurement in hand.
GRACE_SECONDS = 60.0
# A variant that runs out of memory is a result, too.
BENCHMARK_HOLDS_FAILURES = 3

KERAS_POLICY = {
    "tf32": "float32",
    "float32": "float32",
    "float16": "mixed_float16",
    "bfloat16": "mixed_bfloat16",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
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
    precision: str = "tf32"


ROUNDS = (
    Round(FIRST, (1, 32), INFERENCE),
    Round(FIRST, (32,), TRAINING),
    Round(FIRST, (8, 128), INFERENCE),
    Round(FIRST, (1, 8, 128), TRAINING),
    Round(OTHERS, (1, 32), INFERENCE),
    Round(FIRST, (1, 8, 32, 128), INFERENCE, "float16"),
    Round(OTHERS, (32,), TRAINING),
    Round(FIRST, (1, 8, 32, 128), TRAINING, "float16"),
    Round(FIRST, (1, 32), INFERENCE, "float32"),
    Round(FIRST, (32,), TRAINING, "float32"),
    Round(OTHERS, (8, 128), INFERENCE),
    Round(OTHERS, (1, 32), INFERENCE, "float16"),
    Round(FIRST, (2, 4, 16, 64, 256), INFERENCE),
    Round(FIRST, (64, 256), TRAINING),
)


class Comparison:
    """Runs the commands, and says what they did."""

    def __init__(
        self,
        folder: pathlib.Path,
        end: float,
        profile_options: list[str],
        benchmark_options: list[str],
        common_options: list[str],
    ) -> None:
        self._folder = folder
        self._end = end
        self._profile_options = profile_options
        self._benchmark_options = benchmark_options
        self._common_options = common_options
        # Nor is it on the path of the commands.
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        self.failed = 0

    @property
    def seconds_left(self) -> float:
        """Until the budget is over."""
        return self._end - time.monotonic()

    def measure(self, network: Network, wanted: Round, seconds: float) -> None:
        """Profiles and benchmarks a network in a share of the time."""
        common = [
            network.model,
            "--batch",
            ",".join(map(str, wanted.batches)),
            *wanted.steps,
            *self._common_options,
        ]
        begin = time.monotonic()
        label = f"{network.name}, batch {','.join(map(str, wanted.batches))}, {wanted.precision}"
        profile = self._folder / "profile.json"
        self._run(
            f"profile {label}, {'training' if '--training' in wanted.steps else 'inference'}",
            [
                "profile",
                *common,
                *("--dtype", KERAS_POLICY[wanted.precision]),
                *("--tf32", "off" if wanted.precision == "float32" else "on"),
                *self._profile_options,
                *("--budget", f"{max(seconds * PROFILED_SHARE, SHORTEST_SECONDS):.0f}s"),
                *("-o", str(profile)),
            ],
            seconds,
        )
        left = max(seconds - (time.monotonic() - begin), SHORTEST_SECONDS)
        # What needs no plan is of use without a profile.
        source = ["--profile", str(profile)] if profile.exists() else ["--variants", "stock,xla"]
        self._run(
            f"benchmark {label}",
            [
                "benchmark",
                *common,
                *source,
                *("--precision", wanted.precision),
                *self._benchmark_options,
                *("--budget", f"{left:.0f}s"),
                *("-o", str(self._folder / "results.json")),
            ],
            left,
        )
        self._show()

    def _run(self, label: str, arguments: list[str], seconds: float) -> None:
        log_path = self._folder / "commands.log"
        begin = time.monotonic()
        with log_path.open("a") as log:
            print("tf-interop", *arguments, file=log, flush=True)
            process = subprocess.Popen(
                [sys.executable, "-m", "tf_interop", *arguments],
                stdout=log,
                stderr=log,
                env=self._environment,
            )
            try:
                code = process.wait(seconds + GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.terminate()
                try:
                    code = process.wait(GRACE_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    code = process.wait()
        took = time.monotonic() - begin
        is_fine = code == 0 or (code == BENCHMARK_HOLDS_FAILURES and arguments[0] == "benchmark")
        if not is_fine:
            self.failed += 1
        click.echo(f"{'ok    ' if is_fine else f'exit {code}'}  {label} ({took:.0f} s)")

    def _show(self) -> None:
        results = self._folder / "results.json"
        if not results.exists():
            return
        command = [sys.executable, "-m", "tf_interop", "benchmark", "show", str(results)]
        outputs = ["--csv", str(self._folder / "results.csv")]
        with (self._folder / "tables.txt").open("w") as tables:
            subprocess.run([*command, *outputs], stdout=tables, env=self._environment, check=False)
        # By itself: matplotlib may not be there.
        subprocess.run(
            [*command, "--plot", str(self._folder / "results.png")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            check=False,
        )


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
    type=click.Choice([network.name for network in NETWORKS]),
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
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    networks = [network for network in NETWORKS if not names or network.name in names]
    rounds = ROUNDS
    if batch:
        every = tuple(network.name for network in networks)
        rounds = (Round(every, batch, INFERENCE), Round(every, batch, TRAINING))
    units = [
        (each, network) for each in rounds for network in networks if network.name in each.networks
    ]
    comparison = Comparison(
        folder,
        time.monotonic() + budget,
        ["--backend", backend] if backend else [],
        ["--repetitions", str(repetitions), "--steps", str(steps), "--seconds", str(seconds)],
        ["--image-size", image_size] if image_size else [],
    )
    for index, (each, network) in enumerate(units):
        if comparison.seconds_left < SHORTEST_SECONDS and index > 0:
            click.echo(f"time is over: {len(units) - index} of {len(units)} left")
            break
        # However short the time is: something is better than nothing.
        share = share_of(comparison.seconds_left, len(units) - index)
        comparison.measure(network, each, max(share, SHORTEST_SECONDS))
    sys.exit(1 if comparison.failed else 0)


if __name__ == "__main__":
    main()
