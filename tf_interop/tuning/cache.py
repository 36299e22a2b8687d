"""What was tuned before, in the user's cache folder: a plan file for each graph and machine.

The folder is that of the operating system for caches (`~/.cache/tf_interop/tuned` on Linux). A
file's name is a digest of what its plan depends on (`tune.py`); what is in it is a plan like
any other. Nothing here needs TensorFlow.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import platformdirs

from tf_interop.errors import PlanError
from tf_interop.planning.types import GraphPlan, Plan, load_plan, save_plan


def cache_folder() -> pathlib.Path:
    """Where plans are kept."""
    return pathlib.Path(platformdirs.user_cache_dir("tf_interop", appauthor=False)) / "tuned"


def load_cached(key: str) -> GraphPlan | None:
    """What is kept of a graph; None if nothing is, or where it cannot be read."""
    plan = _load(_path_of(key))
    return None if plan is None else plan.graphs[0]


def save_cached(plan: Plan, key: str) -> None:
    """Keeps a plan; where the folder cannot be written, the next process tunes again."""
    path = _path_of(key)
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


def _path_of(key: str) -> pathlib.Path:
    return cache_folder() / f"{key}.json"


def _load(path: pathlib.Path) -> Plan | None:
    try:
        plan = load_plan(path)
    except (OSError, PlanError):
        return None  # None yet, damaged, or of another version: made anew, and written over.
    is_ours = len(plan.graphs) == 1 and plan.graphs[0].measured is not None
    return plan if is_ours else None
