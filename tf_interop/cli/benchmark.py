"""The command `tf-interop benchmark`: compares TensorFlow, XLA, other runtimes and the plugin."""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import pathlib
import platform
import shlex
import sys
from typing import Any

import click
from rich.console import Console

import tf_interop
from tf_interop.benchmark import other_runtimes
from tf_interop.benchmark.child import check_program, run_child
from tf_interop.benchmark.result import Case, MeasuringOptions, Mode, PlanSource, Precision, Variant
from tf_interop.benchmark.run import BenchmarkRun, new_benchmark
from tf_interop.benchmark.show import show_benchmark
from tf_interop.cli import options
from tf_interop.cli.main import Result, command, signals_caught
from tf_interop.cli.progress import shown_progress, work_on_model
from tf_interop.errors import BenchmarkError
from tf_interop.measure.core_speed import CoreSpeed
from tf_interop.measure.device import has_nvidia_gpu, running_gpu, this_cpu
from tf_interop.planning.lookup import STAGES_NEED_GPUS
from tf_interop.planning.types import Plan, load_plan
from tf_interop.profile.file import load_profile
from tf_interop.profile.types import ProfiledDevice
from tf_interop.runtime.settings import Settings

_EXIT_CODES = {
    0: "success, even if the budget ended before everything was measured",
    3: (
        "a process crashed, timed out or ran out of memory; the results name it, and contain "
        "the rest"
    ),
    130: "stopped by Ctrl-C, 143 by SIGTERM; the results contain everything measured before",
}

# A program decides these itself.
_OF_MODELS = {
    *("batch_sizes", "inference", "training", "precisions", "image_size", "profile_path"),
    *("tune_budget_s", "steps", "seconds", "warmup_steps"),
}
_VARIANTS_OF_PROGRAMS = (Variant.STOCK, Variant.OURS)
_VARIANTS_ON_CPUS = (Variant.STOCK, Variant.FROZEN, Variant.ENABLED, Variant.XLA)
_VARIANTS_OF_STAGES = (Variant.PINNING, Variant.CONCURRENCY)
_VARIANTS_ON_GPUS = (Variant.STOCK, Variant.XLA, Variant.XLA_ENABLED)
_LIMITS_OF_VARIANTS = (
    "frozen, tflite, onnxruntime and openvino run inference only, the last three in float32 only "
    "(openvino also in bfloat16)"
)
_TIMEOUT_OF_PROGRAMS_S = 24 * 3600.0


class _TakesProgram(click.Command):
    """A command that gets the words after `--` in `Context.obj`; None if there is no `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Sets the words of a program aside."""
        ctx.obj = None
        if "--" in args:
            at = args.index("--")
            args, ctx.obj = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)


def _members_of(kind: type[Precision] | type[Variant], text: str) -> tuple[Any, ...]:
    """The members of an enumeration, from a text such as `stock,ours`."""
    known = {member.value: member for member in kind}
    words = dict.fromkeys(text.split(","))
    unknown = [word for word in words if word not in known]
    if unknown:
        raise ValueError(f"'{', '.join(unknown)}' is unknown. Choose from {', '.join(known)}.")
    return tuple(known[word] for word in words)


