"""The options of `tf-interop benchmark`: what to compare, how to plan it, and how to measure."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence
from typing import TypeVar

import click

from tf_interop.benchmark.plot import write_plot
from tf_interop.benchmark.result import (
    Benchmark,
    MeasuringOptions,
    Precision,
    Variant,
)
from tf_interop.benchmark.tables import write_csv
from tf_interop.cli.arguments import (
    all_of,
    allow_foreign_profile_option,
    batches_option,
    count_option,
    image_size_option,
    mode_options,
    parsed_option,
    profile_option,
    time_option,
    written_option,
)

_T = TypeVar("_T", Precision, Variant)

PlanPaths = dict[Precision | None, pathlib.Path]
"""Plan files by precision; None is for all that have none of their own."""


def _members_of(kind: type[_T], text: str) -> tuple[_T, ...]:
    """Those of an enumeration's values that are named, such as `stock,ours`."""
    known: dict[str, _T] = {member.value: member for member in kind}
    words = tuple(dict.fromkeys(text.split(",")))
    unknown = [word for word in words if word not in known]
    if unknown:
        raise ValueError(f"Expected some of {', '.join(known)}, got '{', '.join(unknown)}'.")
    return tuple(known[word] for word in words)


def _plans_of(values: Sequence[str]) -> PlanPaths:
    """Plan files from `tf32=plan.json` and the like, or `plan.json` for all others."""
    plans: PlanPaths = {}
    known = {member.value: member for member in Precision}
    for value in values:
        name, equals, path = value.partition("=")
        precision = known.get(name) if equals else None
        plan_path = pathlib.Path(path if precision is not None else value)
        if precision in plans:
            raise ValueError(
                f"Expected one plan for each precision, got '{plans[precision]}' and '{plan_path}'."
            )
        plans[precision] = plan_path
    return plans


case_options = all_of(
    batches_option("Batch sizes."),
    mode_options("Measure"),
    parsed_option(
        "--precision",
        functools.partial(_members_of, Precision),
        "tf32,float32,float16,bfloat16",
        "tf32: float32 with TensorFlow's switch for TF32 on, as it is by default. float32: with "
        "the switch off. float16, bfloat16: Keras' mixed precision.",
        "precisions",
        default="tf32",
    ),
    image_size_option(
        "Height and width in pixels, where the model leaves them open, is a Keras application, or "
        "a function with the argument image_size."
    ),
    parsed_option(
        "--variants",
        functools.partial(_members_of, Variant),
        "NAME,…",
        "stock: TensorFlow as it is. xla: compiled by XLA. ours: with the plan's stages. pinning: "
        "the plan's algorithms, one after another. concurrency: the plan's lanes, no algorithm "
        "pinned.",
        default=",".join(each.value for each in Variant),
    ),
)
"""What to compare."""

plan_options = all_of(
    parsed_option(
        "--plan",
        _plans_of,
        "[PRECISION=]PLAN.json",
        "A plan that holds all cases, or those of a precision.",
        "plan_paths",
        multiple=True,
    ),
    profile_option("Plan each case by this profile, as tf-interop plan does."),
    click.option(
        "--policy",
        type=click.Choice(["always"]),
        help="Put every convolution into a stage, faster or not, in place of a plan.",
    ),
    allow_foreign_profile_option,
)
"""Where the stages come from."""

measuring_options = all_of(
    count_option(
        "--repetitions",
        default=3,
        least=1,
        help_text="Processes for each variant of a case; the variants take turns.",
    ),
    count_option(
        "--steps",
        default=MeasuringOptions().steps,
        least=1,
        help_text="The fewest steps that a process times.",
    ),
    click.option(
        "--seconds",
        default=MeasuringOptions().seconds,
        show_default=True,
        type=click.FloatRange(min=0),
        help="The shortest time that a process goes on timing steps.",
    ),
    count_option(
        "--warmup-steps",
        default=MeasuringOptions().warmup_steps,
        help_text="Steps after the first one that are not timed.",
    ),
    time_option("--timeout", "timeout_seconds", "When to end a process.", default="15m"),
    time_option(
        "--budget",
        "budget_seconds",
        "When to begin no further process, such as 90s, 10m or 1.5h.",
    ),
    click.option("--retry-failures", is_flag=True, help="Try again what failed before."),
)
"""How to measure."""

other_forms_options = all_of(
    written_option("--csv", "csv_path", "OUT.csv", "Also write a CSV file."),
    written_option(
        "--plot",
        "plot_path",
        "OUT.png",
        "Also draw a picture, of the kind that the suffix says; needs matplotlib (the extra "
        "report).",
    ),
)
"""Other forms of the results."""


def write_other_forms(
    benchmark: Benchmark, csv_path: pathlib.Path | None, plot_path: pathlib.Path | None
) -> None:
    """Writes what `other_forms_options` ask for."""
    if csv_path is not None:
        write_csv(benchmark, csv_path)
    if plot_path is not None and benchmark.results:
        write_plot(benchmark, plot_path)
