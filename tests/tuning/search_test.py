"""What is proposed, and what is found by the times of variants, measured or made up."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tuning_graphs import FETCHES, branches, training_step

from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.unit_node import UNIT_OP, decode_unit
from tf_interop.graph.units import Unit, find_units
from tf_interop.graph.view import GraphView
from tf_interop.tuning import search
from tf_interop.tuning.propose import Machine, StepModel, UnitTimes, propose
from tf_interop.tuning.search import SearchResult, as_step, search_units
from tf_interop.tuning.simulate import Simulation
from tf_interop.tuning.step_bench import StepTimes

SIDES = (1, 3, 5)
TWO_CORES = Machine(cores=2, threads=2)
SIXTEEN_CORES = Machine(cores=16, threads=16)


def units_of(graph_def: graph_pb2.GraphDef) -> tuple[GraphView, tuple[Unit, ...]]:
    view = GraphView(graph_def)
    units, _ = find_units(view, GraphProperties(view), nodes_to_preserve=FETCHES)
    return view, units


def unit_times(stock_us: float, *narrow_us: float) -> UnitTimes:
    """Of a unit; on 1, 2, 4 and so on cores."""
    return UnitTimes({1 << power: each for power, each in enumerate(narrow_us)}, stock_us)


def model_of(
    times: Sequence[UnitTimes], graph_def: graph_pb2.GraphDef, machine: Machine = TWO_CORES
) -> StepModel:
    """Each unit's time is that of its first step; other nodes take nothing."""
    view, units = units_of(graph_def)
    assert len(units) >= len(times)
    nothing = UnitTimes(dict.fromkeys(times[0].narrow_us, 0.0), 0.0)
    times = [*times, *[nothing] * (len(units) - len(times))]
    op_times = {
        view.names[unit.steps[0]]: each.stock_us for unit, each in zip(units, times, strict=True)
    }
    return StepModel(view, units, times, op_times, machine)


def test_a_step_is_simulated_with_any_units_narrow() -> None:
    # Twice as fast on two cores as on one: side by side on one each they take as long.
    model = model_of([unit_times(10.0, 20.0)] * 2, branches((1, 3)))
    assert model.simulate({}).step_us == pytest.approx(20.0)
    assert model.simulate({0: 1, 1: 1}).step_us == pytest.approx(20.0)
    assert model.simulate({0: 1, 1: 1}).company[:2] == (1.0, 1.0)
    # No faster on two: together they take half of what they take one after another.
    model = model_of([unit_times(10.0, 10.0)] * 2, branches((1, 3)))
    assert model.simulate({0: 1, 1: 1}).step_us == pytest.approx(10.0)
    # Split, each has all cores, and the other one waits.
    model = model_of([UnitTimes({2: 10.0}, 0.0)] * 2, branches((1, 3)))
    assert model.simulate({0: 2, 1: 2}).step_us == pytest.approx(20.0)


def test_a_unit_asks_for_its_cores_and_has_company_on_the_others() -> None:
    model = model_of([unit_times(10.0, 80.0, 40.0, 20.0, 12.0)] * 3, branches(SIDES), SIXTEEN_CORES)
    every = range(3)
    for cores, step_us, company in ((1, 80.0, 2 / 15), (4, 20.0, 8 / 12), (8, 18.0, 1.0)):
        simulated = model.simulate(dict.fromkeys(every, cores))
        assert simulated.step_us == pytest.approx(step_us)
        assert simulated.company[:3] == pytest.approx((company,) * 3)


@pytest.mark.parametrize(
    ("cores", "widths"),
    [(1, (1,)), (2, (1,)), (3, (1, 2)), (4, (1, 2)), (8, (1, 2, 4)), (16, (1, 2, 4, 8))],
)
def test_widths_are_below_all_cores(cores: int, widths: tuple[int, ...]) -> None:
    assert Machine(cores, cores).widths == widths


class FakeModel:
    """The more units are narrow, the longer a step takes."""

    def simulate(self, unit_cores: Mapping[int, int]) -> Simulation:
        return Simulation(float(len(unit_cores)), company=(0.0, 1.0, 0.1, 0.5))


def test_proposes_units_that_lose_nothing_or_have_company_and_all() -> None:
    no_slower, slower = unit_times(10.0, 10.0), unit_times(10.0, 20.0)
    times = [no_slower, slower, slower, unit_times(0.01, 0.1)]
    proposed = propose(cast(StepModel, FakeModel()), times, TWO_CORES.widths)
    # The third is slower and alone. With the last one nothing else is another candidate.
    one_core = [dict.fromkeys(units, 1) for units in ((0,), (1,), (0, 1), (0, 1, 2, 3))]
    assert proposed == one_core


