"""Simulated steps, and the units proposed by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pytest
from tensorflow.core.framework import graph_pb2
from tuning_graphs import branches, units_of

from tf_interop.tuning.propose import (
    Item,
    Machine,
    Simulation,
    StepModel,
    UnitTimes,
    propose,
    simulate,
)

SIDES = (1, 3, 5)
TWO_CORES = Machine(cores=2, threads=2)
SIXTEEN_CORES = Machine(cores=16, threads=16)


@pytest.mark.parametrize(
    ("items", "cores", "threads", "step_us", "company"),
    [
        pytest.param([], 2, 2, 0.0, (), id="nothing"),
        pytest.param([Item(5, 1, ()), Item(3, 1, (0,))], 2, 2, 8.0, (0, 0), id="chain"),
        pytest.param([Item(4, 1, ()), Item(2, 1, ())], 2, 2, 4.0, (0.5, 1), id="unequal"),
        pytest.param([Item(4, 1, ()), Item(4, 1, ())], 2, 1, 8.0, (0, 0), id="one_thread"),
        pytest.param([Item(4, 1, ()), Item(4, 1, ())], 1, 2, 8.0, (1, 1), id="one_core"),
        # Both want both cores, and each gets one.
        pytest.param([Item(4, 2, ()), Item(4, 2, ())], 2, 2, 8.0, (1, 1), id="both_on_all_cores"),
        # One wants all cores, or the two leave some idle.
        pytest.param([Item(4, 4, ()), Item(4, 1, ())], 4, 4, 5.0, (1, 1), id="all_and_one"),
        pytest.param([Item(4, 1, ()), Item(4, 2, ())], 8, 4, 4.0, (2 / 7, 1 / 6), id="few_of_many"),
        pytest.param(
            [Item(2, 1, ()), Item(3, 1, (0,)), Item(4, 1, (0,)), Item(1, 1, (1, 2, 2))],
            2, 2, 7.0, (0, 1, 0.75, 0), id="diamond",
        ),
        # An item that takes no time needs no thread.
        pytest.param([Item(0, 1, ()), Item(3, 1, (0,))], 1, 1, 3.0, (0, 0), id="no_time"),
    ],
)  # fmt: skip
def test_step_and_company(
    items: list[Item], cores: int, threads: int, step_us: float, company: tuple[float, ...]
) -> None:
    simulated = simulate(items, cores=cores, threads=threads)
    assert simulated.step_us == pytest.approx(step_us)
    assert simulated.company == pytest.approx(company)


def unit_times(stock_us: float, *narrow_us: float) -> UnitTimes:
    """The times of a unit, on all cores and on 1, 2, 4 and so on."""
    return UnitTimes({1 << power: each for power, each in enumerate(narrow_us)}, stock_us)


def model_of(
    times: Sequence[UnitTimes], graph_def: graph_pb2.GraphDef, machine: Machine = TWO_CORES
) -> StepModel:
    """A model in which each unit's first step takes all of the unit's time."""
    view, units = units_of(graph_def)
    assert len(units) >= len(times)
    nothing = UnitTimes(dict.fromkeys(times[0].narrow_us, 0.0), 0.0)
    times = [*times, *[nothing] * (len(units) - len(times))]
    op_times = {
        view.names[unit.steps[0]]: each.stock_us for unit, each in zip(units, times, strict=True)
    }
    return StepModel(view, units, times, op_times, machine)


def test_a_step_is_simulated_with_any_units_narrow() -> None:
    # If two cores halve a unit's time, running two units on one core each gains nothing.
    for on_one_core_us, step_us in ((20.0, 20.0), (10.0, 10.0)):
        model = model_of([unit_times(10.0, on_one_core_us)] * 2, branches((1, 3)))
        assert model.simulate({}).step_us == pytest.approx(step_us)
        assert model.simulate({0: 1, 1: 1}).step_us == pytest.approx(step_us)
    # A split unit has all cores, and the other one waits.
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
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (16, (1, 2, 4, 8, 16))],
)
def test_widths_are_powers_of_two_and_all_cores(cores: int, widths: tuple[int, ...]) -> None:
    assert Machine(cores, cores).widths == widths


class FakeModel:
    """The more units are narrow, the longer a step takes."""

    def simulate(self, unit_cores: Mapping[int, int]) -> Simulation:
        return Simulation(float(len(unit_cores)), company=(0.0, 1.0, 0.1, 0.5))


def test_proposes_units_that_lose_nothing_or_have_company() -> None:
    no_slower, slower = unit_times(10.0, 10.0, 12.0), unit_times(10.0, 20.0, 20.0)
    times = [no_slower, slower, slower, unit_times(0.01, 0.1, 0.1)]
    proposed = propose(cast(StepModel, FakeModel()), times, TWO_CORES.widths)
    # The third is slower and runs alone. The last one takes too little time to make a candidate.
    every = (0, 1, 2, 3)
    sets = [dict.fromkeys(units, 1) for units in ((0,), (0, 1), every)]
    assert proposed == [*sets, dict.fromkeys(every, 2)]


def test_proposes_the_fewest_cores_that_lose_nothing_or_leave_none_idle() -> None:
    scales = unit_times(10.0, 100.0, 50.0, 26.0, 14.0, 14.0)  # up to all 16 cores
    saturates = unit_times(10.0, 20.0, 10.0, 10.0, 10.0, 10.0)  # at two
    small = unit_times(5.0, 4.0, 4.0, 4.0, 4.0, 4.0)
    alone = model_of([scales, saturates, small], branches(SIDES), SIXTEEN_CORES)
    proposed = propose(alone, [scales, saturates, small], SIXTEEN_CORES.widths)
    assert {1: 2, 2: 1} in proposed  # the first stays on all cores
    for width in SIXTEEN_CORES.widths:
        assert dict.fromkeys(range(3), width) in proposed
    # Four equal units with four cores each leave none idle, and wait less than with eight.
    sides = (1, 3, 5, 7)
    four = [scales] * 4
    best, *_ = propose(model_of(four, branches(sides), SIXTEEN_CORES), four, SIXTEEN_CORES.widths)
    assert best == dict.fromkeys(range(4), 4)
