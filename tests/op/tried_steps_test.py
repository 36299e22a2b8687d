"""Steps that another way computes faster than the kernel have the kernel's results."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from profiled_events import profile, ways_of_steps
from stage_program import operation
from tensorflow.python.framework import test_util
from unit_program import Run, assert_same_bits, in_graph, self_timed, stock

pytestmark = [
    pytest.mark.usefixtures("plugin_off"),
    pytest.mark.skipif(not test_util.IsMklEnabled(), reason="oneDNN is off"),
]

POINTWISE = "TfInterop>PointwiseProduct"
DEPTHWISE = "TfInterop>DepthwiseFilterGradient"
NORMALIZATION = "TfInterop>TrainingNormalization"
SLICE = "TfInterop>SliceGradient"


def pixels(*shape: int, at: float = 0) -> Callable[[int], Any]:
    """Random values, others for each seed."""
    return lambda seed: at + tf.random.stateless_normal(shape, (seed, sum(shape)))


def always(*values: int) -> Callable[[int], Any]:
    return lambda _: tf.constant(values)


class Case(NamedTuple):
    """An op, what makes its inputs from a seed, its attributes and its number of results."""

    op: str
    inputs: list[Callable[[int], Any]]
    attributes: dict[str, Any]
    results: int = 1

    def values(self, seed: int) -> list[Any]:
        return [each(seed) for each in self.inputs]


PLAIN = {"strides": [1] * 4, "padding": "SAME"}


def of_filter(
    image: list[int], size: int, gradient: list[int], width: int | None = None, **attributes: Any
) -> Case:
    """The gradient of a depthwise filter."""
    sizes = always(size, width or size, image[3], 1)
    inputs = [pixels(*image), sizes, pixels(*gradient)]
    return Case("DepthwiseConv2dNativeBackpropFilter", inputs, PLAIN | attributes)


def normalization(*image: int, factor: float = 1.0, **attributes: Any) -> Case:
    channels = image[3]
    moving = channels if factor != 1 or not attributes.get("is_training", True) else 0
    vectors = [pixels(each, at=3) for each in (channels, channels, moving, moving)]
    attributes = {"epsilon": 1e-3, "exponential_avg_factor": factor} | attributes
    return Case("FusedBatchNormV3", [pixels(*image, at=2), *vectors], attributes, 3)


def gradient_of_normalization(*image: int, **attributes: Any) -> Case:
    def variance(seed: int) -> Any:
        return tf.abs(pixels(image[3], at=2)(seed)) + 0.1

    vectors = [pixels(image[3]), pixels(image[3]), variance, lambda _: tf.zeros([0])]
    inputs = [pixels(*image), pixels(*image), *vectors]
    return Case("FusedBatchNormGradV3", inputs, {"epsilon": 1e-3, **attributes}, 3)


def of_slice(whole: list[int], begin: list[int], part: list[int], **masks: int) -> Case:
    end = [one + size for one, size in zip(begin, part, strict=False)]
    strides = [1] * len(begin)
    inputs = [always(*whole), always(*begin), always(*end), always(*strides), pixels(*part)]
    return Case("StridedSliceGrad", inputs, masks)


IMAGE = [2, 14, 13, 44]

TAKEN: dict[str, tuple[str, Case]] = {
    "pointwise": (POINTWISE, Case("Conv2D", [pixels(*IMAGE), pixels(1, 1, 44, 70)], PLAIN)),
    "pointwise_input_gradient": (
        POINTWISE,
        Case(
            "Conv2DBackpropInput",
            [always(*IMAGE), pixels(1, 1, 44, 70), pixels(2, 14, 13, 70)],
            PLAIN,
        ),
    ),
    "pointwise_filter_gradient": (
        POINTWISE,
        Case(
            "Conv2DBackpropFilter",
            [pixels(*IMAGE), always(1, 1, 44, 70), pixels(2, 14, 13, 70)],
            PLAIN,
        ),
    ),
    "depthwise_three": (DEPTHWISE, of_filter(IMAGE, 3, IMAGE)),
    "depthwise_five": (DEPTHWISE, of_filter([9, 14, 13, 32], 5, [9, 14, 13, 32])),
    "depthwise_seven": (DEPTHWISE, of_filter([2, 8, 5, 17], 7, [2, 8, 5, 17])),
    "depthwise_not_square": (DEPTHWISE, of_filter(IMAGE, 4, IMAGE, width=5)),
    "depthwise_valid": (DEPTHWISE, of_filter(IMAGE, 5, [2, 10, 9, 44], padding="VALID")),
    "depthwise_strided": (DEPTHWISE, of_filter(IMAGE, 5, [2, 7, 7, 44], strides=[1, 2, 2, 1])),
    "depthwise_narrow": (DEPTHWISE, of_filter([2, 3, 2, 20], 7, [2, 3, 2, 20])),
    "normalization": (NORMALIZATION, normalization(*IMAGE)),
    "normalization_of_many": (NORMALIZATION, normalization(4, 56, 56, 70)),
    "normalization_of_deep": (NORMALIZATION, normalization(2, 3, 3, 1100)),
    "normalization_of_two_pixels": (NORMALIZATION, normalization(1, 2, 1, 37)),
    "normalization_moving": (NORMALIZATION, normalization(*IMAGE, factor=0.3)),
    "normalization_gradient": (NORMALIZATION + "Gradient", gradient_of_normalization(*IMAGE)),
    "normalization_gradient_of_many": (
        NORMALIZATION + "Gradient",
        gradient_of_normalization(4, 56, 56, 70),
    ),
    "normalization_gradient_of_odd": (
        NORMALIZATION + "Gradient",
        gradient_of_normalization(1, 3, 3, 37),
    ),
    "slice": (SLICE, of_slice([2, 9, 8, 5], [0, 1, 2, 0], [2, 8, 6, 5])),
    "slice_of_channels": (SLICE, of_slice([2, 9, 8, 5], [1, 0, 2, 1], [1, 9, 4, 3])),
    "slice_from_the_end": (SLICE, of_slice([9, 8], [-4, 0], [3, 8], end_mask=2)),
    "slice_masked": (SLICE, of_slice([3, 9, 8], [1, 5, 5], [2, 4, 8], begin_mask=4)),
    "slice_of_few_axes": (SLICE, of_slice([4, 9, 8], [1], [2, 9, 8])),
    "slice_of_all": (SLICE, of_slice([4, 9, 8, 2], [0] * 4, [4, 9, 8, 2])),
}

LEFT: dict[str, Case] = {
    "pointwise_strided": Case(
        "Conv2D",
        [pixels(*IMAGE), pixels(1, 1, 44, 70)],
        PLAIN | {"strides": [1, 2, 2, 1]},
    ),
    "pointwise_groups": Case("Conv2D", [pixels(*IMAGE), pixels(1, 1, 22, 70)], PLAIN),
    "pointwise_padded": Case(
        "Conv2D",
        [pixels(*IMAGE), pixels(1, 1, 44, 70)],
        PLAIN | {"padding": "EXPLICIT", "explicit_paddings": [0, 0, 1, 1, 0, 0, 0, 0]},
    ),
    "depthwise_multiplied": Case(
        "DepthwiseConv2dNativeBackpropFilter",
        [pixels(*IMAGE), always(3, 3, 44, 2), pixels(2, 14, 13, 88)],
        PLAIN,
    ),
    "depthwise_dilated": of_filter(IMAGE, 3, IMAGE, dilations=[1, 2, 2, 1]),
    "depthwise_few_channels": of_filter([2, 9, 9, 12], 3, [2, 9, 9, 12]),
    "depthwise_wide": of_filter(IMAGE, 9, IMAGE),
    "normalization_of_one_pixel": normalization(1, 1, 1, 20),
    "normalization_inference": normalization(*IMAGE, is_training=False),
    "slice_strided": Case(
        "StridedSliceGrad",
        [always(9, 8), always(0, 0), always(9, 8), always(2, 1), pixels(5, 8)],
        {},
    ),
    "slice_that_drops_an_axis": Case(
        "StridedSliceGrad",
        [always(9, 8), always(3, 0), always(4, 8), always(1, 1), pixels(8)],
        {"shrink_axis_mask": 1},
    ),
}


def ways_of(unit: Any, name: str, case: Case) -> tuple[Run, Run]:
    """A new unit that times itself, and the same operation of TensorFlow."""
    operands = [f"inputs:{place}" for place in range(len(case.inputs))]
    step = operation(name, case.op, operands, **case.attributes)
    if case.op == "StridedSliceGrad":
        step.attr["Index"].type = tf.int32.as_datatype_enum
    elif case.op.startswith("FusedBatchNorm"):
        step.attr["U"].type = tf.float32.as_datatype_enum
    results = [f"steps:0:{port}" for port in range(case.results)]
    attributes = self_timed() | {"split_inputs": []}
    return in_graph(unit, [step], results, **attributes), stock([step], results)


def assert_near(found: list[tf.Tensor], expected: list[tf.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert np.abs(one - other).max(initial=0) <= 1e-5 * np.abs(other).max(initial=0)


@pytest.mark.parametrize("name", TAKEN)
def test_gives_the_results_of_the_kernel(unit: Any, name: str, tmp_path: pathlib.Path) -> None:
    way, case = TAKEN[name]
    run, expected = ways_of(unit, name, case)

    def call_often() -> None:
        for seed in range(40):  # by the kernel and by the other way, in all ways of the unit
            inputs = case.values(seed)
            assert_near(run(*inputs), expected(*inputs))

    assert way in ways_of_steps(profile(tmp_path, call_often))[name]


@pytest.mark.parametrize("name", LEFT)
def test_leaves_others_to_the_kernel(unit: Any, name: str, tmp_path: pathlib.Path) -> None:
    case = LEFT[name]
    run, expected = ways_of(unit, name, case)

    def call_often() -> None:
        for seed in range(10):
            inputs = case.values(seed)
            assert_near(run(*inputs), expected(*inputs))

    ways = ways_of_steps(profile(tmp_path, call_often))[name]
    assert not any(each.startswith("TfInterop>") for each in ways), ways


def test_needs_a_unit_that_times_itself(unit: Any, tmp_path: pathlib.Path) -> None:
    """Otherwise the bits of a result would depend on times."""
    case = TAKEN["pointwise"][1]
    step = operation("step", case.op, ["inputs:0", "inputs:1"], **case.attributes)
    run, inputs = in_graph(unit, [step], ["steps:0:0"], cores=1), case.values(seed=0)

    def call_often() -> None:
        for _ in range(10):
            run(*inputs)

    assert ways_of_steps(profile(tmp_path, call_often))["step"] == {"_MklNativeConv2D"}


@pytest.mark.parametrize("name", ["pointwise", "depthwise_three", "normalization"])
def test_leaves_values_that_are_not_finite_to_the_kernel(unit: Any, name: str) -> None:
    _, case = TAKEN[name]
    run, expected = ways_of(unit, name, case)
    inputs = case.values(seed=0)
    image = inputs[0].numpy()
    image[0, 0, 0, 0] = np.inf
    inputs[0] = tf.constant(image)
    for _ in range(8):
        assert_same_bits(run(*inputs), expected(*inputs))
