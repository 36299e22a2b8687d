"""The command `tf-interop profile`: measures convolutions and stages of models."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import click
from rich.console import Console

from tf_interop.cli import options
from tf_interop.cli.main import Result, command, signals_caught
from tf_interop.cli.progress import shown_progress, work_on_model
from tf_interop.measure.core import AlgorithmScope, MeasureOptions, load_core_library
from tf_interop.measure.device import ask_for_all_hardware_queues, identify_device, visible_gpus
from tf_interop.measure.run import End, Outcome, ProfileRun, RunOptions
from tf_interop.planning.types import load_plan
from tf_interop.profile.file import open_profile
from tf_interop.profile.tables import show_summary
from tf_interop.profile.types import Profile
from tf_interop.profile.worklist import ConfigurationList, load_configurations, save_configurations

# TensorFlow is imported only to trace a model. Measuring a saved list does not need it.

_EXIT_CODES = {
    0: "success, even if the budget ended before everything was measured",
    3: "the device failed; the same command continues after the failed measurement",
    130: "stopped by Ctrl-C, 143 by SIGTERM; the profile contains everything measured before",
}
# A list of configurations fixes these.
_COLLECTING = ("batch_sizes", "dtype", "inference", "training", "image_size", "jit_compile")


def _stages_of(text: str) -> tuple[str, ...]:
    words = text.split(",")
    plans = [word for word in words if word.endswith(".json")]
    unknown = set(words) - {*plans, "levels", "pairs", "merges", "none"}
    if unknown or len(plans) > 1 or ("none" in words and len(words) > 1):
        raise ValueError(
            f"'{text}' is neither none nor a list of levels, pairs, merges and one plan's file."
        )
    return tuple(word for word in words if word != "none")


def _algorithms_of(text: str) -> AlgorithmScope | tuple[str, ...]:
    try:
        return AlgorithmScope(text)
    except ValueError:
        names = tuple(dict.fromkeys(name for name in text.split(",") if name))
    if not names:
        raise ValueError(f"'{text}' names no algorithm.")
    return names


@command(
    """
profile InceptionV3 --batch 1,8,32 --training --budget 10m -o profile.json
profile my_package.models:build --dtype mixed_float16 -o profile.json
profile ResNet50 --stages plan.json -o profile.json

