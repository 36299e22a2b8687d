"""One process of a benchmark: plans a case, or measures one block of one variant.

It exits with 0 once it has written an outcome, which may be a failure.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import pathlib
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tf_interop.benchmark import numbers, other_runtimes
from tf_interop.benchmark.result import (
    Block,
    Case,
    Failure,
    FailureKind,
    MeasuringOptions,
    Mode,
    PlanSource,
    Precision,
    Variant,
)
from tf_interop.child_process import LOG_NAME, describe_end, run_module
from tf_interop.errors import BenchmarkError, PlanError, TfInteropError
from tf_interop.measure.core_speed import CoreSpeed
from tf_interop.measure.device import ask_for_all_hardware_queues
from tf_interop.measure.other_load import OtherLoad
from tf_interop.planning.types import load_plan, save_plan
from tf_interop.planning.variants import without_concurrency, without_pinning
from tf_interop.tensorflow_messages import CHATTER

if TYPE_CHECKING:
    from tf_interop.model.keras_functions import KerasFunction  # imports TensorFlow

_LINES_SHOWN = 5
_PATH = "PYTHONPATH"
_KERAS_SUFFIXES = (".keras", ".h5", ".hdf5")
_BOX = r"\s*[\u2500-\u257f]"  # a table or a panel
# TensorFlow's messages may contain a whole graph.
_LONGEST_MESSAGE = 600


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A request for a block of a variant, or for the plan of a case if `variant` is None.

    Attributes:
        plan_path: the file to write the plan to, or to run with; None for variants without a plan,
            and for programs with the policy `always`.
        repetition: the number of the round.
        needs_gpu: whether to fail if TensorFlow sees no GPU.
        core_seconds: the time of a probe of each core at full speed; see `CoreSpeed`.
        python_path: the user's own PYTHONPATH, for programs.
    """

    case: Case
    variant: Variant | None
    plan_path: str | None = None
    source: PlanSource = PlanSource()  # noqa: RUF009 (frozen)
    repetition: int = 0
    options: MeasuringOptions = dataclasses.field(default_factory=MeasuringOptions)
    needs_gpu: bool = False
    core_seconds: dict[int, float] = dataclasses.field(default_factory=dict)
    python_path: str | None = dataclasses.field(default_factory=lambda: os.environ.get(_PATH))


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a request: a block, a failure, or neither for a plan.

    `refusal` is why the plan does not fit the case, `note` a remark on the plan.
    """

    block: Block | None = None
    failure: Failure | None = None
    refusal: str = ""
    note: str = ""


def run_child(
    request: Request,
    timeout_seconds: float,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Runs a request in a new process, and kills it after `timeout_seconds` or `should_stop()`.

    A process that ends without an outcome is a failure; a stopped one has an empty outcome.
    """
    module, encoded = "tf_interop.benchmark.child", msgspec.json.encode(request)
    ended = run_module(module, encoded, timeout_seconds, should_stop=should_stop)
    if ended.code is not None and ended.result:
        return msgspec.json.decode(ended.result, type=Outcome)
    if should_stop():
        return Outcome()
    if ended.code is None:
        message = f"the process took longer than {timeout_seconds:g} s"
        return Outcome(failure=Failure(FailureKind.TIMED_OUT, message))
    return Outcome(failure=_crash(ended.code, ended.said))


def _crash(code: int, said: str) -> Failure:
    how = f"the process {describe_end(code)}"
    if code == -signal.SIGKILL:
        how += ", as the system does when it runs out of memory"
    lines = [
        line
        for line in said.splitlines()
        if line.strip() and not re.match(CHATTER, line) and not re.match(_BOX, line)
    ]
    message = ": ".join(filter(None, [how, " | ".join(lines[-_LINES_SHOWN:])]))
    return Failure(FailureKind.CRASHED, message)