@command(
    """
benchmark ResNet50 --profile profile.json --batch 1,8,32 --training -o results.json
benchmark ResNet50 --plan half.json --precision float16 -o results.json
benchmark --plan plan.json -o results.json -- python train.py --epochs 1

To see it work, on any machine:
benchmark InceptionV3 --image-size 75 --policy always --variants stock,ours \\
    --seconds 1 -o results.json
""",
    exit_codes=_EXIT_CODES,
    kind=_TakesProgram,
)
@click.argument("models", metavar="MODEL... | -- PROGRAM...", type=options.MODEL, nargs=-1)
@options.output(
    "RESULTS.json", "The results. If the file exists, the benchmark continues it.", required=True
)
@options.steps
@click.option(
    "--precision",
    "precisions",
    type=options.Text("tf32,float32,float16,bfloat16", functools.partial(_members_of, Precision)),
    default="tf32",
    help="tf32: float32 with TensorFlow's switch for TF32 on, the default. float32: with the "
    "switch off. float16, bfloat16: Keras' mixed precision.",
)
@click.option(
    "--variants",
    type=options.Text("NAME,…", functools.partial(_members_of, Variant)),
    help="By default stock,frozen,enabled,xla on a CPU, with a plan also ours; and "
    "stock,xla,xla-enabled on a GPU, with a plan also ours,pinning,concurrency. stock: TensorFlow "
    "as it is. xla: compiled by XLA. ours: with the plan. pinning: only its algorithms, one after "
    "another. concurrency: only its lanes, with cuDNN's algorithms. intra-1: stock with one thread "
    "per operation. inter-1: stock with one operation at a time. enabled: with the plugin, but "
    "without a plan. xla-enabled: that, compiled by XLA. xla-ours: with the plan, compiled by XLA. "
    "frozen: stock, with constants instead of variables (inference). tflite, onnxruntime, "
    "openvino: these runtimes (inference in float32 on a CPU, openvino also in bfloat16).",
)
@click.option("--plan", "plan_path", metavar="PLAN.json", help="A plan for all cases.")
@options.profile("Plan each case from this profile, as tf-interop plan does.")
@click.option(
    "--tune",
    "tune_budget_s",
    type=options.TIME,
    help="Tune each case for this long, such as 30s, as tf-interop tune does (on a CPU).",
)
@click.option(
    "--policy",
    type=click.Choice(["always"]),
    help="Make every possible stage or unit, faster or not, instead of using a plan.",
)
@options.count(
    "--repetitions",
    default=3,
    least=1,
    help="Processes for each variant of a case or program; the variants take turns.",
)
@options.count(
    "--steps",
    default=MeasuringOptions().steps,
    least=1,
    help="The least number of steps that a process times.",
)
@click.option(
    "--seconds",
    default=MeasuringOptions().seconds,
    type=click.FloatRange(min=0),
    help="The least time for which a process times steps.",
)
@options.count(
    "--warmup-steps",
    default=MeasuringOptions().warmup_steps,
    help="Untimed steps after the first one.",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=options.TIME,
    default="15m",
    help="The longest time for a process; for a program the default is 24 hours.",
)
@click.option(
    "--budget",
    "budget_seconds",
    type=options.TIME,
    help="When to stop starting processes, such as after 90s, 10m or 1.5h.",
)
def benchmark(
    models: tuple[str, ...],
    output_path: pathlib.Path,
    batch_sizes: tuple[int, ...],
    inference: bool,
    training: bool,
    precisions: tuple[Precision, ...],
    image_size: tuple[int, int] | None,
    variants: tuple[Variant, ...] | None,
    plan_path: str | None,
    profile_path: pathlib.Path | None,
    tune_budget_s: float | None,
    policy: str | None,
    repetitions: int,
    budget_seconds: float | None,
    **measuring_options: Any,
) -> Result:
    """Compares TensorFlow, XLA and the plugin, on models or a program.

    It measures a step of each MODEL in each variant. The variants take turns, each round in a new
    process. MODEL is the name of a Keras application (ResNet50), a .keras or .h5 file, the folder
    of a SavedModel, or module:function, a function that returns a model, or a tf.function. If
    --image-size is given, a function with the argument image_size gets (height, width).

    After -- you can give a program instead of models, as you would run it: python train.py ARGS.
    The whole program runs without the plugin (stock) and with --plan or --policy always (ours).

    If a process crashes, runs out of memory or takes too long, its entry in the results has the
    reason, and the rest continues. The results are on disk after every process: if you repeat the
    command, it measures the entries that are missing or failed.
    """
    program = click.get_current_context().obj
    cases: tuple[Case, ...]
    if program is not None:
        variants, measuring_options = _settings_of_program(
            program, models, variants, measuring_options
        )
        cases = (Case(shlex.join(program)),)
    else:
        if not models:
            raise click.UsageError("Give a MODEL such as ResNet50, or a program after --.")
        modes = [
            Mode.TRAINING if each else Mode.INFERENCE
            for each in options.modes_of(inference, training)
        ]
        # The cases of a model follow each other: an unfinished run is complete for some models.
        cases = tuple(
            Case(model, mode, size, precision, image_size)
            for model, precision, size, mode in itertools.product(
                models, precisions, batch_sizes, modes
            )
        )
    sources = sum(each is not None for each in (plan_path, profile_path, tune_budget_s, policy))
    if sources > 1:
        raise click.UsageError("Pass only one of --plan, --profile, --tune and --policy.")
    variants = _variants_on_this_device(variants, has_plan=sources > 0)
    if not sources and any(variant.needs_plan for variant in variants):
        ways = "--plan" if program else "--plan, --profile, --tune"
        raise click.UsageError(
            f"There is no plan for '{cases[0].name}'. Pass {ways} or --policy always, or leave "
            "out the variants ours, pinning and concurrency."
        )
    _check_variants(variants, cases)
    # Checked first, because every case would fail.
    plan = None if plan_path is None else load_plan(plan_path)
    if profile_path is not None:
        load_profile(profile_path)
    measuring = MeasuringOptions(**measuring_options)
    device, made_with = _environment(models or ("the program",))
    others = [each for each in variants if each.is_other_runtime]
    if others and device.backend == "cudnn":
        names = ", ".join(each.value for each in others)
        raise click.UsageError(
            f"{names} would run on the CPU, but stock TensorFlow runs on this machine's GPU. Leave "
            "them out, or hide the GPU (CUDA_VISIBLE_DEVICES=-1)."
        )
    for each in others:
        made_with |= other_runtimes.versions(each)
    what = f"'{plan_path}'" if plan_path else f"A plan from '{profile_path}'"
    if (plan_path or profile_path) and any(variant.needs_plan for variant in variants):
        why = _why_unchanged(plan, device)
        if why and program is not None:
            raise BenchmarkError(f"{what} changes nothing: {why}.")
        if why:
            click.echo(f"{what} changes nothing: {why}.", err=True)
    called = shlex.join(["tf-interop", *sys.argv[1:]])
    source = PlanSource(plan_path, str(profile_path) if profile_path else None, tune_budget_s)
    has_plans = any(variant.needs_plan for variant in variants)
    begun = new_benchmark(
        device, made_with, called, measuring, output_path, source if has_plans else None
    )
    with signals_caught() as signals, shown_progress() as say:
        is_probed = device.backend == "host" and program is None
        run = BenchmarkRun(
            begun,
            output_path,
            cases,
            variants,
            run_child,
            repetitions,
            source,
            core_seconds=CoreSpeed().fastest_seconds() if is_probed else {},
            budget_seconds=float("inf") if budget_seconds is None else budget_seconds,
            should_stop=lambda: bool(signals),
            listener=say,
            announce=functools.partial(click.echo, err=True),
        )
        run.run()
    measured = run.benchmark
    asked = {block[:2] for block in run.blocks}
    failure_count = sum(measured.of(*each).failure is not None for each in asked)

    def show() -> None:
        show_benchmark(measured, Console())
        before, after = (
            sum(each.has(*block) for block in run.blocks) for each in (begun, measured)
        )
        origin = f" ({after - before} measured now, {before} before)" if before else ""
        click.echo(
            f"{output_path}: {after} of {len(run.blocks)} blocks{origin}, {failure_count} failed"
        )

    exit_code = 3 if failure_count else 0
    return Result(measured, show, 128 + signals[0] if signals else exit_code)


