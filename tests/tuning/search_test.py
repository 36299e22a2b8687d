"""The search over variants, with measured and with made-up times."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tuning_graphs import FETCHES, branches, training_step, units_of

from tf_interop.graph.program import UNIT_OP, decode_unit
from tf_interop.planning.types import FOLDED
from tf_interop.tuning import search
from tf_interop.tuning.search import SearchResult, as_step, search_units
from tf_interop.tuning.step_bench import StepTimes

SIDES = (1, 3, 5)


def test_a_graph_without_units_stays_unchanged() -> None:
    with tf.Graph().as_default() as graph:
        tf.identity(tf.compat.v1.placeholder(tf.float32, (2,)), "joined")
    view, units = units_of(graph.as_graph_def())
    assert units == ()
    found = search_units(view.graph_def, view, units, FETCHES, budget_s=0.1)
    assert found.variants == (found.best,)
    assert found.best.cores == 0


class FakeBench:
    """Variants whose ratio depends on the number of their units."""

    def __init__(self, ratio_of: Callable[[int], tuple[float, float]]) -> None:
        self._ratio_of = ratio_of
        self._counts: dict[str, int] = {}
        self.cores: dict[str, list[int]] = {}

    def search(self, monkeypatch: pytest.MonkeyPatch, is_folded: bool = False) -> SearchResult:
        """Searches the units of three branches with this bench, without measuring."""
        monkeypatch.setattr(search, "StepBench", lambda **_: contextlib.nullcontext(self))
        said: list[str] = []
        view, units = units_of(branches(SIDES))
        stock = branches(SIDES) if is_folded else view.graph_def
        found = search_units(stock, view, units, FETCHES, budget_s=5.0, say=said.append)
        assert said
        return found

    def add(self, variant: str, graph_def: graph_pb2.GraphDef, fetches: Sequence[str]) -> None:
        assert set(fetches) <= {node.name for node in graph_def.node}
        units = [decode_unit(node) for node in graph_def.node if node.op == UNIT_OP]
        self._counts[variant] = len(units)
        self.cores[variant] = [*itertools.chain(*(each.cores or (1,) for each in units))]

    def time(self, variants: Sequence[str], *, budget_s: float) -> dict[str, StepTimes]:
        times = {}
        for name in variants:
            ratio, error = (
                (1.0, 0.0) if name == search.STOCK else self._ratio_of(self._counts[name])
            )
            times[name] = StepTimes(10 / ratio, ratio, error)
        return times


@pytest.mark.parametrize(
    ("ratio", "error", "is_faster"),
    [(1.5, 0.1, True), (0.8, 0.1, False), (1.05, 0.1, False), (1.001, 0.0, False)],
    ids=["faster", "slower", "within_the_error", "too_little"],
)
def test_takes_what_beats_stock_by_more_than_the_error(
    ratio: float, error: float, is_faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = FakeBench(lambda count: (ratio, error) if count else (1.0, 0.0))
    found = bench.search(monkeypatch)
    assert bool(found.best.cores) == is_faster
    assert found.variants[0].name == search.STOCK


@pytest.mark.parametrize(
    ("ratio", "error", "expected"),
    [
        (1.7, 0.02, search.ALL_NARROW),
        (1.55, 0.02, FOLDED),
        (1.7, 0.3, FOLDED),
        (0.9, 0.0, FOLDED),
    ],
    ids=["faster", "too_little", "within_the_error", "slower"],
)
def test_takes_units_that_beat_the_folded_graph(
    ratio: float, error: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, units = units_of(branches(SIDES))
    bench = FakeBench(
        lambda count: {0: (1.5, 0.0), len(units): (ratio, error)}.get(count, (0.5, 0.0))
    )
    found = bench.search(monkeypatch, is_folded=True)
    assert found.best.name == expected
    assert [each.name for each in found.variants[:2]] == [search.STOCK, FOLDED]


@pytest.mark.parametrize(
    ("folded", "error", "expected"),
    [(0.9, 0.02, search.STOCK), (0.9, 0.12, FOLDED), (0.97, 0.0, FOLDED)],
    ids=["slower", "within_the_error", "too_little"],
)
def test_takes_stock_if_folding_loses(
    folded: float, error: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = FakeBench(lambda count: (0.5, 0.0) if count else (folded, error))
    assert bench.search(monkeypatch, is_folded=True).best.name == expected


def test_all_units_are_measured_on_each_number_of_cores_and_the_fastest_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, units = units_of(branches(SIDES))
    bench = FakeBench(lambda count: (1.2, 0.0) if count else (1.0, 0.0))
    is_on_two = "all units on 2 cores"
    times = bench.time
    monkeypatch.setattr(search, "core_count", lambda: 4)
    monkeypatch.setattr(
        bench,
        "time",
        lambda names, budget_s: {
            name: StepTimes(5.0, 2.0, 0.0) if name == is_on_two else each
            for name, each in times(names, budget_s=budget_s).items()
        },
    )
    found = bench.search(monkeypatch)
    assert found.best.name == is_on_two
    assert found.best.cores == 2
    assert [2] * len(units) == bench.cores[is_on_two]
    assert [1] * len(units) == bench.cores[search.ALL_NARROW]
    assert [4] * len(units) == bench.cores["all units on 4 cores"]


def test_a_step_runs_nodes_that_give_results_or_are_unread() -> None:
    graph_def = training_step()
    result = graph_def.node.add(name="result", op="_Retval", input=["relu"])
    result.attr["T"].type = tf.float32.as_datatype_enum
    graph_def.node.add(name="unused", op="Placeholder")
    step, fetches = as_step(graph_def)
    assert fetches == ["relu", "update"]
    assert "result" not in {node.name for node in step.node}
