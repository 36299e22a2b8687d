"""Normalizations of concatenations, as in a DenseNet: a unit reads the parts where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_program import assert_names, operation
from tensorflow.core.framework import node_def_pb2
from unit_program import in_graph, serialized, spans_of, stock

from tf_interop.graph.program import RESCALES

NodeDef = node_def_pb2.NodeDef

pytestmark = pytest.mark.usefixtures("without_optimization")

RANDOM = np.random.default_rng(7)
AXIS = np.int32(3)


def random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def rescaling(name: str, image: str, first: int, *activation: str) -> NodeDef:
    """As graph/rescale.py makes it, with the inputs `first` and the next."""
    return operation(
        name,
        "_FusedDepthwiseConv2dNative",
        [image, f"inputs:{first}", f"inputs:{first + 1}"],
        strides=[1] * 4,
        padding="VALID",
        num_args=1,
        fused_ops=["BiasAdd", *activation],
        **{RESCALES: True},
    )


def concatenation(name: str, *parts: str, axis: str) -> NodeDef:
    return operation(name, "ConcatV2", [*parts, axis], N=len(parts), Tidx=tf.int32.as_datatype_enum)


def scales(channels: int) -> list[np.ndarray]:
    return [random(1, 1, channels, 1), random(channels)]


def assert_near_stock(
    unit: Any, steps: list[NodeDef], results: list[str], values: Sequence[Any], left: int
) -> None:
    """Compares with TensorFlow's ops; `left` concatenations run as such."""
    expected = stock(steps, results)(*map(tf.constant, values))

    def compare() -> None:
        for cores in (1, 0, 2):
            run = in_graph(unit, steps, results, cores=cores)
            for _ in range(2):
                found = run(*map(tf.constant, values))
                for ours, theirs in zip(found, expected, strict=True):
                    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)

    spans = spans_of(compare, calls=1)
    assert len(spans) == 3
    for span in spans:
        assert sum(name.startswith("concat") for name in span.name.split()) == left


@pytest.mark.parametrize("activation", [(), ("Relu",)])
@pytest.mark.parametrize("axis", [3, -1, 1, 0])
def test_has_the_values_of_both(unit: Any, axis: int, activation: tuple[str, ...]) -> None:
    shapes = {3: ([2, 9, 7, 5], [2, 9, 7, 32]), 1: ([2, 9, 7, 37], [2, 4, 7, 37])}
    shapes |= {-1: shapes[3], 0: ([2, 9, 7, 37], [3, 9, 7, 37])}
    images = [random(*shape) for shape in shapes[axis]]
    steps = [
        concatenation("concat", "inputs:0", "inputs:1", axis="inputs:2"),
        rescaling("rescaled", "steps:0:0", 3, *activation),
    ]
    values = [*images, np.int32(axis), *scales(37)]
    assert_near_stock(unit, steps, ["steps:1:0"], values, left=0)


def test_a_dense_block_has_no_concatenation(unit: Any) -> None:
    steps = [
        rescaling("first", "inputs:0", 2, "Relu"),
        concatenation("concat_1", "inputs:0", "steps:0:0", axis="inputs:1"),
        rescaling("second", "steps:1:0", 4, "Relu"),
        concatenation("concat_2", "steps:1:0", "steps:2:0", axis="inputs:1"),
        operation("relu", "Relu", ["steps:2:0"]),
        rescaling("third", "steps:3:0", 6),
    ]
    values = [random(2, 5, 6, 16), AXIS, *scales(16), *scales(32), *scales(64)]
    assert_near_stock(unit, steps, ["steps:5:0", "steps:4:0"], values, left=0)


BLOCK = [
    concatenation("concat_1", "inputs:0", "inputs:0", axis="inputs:1"),
    rescaling("first", "steps:0:0", 2, "Relu"),
    concatenation("concat_2", "steps:0:0", "steps:1:0", axis="inputs:1"),
    rescaling("second", "steps:2:0", 4, "Relu"),
]


@pytest.mark.parametrize(
    ("added", "results", "left"),
    [
        ([], ["steps:3:0"], 0),
        ([], ["steps:3:0", "steps:2:0"], 2),  # the first is needed for the second
        ([], ["steps:3:0", "steps:0:0"], 1),
        ([operation("other", "Relu", ["steps:0:0"])], ["steps:3:0", "steps:4:0"], 1),
        ([rescaling("six", "steps:2:0", 4, "Relu6")], ["steps:3:0", "steps:4:0"], 2),
    ],
)
def test_keeps_a_concatenation_that_others_need(
    unit: Any, added: list[NodeDef], results: list[str], left: int
) -> None:
    values = [random(2, 4, 4, 8), AXIS, *scales(16), *scales(32)]
    assert_near_stock(unit, [*BLOCK, *added], results, values, left)


def test_other_axes_and_depthwise_convolutions_stay(unit: Any) -> None:
    others = [NodeDef.FromString(step.SerializeToString()) for step in BLOCK]
    others[2].input[2] = "inputs:6"
    values = [random(2, 4, 4, 8), AXIS, *scales(16), *scales(32), AXIS]
    assert_near_stock(unit, others, ["steps:3:0"], values, left=1)
    del others[1].attr[RESCALES], others[3].attr[RESCALES]
    assert_near_stock(unit, others, ["steps:3:0"], values, left=2)


def test_images_that_do_not_fit_are_an_error(unit: Any) -> None:
    steps = [
        concatenation("concat", "inputs:0", "inputs:1", axis="inputs:2"),
        rescaling("rescaled", "steps:0:0", 3),
    ]
    given = {"Tout": [tf.float32], "steps": serialized(steps), "results": ["steps:1:0"]}
    for images, words in (
        ((random(1, 4, 4, 2), random(1, 3, 4, 2)), ["[1,4,4,2] vs. shape[1] = [1,3,4,2]"]),
        ((random(1, 4, 4, 2), random(1, 4, 4, 3)), ["5 channels, got 4 and 4"]),
        ((random(4, 4, 2), random(4, 4, 2)), ["four dimensions", "[4,4,2]"]),
    ):
        inputs = [*map(tf.constant, images), tf.constant(AXIS), *map(tf.constant, scales(4))]
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            tf.function(lambda values=inputs: unit(inputs=values, **given), autograph=False)()
        assert_names(error, "rescaled", *words)
