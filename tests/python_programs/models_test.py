"""Model definitions against what their authors published, written down here once more."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Callable

import pytest
import tensorflow as tf

from python.models.googlenet import LocalResponseNormalization, googlenet
from python.models.randwire import Wiring, randwire, watts_strogatz
from python.models.squeezenet import SMALLEST_SIZE, squeezenet

# Table 1 of arXiv:1409.4842: input channels, 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool.
INCEPTIONS = {
    "3a": (192, 64, 96, 128, 16, 32, 32),
    "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128),
}
# Of SqueezeNet v1.1: input channels, squeeze, expand 1x1, expand 3x3, and the height and width.
FIRES = {
    "fire2": (64, 16, 64, 64, 55),
    "fire3": (128, 16, 64, 64, 55),
    "fire4": (128, 32, 128, 128, 27),
    "fire5": (256, 32, 128, 128, 27),
    "fire6": (256, 48, 192, 192, 13),
    "fire7": (384, 48, 192, 192, 13),
    "fire8": (384, 64, 256, 256, 13),
    "fire9": (512, 64, 256, 256, 13),
}
SEEDS = range(50)
Build = Callable[[], tf.keras.Model]


def _filters(model: tf.keras.Model, prefix: str) -> dict[str, tuple[int, ...]]:
    return {
        layer.name.removeprefix(prefix): tuple(layer.kernel.shape)
        for layer in model.layers
        if isinstance(layer, tf.keras.layers.Conv2D) and layer.name.startswith(prefix)
    }


def test_googlenet_is_that_of_the_table() -> None:
    model = googlenet()
    # By hand from the table: R * S * C * K + K for each convolution, and the classifier.
    assert model.count_params() == 6_998_552
    convolutions = [each for each in model.layers if isinstance(each, tf.keras.layers.Conv2D)]
    assert len(convolutions) == 57
    assert all(each.activation is tf.keras.activations.relu for each in convolutions)
    for module, widths in INCEPTIONS.items():
        channels, conv_1x1, reduce_3x3, conv_3x3, reduce_5x5, conv_5x5, pool = widths
        assert _filters(model, f"inception_{module}_") == {
            "1x1": (1, 1, channels, conv_1x1),
            "3x3_reduce": (1, 1, channels, reduce_3x3),
            "3x3": (3, 3, reduce_3x3, conv_3x3),
            "5x5_reduce": (1, 1, channels, reduce_5x5),
            "5x5": (5, 5, reduce_5x5, conv_5x5),
            "pool_proj": (1, 1, channels, pool),
        }
        output = model.get_layer(f"inception_{module}_output")
        size = {"3": 28, "4": 14, "5": 7}[module[0]]
        assert tuple(output.output.shape)[1:] == (size, size, conv_1x1 + conv_3x3 + conv_5x5 + pool)
        branches = [tensor._keras_history.operation.name for tensor in output.input]
        assert [name.split("_", 2)[2] for name in branches] == ["1x1", "3x3", "5x5", "pool_proj"]


def test_googlenet_normalizes_over_five_channels() -> None:
    image = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) * 100
    normalized = LocalResponseNormalization()(tf.reshape(image, (1, 1, 1, 7))).numpy().ravel()
    energy = sum((100.0 * value) ** 2 for value in (2, 3, 4, 5, 6))
    assert normalized[3] == pytest.approx(400 / (1 + 1e-4 / 5 * energy) ** 0.75, rel=1e-5)


def test_squeezenet_is_that_of_the_authors() -> None:
    model = squeezenet()
    # What ports of version 1.1 report; version 1.0 has 1,248,424.
    assert model.count_params() == 1_235_496
    assert len(_filters(model, "")) == 26
    for fire, (channels, squeeze, expand_1x1, expand_3x3, size) in FIRES.items():
        assert _filters(model, f"{fire}_") == {
            "squeeze_1x1": (1, 1, channels, squeeze),
            "expand_1x1": (1, 1, squeeze, expand_1x1),
            "expand_3x3": (3, 3, squeeze, expand_3x3),
        }
        output = model.get_layer(f"{fire}_output").output
        assert tuple(output.shape) == (None, size, size, expand_1x1 + expand_3x3)


def test_randwire_has_the_published_size() -> None:
    model = randwire((64, 64, 3))
    kinds = collections.Counter(type(layer).__name__ for layer in model.layers)
    assert (kinds["SeparableConv2D"], kinds["Conv2D"]) == (3 * 32, 3)
    # arXiv:1904.01569 has 5.6 million for C = 78; which wiring it is moves that a little.
    assert model.count_params() == pytest.approx(5.6e6, rel=0.03)


def test_random_graphs_have_their_nodes_and_edges_and_no_cycle() -> None:
    wirings = [watts_strogatz(seed) for seed in SEEDS]
    assert wirings == [watts_strogatz(seed) for seed in SEEDS]
    assert len({wiring.edges for wiring in wirings}) == len(SEEDS)
    for wiring in wirings:
        assert wiring.node_count == 32
        # K / 2 for each node: leading an edge elsewhere makes none and loses none.
        assert len(set(wiring.edges)) == 64
        assert all(0 <= source < target < 32 for source, target in wiring.edges)
        degrees = collections.Counter(node for edge in wiring.edges for node in edge)
        # The edge that a node may send elsewhere stays its own: half of its four.
        assert min(degrees[node] for node in range(32)) >= 2
        assert wiring.outputs
        assert not wiring.sources(0)


def test_chance_leads_edges_elsewhere() -> None:
    wiring = watts_strogatz(0, 6, 2, 0.0)
    assert wiring == Wiring(6, ((0, 1), (0, 5), (1, 2), (2, 3), (3, 4), (4, 5)))
    assert (wiring.sources(5), wiring.outputs) == ([0, 4], [5])
    ring = set(watts_strogatz(0, probability=0.0).edges)
    kept = [len(ring & set(watts_strogatz(seed, probability=1.0).edges)) for seed in SEEDS]
    assert sum(kept) / len(kept) < 12


@pytest.mark.parametrize(
    "build",
    [
        lambda: googlenet((32, 32, 3), classes=10),
        lambda: squeezenet((SMALLEST_SIZE, SMALLEST_SIZE, 3), classes=10),
        lambda: randwire((32, 32, 3), classes=10, channels=8, nodes=6),
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
        lambda: googlenet((31, 70, 3)),
        lambda: squeezenet((30, 70, 3)),
        lambda: watts_strogatz(0, 32, 3),
        lambda: watts_strogatz(0, 32, 0),
        lambda: watts_strogatz(0, 32, 32),
    ],
)
def test_refuses_what_cannot_be(build: Build) -> None:
    with pytest.raises(ValueError, match="Expected"):
        build()
