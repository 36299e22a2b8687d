"""RandWire: the random graphs, and the network against the published count of parameters."""

from __future__ import annotations

import collections
import pathlib

import pytest
import tensorflow as tf

from python.models.randwire import Wiring, randwire, watts_strogatz

SEEDS = range(50)


def test_the_same_seed_gives_the_same_graph_and_another_another() -> None:
    assert watts_strogatz(7) == watts_strogatz(7)
    assert len({watts_strogatz(seed).edges for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_graph_has_its_nodes_and_edges_and_no_cycle(seed: int) -> None:
    wiring = watts_strogatz(seed)
    assert wiring.node_count == 32
    # K / 2 for each node: leading an edge elsewhere makes none and loses none.
    assert len(set(wiring.edges)) == 64
    assert all(0 <= source < target < 32 for source, target in wiring.edges)
    degrees = collections.Counter(node for edge in wiring.edges for node in edge)
    # The edge that a node may send elsewhere stays its own: half of its four.
    assert min(degrees[node] for node in range(32)) >= 2
    assert wiring.outputs
    assert not wiring.sources(0)


def test_without_chance_the_graph_is_the_ring() -> None:
    wiring = watts_strogatz(0, 6, 2, 0.0)
    assert wiring == Wiring(6, ((0, 1), (0, 5), (1, 2), (2, 3), (3, 4), (4, 5)))
    assert (wiring.sources(5), wiring.outputs) == ([0, 4], [5])


def test_with_certainty_most_edges_are_led_elsewhere() -> None:
    ring = set(watts_strogatz(0, probability=0.0).edges)
    kept = [len(ring & set(watts_strogatz(seed, probability=1.0).edges)) for seed in SEEDS]
    assert sum(kept) / len(kept) < 12


@pytest.mark.parametrize("neighbours", [3, 0, 32])
def test_refuses_a_ring_that_cannot_be(neighbours: int) -> None:
    with pytest.raises(ValueError, match="even number of neighbours below 32"):
        watts_strogatz(0, 32, neighbours)


def test_network_has_the_published_size() -> None:
    model = randwire((64, 64, 3))
    kinds = collections.Counter(type(layer).__name__ for layer in model.layers)
    assert kinds["SeparableConv2D"] == 3 * 32
    assert kinds["Conv2D"] == 3
    # arXiv:1904.01569 has 5.6 million for C = 78; which wiring it is moves that a little.
    assert model.count_params() == pytest.approx(5.6e6, rel=0.03)


def test_network_survives_saving_and_gives_a_distribution(tmp_path: pathlib.Path) -> None:
    model = randwire((32, 32, 3), classes=10, channels=8, nodes=6)
    model.save(tmp_path / "model.keras")
    restored = tf.keras.models.load_model(tmp_path / "model.keras")
    image = tf.random.stateless_uniform((2, 32, 32, 3), (1, 2))
    assert (restored(image).numpy() == model(image).numpy()).all()
    assert model(image).numpy().sum(axis=1) == pytest.approx([1.0, 1.0], abs=1e-5)
