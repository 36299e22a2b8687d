"""What was tuned before, in the user's cache folder: a plan file for each graph and machine.

The folder is that of the operating system for caches (`~/.cache/tf_interop/tuned` on Linux). A
file's name is a digest of what its plan depends on; what is in it is a plan like any other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator, Sequence

import platformdirs
import tensorflow as tf

from tf_interop import tensorflow_internals
from tf_interop.convolution import ConvolutionNode, batch_size_of
from tf_interop.errors import PlanError
from tf_interop.graph.fingerprint import canonical_names, fingerprint_convolutions
from tf_interop.graph.units import Unit, planned_name
from tf_interop.graph.view import GraphView
from tf_interop.measure.device import this_cpu
from tf_interop.planning.file import load_plan, save_plan
from tf_interop.planning.types import GraphPlan, Plan


def cache_folder() -> pathlib.Path:
    """Where plans are kept."""
    return pathlib.Path(platformdirs.user_cache_dir("tf_interop", appauthor=False)) / "tuned"


def cache_path(
    view: GraphView, units: Sequence[Unit], convolutions: Sequence[ConvolutionNode]
) -> pathlib.Path:
    """The file of a graph on this machine.

    It depends on the graph's convolutions, units, batch and input shapes; on the CPU and the cores
    that this process may use; on the versions of TensorFlow and of this package; and on
    TensorFlow's settings for threads and for oneDNN.

    Args:
        view: the graph as Grappler hands it over.
        units: of the graph.
        convolutions: of the graph.
    """
    import tf_interop

    inputs = sorted(
        (node.attr["dtype"].type, str(tf.TensorShape(node.attr["shape"].shape)))
        for node in view.nodes
        if node.op == "Placeholder"
    )
    key = [
        fingerprint_convolutions(convolutions),
        batch_size_of(node.configuration for node in convolutions),
        sorted(canonical_names(planned_name(view, unit) for unit in units).values()),
        [len(unit.steps) for unit in units],
        inputs,
        this_cpu().name,
        sorted(os.sched_getaffinity(0)),
        tensorflow_internals.tensorflow_version(),
        tf_interop.__version__,
        tf.config.threading.get_intra_op_parallelism_threads(),
        tf.config.threading.get_inter_op_parallelism_threads(),
        os.environ.get("TF_ENABLE_ONEDNN_OPTS", ""),
    ]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]
    return cache_folder() / f"{digest}.json"


def load_cached(path: pathlib.Path) -> GraphPlan | None:
    """What a file holds of a graph; None where there is none, or where it cannot be read."""
    plan = _load(path)
    return None if plan is None else plan.graphs[0]


def save_cached(plan: Plan, path: pathlib.Path) -> None:
    """Keeps a plan; where the folder cannot be written, the next process tunes again."""
    with contextlib.suppress(OSError, PlanError):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_plan(plan, path)


def cached_plans() -> Iterator[tuple[pathlib.Path, Plan]]:
    """All plans that are kept and can be read, each of one graph, by their files' names."""
    for path in sorted(cache_folder().glob("*.json")):
        plan = _load(path)
        if plan is not None:
            yield path, plan


def clear_cache() -> int:
    """Deletes all plans that are kept. Returns how many files there were."""
    paths = list(cache_folder().glob("*.json"))
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)


def _load(path: pathlib.Path) -> Plan | None:
    try:
        plan = load_plan(path)
    except (OSError, PlanError):
        return None  # None yet, damaged, or of another version: made anew, and written over.
    is_ours = len(plan.graphs) == 1 and plan.graphs[0].measured is not None
    return plan if is_ours else None