def test_proposes_for_each_unit_the_fewest_cores_that_lose_nothing_or_leave_none_idle() -> None:
    scales = unit_times(10.0, 100.0, 50.0, 26.0, 14.0)  # up to all 16 cores
    saturates = unit_times(10.0, 20.0, 10.0, 10.0, 10.0)  # at two
    small = unit_times(5.0, 4.0, 4.0, 4.0, 4.0)
    alone = model_of([scales, saturates, small], branches(SIDES), SIXTEEN_CORES)
    proposed = propose(alone, [scales, saturates, small], SIXTEEN_CORES.widths)
    assert {1: 2, 2: 1} in proposed  # the first stays on all cores
    for width in SIXTEEN_CORES.widths:
        assert dict.fromkeys(range(3), width) in proposed
    # Four of a kind side by side: four cores each leave none idle, and less waiting than eight.
    sides = (1, 3, 5, 7)
    four = [scales] * 4
    best, *_ = propose(model_of(four, branches(sides), SIXTEEN_CORES), four, SIXTEEN_CORES.widths)
    assert best == dict.fromkeys(range(4), 4)


def test_a_graph_without_units_stays_as_it_is() -> None:
    with tf.Graph().as_default() as graph:
        tf.identity(tf.compat.v1.placeholder(tf.float32, (2,)), "joined")
    view, units = units_of(graph.as_graph_def())
    assert units == ()
    found = search_units(view, units, FETCHES, budget_s=0.1)
    assert found.variants == (found.best,)
    assert found.best.unit_cores == {}


class FakeBench:
    """Variants whose ratio follows from how many units they have."""

    def __init__(self, ratio_of: Callable[[int], tuple[float, float]]) -> None:
        self._ratio_of = ratio_of
        self._counts: dict[str, int] = {}
        self.cores: dict[str, list[int]] = {}

    def search(self, monkeypatch: pytest.MonkeyPatch, budget_s: float = 5.0) -> SearchResult:
        """Searches the units of three branches with this in place of measurements."""
        monkeypatch.setattr(search, "StepBench", lambda **_: contextlib.nullcontext(self))
        said: list[str] = []
        units = units_of(branches(SIDES))
        found = search_units(*units, FETCHES, budget_s=budget_s, say=said.append)
        assert said
        return found

    @property
    def variants(self) -> list[str]:
        return list(self._counts)

    def add(self, variant: str, graph_def: graph_pb2.GraphDef, fetches: Sequence[str]) -> None:
        assert set(fetches) <= {node.name for node in graph_def.node}
        units = [decode_unit(node) for node in graph_def.node if node.op == UNIT_OP]
        self._counts[variant] = len(units)
        self.cores[variant] = [*itertools.chain(*(each.cores or (1,) for each in units))]

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
    found = bench.search(monkeypatch)
    assert bool(found.best.unit_cores) == is_faster
    assert found.variants[0].name == search.STOCK


def test_takes_the_fastest_of_all_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    _, units = units_of(branches(SIDES))
    bench = FakeBench(lambda count: ({0: 1.0, len(units): 1.2}.get(count, 1.6), 0.0))
    found = bench.search(monkeypatch)
    assert 0 < len(found.best.unit_cores) < len(units)
    assert found.best.times.ratio == 1.6


def test_tries_nothing_that_was_proposed_where_there_is_no_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []
    for budget_s in (5.0, 1e-9):
        bench = FakeBench(lambda count: (1.0, 0.0))
        bench.search(monkeypatch, budget_s)
        tried.append(bench.variants)
    assert len(tried[0]) > 2
    assert tried[1] == [search.STOCK, search.ALL_NARROW]


def test_all_units_are_measured_on_each_number_of_cores_and_the_fastest_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, units = units_of(branches(SIDES))
    bench = FakeBench(lambda count: (1.2, 0.0) if count else (1.0, 0.0))
    is_on_two = "all units on 2 cores"
    times = bench.time
    monkeypatch.setattr(search, "_machine", lambda: Machine(cores=4, threads=4))
    monkeypatch.setattr(
        bench,
        "time",
        lambda names, budget_s: {
            name: StepTimes(5.0, 5.0, 2.0, 0.0) if name == is_on_two else each
            for name, each in times(names, budget_s=budget_s).items()
        },
    )
    found = bench.search(monkeypatch)
    assert found.best.name == is_on_two
    assert found.best.unit_cores == dict.fromkeys(range(len(units)), 2)
    assert [2] * len(units) == bench.cores[is_on_two]
    assert [1] * len(units) == bench.cores[search.ALL_NARROW]


@pytest.mark.usefixtures("plugin_as_after_import")
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
