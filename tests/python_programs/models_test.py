"""Models compared with their authors' publications."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Callable

import pytest
import tensorflow as tf

from python.models.googlenet import googlenet
from python.models.randwire import Wiring, randwire, watts_strogatz
from python.models.squeezenet import SMALLEST_SIZE, squeezenet

Build = Callable[[], tf.keras.Model]


def convolutions_of(model: tf.keras.Model) -> list[tf.keras.layers.Conv2D]:
    return [layer for layer in model.layers if isinstance(layer, tf.keras.layers.Conv2D)]


def test_googlenet_matches_the_published_table() -> None:
    model = googlenet()
    # By hand from Table 1 of arXiv:1409.4842: R * S * C * K + K for each, and the classifier.
    assert model.count_params() == 6_998_552
    assert len(convolutions_of(model)) == 57
    for module, shape in (("3b", (28, 28, 480)), ("4e", (14, 14, 832)), ("5b", (7, 7, 1024))):
        assert tuple(model.get_layer(f"inception_{module}_output").output.shape)[1:] == shape


def test_squeezenet_matches_the_authors_model() -> None:
    model = squeezenet()
    # As ports of version 1.1 report; version 1.0 has 1,248,424.
    assert model.count_params() == 1_235_496
    assert len(convolutions_of(model)) == 26
    for fire, shape in (("3", (55, 55, 128)), ("5", (27, 27, 256)), ("9", (13, 13, 512))):
        assert tuple(model.get_layer(f"fire{fire}_output").output.shape)[1:] == shape


def test_randwire_has_the_published_size() -> None:
    model = randwire((64, 64))
    kinds = collections.Counter(type(layer).__name__ for layer in model.layers)
    assert (kinds["SeparableConv2D"], kinds["Conv2D"]) == (3 * 32, 3)
    # arXiv:1904.01569 has 5.6 million for C = 78; the wiring changes that a little.
    assert model.count_params() == pytest.approx(5.6e6, rel=0.03)


def test_random_graphs_have_all_nodes_and_edges_and_no_cycle() -> None:
    wirings = [watts_strogatz(seed) for seed in range(50)]
    assert len({wiring.edges for wiring in wirings}) == len(wirings)
    for wiring in wirings:
        # K / 2 for each node; rewiring neither adds nor removes edges.
        assert len(set(wiring.edges)) == 64
        assert all(0 <= source < target < 32 for source, target in wiring.edges)
        assert wiring.outputs and not wiring.sources(0)
    ring = watts_strogatz(0, 6, 2, 0.0)
    assert ring == Wiring(6, ((0, 1), (0, 5), (1, 2), (2, 3), (3, 4), (4, 5)))
    assert (ring.sources(5), ring.outputs) == ([0, 4], [5])


@pytest.mark.parametrize(
    "build",
    [
        lambda: googlenet((32, 32), classes=10),
        lambda: squeezenet((SMALLEST_SIZE, SMALLEST_SIZE), classes=10),
        lambda: randwire((32, 32), classes=10, channels=8, nodes=6),
    ],
    ids=["googlenet", "squeezenet", "randwire"],
)
def test_gives_distributions_at_the_smallest_size_and_survives_saving(
    build: Build, tmp_path: pathlib.Path
) -> None:
    model = build()
    image = tf.random.stateless_uniform((2, *model.input_shape[1:]), (1, 2))
    probabilities = model(image).numpy()
    assert probabilities.sum(axis=1) == pytest.approx([1.0, 1.0], abs=1e-5)
    model.save(tmp_path / "model.keras")
    restored = tf.keras.models.load_model(tmp_path / "model.keras")
    assert (restored(image).numpy() == probabilities).all()


@pytest.mark.parametrize(
    "build",
    [
        lambda: googlenet((31, 70)),
        lambda: squeezenet((30, 70)),
        lambda: watts_strogatz(0, 32, 3),
        lambda: watts_strogatz(0, 32, 32),
    ],
)
def test_refuses_impossible_sizes(build: Build) -> None:
    with pytest.raises(ValueError, match="Expected"):
        build()
