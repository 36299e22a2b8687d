"""What is kept of tuned plans, and durations."""

from __future__ import annotations

import pathlib

import pytest

from tf_interop.planning.types import GraphPlan, MeasuredStep, Plan
from tf_interop.tuning.cache import (
    cache_folder,
    cached_plans,
    clear_cache,
    load_cached,
    save_cached,
)

TUNED = GraphPlan(
    "f", 1, (), narrow_units=("a",), measured=MeasuredStep(2.0, 1.0, 2.0, 0.1, 1.0, 3, 4, 2)
)


@pytest.fixture(autouse=True)
def cache_in_a_folder_of_its_own(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_keeps_plans_until_they_are_cleared(tmp_path: pathlib.Path) -> None:
    assert load_cached("one") is None
    assert (list(cached_plans()), clear_cache()) == ([], 0)
    for key in ("one", "two"):
        save_cached(Plan((TUNED,), made_with={"graph": key}), key)
    assert load_cached("one") == TUNED
    assert [plan.made_with["graph"] for _, plan in cached_plans()] == ["one", "two"]
    assert cache_folder().is_relative_to(tmp_path)
    assert clear_cache() == 2
    assert load_cached("one") is None


@pytest.mark.parametrize("graphs", [(), (TUNED, TUNED), (GraphPlan("f", 1, ()),)])
def test_another_plan_in_its_place_is_not_taken(graphs: tuple[GraphPlan, ...]) -> None:
    save_cached(Plan(graphs), "one")
    assert load_cached("one") is None
    assert list(cached_plans()) == []
