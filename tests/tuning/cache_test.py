"""The cache accepts only undamaged, tuned plans of one graph."""

from __future__ import annotations

import pathlib

import pytest
from plan_values import TUNED

from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.tuning.cache import cache_folder, cached_plans, load_cached, save_cached


@pytest.fixture(autouse=True)
def cache_in_a_folder_of_its_own(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("graphs", [(), (TUNED, TUNED), (GraphPlan("f", ()),)])
def test_another_plan_is_refused(graphs: tuple[GraphPlan, ...]) -> None:
    save_cached(Plan(graphs), "one")
    assert load_cached("one") is None
    assert list(cached_plans()) == []


def test_a_damaged_file_is_refused_and_written_anew() -> None:
    save_cached(Plan((TUNED,)), "one")
    [path] = cache_folder().glob("*.json")
    good = path.read_text()
    for damaged in ("", "{", good.replace('"landmarks"', '"other"'), good[:-20]):
        path.write_text(damaged)
        assert load_cached("one") is None
        save_cached(Plan((TUNED,)), "one")
        assert load_cached("one") == TUNED