def check_program(words: Sequence[str]) -> None:
    """Checks the command line of a program without running it.

    Raises:
        BenchmarkError: it does not run an existing script, or a module, with tf_interop's Python.
    """
    python, program = _split_command(words)
    is_script = bool(program) and not program[0].startswith("-")
    is_module = program[:1] == ["-m"] and len(program) > 1
    if "python" not in pathlib.Path(*python[:1]).name or not (is_script or is_module):
        raise BenchmarkError(
            f"'{shlex.join(words)}' is not Python with a script, or with -m and a module. Write it "
            "as -- python train.py, or as -- python -m package.train."
        )
    if is_script and not pathlib.Path(program[0]).exists():
        raise BenchmarkError(
            f"There is no script '{program[0]}' here. Check the path, or put -m before a module."
        )
    prefix = ""
    with contextlib.suppress(OSError):  # there is no such Python
        ask = [words[0], "-c", "import sys; print(sys.prefix)"]
        prefix = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
    if prefix != sys.prefix:
        got = f"belongs to {prefix}" if prefix else "cannot be run"
        raise BenchmarkError(
            f"The program must run with tf_interop's Python, {sys.executable}, but '{words[0]}' "
            f"{got}. Activate that environment, or name its Python."
        )


def main() -> None:
    """Reads the request and writes the outcome."""
    request_path, outcome_path = map(pathlib.Path, sys.argv[1:])
    request = msgspec.json.decode(request_path.read_bytes(), type=Request)
    if not request.case.is_program:
        # Logs only TensorFlow's errors, so that the last lines explain a crash.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        if request.case.is_program:
            outcome = _run_program(request, request_path.with_name(LOG_NAME))
        elif request.variant is None and request.source.plan_path is not None:
            outcome = _look_at_plan(request.case, request.source.plan_path)
        elif request.variant is None:
            _make_plan(request)
            outcome = Outcome()
        else:
            outcome = Outcome(_measure(request, request.variant))
    except Exception as error:  # any error is an entry of the benchmark
        outcome = Outcome(failure=_failure_of(error))
    outcome_path.write_bytes(msgspec.json.encode(outcome))


def _run_program(request: Request, log: pathlib.Path) -> Outcome:
    """Runs a whole program. Its output goes to this process's output, which is in `log`."""
    words, made_path = shlex.split(request.case.model), log.with_name("made.json")
    if request.variant is Variant.OURS:
        python, program = _split_command(words)
        how = ["--plan", request.plan_path] if request.plan_path else ["--policy", "always"]
        how += ["--save-plan", str(made_path)]
        words = [*python, "-m", "tf_interop", "run", *how, *program]
    environment = {name: value for name, value in os.environ.items() if name != _PATH}
    if request.python_path is not None:
        environment[_PATH] = request.python_path
    others = OtherLoad()
    begin_ns = time.perf_counter_ns()
    code = subprocess.call(words, env=environment)
    wall_ms = round((time.perf_counter_ns() - begin_ns) / 1e6, 4)
    if code:
        return Outcome(failure=_crash(code, log.read_text(errors="replace")))
    made = load_plan(made_path).graphs if request.variant is Variant.OURS else ()
    return Outcome(
        Block(
            repetition=request.repetition,
            steps=1,
            median_ms=wall_ms,
            first_quartile_ms=wall_ms,
            third_quartile_ms=wall_ms,
            first_step_ms=None,
            memory_peak_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
            # 1 for a graph with units.
            stage_count=sum(len(graph.stages) or 1 for graph in made),
            fallbacks={},
            other_load=others.share(),
        )
    )


_MOST_WARMUP_STEPS = 400
"""Enough for a graph that times itself to end its first trial."""


_MS_BETWEEN_PROBES = 100
_SECONDS_BEFORE_PROBE = 0.005
"""Threads of a runtime may spin that long after a step."""
_PATIENCE = 5
"""Waits for cores at full speed until the timed steps take this many times as long as asked for."""


