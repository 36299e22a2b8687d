"""Stages by a profile, in stock TensorFlow: from the file to the graph that runs."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf
from profile_values import GPU, SMALL, make_profile, make_stage

import tf_interop
from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.measure.device import this_cpu
from tf_interop.profile.file import load_profile, save_profile
from tf_interop.profile.types import ProfiledDevice
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import Settings

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")

NUMBERS = np.random.default_rng(0)
IMAGE = tf.constant(NUMBERS.integers(-2, 3, [2, 8, 8, 4]).astype(np.float32))
FILTERS = [
    tf.constant(NUMBERS.integers(-2, 3, [size, size, 4, 4]).astype(np.float32)) for size in (1, 3)
]
POINTWISE = dataclasses.replace(
    SMALL, image_shape=(2, 8, 8, 4), filter_shape=(1, 1, 4, 4), output_shape=(2, 8, 8, 4)
)
SQUARE = dataclasses.replace(POINTWISE, filter_shape=(3, 3, 4, 4))


@pytest.fixture(autouse=True)
def fixture_tf32() -> Iterator[None]:
    yield
    tf.config.experimental.enable_tensor_float_32_execution(True)


def _run_branches() -> tf.Tensor:
    @tf.function
    def branches(image: tf.Tensor) -> tf.Tensor:
        outputs = [tf.nn.conv2d(image, each, 1, "SAME", name="conv") for each in FILTERS]
        return tf.concat(outputs, -1)

    return branches(IMAGE)


def _measured(
    device: ProfiledDevice,
    path: pathlib.Path,
    *,
    tf32: bool = True,
    pointwise: ConvolutionConfiguration = POINTWISE,
) -> str:
    stage = make_stage((SQUARE, "IM2COL_GEMM"), (pointwise, "DIRECT"), tf32=tf32)
    save_profile(make_profile(stage, device=device), path / "profile.json")
    return str(path / "profile.json")


def test_makes_the_stage_that_was_measured_on_this_cpu(tmp_path: pathlib.Path) -> None:
    tf_interop.disable()
    expected = _run_branches()
    tf_interop.enable(profile=_measured(this_cpu(), tmp_path))
    result = _run_branches()
    [report] = tf_interop.status().graphs
    [stage] = report.plan.stages
    assert [step.algorithm for step in stage.stage.steps] == ["IM2COL_GEMM", "DIRECT"]
    assert stage.why == "profiled: 20.0 us against 30.0 us in sequence"
    np.testing.assert_array_equal(result, expected)


def test_makes_none_on_the_cpu_by_a_profile_of_the_gpu(tmp_path: pathlib.Path) -> None:
    tf_interop.enable(profile=_measured(this_cpu(), tmp_path))
    get_plugin().settings = Settings(profile=load_profile(_measured(GPU, tmp_path)))
    _run_branches()
    [report] = tf_interop.status().graphs
    assert report.plan.stages == ()
    assert report.why_unchanged == (
        "the profile is of backend 'cudnn', which does not run on a CPU"
    )


def test_makes_none_of_another_batch_size(tmp_path: pathlib.Path) -> None:
    other = dataclasses.replace(POINTWISE, image_shape=(4, 8, 8, 4), output_shape=(4, 8, 8, 4))
    tf_interop.enable(profile=_measured(this_cpu(), tmp_path, pointwise=other))
    _run_branches()
    [report] = tf_interop.status().graphs
    assert report.why_unchanged == "the profile holds no stage of this graph that wins"


@pytest.mark.parametrize("switch", [False, True])
@pytest.mark.parametrize("measured_with_tf32", [False, True])
def test_goes_by_tensorflows_switch_for_tf32(
    tmp_path: pathlib.Path, switch: bool, measured_with_tf32: bool
) -> None:
    profile = _measured(GPU, tmp_path, tf32=measured_with_tf32)
    tf.config.experimental.enable_tensor_float_32_execution(switch)
    tf_interop.enable(profile=profile, allow_foreign_profile=True)
    _run_branches()
    [report] = tf_interop.status().graphs
    assert len(report.plan.stages) == (switch == measured_with_tf32)
