"""A training step of LeNet-5 over four devices: the search against all divisions there are."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.traced_layers import convolution, gradients, image, layers_of, parameter

from tf_interop.parallel.costs.devices import uniform_device_graph
from tf_interop.parallel.costs.tables import DivisionCosts, find_costs
from tf_interop.parallel.search.minimize import minimize

BATCH_SIZE = 16
NAMES = ("conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "fc3")


def lenet() -> list[tf.Tensor]:
    """The gradients of LeNet-5 with padding, ReLU and maxima (LeCun et al., 1998)."""
    x = convolution(image(BATCH_SIZE, 28, 28, 1), 6, "conv1", size=5)
    x = tf.nn.max_pool2d(x, 2, 2, "VALID", name="pool1")
    x = convolution(x, 16, "conv2", size=5)
    x = tf.nn.max_pool2d(x, 2, 2, "VALID", name="pool2")
    x = tf.reshape(x, [BATCH_SIZE, 784])
    for name, width in (("fc1", 120), ("fc2", 84), ("fc3", 10)):
        x = tf.matmul(x, parameter(x.shape[1], width, name=f"{name}/w"), name=name)
        x = tf.nn.bias_add(x, parameter(width, name=f"{name}/b"))
        x = tf.nn.relu(x) if name != "fc3" else x
    labels = tf.zeros(BATCH_SIZE, tf.int32)
    return gradients(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x))


@functools.cache
def costs_on_four_devices() -> DivisionCosts:
    layers = layers_of(lenet)
    assert tuple(layer.name for layer in layers.layers) == NAMES
    devices = uniform_device_graph(
        [f"/device:CPU:{each}" for each in range(4)],
        multiply_adds_per_s=1e10,
        memory_bytes_per_s=1e10,
        bytes_per_s=5e9,
        latency_s=1e-6,
    )
    return find_costs(layers, devices, [0] * len(layers.view))


def along(values: np.ndarray[Any, Any], axes: Sequence[int]) -> np.ndarray[Any, Any]:
    """Values by the configurations of some layers, ascending, among those of all."""
    shape = [1] * len(NAMES)
    for axis, size in zip(axes, values.shape, strict=True):
        shape[axis] = size
    return values.reshape(shape)


@functools.cache
def seconds_of_all_divisions() -> np.ndarray[Any, Any]:
    costs = costs_on_four_devices()
    total = np.zeros([len(layer.configurations) for layer in costs.layers])
    for place, layer in enumerate(costs.layers):
        total += along(layer.total_s, [place])
    for pair, seconds in costs.edges.items():
        total += along(seconds, pair)
    return total


def test_nothing_costs_less_than_what_is_found() -> None:
    costs = costs_on_four_devices()
    of_all = seconds_of_all_divisions()
    assert of_all.size > 1_000_000
    result = minimize(costs.problem())
    assert result.is_exact
    assert result.cost == pytest.approx(of_all.min(), rel=1e-12)
    assert of_all[result.choice] == pytest.approx(result.cost, rel=1e-12)
    assert result.cost < of_all[(0,) * len(NAMES)], "of no use on this device graph"


def test_nothing_that_fits_costs_less_than_what_is_found() -> None:
    costs = costs_on_four_devices()
    free = minimize(costs.problem())
    # The first device has the parameters, which stay there.
    limits = np.array(costs.memory(free.choice)) * [1, 0.9, 0.9, 0.9]
    of_all = seconds_of_all_divisions()
    fits = np.ones(of_all.shape, bool)
    used = np.empty(of_all.shape)
    for device, limit in enumerate(limits):
        used.fill(0)
        for place, layer in enumerate(costs.layers):
            used += along(layer.memory[:, device], [place])
        fits &= used <= limit
    result = minimize(costs.problem(limits))
    assert result.is_exact
    assert fits[result.choice]
    assert result.cost == pytest.approx(of_all[fits].min(), rel=1e-9)
    assert result.cost > free.cost