def _split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divides words into Python with its options, and the program with its arguments."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "-"):
        at += 2 if words[at] in ("-W", "-X") else 1
    return list(words[:at]), list(words[at:])


def _failure_of(error: Exception) -> Failure:
    import tensorflow as tf

    is_memory = isinstance(error, (MemoryError, tf.errors.ResourceExhaustedError))
    text = str(error).strip()
    # This package's errors need no class name; others do.
    if not isinstance(error, TfInteropError):
        text = f"{type(error).__name__}: {text}"
    return Failure(
        FailureKind.OUT_OF_MEMORY if is_memory else FailureKind.ERROR, text[:_LONGEST_MESSAGE]
    )


def _make_plan(request: Request) -> None:
    from tf_interop.model.make_plan import plan
    from tf_interop.runtime.status import status
    from tf_interop.runtime.switch import enable
    from tf_interop.tuning.tune import tune

    case, source = request.case, request.source
    model = _load(case)
    step: dict[str, Any] = {
        "batch_sizes": (case.batch_size,),
        "training": case.mode is Mode.TRAINING,
        "image_size": case.image_size,
    }
    if source.profile_path is not None:
        made = plan(model, source.profile_path, **step)
    elif source.tune_budget_s is not None:
        step |= {"compare_xla": False, "use_cache": False, "enable": False}
        made = tune(model, budget=source.tune_budget_s, **step).plan
    else:
        enable("always")
        _step_of(_traced(model, case))()
        made = status().plan
    assert request.plan_path is not None
    save_plan(made, request.plan_path)


def _look_at_plan(case: Case, path: str) -> Outcome:
    """Compares the traced model with the plan, without running it."""
    from tf_interop.graph.landmarks import find_structure
    from tf_interop.measure.device import running_gpu
    from tf_interop.model.graphs import convolutions_of, planned_graph, trace
    from tf_interop.planning.lookup import check_plan_holds

    is_training = case.mode is Mode.TRAINING
    assert case.batch_size is not None
    traced = trace(
        _load(case), batch_size=case.batch_size, training=is_training, image_size=case.image_size
    )
    gpu = running_gpu()
    graph_def = planned_graph(traced, gpu.compute_capability if gpu else None)
    view, convolutions, _ = convolutions_of(graph_def)
    try:
        structure = find_structure(view, convolutions)
        return Outcome(note=check_plan_holds(load_plan(path), convolutions, structure))
    except PlanError as error:
        return Outcome(refusal=str(error))