On two machines, the second without TensorFlow:
profile ResNet50 --for 9.0 --export-configurations list.json
profile list.json --budget 10m -o profile.json
""",
    exit_codes=_EXIT_CODES,
)
@options.models
@options.output("PROFILE.json", "The profile. If the file exists, the command continues it.")
@options.written(
    "--export-configurations",
    "list_path",
    "LIST.json",
    "Write the list of convolutions and stages to measure. Without -o nothing is measured.",
)
@options.steps
@options.jit_compile
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64", "mixed_float16", "mixed_bfloat16"]),
    help="Keras' policy for a model that the command builds.",
)
@options.target("The device to make the graph for", "this machine's GPU, or cpu without one")
@click.option(
    "--stages",
    type=options.Text("levels,pairs,merges,PLAN.json|none", _stages_of),
    default="levels,pairs,merges",
    help="levels: all convolutions at one depth. pairs: independent convolutions. merges: "
    "convolutions on one image as one wider convolution. PLAN.json: the stages of a plan "
    "for the model.",
)
@options.count(
    "--max-pairs",
    default=32,
    help="The most pairs of one graph: those with the most to gain are measured.",
)
@click.option(
    "--algorithms",
    type=options.Text("heuristic|all|knobs|NAME,…", _algorithms_of),
    default="all",
    help="heuristic: those that the backend would consider. all: every algorithm. knobs: "
    "every one, also with changed settings. Or names.",
)
@options.count(
    "--pair-algorithms",
    default=3,
    least=1,
    help="How many algorithms of each convolution of a pair to combine.",
)
@click.option(
    "--budget",
    type=options.TIME,
    help="When to stop, such as after 90s, 10m or 1.5h. The most useful measurements come first.",
)
@click.option(
    "--tf32",
    type=click.Choice(["on", "off"]),
    default="on",
    help="Whether float32 may be computed in TF32.",
)
@click.option(
    "--backend",
    type=click.Choice(["cudnn", "host"]),
    help="The backend that measures. [default: cudnn if there is a GPU, else host]",
)
@options.count(
    "--repetitions",
    default=20,
    least=1,
    help="How often to time each algorithm and stage; the median counts.",
)
@options.count(
    "--warmup",
    default=20,
    most=60_000,
    metavar="MS",
    help="Untimed runs before the timed ones, in ms.",
)
@click.option(
    "--caches",
    type=click.Choice(["cold", "warm"]),
    default="cold",
    help="Whether the operands of a run are in memory or in the caches.",
)
@options.count(
    "--workspace-limit",
    default=1024,
    metavar="MIB",
    help="The largest workspace that one convolution may use, in MiB.",
)
@click.pass_context
def profile(
    context: click.Context,
    /,
    models: tuple[str, ...],
    output_path: pathlib.Path | None,
    list_path: pathlib.Path | None,
    **chosen: Any,
) -> Result:
    """Measures the convolutions of MODELs, alone and in stages.

    Every measurement is on disk before the next one begins: if a run is killed, the same command
    continues it.
    """
    if output_path is None and list_path is None:
        raise click.UsageError("Pass -o, --export-configurations, or both.")
    ask_for_all_hardware_queues()
    if models[0].endswith(".json"):
        _refuse_collecting_options(context)
        configurations = load_configurations(models[0])
        if not chosen["stages"]:
            configurations = dataclasses.replace(configurations, stages=())
    else:
        configurations = _collect(models, chosen)
    if list_path is not None:
        save_configurations(configurations, list_path)
    document: dict[str, Any] = {
        "configurations": list_path,
        "convolutions": len(configurations.convolutions),
        "stages": len(configurations.stages),
    }
    listed = "{configurations}: {convolutions} convolutions and {stages} stages".format(**document)
    if output_path is None:
        document |= dict.fromkeys(("profile", "measured", "failed", "end", "left"))
        return Result(document, lambda: click.echo(listed))
    measured, outcome, exit_code = _measure_into(output_path, configurations, chosen)
    document |= {
        "profile": output_path,
        "measured": outcome.measured_count,
        "failed": outcome.failure_count,
        "end": outcome.end.name.lower(),
        "left": outcome.left,
    }

    def show() -> None:
        if list_path is not None:
            click.echo(listed)
        show_summary(measured, str(output_path), Console())
        click.echo(
            f"{output_path}: {outcome.measured_count} measured now, {outcome.failure_count} failed"
        )
        if outcome.end is not End.FINISHED:
            left = f" Left: {', '.join(outcome.left)}." if outcome.left else ""
            why = outcome.end.value
            click.echo(f"Ended because {why}.{left} The same command continues from here.")
        if outcome.end in (End.FINISHED, End.OUT_OF_TIME):
            click.echo(
                f"Next: tf-interop plan MODEL --profile {output_path} -o plan.json, with the same "
                "MODEL and options"
            )

    return Result(document, show, exit_code)


def _refuse_collecting_options(context: click.Context) -> None:
    """Refuses options that a list of configurations already fixes."""
    if len(context.params["models"]) > 1:
        raise click.UsageError(
            "A list of configurations must be the only argument. Profile the others with "
            "another command."
        )
    wrong = [
        option
        for name, option in options.given(context).items()
        if name in (*_COLLECTING, "target", "max_pairs")
        or (name == "stages" and context.params["stages"])  # none leaves those of the list out
    ]
    if wrong:
        raise click.UsageError(
            f"A list of configurations already fixes {wrong[0]}. Leave it out, or name the model."
        )


def _collect(models: tuple[str, ...], chosen: dict[str, Any]) -> ConfigurationList:
    hint = "; or make a list with --export-configurations on a machine that has it."
    with work_on_model(", ".join(models), hint=hint) as say:
        from tf_interop.model.collect import CollectOptions, StageSource, collect_configurations

        plans = [word for word in chosen["stages"] if word.endswith(".json")]
        sources = [StageSource(word) for word in chosen["stages"] if word not in plans]
        collected = collect_configurations(
            models,
            CollectOptions(
                compute_capability=_compute_capability(chosen["target"], chosen["backend"]),
                stage_sources=sources,
                plan=load_plan(plans[0]) if plans else None,
                **{name: chosen[name] for name in (*_COLLECTING, "max_pairs")},
            ),
            say=say,
        )
    for note in collected.notes:
        click.echo(note, err=True)
    return collected.configurations


def _compute_capability(target: str | None, backend: str | None) -> str | None:
    if target is not None:
        return None if target == "cpu" else target
    gpus = () if backend == "host" else visible_gpus()
    return gpus[0].compute_capability if gpus else None


def _measure_into(
    path: pathlib.Path, configurations: ConfigurationList, chosen: dict[str, Any]
) -> tuple[Profile, Outcome, int]:
    """Measures into a profile. Returns the whole profile, the end of the run and the exit code."""
    name = chosen["backend"] or ("cudnn" if visible_gpus() else "host")
    backend = load_core_library().open_backend(name)
    device = identify_device(backend.describe())
    run_options = RunOptions(
        algorithms=chosen["algorithms"],
        pair_algorithms=chosen["pair_algorithms"],
        measure=MeasureOptions(
            warmup_ms=chosen["warmup"],
            repetitions=chosen["repetitions"],
            workspace_limit_bytes=chosen["workspace_limit"] << 20,
            warm_caches=chosen["caches"] == "warm",
            allow_tf32=chosen["tf32"] == "on",
        ),
        budget_seconds=chosen["budget"],
    )
    with open_profile(path, device) as file, signals_caught() as signals:
        before = file.profile.entries
        if before:
            click.echo(f"Continuing with {len(before)} earlier measurements.", err=True)
        run = ProfileRun(
            backend,
            configurations,
            run_options,
            before=before,
            keep=file.append,
            should_stop=lambda: bool(signals),
        )
        with shown_progress() as say:
            outcome = run.run(say)
    for note in outcome.notes:
        click.echo(note, err=True)
    exit_code = 128 + signals[0] if signals else 0
    return file.profile, outcome, 3 if outcome.end is End.DEVICE_LOST else exit_code
