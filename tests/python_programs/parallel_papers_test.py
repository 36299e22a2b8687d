"""The models of the papers' settings."""

from __future__ import annotations

import pytest
import tensorflow as tf

from python.benchmarks import parallel_papers


def small_network() -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((16, 16, 4)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(512, activation="relu"),
            layers.Dense(16),
        ]
    )


@pytest.fixture(autouse=True)
def networks(monkeypatch: pytest.MonkeyPatch) -> None:
    for its in (parallel_papers.NETWORKS, parallel_papers.RESIDUAL_NETWORKS):
        monkeypatch.setitem(its, "small", small_network)


def test_a_slower_network_raises_the_gain_of_layer_by_layer() -> None:
    fast, slow = (parallel_papers.measure(f"small at {share}") for share in ("1", "1/8"))
    for row in (fast, slow):
        assert row["search"] == "exact"
        others = [row[each] for each in ("data", "model", "one weird trick")]
        assert row["layer by layer"] == pytest.approx(row["to_best_other"] * max(others))
        assert row["to_best_other, overlapped"] >= 1
    assert slow["to_best_other"] > fast["to_best_other"]
    # A ring of all GPUs leaves each of the four nodes once.
    byte_count = 4 * small_network().count_params()
    assert fast["data GB"] == pytest.approx(2 * 15 / 16 * 4 * byte_count / 1e9)


def test_more_gpus_than_images() -> None:
    row = parallel_papers.measure_scaling("small on 16")
    assert row["layer by layer"] == pytest.approx(row["to_data"] * row["data"])
    assert row["to_data"] > 1
    # Dividing the batch keeps all parameters on each GPU.
    byte_count = 4 * small_network().count_params()
    assert byte_count / 1e6 < row["data MB"] < 2.1 * byte_count / 1e6  # with a gradient
