"""The cache of tuned plans: a plan file for each graph and machine, in the user's cache folder.

The folder is `~/.cache/tf_interop/tuned` on Linux. A file is named after a digest of everything
that its plan depends on (`tune.cache_key`). This module needs no TensorFlow.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import platformdirs

from tf_interop.errors import PlanError
from tf_interop.planning.types import GraphPlan, Plan, load_plan, save_plan


def cache_folder() -> pathlib.Path:
    """The folder of the cached plans."""
    return pathlib.Path(platformdirs.user_cache_dir("tf_interop", appauthor=False)) / "tuned"


def load_cached(key: str) -> GraphPlan | None:
    """Loads the plan of a graph; None if there is none, or if it cannot be read."""
    plan = _load(_path_of(key))
    return None if plan is None else plan.graphs[0]


def save_cached(plan: Plan, key: str) -> None:
    """Saves a plan. If the folder cannot be written, the next process tunes again."""
    path = _path_of(key)
    with contextlib.suppress(OSError, PlanError):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_plan(plan, path)


def cached_plans() -> Iterator[tuple[pathlib.Path, Plan]]:
    """All readable plans, each of one graph, with their files, by name."""
    for path in sorted(cache_folder().glob("*.json")):
        plan = _load(path)
        if plan is not None:
            yield path, plan


def clear_cache() -> None:
    """Deletes all plans, readable or not."""
    for path in cache_folder().glob("*.json"):
        path.unlink(missing_ok=True)


def _path_of(key: str) -> pathlib.Path:
    return cache_folder() / f"{key}.json"


def _load(path: pathlib.Path) -> Plan | None:
    try:
        plan = load_plan(path)
    except (OSError, PlanError):
        return None  # missing, damaged or of another version: tuning writes it again
    is_ours = len(plan.graphs) == 1 and plan.graphs[0].measured is not None
    return plan if is_ours else None
