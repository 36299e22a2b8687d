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
        others = [row[each] for each in ("data", "model", "one weird trick")]
        assert row["layer by layer"] == pytest.approx(row["to best other"] * max(others))
        assert row["to best other, without overlap"] >= 1
    assert slow["to best other"] > fast["to best other"]
    # A GPU gets parameters from the twelve GPUs of other nodes, and sends them its gradients.
    byte_count = 4 * small_network().count_params()
    # Images would be 3 % more, the values of the loss are less than 0.01 %.
    assert fast["data GB"] == pytest.approx(2 * 12 * byte_count / 1e9, rel=1e-3)


def test_more_gpus_than_images() -> None:
    row = parallel_papers.measure_scaling("small on 16")
    assert row["layer by layer"] == pytest.approx(row["to_data"] * row["data"])
    assert row["to_data"] > 1
    # Dividing the batch over eight leaves each GPU an eighth of the parameters.
    byte_count = 4 * small_network().count_params()
    assert byte_count / 8 / 1e6 < row["data MB"] < byte_count / 1e6
