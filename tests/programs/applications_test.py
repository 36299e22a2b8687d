"""Some of keras.applications with the plugin on and off; check_numbers.sh runs all of them."""

from __future__ import annotations

import numpy as np
import pytest

from python.benchmarks.applications import (
    agrees,
    agrees_compiled,
    distances,
    measure,
    measure_compiled,
)
from python.benchmarks.result_file import in_new_process


@pytest.mark.parametrize(
    "name", ["MobileNetV3Small", pytest.param("InceptionV3", marks=pytest.mark.slow)]
)
def test_units_give_the_same_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_INTEROP_HOST_STAGES", "0")
    row = in_new_process(measure, name)
    assert agrees(row) and row["gradients"] is not None
    assert row["numbers"] == "same bits"
    for graph in ("inference", "training step"):
        in_units, nodes = map(int, row[graph].split(" of "))
        assert in_units > nodes / 3


@pytest.mark.slow
def test_stages_give_the_same_numbers() -> None:
    row = in_new_process(measure, "MobileNetV3Small")
    assert agrees(row) and row["gradients"] is not None
    # The convolutions in stages, of inference and of a training step.
    assert row["inference"].startswith("54 of ")
    assert row["training step"].startswith("161 of ")


@pytest.mark.slow
def test_stages_inside_xla_give_the_same_numbers() -> None:
    row = in_new_process(measure_compiled, "MobileNetV3Small")
    assert agrees_compiled(row) and row["gradients"] is not None
    # Convolutions at the same depth share one, in inference and in all gradients.
    assert row["stages"] == 161


def test_distances() -> None:
    stock = [np.array([3.0, 4.0]), np.zeros(2)]
    np.testing.assert_allclose(distances([np.array([3.0, 4.5]), np.zeros(2)], stock), [0.1, 0])
    assert distances([stock[0], np.array([0.0, 1e-9])], stock)[1] == 1
    # In float32 the squares of these overflow.
    far = distances([np.float32([3e30, 4.5e30])], [np.float32([3e30, 4e30])])
    np.testing.assert_allclose(far, 0.1, 1e-6)
