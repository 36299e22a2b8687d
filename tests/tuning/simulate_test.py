"""Graphs whose steps are known without a simulation."""

from __future__ import annotations

import pytest

from tf_interop.tuning.simulate import Item, simulate


@pytest.mark.parametrize(
    ("items", "cores", "threads", "step_us", "company"),
    [
        pytest.param([], 2, 2, 0.0, (), id="nothing"),
        pytest.param([Item(5, 1, ())], 2, 2, 5.0, (0.0,), id="one"),
        pytest.param([Item(5, 1, ()), Item(3, 1, (0,))], 2, 2, 8.0, (0, 0), id="chain"),
        pytest.param([Item(4, 1, ()), Item(4, 1, ())], 2, 2, 4.0, (1, 1), id="side_by_side"),
        pytest.param([Item(4, 1, ()), Item(2, 1, ())], 2, 2, 4.0, (0.5, 1), id="unequal"),
        pytest.param([Item(4, 1, ()), Item(4, 1, ())], 2, 1, 8.0, (0, 0), id="one_thread"),
        pytest.param([Item(4, 1, ()), Item(4, 1, ())], 1, 2, 8.0, (1, 1), id="one_core"),
        # Both ask for both cores, and each gets half of what it asks for.
        pytest.param([Item(4, 2, ()), Item(4, 2, ())], 2, 2, 8.0, (1, 1), id="both_on_all_cores"),
        # One asks for what the other leaves of the cores, or for a share of it.
        pytest.param([Item(4, 4, ()), Item(4, 1, ())], 4, 4, 5.0, (1, 1), id="all_and_one"),
        pytest.param([Item(4, 1, ()), Item(4, 2, ())], 8, 4, 4.0, (2 / 7, 1 / 6), id="few_of_many"),
        pytest.param(
            [Item(2, 1, ()), Item(3, 1, (0,)), Item(4, 1, (0,)), Item(1, 1, (1, 2, 2))],
            2, 2, 7.0, (0, 1, 0.75, 0), id="diamond",
        ),
        # What takes no time takes no thread.
        pytest.param([Item(0, 1, ()), Item(3, 1, (0,))], 1, 1, 3.0, (0, 0), id="no_time"),
    ],
)  # fmt: skip
def test_step_and_company(
    items: list[Item], cores: int, threads: int, step_us: float, company: tuple[float, ...]
) -> None:
    simulated = simulate(items, cores=cores, threads=threads)
    assert simulated.step_us == pytest.approx(step_us)
    assert simulated.company == pytest.approx(company)
