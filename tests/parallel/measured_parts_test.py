"""Times of parts of convolutions that a profile holds."""

from __future__ import annotations

import dataclasses

import pytest
from convolution_values import CONFIGURATION
from parallel.traced_layers import convolution, image, layers_of
from profile_values import make_algorithm, make_profile

from tf_interop.parallel.costs.devices import uniform_device_graph
from tf_interop.parallel.costs.part_tables import MeasuredParts
from tf_interop.parallel.costs.tables import find_costs
from tf_interop.parallel.types import Degrees

HALF_BATCH = dataclasses.replace(
    CONFIGURATION, image_shape=(4, 28, 28, 16), output_shape=(4, 28, 28, 32)
)
# Half of the rows with one more as halo, and padding that the part adds itself.
HALF_IMAGE = dataclasses.replace(
    CONFIGURATION, image_shape=(8, 16, 30, 16), output_shape=(8, 14, 28, 32), padding="VALID"
)
PROFILE = make_profile(
    make_algorithm(CONFIGURATION, latency_us=9000.0),
    make_algorithm(HALF_BATCH, "slow", latency_us=7000.0),
    make_algorithm(HALF_BATCH, "exact", latency_us=6000.0, tf32=False),
    make_algorithm(HALF_BATCH, "fast", latency_us=5000.0),
    make_algorithm(HALF_IMAGE, latency_us=4000.0),
)


@pytest.mark.parametrize(
    ("degrees", "allow_tf32", "milliseconds"),
    [
        (Degrees(), True, 9.0),
        (Degrees(sample=2), True, 5.0),
        (Degrees(sample=2), False, 6.0),
        (Degrees(height=2), True, 4.0),
        (Degrees(filter=2), True, None),
    ],
)
def test_a_convolution_takes_what_was_measured_of_its_part(
    degrees: Degrees, allow_tf32: bool, milliseconds: float | None
) -> None:
    layers = layers_of(lambda: convolution(image(8, 28, 28, 16), 32, "a"))
    node = layers.view.index_of["a"]
    measured = MeasuredParts(PROFILE, allow_tf32=allow_tf32)
    seconds = None if milliseconds is None else pytest.approx(milliseconds / 1e3)
    for part in layers.parts(node, degrees) or ():
        assert measured.seconds(layers.operations[node], part) == seconds
    [bias] = layers.parts(layers.view.index_of["a/bias"], Degrees()) or ()
    assert measured.seconds(layers.operations[layers.view.index_of["a/bias"]], bias) is None

    devices = uniform_device_graph(
        ["/device:GPU:0", "/device:GPU:1"],
        **{"multiply_adds_per_s": 1e15, "memory_bytes_per_s": 1e15, "bytes_per_s": 1e9},
        latency_s=0.0,
    )
    [costs] = find_costs(layers, devices, [0] * len(layers.view), measured).layers
    place = costs.place_of(degrees)
    assert costs.are_measured[place] == (milliseconds is not None)
    assert costs.compute_s[place] == pytest.approx((milliseconds or 0) / 1e3, abs=1e-6)
