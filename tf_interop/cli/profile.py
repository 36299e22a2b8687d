"""The command `tf-interop profile`: measures, and looks at what was measured."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import click

from tf_interop.cli.arguments import output_option
from tf_interop.cli.profile_measure import EXIT_CODES, measure
from tf_interop.cli.result import Result, add_schema_command, command, command_group
from tf_interop.errors import ProfileError
from tf_interop.profile.difference import diff_profiles
from tf_interop.profile.file import (
    load_profile,
    merge_profiles,
    profile_document,
    profile_schema,
    save_profile,
)
from tf_interop.profile.nsight_compute import (
    LaunchKey,
    add_nsight_values,
    read_nsight_csv,
)
from tf_interop.profile.tables import (
    show_difference,
    show_like_paper,
    show_nsight_import,
    show_profile,
)
from tf_interop.profile.types import Profile

_GROUP_EXAMPLES = """
profile ResNet50 --batch 1,8 --budget 10m -o profile.json
profile measure --help
profile show profile.json
profile diff before.json after.json
"""


@command_group(
    _GROUP_EXAMPLES,
    default_command="measure",
    exit_codes=EXIT_CODES,
    short_help="Measures convolutions and stages of models.",
)
def profile() -> None:
    """Measures convolutions and stages of models, and shows what was measured.

    `tf-interop profile MODEL… -o profile.json` is short for `tf-interop profile measure MODEL…`.
    """


profile.add_command(measure)


@command(
    "profile show profile.json",
    group=profile,
    short_help="Shows what a profile holds.",
    reads_files=True,
)
@click.argument("file", metavar="PROFILE")
@click.option("--like-paper", is_flag=True, help="In the form of the paper's Tables 1 and 2.")
def show(file: str, like_paper: bool) -> Result:
    """Shows what PROFILE holds: the device, and what was measured on it.

    For each convolution its fastest algorithm, for each stage its time against that of the same
    convolutions one after another. Times are in microseconds. With --json the whole profile.
    """
    loaded = load_profile(file)
    document = profile_document(loaded)
    if like_paper:
        return Result(document, lambda: show_like_paper(loaded))
    return Result(document, lambda: show_profile(loaded))


@command(
    "profile check profile.json",
    group=profile,
    short_help="Checks that a file is a legal profile.",
    reads_files=True,
)
@click.argument("file", metavar="PROFILE")
def check(file: str) -> Result:
    """Checks that PROFILE is a legal profile; says where it is not."""
    summary = _summarize(file, load_profile(file))
    return Result(summary, lambda: click.echo(_describe(summary)))


@command(
    "profile merge monday.json tuesday.json -o both.json",
    group=profile,
    short_help="Puts profiles of one device into one.",
    reads_files=True,
)
@click.argument("files", metavar="PROFILE...", nargs=-1, required=True)
@output_option("MERGED.json", "The profile to write.", required=True)
def merge(files: tuple[str, ...], output_path: pathlib.Path) -> Result:
    """Puts profiles of one device into one; of two measurements of one thing the later counts."""
    profiles = [load_profile(file) for file in files]
    merged = merge_profiles(profiles)
    save_profile(merged, output_path)
    summary = _summarize(str(output_path), merged)
    entries = " + ".join(str(len(each.entries)) for each in profiles)
    text = f"Merged {len(files)} profiles of {entries} entries into {len(merged.entries)}.\n"
    return Result(summary, lambda: click.echo(text + _describe(summary)))


@command(
    "profile diff before.json after.json",
    group=profile,
    short_help="Compares two profiles.",
    reads_files=True,
)
@click.argument("first")
@click.argument("second")
def diff(first: str, second: str) -> Result:
    """Says how the profile SECOND differs from FIRST, by more than the spread."""
    difference = diff_profiles(load_profile(first), load_profile(second))
    return Result(difference, lambda: show_difference(difference))


add_schema_command(profile, profile_schema, "profiles")


@command(
    "profile import-ncu profile.json ncu.csv",
    group=profile,
    name="import-ncu",
    short_help="Adds what Nsight Compute found out.",
    reads_files=True,
)
@click.argument("file", metavar="PROFILE")
@click.argument("csv")
@output_option("PROFILE.json", "Where to write the profile. [default: PROFILE itself]")
def import_ncu(file: str, csv: str, output_path: pathlib.Path | None) -> Result:
    """Adds what Nsight Compute found out about kernels, from the CSV that `ncu --csv` prints.

    Kernels are matched by function, grid and block. Fails where none of the CSV is in PROFILE.
    """
    imported = add_nsight_values(load_profile(file), read_nsight_csv(csv))
    if not imported.matched:
        raise ProfileError(
            f"Expected kernels of profile '{file}' in '{csv}', got none of "
            f"{len(imported.not_in_profile)} launches. Run ncu on what the profile measured."
        )
    written = file if output_path is None else str(output_path)
    save_profile(imported.profile, written)
    document = {
        "profile": written,
        "matched": _launches(imported.matched),
        "not_in_profile": _launches(imported.not_in_profile),
        "not_in_csv": _launches(imported.not_in_csv),
    }
    return Result(document, functools.partial(show_nsight_import, imported))


def _summarize(file: str, summarized: Profile) -> dict[str, Any]:
    return {
        "profile": file,
        "device": summarized.device.name,
        "date": summarized.device.date,
        "algorithms": len(summarized.algorithms),
        "stages": len(summarized.stages),
        "failures": len(summarized.algorithm_failures) + len(summarized.stage_failures),
    }


def _describe(summary: dict[str, Any]) -> str:
    return (
        f"{summary['profile']}: {summary['algorithms']} measurements of algorithms and "
        f"{summary['stages']} of stages, {summary['failures']} failures, on {summary['device']}, "
        f"{summary['date']}"
    )


def _launches(keys: tuple[LaunchKey, ...]) -> list[dict[str, Any]]:
    return [{"function": key.function, "grid": key.grid, "block": key.block} for key in keys]