def _measure(request: Request, variant: Variant) -> Block:
    import tensorflow as tf

    from tf_interop.model.keras_functions import keras_of
    from tf_interop.runtime.status import status
    from tf_interop.runtime.switch import disable, enable

    case, options = request.case, request.options
    if variant is Variant.INTRA_ONE:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    elif variant is Variant.INTER_ONE:
        tf.config.threading.set_inter_op_parallelism_threads(1)
    if request.plan_path is not None:
        ask_for_all_hardware_queues()  # before CUDA starts
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    if request.needs_gpu and not has_gpu:
        raise BenchmarkError(
            "TensorFlow does not see this machine's GPU. Its log names the missing CUDA library."
        )
    model = _load(case)
    disable()
    is_checked = variant.is_checked and _is_exact(case, has_gpu)
    # Outputs are compared with those of stock TensorFlow.
    traced = _traced(model, case, compiled_by_xla=variant.is_compiled_by_xla and not is_checked)
    # The weights in a user's file stay, and a function's own.
    if keras_of(model) is not None and pathlib.Path(case.model).suffix not in _KERAS_SUFFIXES:
        numbers.set_weights(model, traced.inputs)
    stock = None
    if is_checked:
        stock = numbers.outputs_of_stock(traced.function, traced.inputs)
    if variant is Variant.FROZEN or variant.is_other_runtime:
        run = _step_of_frozen(variant, traced)
    else:
        if variant in (Variant.ENABLED, Variant.XLA_ENABLED):
            enable()
        elif request.plan_path is not None:
            plan = load_plan(request.plan_path)
            if variant is Variant.PINNING:
                plan = without_concurrency(plan)
            elif variant is Variant.CONCURRENCY:
                plan = without_pinning(plan)
            enable(plan=plan)
        if stock is not None:
            # The other one was optimized as stock's.
            traced = _traced(model, case, compiled_by_xla=variant.is_compiled_by_xla)
        run = _step_of(traced)
    first_step_ms = _time_ms(run)
    for step in range(_MOST_WARMUP_STEPS):
        if step >= options.warmup_steps and not any(
            timing.is_trying for timing in status().self_timings
        ):
            break
        run()
    if stock is not None:
        numbers.check_outputs(numbers.flat_outputs(run()), stock)
    if has_gpu:
        tf.config.experimental.reset_memory_stats("GPU:0")
    else:
        _reset_memory_peak()
    others = OtherLoad()
    step_ms, slowed = _time_steps(run, options, None if has_gpu else request.core_seconds)
    other_load = others.share()
    if has_gpu:
        peak_bytes = int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
    else:
        # Linux counts in KiB.
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seen = status()
    stage_count = seen.op_count + seen.xla_calls.compiled
    if variant.needs_plan and seen.failures and not stage_count:
        # Stock TensorFlow ran, although the plan has stages.
        raise BenchmarkError(f"There are no stages: {seen.failures[0].cause}")
    quartiles_ms = np.quantile(step_ms, (0.25, 0.5, 0.75))
    first_quartile_ms, median_ms, third_quartile_ms = (
        round(float(each), 4) for each in quartiles_ms
    )
    return Block(
        repetition=request.repetition,
        steps=len(step_ms),
        median_ms=median_ms,
        first_quartile_ms=first_quartile_ms,
        third_quartile_ms=third_quartile_ms,
        first_step_ms=round(first_step_ms, 4),
        memory_peak_bytes=peak_bytes,
        stage_count=stage_count,
        fallbacks=dict(seen.counters.fallbacks),
        other_load=other_load,
        slowed=round(slowed, 4),
        folded_count=sum(
            each.folded_count + each.rescaling_count + each.normalization_count
            for each in seen.folded_graphs
        ),
    )


def _load(case: Case) -> Any:
    """The model, with the same weights in every process."""
    import tensorflow as tf
    from tensorflow.core.framework import graph_pb2

    from tf_interop.model.load import ModelArgumentError, check_trains, load_model

    assert case.precision is not None
    # For the planner and for the run.
    tf.config.experimental.enable_tensor_float_32_execution(case.precision is not Precision.FLOAT32)
    tf.keras.utils.set_random_seed(0)
    model = load_model(case.model, image_size=case.image_size, dtype=case.precision.keras_policy)
    if isinstance(model, graph_pb2.GraphDef):
        raise ModelArgumentError(
            f"'{case.model}' is a GraphDef, which cannot be called. Name a SavedModel, a Keras "
            "model or module:function."
        )
    if case.mode is Mode.TRAINING:
        check_trains(model, case.model)
    return model


def _traced(model: Any, case: Case, *, compiled_by_xla: bool = False) -> KerasFunction:
    import tensorflow as tf

    from tf_interop.model.graphs import trace_step

    assert case.batch_size is not None
    traced = trace_step(
        model,
        case.batch_size,
        case.image_size,
        training=case.mode is Mode.TRAINING,
        jit_compile=True if compiled_by_xla else None,
    )
    sizes = {spec.shape[0] for spec in tf.nest.flatten(traced.inputs) if spec.shape.rank}
    if sizes != {case.batch_size}:
        raise ValueError(
            f"The model does not accept batch {case.batch_size}: it fixes its inputs at "
            f"{sorted(sizes)}. Benchmark it with that batch size."
        )
    precision = case.precision
    assert precision is not None
    if precision.keras_policy and not _computes_in(traced.function, precision.value):
        raise BenchmarkError(
            f"'{case.model}' computes nothing in {precision.value}, because it does not follow "
            "Keras' dtype policy. Leave --precision out, or name a function that builds the model."
        )
    return traced