def _variants_on_this_device(
    variants: tuple[Variant, ...] | None, *, has_plan: bool
) -> tuple[Variant, ...]:
    """The given variants, or those that make sense here; refuses those of stages on a CPU."""
    if has_nvidia_gpu() or not Settings().makes_units("CPU"):
        of_plan = (Variant.OURS, *_VARIANTS_OF_STAGES) * has_plan
        return variants or _VARIANTS_ON_GPUS + of_plan
    if variants is None:
        return _VARIANTS_ON_CPUS + (Variant.OURS,) * has_plan
    if of_stages := [each.value for each in variants if each in _VARIANTS_OF_STAGES]:
        raise click.UsageError(
            f"Expected variants for a CPU, got {' and '.join(of_stages)}: stages run on GPUs, and "
            "this machine has no NVIDIA GPU. Leave them out."
        )
    return variants


def _check_variants(variants: tuple[Variant, ...], cases: tuple[Case, ...]) -> None:
    """Refuses variants whose packages are missing; says which cases a variant cannot run."""
    for variant in variants:
        if missing := other_runtimes.missing_packages(variant):
            raise click.UsageError(
                f"The variant {variant.value} needs packages that are not installed. Install them: "
                f"pip install {' '.join(missing)}"
            )
    left_out = [variant for variant in variants if not all(variant.can_run(case) for case in cases)]
    names = ", ".join(each.value for each in left_out)
    if not any(variant.can_run(case) for variant in variants for case in cases):
        raise click.UsageError(
            f"{names} cannot run any of these cases: {_LIMITS_OF_VARIANTS}. Choose other variants."
        )
    if left_out:
        click.echo(
            f"{names} cannot run some of these cases, and have no result there: "
            f"{_LIMITS_OF_VARIANTS}.",
            err=True,
        )


