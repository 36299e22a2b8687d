"""The ConvStage op against TensorFlow's own ops, on the CPU; op_matrix_test.py has all kinds.

Tensors hold small whole numbers, whose products and sums are exact in every dtype, so the
comparison is to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_cases import (
    Case,
    assert_infers_shapes,
    cases_of,
    digits,
    output_size,
    program_of,
    run_stage,
)
from stage_program import arguments, assert_names
from volume_cases import volume_cases_of

import tf_interop
from tf_interop.runtime.kernel_library import load_kernel_library


@pytest.mark.parametrize("algorithm", ["IM2COL_GEMM", "EIGEN_SPATIAL", "DIRECT"])
def test_every_pinned_host_algorithm_gives_the_same(conv_stage: Any, algorithm: str) -> None:
    cases = list(cases_of("NHWC", tf.float32, "SAME", 2, 1, 1))
    cases += volume_cases_of("NDHWC", tf.float64, "SAME", strides=(2, 1, 2))
    for case, result in zip(cases, run_stage(conv_stage, cases, algorithm=algorithm), strict=True):
        np.testing.assert_array_equal(result, case.own())


def test_volumes_and_images_share_a_stage(conv_stage: Any) -> None:
    flat = next(iter(cases_of("NHWC", tf.float16, "SAME", 1, 1, 1)))
    cases = [flat, *volume_cases_of("NDHWC", tf.float32, "VALID"), flat]
    for case, result in zip(cases, run_stage(conv_stage, cases, [0, 0, 1, 1, 2]), strict=True):
        np.testing.assert_array_equal(result, case.own())


def test_several_steps_of_a_lane_run_in_order(conv_stage: Any) -> None:
    cases = list(cases_of("NHWC", tf.float32, "SAME", 1, 1, 1))
    for lanes in ([0] * 6, [0, 0, 1, 1, 2, 2]):
        for case, result in zip(cases, run_stage(conv_stage, cases, lanes), strict=True):
            np.testing.assert_array_equal(result, case.own())


def one_pixel_cases(batch: int) -> list[Case]:
    """The three kinds on images of one pixel, with a filter that is larger."""
    attributes = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    image, filter_ = digits([batch, 1, 1, 3]), digits([5, 5, 3, 4], seed=1)
    gradient = digits([batch, 1, 1, 4], seed=2)
    return [
        Case("Conv2D", (image, filter_), attributes),
        Case("Conv2DBackpropInput", ([batch, 1, 1, 3], filter_, gradient), attributes),
        Case("Conv2DBackpropFilter", (image, [5, 5, 3, 4], gradient), attributes),
    ]


def test_takes_one_pixel_images(conv_stage: Any) -> None:
    cases = one_pixel_cases(batch=2)
    for case, result in zip(cases, run_stage(conv_stage, cases), strict=True):
        np.testing.assert_array_equal(result, case.own())


def test_takes_empty_batches(conv_stage: Any) -> None:
    # Not compared: with oneDNN, TensorFlow's Conv2D gives a wrong shape here, and its
    # Conv2DBackpropInput an error.
    output, image_gradient, filter_gradient = run_stage(conv_stage, one_pixel_cases(batch=0))
    assert output.shape == [0, 1, 1, 4]
    assert image_gradient.shape == [0, 1, 1, 3]
    np.testing.assert_array_equal(filter_gradient, np.zeros([5, 5, 3, 4]))


@pytest.mark.parametrize("depthwise", [False, True], ids=["plain", "depthwise"])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(
    ("image_shape", "filter_shape"),
    [
        ([2, 5, 5, 3], [0, 3, 3, 4]),
        ([2, 5, 5, 3], [3, 0, 3, 4]),
        ([2, 5, 5, 3], [3, 3, 3, 0]),
        ([2, 5, 5, 0], [3, 3, 0, 4]),
        ([2, 0, 5, 3], [3, 3, 3, 4]),
        ([0, 5, 5, 3], [3, 3, 3, 4]),
    ],
)
def test_gradients_of_empty_tensors_are_zeros(
    conv_stage: Any, image_shape: list[int], filter_shape: list[int], padding: str, depthwise: bool
) -> None:
    stem = "DepthwiseConv2dNative" if depthwise else "Conv2D"
    height, width = (
        max(0, output_size(size, filter_size, 1, 1, padding, (0, 0)))
        for size, filter_size in zip(image_shape[1:3], filter_shape[:2], strict=True)
    )
    channels = filter_shape[3] * (filter_shape[2] if depthwise else 1)
    image, filter_ = digits(image_shape), digits(filter_shape, seed=1)
    gradient = digits([image_shape[0], height, width, channels], seed=2)
    attributes = {"strides": [1, 1, 1, 1], "padding": padding}
    cases = [
        Case(f"{stem}BackpropInput", (image_shape, filter_, gradient), attributes),
        Case(f"{stem}BackpropFilter", (image, filter_shape, gradient), attributes),
    ]
    # TensorFlow gives the same with oneDNN; without, some are errors and others end the process.
    results = run_stage(conv_stage, cases)
    for result, shape in zip(results, (image_shape, filter_shape), strict=True):
        np.testing.assert_array_equal(result, np.zeros(shape, np.float32))


def test_infers_shapes(conv_stage: Any) -> None:
    assert_infers_shapes(conv_stage, list(cases_of("NCHW", tf.float32, "SAME", 2, 1, 1)))


@pytest.mark.parametrize("layout", ["NDHWC", "NCDHW"])
def test_infers_shapes_of_volumes(conv_stage: Any, layout: str) -> None:
    cases = list(volume_cases_of(layout, tf.float32, "VALID", strides=(1, 2, 3)))
    assert_infers_shapes(conv_stage, cases)


@pytest.mark.parametrize(
    ("op", "operands", "got"),
    [
        ("Conv2D", (digits([1, 5, 5, 3]), digits([3, 3, 2, 2])), "[3,3,2,2]"),
        ("Conv2D", (digits([5, 5, 3]), digits([3, 3, 3, 2])), "[5,5,3]"),
        ("Conv3D", (digits([2] * 4), digits([2] * 5)), "[2,2,2,2]"),
        ("Conv3D", (digits([2] * 6), digits([2] * 5)), "[2,2,2,2,2,2]"),
    ],
)
def test_refuses_shapes_that_do_not_fit(
    conv_stage: Any, op: str, operands: tuple[Any, ...], got: str
) -> None:
    case = Case(op, operands, {"strides": [1] * (5 if op == "Conv3D" else 4), "padding": "SAME"})

    # Of unknown shape, so that it is the kernel that sees them.
    @tf.function(input_signature=[tf.TensorSpec(None)] * 2, autograph=False)
    def stage(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return conv_stage(**arguments(tensors, [], program_of([case], [], [])))

    with pytest.raises(tf.errors.InvalidArgumentError) as refused:
        stage(*operands)
    assert_names(refused, "step 'case_0'", got)


def test_an_unknown_pin_falls_back_and_is_counted(conv_stage: Any) -> None:
    case = next(iter(cases_of("NHWC", tf.float32, "SAME", 1, 1, 1)))
    before = sum(load_kernel_library().read_counters().fallbacks.values())
    [result] = run_stage(conv_stage, [case], algorithm="eng3_k2=1")
    np.testing.assert_array_equal(result, case.own())
    counters = load_kernel_library().read_counters()
    assert sum(counters.fallbacks.values()) == before + 1
    assert any("eng3_k2=1" in reason for reason in counters.fallbacks)


def test_counts_for_the_device_that_a_stage_runs_on(conv_stage: Any) -> None:
    case = next(iter(cases_of("NHWC", tf.float32, "SAME", 1, 1, 1)))
    before = load_kernel_library().read_counters()
    run_stage(conv_stage, [case], algorithm="eng9_k9=9")
    counters = load_kernel_library().read_counters()
    cpu = counters.devices["CPU:0"]
    assert counters.stages_run == before.stages_run + 1
    assert sum(each.stages_run for each in counters.devices.values()) == counters.stages_run
    assert [cpu.fallbacks[reason] for reason in cpu.fallbacks if "eng9_k9=9" in reason] == [1]


def test_a_reason_of_several_lines_is_one_reason(conv_stage: Any) -> None:
    # Reasons quote the drivers' own messages, which may be of any form.
    case = next(iter(cases_of("NHWC", tf.float32, "SAME", 1, 1, 1)))
    for algorithm in ("FIRST\nsecond \x0b\x1e\x85\u2028third\r\n", "FIRST \x7f\x00\n"):
        run_stage(conv_stage, [case], algorithm=algorithm)
    counters = tf_interop.status().counters
    of_lines = [reason for reason in counters.fallbacks if "FIRST" in reason]
    assert [counters.fallbacks[reason] for reason in of_lines] == [1, 1]
    assert all("Expected an algorithm" in reason for reason in of_lines)
    assert any("second" in reason and "third" in reason for reason in of_lines)
    assert str(tf_interop.status())