def _computes_in(function: Any, dtype: str) -> bool:
    """Whether a concrete function, or one that it calls, has an operation of that type."""
    import tensorflow as tf

    graph_def = function.graph.as_graph_def()
    called = (each.node_def for each in graph_def.library.function)
    wanted = tf.as_dtype(dtype).as_datatype_enum
    return any(
        attribute.type == wanted
        for node in itertools.chain(graph_def.node, *called)
        for attribute in node.attr.values()
    )


def _step_of(traced: KerasFunction) -> Callable[[], Any]:
    """A function that runs a step as a program does, always on the same images."""
    inputs = numbers.noise(traced.inputs, seed=0)
    return _and_wait(lambda: traced.program(inputs))


def _and_wait(run: Callable[[], Any]) -> Callable[[], Any]:
    """Also waits for GPUs. CPUs are done when a call returns."""
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return run

    def run_and_wait() -> Any:
        outputs = run()
        tf.test.experimental.sync_devices()
        return outputs

    return run_and_wait


def _step_of_frozen(variant: Variant, traced: KerasFunction) -> Callable[[], Any]:
    """A function that runs a step without variables, in TensorFlow or another runtime."""
    import tensorflow as tf

    from tf_interop import tensorflow_internals

    frozen = tensorflow_internals.without_variables(traced.function)
    inputs = tf.nest.flatten(numbers.noise(traced.inputs, seed=0))
    if variant.is_other_runtime:
        arrays = [each.numpy() for each in inputs]
        return other_runtimes.make_step(variant, frozen, arrays)

    return _and_wait(lambda: frozen(*inputs))


def _is_exact(case: Case, has_gpu: bool) -> bool:
    """Whether a case is inference in float32, so that only rounding may change its outputs."""
    precisions = (Precision.FLOAT32,) if has_gpu else (Precision.FLOAT32, Precision.TF32)
    return case.mode is Mode.INFERENCE and case.precision in precisions


def _reset_memory_peak() -> None:
    """Forgets the peak of this process's memory, as `man 5 proc` describes it."""
    with contextlib.suppress(OSError):  # not allowed in some sandboxes; the peak is then older
        pathlib.Path("/proc/self/clear_refs").write_text("5")


def _time_steps(
    run: Callable[[], object], options: MeasuringOptions, core_seconds: dict[int, float] | None
) -> tuple[list[float], float]:
    """Times enough steps, in milliseconds.

    On a CPU only those count during which all cores have their full speed. If these stay too few,
    all count; also returned is the share of the steps on slower cores.
    """

    def are_enough(step_ms: list[float]) -> bool:
        # Only timed steps count, not the time between them.
        return len(step_ms) >= options.steps and math.fsum(step_ms) >= options.seconds * 1e3

    if core_seconds is None:
        step_ms: list[float] = []
        while not are_enough(step_ms):
            step_ms.append(_time_ms(run))
        return step_ms, 0.0
    cores = CoreSpeed(core_seconds)
    full: list[float] = []
    slow: list[float] = []
    was_full = cores.is_full()
    while True:
        run()  # the probe has cooled its caches
        group = [_time_ms(run)]
        while math.fsum(group) < _MS_BETWEEN_PROBES and not are_enough(full + group):
            group.append(_time_ms(run))
        time.sleep(_SECONDS_BEFORE_PROBE)
        is_full = cores.is_full()
        (full if was_full and is_full else slow).extend(group)
        was_full = is_full
        if are_enough(full):
            return full, 0.0
        everything = full + slow
        if are_enough(everything) and math.fsum(everything) > _PATIENCE * options.seconds * 1e3:
            return everything, len(slow) / len(everything)


def _time_ms(run: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - start) / 1e6


if __name__ == "__main__":
    main()
