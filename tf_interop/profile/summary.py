"""What came of measuring, in a few lines: how much was measured, and what runs faster together."""

from __future__ import annotations

import collections
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console

from tf_interop.profile.entries import StageMeasurement, wins
from tf_interop.profile.tables import describe_device, describe_stage
from tf_interop.profile.types import Profile
from tf_interop.tables import new_table, print_on

_MOST_STAGES = 10


def show_summary(profile: Profile, path: str, console: Console | None = None) -> None:
    """Prints how much a profile holds, and the sets of convolutions that are faster together.

    Args:
        profile: any profile.
        path: its file, for what to do to see all of it.
        console: where to print; by default stdout.
    """
    console = console or Console()
    convolutions = {entry.configuration for entry in profile.algorithms}
    failures = len(profile.algorithm_failures) + len(profile.stage_failures)
    print_on(console, describe_device(profile.device))
    print_on(
        console,
        f"Measured: {len(convolutions)} convolutions, with {len(profile.algorithms)} algorithms in "
        f"all, and {len(profile.stages)} stages; {failures} failed.",
    )
    winners = _winners(profile.stages)
    if not winners:
        if profile.stages:
            print_on(console, "No set of convolutions beat its sequence on this device.")
        print_on(console, f"All of it: tf-interop profile show {shlex.quote(path)}")
        return
    table = new_table("Faster together than in sequence, by more than the spread")
    table.add_column("convolutions", overflow="fold")
    table.leading = 1
    for heading in ("together us", "in sequence us", "times as fast"):
        table.add_column(heading, justify="right")
    for stage in winners[:_MOST_STAGES]:
        table.add_row(
            describe_stage(stage.stage),
            f"{stage.latency_us:.1f}",
            f"{stage.sequential_us:.1f}",
            f"{_times_as_fast(stage):.2f}",
        )
    print_on(console, table)
    left = len(winners) - _MOST_STAGES
    more = f"And {left} more sets. " if left > 0 else ""
    print_on(console, f"\n{more}All of it: tf-interop profile show {shlex.quote(path)}")


def next_commands(models: Iterable[str], path: str, collecting: Mapping[str, Any]) -> list[str]:
    """The commands that plan what was measured.

    Args:
        models: as the command line has them; for lists of configurations stands `MODEL`.
        path: the profile.
        collecting: the options by which the models were collected.
    """
    options = ["--profile", path]
    if collecting["batch"] != (1,):
        options += ["--batch", ",".join(map(str, collecting["batch"]))]
    if not collecting["inference"]:
        options.append("--no-inference")
    if collecting["training"]:
        options.append("--training")
    if collecting["image_size"] is not None:
        options += ["--image-size", "x".join(map(str, collecting["image_size"]))]
    if collecting["target"] is not None:
        options += ["--for", collecting["target"]]
    planned = dict.fromkeys("MODEL" if model.endswith(".json") else model for model in models)
    return [
        shlex.join(["tf-interop", "plan", each, *options, "-o", "plan.json"]) for each in planned
    ]


def _winners(stages: Iterable[StageMeasurement]) -> list[StageMeasurement]:
    """Of each set of convolutions its fastest stage, where that wins; the largest ratio first."""
    fastest: dict[object, StageMeasurement] = {}
    for stage in stages:
        operations = collections.Counter(stage.stage.operations)
        key = frozenset(operations.items()), stage.tf32
        if key not in fastest or stage.latency_us < fastest[key].latency_us:
            fastest[key] = stage
    return sorted(filter(wins, fastest.values()), key=_times_as_fast, reverse=True)


def _times_as_fast(stage: StageMeasurement) -> float:
    return stage.sequential_us / stage.latency_us
