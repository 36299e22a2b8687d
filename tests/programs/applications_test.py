"""Some of keras.applications with the plugin on and off; check_applications.sh runs all of them."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from python.networks.compare_applications import (
    agrees,
    application_names,
    compare_network,
    distances,
)

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Convolutions of inference and of a training step, and how many are left alone.
NETWORKS = {
    "MobileNetV3Small": ((54, 161), (0, 0)),
    # With oneDNN, TensorFlow fuses the addition of a residual: [BiasAdd, Add].
    "ResNet50V2": ((53, 158), (16, 16)),
    # Keras compiles convolutions with groups with XLA.
    "ConvNeXtTiny": ((22, 65), (18, 54)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.usefixtures("plugin_as_after_import")
def test_gives_the_same_numbers(name: str) -> None:
    compared = compare_network(name)
    assert agrees(compared) and compared["gradients"] is not None
    convolutions, left_alone = NETWORKS[name]
    graphs = (compared["inference"], compared["training"])
    assert tuple(graph["convolutions"] for graph in graphs) == convolutions
    assert tuple(graph["convolutions"] - graph["in_stages"] for graph in graphs) == left_alone
    for graph in graphs:
        left = graph["left_to_xla"] + sum(graph["details"].values())
        assert graph["in_stages"] + left == graph["convolutions"]


def test_a_tensor_that_is_off_is_far_away() -> None:
    stock = [np.array([3.0, 4.0]), np.zeros(2)]
    np.testing.assert_allclose(distances([np.array([3.0, 4.5]), np.zeros(2)], stock), [0.1, 0])
    assert distances([np.array([3.0, 4.0]), np.array([0.0, 1e-9])], stock)[1] == 1


def test_numbers_whose_squares_overflow_have_a_distance() -> None:
    stock = np.array([3e30, 4e30], np.float32)
    np.testing.assert_allclose(
        distances([np.array([3e30, 4.5e30], np.float32)], [stock]), 0.1, 1e-6
    )


def test_the_committed_figures_are_of_all_that_keras_has_and_agree() -> None:
    result = json.loads((ROOT / "docs" / "results" / "applications.json").read_text())
    assert [each["network"] for each in result["rows"]] == sorted(application_names())
    assert all(map(agrees, result["rows"]))
