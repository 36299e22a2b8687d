"""Stages by a profile: from the file to the graph that runs, and on which device it may be used."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from profile_values import CPU, GPU, SMALL, make_profile, make_stage
from unnoticed import run_python

import tf_interop
import tf_interop.keras
from tf_interop import tensorflow_internals
from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.errors import ProfileError
from tf_interop.measure.device import this_cpu
from tf_interop.profile.file import load_profile, save_profile
from tf_interop.profile.types import ProfiledDevice
from tf_interop.runtime import switch
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import Settings
from tf_interop.runtime.switch import make_settings

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
    folder: pathlib.Path,
    *,
    tf32: bool = True,
    pointwise: ConvolutionConfiguration = POINTWISE,
) -> str:
    stage = make_stage((SQUARE, "BUFFERED"), (pointwise, "DIRECT"), tf32=tf32)
    save_profile(make_profile(stage, device=device), folder / "profile.json")
    return str(folder / "profile.json")


def test_makes_the_stage_that_was_measured_on_this_cpu(tmp_path: pathlib.Path) -> None:
    tf_interop.disable()
    expected = _run_branches()
    tf_interop.enable(profile=_measured(this_cpu(), tmp_path))
    result = _run_branches()
    [report] = tf_interop.status().graphs
    [stage] = report.plan.stages
    assert [step.algorithm for step in stage.stage.steps] == ["BUFFERED", "DIRECT"]
    assert stage.why == "profiled: 20.0 us against 30.0 us in sequence"
    np.testing.assert_array_equal(result, expected)


def test_makes_none_by_a_profile_of_the_gpu_or_of_another_batch_size(
    tmp_path: pathlib.Path,
) -> None:
    other = dataclasses.replace(POINTWISE, image_shape=(4, 8, 8, 4), output_shape=(4, 8, 8, 4))
    tf_interop.enable(profile=_measured(this_cpu(), tmp_path, pointwise=other))
    _run_branches()
    [report] = tf_interop.status().graphs
    assert report.why_unchanged == "the profile holds no stage of this graph that wins"
    get_plugin().forget_reports()
    get_plugin().settings = Settings(profile=load_profile(_measured(GPU, tmp_path)))
    _run_branches()
    [report] = tf_interop.status().graphs
    assert "backend 'cudnn', which does not run on a CPU" in report.why_unchanged


@pytest.mark.parametrize("option", [False, True])
@pytest.mark.parametrize("measured_with_tf32", [False, True])
def test_goes_by_tensorflows_switch_for_tf32(
    tmp_path: pathlib.Path, option: bool, measured_with_tf32: bool
) -> None:
    profile = _measured(GPU, tmp_path, tf32=measured_with_tf32)
    tf.config.experimental.enable_tensor_float_32_execution(option)
    tf_interop.enable(profile=profile, allow_foreign_profile=True)
    _run_branches()
    [report] = tf_interop.status().graphs
    assert len(report.plan.stages) == (option == measured_with_tf32)


@pytest.fixture(name="gpu")
def fixture_gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The machine has the GPU of the made-up profiles, and TensorFlow may use it."""
    monkeypatch.setattr(switch, "running_device", lambda _backend: GPU)
    monkeypatch.setattr(switch, "this_cpu", lambda: CPU)
    monkeypatch.setattr(tensorflow_internals, "may_have_gpus", lambda: True)
    return monkeypatch


@pytest.mark.usefixtures("gpu")
def test_names_every_field_in_which_a_gpu_differs() -> None:
    assert make_settings("profiled", profile=make_profile()).profile is not None
    other = dataclasses.replace(GPU, name="NVIDIA A100", cudnn="9.3.0")
    with pytest.raises(ProfileError) as raised:
        make_settings("profiled", profile=make_profile(device=other))
    message = str(raised.value)
    assert "name: expected 'NVIDIA H200', got 'NVIDIA A100'" in message
    assert "cudnn: expected '9.10.2', got '9.3.0'" in message
    assert "sm_count" not in message
    assert "allow_foreign_profile=True (in a command --allow-foreign-profile)" in message


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("use", [tf_interop.enable, tf_interop.keras.ConvStages])
def test_where_there_is_a_gpu_a_profile_of_the_cpu_must_be_allowed(use: Any) -> None:
    profile = make_profile(device=CPU)
    with pytest.raises(ProfileError, match="backend: expected 'cudnn', got 'host'"):
        use(profile=profile)
    use(profile=profile, allow_foreign_profile=True)


@pytest.mark.parametrize(("has_gpu", "may_use_gpu"), [(False, True), (True, False)])
def test_where_no_gpu_is_used_a_profile_of_the_cpu_fits(
    gpu: pytest.MonkeyPatch, has_gpu: bool, may_use_gpu: bool
) -> None:
    gpu.setattr(switch, "running_device", lambda _backend: GPU if has_gpu else None)
    gpu.setattr(tensorflow_internals, "may_have_gpus", lambda: may_use_gpu)
    assert make_settings("profiled", profile=make_profile(device=CPU)).profile is not None
    with pytest.raises(ProfileError, match="backend: expected 'host', got 'cudnn'"):
        make_settings("profiled", profile=make_profile())


def test_a_process_that_is_kept_from_the_gpu_takes_a_profile_of_its_cpu(
    tmp_path: pathlib.Path,
) -> None:
    """And TensorFlow is not made to look for GPUs."""
    run_python(
        f"""
    import tensorflow as tf
    from tensorflow.python.eager import context
    from tf_interop.runtime.switch import make_settings
    from tf_interop.tensorflow_internals import may_have_gpus
    assert may_have_gpus() == tf.test.is_built_with_cuda()
    assert context.context()._physical_devices is None
    tf.config.set_visible_devices([], "GPU")
    assert not may_have_gpus()
    make_settings("profiled", profile={_measured(this_cpu(), tmp_path)!r})
    """
    )
