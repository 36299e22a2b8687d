"""A network's layers have the same keys, whatever they are called."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from parallel.traced_layers import convolution, gradients, image, layer_names, layers_of

from tf_interop.parallel.lookup import keys_of_layers, structure_of_layers
from tf_interop.structure import Structure


def keys_of(names: Sequence[str], batch: int = 4, filters: int = 6) -> tuple[Structure, list[str]]:
    """The structure of two branches with a layer after both, in training, and its layers' keys."""
    first, second, last, joined = names

    def train() -> None:
        x = image(batch, 8, 8, 3)
        branches = [convolution(x, 4, first), convolution(x, filters, second)]
        pools = [
            tf.nn.max_pool2d(each, 2, 2, "SAME", name=f"{name}/pool")
            for name, each in zip((first, second), branches, strict=True)
        ]
        gradients(tf.reduce_sum(convolution(tf.concat(pools, 3, name=joined), 2, last)))

    layers = layers_of(train)
    structure = structure_of_layers(layers)
    assert set(structure.names) == {first, second, last}
    keys = dict(zip(layer_names(layers), keys_of_layers(layers, structure), strict=True))
    assert len(set(keys.values())) == len(keys)
    return structure, [keys[each] for each in (*names, f"{first}/pool", f"{second}/pool")]


def test_names_and_batch_sizes_do_not_matter_but_layers_do() -> None:
    structure, keys = keys_of("abcd")
    other, other_keys = keys_of("zyxw", batch=8)
    assert other.fingerprint == structure.fingerprint
    assert other_keys == keys
    changed, _ = keys_of("abcd", filters=5)
    assert changed.fingerprint != structure.fingerprint


def test_filters_of_another_size_are_another_network() -> None:
    """With the padding SAME their results have the same shape."""

    def fingerprint(size: int) -> str:
        layers = layers_of(
            lambda: tf.nn.conv2d(image(4, 8, 8, 3), tf.ones([size, size, 3, 4]), 1, "SAME")
        )
        return structure_of_layers(layers).fingerprint

    assert fingerprint(3) == fingerprint(3) != fingerprint(5)
