"""Some of keras.applications with the plugin on and off; check_applications.sh runs all of them."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from python.benchmarks.applications import (
    agrees,
    application_names,
    compare_network,
    distances,
    measure,
)
from python.benchmarks.case import in_new_process

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "left_to_xla"),
    [
        ("MobileNetV3Small", 0),
        ("EfficientNetB0", 0),
        # Keras compiles convolutions with groups with XLA.
        ("ConvNeXtTiny", 18 + 54 + 18),
    ],
)
def test_narrow_units_give_the_same_numbers(
    name: str, left_to_xla: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_INTEROP_HOST_STAGES", "0")
    row = in_new_process(measure, name)
    assert agrees(row) and row["gradients"] is not None
    assert row["numbers"] == "same bits"
    assert row["left to XLA"] == left_to_xla
    for graph in ("inference", "training step"):
        in_units, nodes = map(int, row[graph].split(" of "))
        assert in_units > nodes / 3


# The convolutions of inference and of a training step that are in stages.
@pytest.mark.parametrize(
    ("name", "inference", "training"),
    [
        ("MobileNetV3Small", 54, 161),
        # With oneDNN, TensorFlow fuses the addition of a residual, [BiasAdd, Add]: 16 stay.
        ("ResNet50V2", 37, 142),
    ],
)
@pytest.mark.usefixtures("plugin_as_after_import")
def test_stages_give_the_same_numbers(name: str, inference: int, training: int) -> None:
    row = compare_network(name)
    assert agrees(row) and row["gradients"] is not None
    assert row["inference"].startswith(f"{inference} of ")
    assert row["training step"].startswith(f"{training} of ")


def test_a_tensor_that_is_off_is_far_away() -> None:
    stock = [np.array([3.0, 4.0]), np.zeros(2)]
    np.testing.assert_allclose(distances([np.array([3.0, 4.5]), np.zeros(2)], stock), [0.1, 0])
    assert distances([np.array([3.0, 4.0]), np.array([0.0, 1e-9])], stock)[1] == 1


def test_numbers_whose_squares_overflow_have_a_distance() -> None:
    stock = np.array([3e30, 4e30], np.float32)
    np.testing.assert_allclose(
        distances([np.array([3e30, 4.5e30], np.float32)], [stock]), 0.1, 1e-6
    )


def test_the_committed_figures_are_of_networks_that_keras_has_and_agree() -> None:
    rows = json.loads((ROOT / "docs" / "results" / "applications.json").read_text())["rows"]
    names = [each["network"] for each in rows]
    assert names == [each for each in application_names() if each in names]
    assert all(map(agrees, rows))
