"""A profile of another device than the process runs on is refused by name, unless it is allowed."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys

import pytest
from planning_graphs import CONFIGURATION
from profile_values import CPU, GPU, make_profile, make_stage

import tf_interop
import tf_interop.keras
from tf_interop import tensorflow_internals
from tf_interop.errors import ProfileError
from tf_interop.measure.device import this_cpu
from tf_interop.profile.file import save_profile
from tf_interop.profile.types import ProfiledDevice
from tf_interop.runtime import switch
from tf_interop.runtime.settings import Settings
from tf_interop.runtime.switch import make_settings


@pytest.fixture(name="gpu", autouse=True)
def fixture_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has the GPU of the made-up profiles, and TensorFlow may use it."""
    monkeypatch.setattr(switch, "running_device", lambda _backend: GPU)
    monkeypatch.setattr(switch, "this_cpu", lambda: CPU)
    monkeypatch.setattr(tensorflow_internals, "may_have_gpus", lambda: True)


def test_takes_a_profile_of_the_gpu() -> None:
    profile = make_profile()
    assert make_settings("profiled", profile=profile).profile is profile


def test_names_every_field_in_which_a_gpu_differs() -> None:
    other = dataclasses.replace(GPU, name="NVIDIA A100", cudnn="9.3.0")
    with pytest.raises(ProfileError) as raised:
        make_settings("profiled", profile=make_profile(device=other))
    message = str(raised.value)
    assert "name: expected 'NVIDIA H200', got 'NVIDIA A100'" in message
    assert "cudnn: expected '9.10.2', got '9.3.0'" in message
    assert "sm_count" not in message
    assert "allow_foreign_profile=True (in a command --allow-foreign-profile)" in message


def test_refuses_a_profile_of_the_cpu_where_there_is_a_gpu() -> None:
    with pytest.raises(ProfileError, match="backend: expected 'cudnn', got 'host'"):
        make_settings("profiled", profile=make_profile(device=CPU))


@pytest.mark.parametrize(("has_gpu", "may_use_gpu"), [(False, True), (True, False)])
def test_where_no_gpu_is_used_a_profile_of_the_cpu_fits(
    monkeypatch: pytest.MonkeyPatch, has_gpu: bool, may_use_gpu: bool
) -> None:
    monkeypatch.setattr(switch, "running_device", lambda _backend: GPU if has_gpu else None)
    monkeypatch.setattr(tensorflow_internals, "may_have_gpus", lambda: may_use_gpu)
    assert make_settings("profiled", profile=make_profile(device=CPU)).profile is not None
    with pytest.raises(ProfileError, match="backend: expected 'host', got 'cudnn'"):
        make_settings("profiled", profile=make_profile())


@pytest.mark.parametrize("device", [CPU, dataclasses.replace(GPU, sm_count=1)])
def test_takes_any_profile_that_is_allowed(device: ProfiledDevice) -> None:
    profile = make_profile(device=device)
    settings = make_settings("profiled", profile=profile, allow_foreign_profile=True)
    assert settings.profile is profile
    assert settings.profile_for("CPU") is settings.profile_for("GPU") is profile


def test_a_profile_serves_graphs_of_its_own_device_type() -> None:
    on_gpu, on_cpu = make_profile(), make_profile(device=CPU)
    assert Settings(profile=on_gpu).profile_for("GPU") is on_gpu
    assert Settings(profile=on_gpu).profile_for("CPU") is None
    assert Settings(profile=on_cpu).profile_for("CPU") is on_cpu
    assert Settings(profile=on_cpu).profile_for("GPU") is None


def test_the_callback_refuses_and_allows_as_well() -> None:
    with pytest.raises(ProfileError, match="got 'host'"):
        tf_interop.keras.ConvStages(profile=make_profile(device=CPU))
    tf_interop.keras.ConvStages(profile=make_profile(device=CPU), allow_foreign_profile=True)


def test_enable_refuses_and_allows_as_well(plugin_as_after_import: None) -> None:
    with pytest.raises(ProfileError, match="got 'host'"):
        tf_interop.enable(profile=make_profile(device=CPU))
    tf_interop.enable(profile=make_profile(device=CPU), allow_foreign_profile=True)


# In a process of its own: the machine as it is.


def _run(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tf_interop", "run", *options, program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(name="program")
def fixture_program(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "program.py"
    path.write_text("import tensorflow as tf\nprint('ran')\n")
    return str(path)


def test_run_refuses_a_profile_of_another_device(tmp_path: pathlib.Path, program: str) -> None:
    profile = make_profile(
        make_stage((CONFIGURATION, None)), device=dataclasses.replace(GPU, name="GPU of a dream")
    )
    save_profile(profile, tmp_path / "profile.json")
    refused = _run(program, "--profile", str(tmp_path / "profile.json"))
    assert refused.returncode == 1
    assert "got 'GPU of a dream'" in refused.stderr
    assert "--allow-foreign-profile" in refused.stderr
    assert "ran" not in refused.stdout
    allowed = _run(program, "--profile", str(tmp_path / "profile.json"), "--allow-foreign-profile")
    assert (allowed.returncode, allowed.stdout) == (0, "ran\n")


def test_tensorflow_is_not_made_to_look_for_gpus() -> None:
    program = (
        "import tensorflow as tf\n"
        "from tensorflow.python.eager import context\n"
        "from tf_interop.tensorflow_internals import may_have_gpus\n"
        "assert may_have_gpus() == tf.test.is_built_with_cuda()\n"
        "assert context.context()._physical_devices is None\n"
        "tf.config.set_visible_devices([], 'GPU')\n"
        "assert not may_have_gpus()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_profile_of_this_cpu_fits_a_process_that_is_kept_from_the_gpu(
    tmp_path: pathlib.Path,
) -> None:
    save_profile(make_profile(device=this_cpu()), tmp_path / "profile.json")
    program = (
        "import tensorflow as tf\n"
        "tf.config.set_visible_devices([], 'GPU')\n"
        "from tf_interop.runtime.switch import make_settings\n"
        f"make_settings('profiled', profile={str(tmp_path / 'profile.json')!r})\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
