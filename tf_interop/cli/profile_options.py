"""The options of `tf-interop profile measure`: what to collect of a model, and how to measure."""

from __future__ import annotations

import dataclasses

import click

from tf_interop.cli.arguments import (
    all_of,
    batches_option,
    count_option,
    image_size_option,
    mode_options,
    parsed_by,
    target_option,
    time_option,
)
from tf_interop.measure.backend import AlgorithmScope

COLLECTING = ("batch", "dtype", "inference", "training", "image_size", "layout", "target")
"""Parameters that say nothing where a list was collected before."""


@dataclasses.dataclass(frozen=True)
class StageChoice:
    """What `--stages` says.

    Attributes:
        sources: of `levels`, `pairs` and `merges` those that are asked for.
        plan_path: a plan's file, or None.
    """

    sources: tuple[str, ...]
    plan_path: str | None


def _stages_of(value: str) -> StageChoice:
    words = value.split(",")
    plans = [word for word in words if word.endswith(".json")]
    sources = tuple(word for word in words if word in ("levels", "pairs", "merges"))
    unknown = set(words) - set(plans) - set(sources) - {"none"}
    if unknown or len(plans) > 1 or ("none" in words and len(words) > 1):
        raise ValueError(
            f"Expected levels, pairs, merges, a plan's file or several of these, or none, got "
            f"'{value}'."
        )
    return StageChoice(sources, plans[0] if plans else None)


def _algorithms_of(value: str) -> AlgorithmScope | tuple[str, ...]:
    try:
        return AlgorithmScope(value)
    except ValueError:
        names = tuple(dict.fromkeys(name for name in value.split(",") if name))
    if not names:
        raise ValueError(f"Expected algorithms, got '{value}'.")
    return names


collecting_options = all_of(
    batches_option("Batch sizes."),
    click.option(
        "--dtype",
        type=click.Choice(["float32", "float64", "mixed_float16", "mixed_bfloat16"]),
        help="Keras' policy for a model that is built here.",
    ),
    mode_options("Measure what is computed by"),
    image_size_option(),
    click.option(
        "--layout",
        type=click.Choice(["as-is", "NHWC", "NCHW", "both"]),
        default="as-is",
        show_default=True,
        help="The layout to measure in; as-is is the graph's own.",
    ),
    target_option("What the graph is made for", "this machine's GPU, else cpu"),
    click.option(
        "--stages",
        "stage_choice",
        default="levels,pairs,merges",
        show_default=True,
        callback=parsed_by(_stages_of),
        metavar="levels,pairs,merges,PLAN.json|none",
        help="levels: the groups that a profile is looked up for. pairs: independent convolutions. "
        "merges: convolutions on one image as one wider convolution. PLAN.json: the stages of a "
        "plan for the model.",
    ),
    count_option(
        "--max-pairs",
        default=32,
        help_text="The most pairs of one graph; those with most to gain are taken.",
    ),
)
"""What to measure of a model."""

measuring_options = all_of(
    click.option(
        "--algorithms",
        default="all",
        show_default=True,
        callback=parsed_by(_algorithms_of),
        metavar="heuristic|all|knobs|NAME,…",
        help="heuristic: what the backend would consider. all: every algorithm. knobs: also with "
        "settings moved. Or names.",
    ),
    count_option(
        "--pair-algorithms",
        default=3,
        least=1,
        help_text="How many algorithms of each convolution of a pair to combine.",
    ),
    time_option(
        "--budget",
        "budget",
        "When to stop, such as 90s, 10m or 1.5h. The most useful is measured first.",
    ),
    click.option(
        "--tf32",
        type=click.Choice(["on", "off", "both"]),
        default="on",
        show_default=True,
        help="Whether float32 may be computed in TF32.",
    ),
    click.option(
        "--backend",
        "backend_name",
        type=click.Choice(["cudnn", "host"]),
        help="What measures. [default: cudnn where there is a GPU, else host]",
    ),
    count_option(
        "--repetitions",
        default=20,
        least=1,
        help_text="How often to time each algorithm and stage; the median counts.",
    ),
    count_option(
        "--warmup-runs",
        default=3,
        help_text="Runs before that are not timed.",
    ),
    count_option(
        "--workspace-limit",
        "workspace_mebibytes",
        default=1024,
        metavar="MIB",
        help_text="The largest workspace that one convolution may need, in MiB.",
    ),
    click.option(
        "--trace-kernels/--no-trace-kernels",
        default=True,
        show_default=True,
        help="Whether to name the GPU kernels of each algorithm.",
    ),
    click.option(
        "--tables",
        is_flag=True,
        help="Print all that the profile holds, as tf-interop profile show does.",
    ),
)
"""How to measure it."""