def _why_unchanged(plan: Plan | None, device: ProfiledDevice) -> str:
    """Why a plan, or one from a profile if None, changes nothing here; empty if it may."""
    are_measured = plan is not None and any(each.measured for each in plan.graphs)
    if plan is not None and not any(
        each.stages or (each.measured and not each.as_stock) for each in plan.graphs
    ):
        return "it leaves every graph as it is, and tf-interop show says why"
    makes_units = device.backend == "host" and Settings().makes_units("CPU")
    return STAGES_NEED_GPUS if makes_units and not are_measured else ""


def _settings_of_program(
    program: list[str],
    models: tuple[str, ...],
    variants: tuple[Variant, ...] | None,
    measuring_options: dict[str, Any],
) -> tuple[tuple[Variant, ...], dict[str, Any]]:
    """The variants and measuring options of a program; refuses options for models."""
    try:
        check_program(program)
    except BenchmarkError as error:
        raise click.UsageError(str(error)) from error
    given = options.given(click.get_current_context())
    wrong = [name for each, name in given.items() if each in _OF_MODELS]
    if models or wrong:
        raise click.UsageError(
            "A program decides its models and their settings itself. Leave out "
            f"{' '.join(wrong or models)}, or leave out the program after --."
        )
    if variants is None:
        variants = _VARIANTS_OF_PROGRAMS
    elif other := set(variants).difference(_VARIANTS_OF_PROGRAMS):
        names = ", ".join(sorted(each.value for each in other))
        raise click.UsageError(
            f"A program has only the variants stock and ours. Leave out {names}."
        )
    if "timeout_seconds" not in given:
        measuring_options = measuring_options | {"timeout_seconds": _TIMEOUT_OF_PROGRAMS_S}
    return variants, measuring_options


def _environment(models: tuple[str, ...]) -> tuple[ProfiledDevice, dict[str, str]]:
    """The device, and the versions of the software."""
    with work_on_model(", ".join(models)):
        from tf_interop import tensorflow_internals

        gpu = running_gpu()
        made_with = {
            "tensorflow": tensorflow_internals.tensorflow_version(),
            "keras": importlib.metadata.version("keras"),
            "tf_interop": tf_interop.__version__,
            "python": platform.python_version(),
        }
    return gpu or this_cpu(), made_with
