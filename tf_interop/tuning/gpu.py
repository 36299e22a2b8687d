"""A plan for a GPU in one call: profiles a model's convolutions and stages, and plans by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tf_interop import tensorflow_internals
from tf_interop.errors import ProfileError
from tf_interop.measure.core import MeasureOptions, load_core_library
from tf_interop.measure.device import ask_for_all_hardware_queues, identify_device
from tf_interop.measure.jobs import RunOptions
from tf_interop.measure.run import End, ProfileRun
from tf_interop.model.collect import CollectOptions, collect_graphs
from tf_interop.model.graphs import optimize_graph, trace
from tf_interop.model.make_plan import plan
from tf_interop.planning.types import Plan
from tf_interop.profile.entries import Entry
from tf_interop.profile.types import profile_of


def plan_by_profile(
    model_or_function: Any,
    *,
    batch_sizes: Sequence[int],
    training: bool,
    image_size: tuple[int, int] | None,
    budget_s: float,
    backend: str = "cudnn",
    say: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Measures what a model's graphs hold, and plans them; no whole step is run.

    Args:
        model_or_function: this and the next three as of `tune`.
        batch_sizes: likewise.
        training: likewise.
        image_size: likewise.
        budget_s: how long measuring may take, for all batch sizes together.
        backend: what measures; `host` is for tests.
        say: told what is being done, in a few words.

    Raises:
        ValueError: as of `tune`.
        ProfileError: the device failed meanwhile.
        LibraryError: the compiled library or cuDNN is missing.
        PlanError: the memory is too small for a convolution.
    """
    ask_for_all_hardware_queues()  # as `enable` does, which comes after CUDA has started here
    device_backend = load_core_library().open_backend(backend)
    device = identify_device(device_backend.describe())
    graphs = []
    for batch_size in batch_sizes:
        say(f"tracing batch {batch_size}")
        traced = trace(
            model_or_function, batch_size=batch_size, training=training, image_size=image_size
        )
        graphs.append((traced.name, optimize_graph(traced, device.compute_capability or None)))
    collected = collect_graphs(graphs, CollectOptions())
    entries: list[Entry] = []
    outcome = ProfileRun(
        device_backend,
        collected.configurations,
        RunOptions(
            measure=MeasureOptions(allow_tf32=tensorflow_internals.is_tf32_on()),
            budget_seconds=budget_s,
        ),
        keep=entries.append,
    ).run(lambda phase, done, total, what: say(f"{phase}: {done} of {total}; {what}"))
    if outcome.end is End.DEVICE_LOST:
        raise ProfileError(
            f"{device.name} failed during a measurement, and nothing works on it any more. Tune "
            "in a new process; tf-interop profile tells which algorithm it was."
        )
    return plan(
        model_or_function,
        profile_of(device, entries),
        batch_sizes=batch_sizes,
        training=training,
        image_size=image_size,
        target=device.compute_capability or "cpu",
        say=say,
    )
