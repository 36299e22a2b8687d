"""Stages of convolutions of volumes against TensorFlow's own ops, on the CPU.

Tensors hold small whole numbers, so that the comparison is to the bit.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_cases import (
    DTYPES,
    EPSILON,
    Case,
    assert_infers_shapes,
    digits,
    program_of,
    run_stage,
)
from stage_program import REFUSED, arguments, assert_names, assert_refused
from volume_cases import _in_layout, volume_cases_of


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("layout", ["NDHWC", "NCDHW"])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_gives_what_the_own_ops_give(
    conv_stage: Any, layout: str, dtype: tf.DType, padding: str
) -> None:
    cases = [
        case
        for strides, dilations in itertools.product(
            ((1, 1, 1), (2, 2, 2), (1, 3, 2)), ((1, 1, 1), (2, 1, 3))
        )
        for case in volume_cases_of(layout, dtype, padding, strides=strides, dilations=dilations)
    ]
    compared = 0
    for case, result in zip(cases, run_stage(conv_stage, cases), strict=True):
        try:
            own = case.own_in_nhwc()
        except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError):
            continue  # without oneDNN, TensorFlow dilates volumes on no CPU
        np.testing.assert_array_equal(result, own, err_msg=f"{case.op} {case.attributes}")
        compared += 1
    assert compared >= len(cases) // 2


@pytest.mark.parametrize("algorithm", ["IM2COL_GEMM", "DIRECT"])
def test_every_pinned_host_algorithm_gives_the_same(conv_stage: Any, algorithm: str) -> None:
    cases = list(volume_cases_of("NDHWC", tf.float64, "SAME", strides=(2, 1, 2)))
    for case, result in zip(cases, run_stage(conv_stage, cases, algorithm=algorithm), strict=True):
        np.testing.assert_array_equal(result, case.own())


@pytest.mark.parametrize("activation", [None, "Relu", "Relu6", "LeakyRelu", "Elu"])
@pytest.mark.parametrize("layout", ["NDHWC", "NCDHW"])
def test_fuses_bias_and_activation(conv_stage: Any, activation: str | None, layout: str) -> None:
    image = digits(_in_layout(layout, 2, (4, 7, 7), 3))
    filter_ = digits([2, 3, 3, 3, 5], seed=1)
    bias = digits([5], seed=2)
    attributes = {
        "strides": [1] * 5,
        "padding": "SAME",
        "data_format": layout,
        "fused_ops": ["BiasAdd"] + ([activation] if activation else []),
        "leakyrelu_alpha": 0.25,
    }
    [result] = run_stage(conv_stage, [Case("_FusedConv3D", (image, filter_, bias), attributes)])
    expected = tf.nn.conv3d(image, filter_, [1] * 5, "SAME", data_format=layout)
    expected += bias if layout == "NDHWC" else bias[:, None, None, None]
    if activation == "LeakyRelu":
        expected = tf.nn.leaky_relu(expected, 0.25)
    elif activation:
        expected = getattr(tf.nn, activation.lower())(expected)
    tolerance = 0 if activation != "Elu" else 2 * EPSILON[tf.float32]
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("image_size", "filter_size"),
    [((1, 1, 1), (3, 5, 5)), ((2, 3, 1), (5, 4, 3)), ((1, 6, 5), (1, 3, 3))],
    ids=["one pixel", "filter larger than the image", "one plane"],
)
def test_takes_small_images(
    conv_stage: Any, image_size: tuple[int, int, int], filter_size: tuple[int, int, int]
) -> None:
    cases = list(
        volume_cases_of("NDHWC", tf.float32, "SAME", image_size=image_size, filter_size=filter_size)
    )
    for case, result in zip(cases, run_stage(conv_stage, cases), strict=True):
        np.testing.assert_array_equal(result, case.own())


def test_takes_empty_batches(conv_stage: Any) -> None:
    cases = list(volume_cases_of("NDHWC", tf.float64, "SAME", batch=0))
    output, image_gradient, filter_gradient = run_stage(conv_stage, cases)
    assert output.shape == [0, 6, 9, 7, 4]
    assert image_gradient.shape == [0, 6, 9, 7, 3]
    np.testing.assert_array_equal(filter_gradient, np.zeros([2, 3, 2, 3, 4]))


def test_volumes_and_images_share_a_stage(conv_stage: Any) -> None:
    flat = Case(
        "Conv2D",
        (digits([2, 5, 5, 3], tf.float16), digits([3, 3, 3, 4], tf.float16, seed=1)),
        {"strides": [1] * 4, "padding": "SAME"},
    )
    cases = [flat, *volume_cases_of("NDHWC", tf.float32, "VALID"), flat]
    for case, result in zip(cases, run_stage(conv_stage, cases, [0, 0, 1, 1, 2]), strict=True):
        np.testing.assert_array_equal(result, case.own())


@pytest.mark.parametrize("layout", ["NDHWC", "NCDHW"])
def test_infers_shapes(conv_stage: Any, layout: str) -> None:
    cases = list(volume_cases_of(layout, tf.float32, "VALID", strides=(1, 2, 3)))
    assert_infers_shapes(conv_stage, cases)


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"data_format": "NHWC"}, "NHWC"),
        ({"strides": [1, 1, 1, 1]}, "[1, 1, 1, 1]"),
        ({"strides": [1, 0, 1, 1, 1]}, "[1, 0, 1, 1, 1]"),
        ({"padding": "EXPLICIT"}, "EXPLICIT"),
    ],
)
def test_refuses_malformed_attributes(conv_stage: Any, changes: dict[str, Any], got: str) -> None:
    case = next(volume_cases_of("NDHWC", tf.float32, "SAME"))
    case.attributes.update(changes)
    inputs: list[Any] = []
    document = program_of([case], inputs, [])
    assert_refused(
        conv_stage, "step 'case_0'", next(iter(changes)), got, **arguments(inputs, [], document)
    )


@pytest.mark.parametrize("rank", [4, 6])
def test_refuses_other_ranks(conv_stage: Any, rank: int) -> None:
    case = Case(
        "Conv3D",
        (digits([2] * rank), digits([2] * 5)),
        {"strides": [1] * 5, "padding": "SAME"},
    )
    with pytest.raises(REFUSED) as refused:
        run_stage(conv_stage, [case])
    assert_names(refused, "rank 5", str([2] * rank).replace(" ", ""))
