"""What is proposed, and what is found by the times of variants, measured or made up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tuning_graphs import FETCHES, branches, training_step

from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.units import Unit, find_units
from tf_interop.graph.view import GraphView
from tf_interop.tuning import search
from tf_interop.tuning.propose import Machine, StepModel, UnitTimes, propose
from tf_interop.tuning.search import as_step, search_units
from tf_interop.tuning.simulate import Simulation
from tf_interop.tuning.step_bench import StepTimes

SIDES = (1, 3, 5)
TWO_CORES = Machine(cores=2, threads=2)


def units_of(graph_def: graph_pb2.GraphDef) -> tuple[GraphView, tuple[Unit, ...]]:
    view = GraphView(graph_def)
    units, _ = find_units(view, GraphProperties(view), nodes_to_preserve=FETCHES)
    return view, units


def model_of(
    times: Sequence[UnitTimes], graph_def: graph_pb2.GraphDef, unit_cores: float = 1.0
) -> StepModel:
    """Each unit's time is that of its first step; other nodes take nothing."""
    view, units = units_of(graph_def)
    assert len(units) >= len(times)
    times = [*times, *[UnitTimes(0.0, 0.0)] * (len(units) - len(times))]
    op_times = {
        view.names[unit.steps[0]]: each.stock_us for unit, each in zip(units, times, strict=True)
    }
    return StepModel(view, units, times, op_times, TWO_CORES, unit_cores=unit_cores)


def test_a_step_is_simulated_with_any_units_narrow() -> None:
    # Twice as fast on two cores as on one: side by side on one each they take as long.
    model = model_of([UnitTimes(20.0, 10.0), UnitTimes(20.0, 10.0)], branches((1, 3)))
    assert model.simulate(()).step_us == pytest.approx(20.0)
    assert model.simulate((0, 1)).step_us == pytest.approx(20.0)
    assert model.simulate((0, 1)).company[:2] == (1.0, 1.0)
    # No faster on two: together they take half of what they take one after another.
    model = model_of([UnitTimes(10.0, 10.0), UnitTimes(10.0, 10.0)], branches((1, 3)))
    assert model.simulate((0, 1)).step_us == pytest.approx(10.0)
    # Split, each has all cores, and the other one waits.
    model = model_of([UnitTimes(10.0, 0.0), UnitTimes(10.0, 0.0)], branches((1, 3)), unit_cores=2.0)
    assert model.simulate((0, 1)).step_us == pytest.approx(20.0)


class FakeModel:
    """The more units are narrow, the longer a step takes."""

    def simulate(self, narrow: Collection[int]) -> Simulation:
        return Simulation(float(len(narrow)), company=(0.0, 1.0, 0.1, 0.5))


def test_proposes_units_that_lose_nothing_or_have_company_and_all() -> None:
    no_slower, slower, short = UnitTimes(10.0, 10.0), UnitTimes(20.0, 10.0), UnitTimes(0.1, 0.01)
    proposed = propose(cast(StepModel, FakeModel()), [no_slower, slower, slower, short])
    # The third is slower and alone. With the last one nothing else is another candidate.
    assert proposed == [{0}, {1}, {0, 1}, {0, 1, 2, 3}]


def test_a_graph_without_units_stays_as_it_is() -> None:
    with tf.Graph().as_default() as graph:
        tf.identity(tf.compat.v1.placeholder(tf.float32, (2,)), "joined")
    view, units = units_of(graph.as_graph_def())
    assert units == ()
    found = search_units(view, units, FETCHES, budget_s=0.1)
    assert found.variants == (found.best,)
    assert found.best.narrow == frozenset()


class FakeBench:
    """Variants whose ratio follows from how many units they have."""

    def __init__(self, ratio_of: Callable[[int], tuple[float, float]]) -> None:
        self._ratio_of = ratio_of
        self._counts: dict[str, int] = {}

    def __call__(self, **_: Any) -> FakeBench:
        return self

    def __enter__(self) -> FakeBench:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def variants(self) -> list[str]:
        return list(self._counts)

    def add(self, variant: str, graph_def: graph_pb2.GraphDef, fetches: Sequence[str]) -> None:
        assert set(fetches) <= {node.name for node in graph_def.node}
        self._counts[variant] = sum(node.op == "TfInterop>Unit" for node in graph_def.node)

    def time(self, variants: Sequence[str], *, budget_s: float) -> dict[str, StepTimes]:
        times = {}
        for name in variants:
            ratio, error = self._ratio_of(self._counts[name])
            times[name] = StepTimes(10 / ratio, 10 / ratio, ratio, error)
        return times

    def op_times_us(self, variant: str) -> dict[str, float]:
        # The third is much slower on one core, and alone there most of the time.
        if variant == search.STOCK:
            return {"conv_1": 10.0, "conv_3": 10.0, "conv_5": 30.0}
        return {"relu_1": 10.0, "relu_3": 10.0, "relu_5": 200.0}


@pytest.mark.parametrize(
    ("ratio", "error", "is_faster"),
    [(1.5, 0.1, True), (0.8, 0.1, False), (1.05, 0.1, False), (1.001, 0.0, False)],
    ids=["faster", "slower", "within_the_error", "too_little"],
)
def test_takes_what_beats_stock_by_more_than_the_error(
    ratio: float, error: float, is_faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = FakeBench(lambda count: (ratio, error) if count else (1.0, 0.0))
    monkeypatch.setattr(search, "StepBench", bench)
    said: list[str] = []
    found = search_units(*units_of(branches(SIDES)), FETCHES, budget_s=1.0, say=said.append)
    assert bool(found.best.narrow) == is_faster
    assert found.variants[0].name == search.STOCK
    assert said


def test_takes_the_fastest_of_all_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    view, units = units_of(branches(SIDES))
    bench = FakeBench(lambda count: ({0: 1.0, len(units): 1.2}.get(count, 1.6), 0.0))
    monkeypatch.setattr(search, "StepBench", bench)
    found = search_units(view, units, FETCHES, budget_s=5.0)
    assert 0 < len(found.best.narrow) < len(units)
    assert found.best.times.ratio == 1.6


def test_tries_nothing_that_was_proposed_where_there_is_no_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []
    for budget_s in (5.0, 1e-9):
        bench = FakeBench(lambda count: (1.0, 0.0))
        monkeypatch.setattr(search, "StepBench", bench)
        search_units(*units_of(branches(SIDES)), FETCHES, budget_s=budget_s)
        tried.append(bench.variants)
    assert len(tried[0]) > 2
    assert tried[1] == [search.STOCK, search.ALL_NARROW]


def test_measures_a_training_step() -> None:
    view = GraphView(training_step())
    units, _ = find_units(view, GraphProperties(view), nodes_to_preserve=["update"])
    assert units
    found = search_units(view, units, ["update"], budget_s=0.2)
    assert all(each.times.median_ms > 0 for each in found.variants)
    assert len(found.variants) >= 2


def test_a_step_is_what_gives_results_or_is_read_by_nobody() -> None:
    graph_def = training_step()
    result = graph_def.node.add(name="result", op="_Retval", input=["relu"])
    result.attr["T"].type = tf.float32.as_datatype_enum
    graph_def.node.add(name="unused", op="Placeholder")
    step, fetches = as_step(graph_def)
    assert fetches == ["relu", "update"]
    assert "result" not in {node.name for node in step.node}
