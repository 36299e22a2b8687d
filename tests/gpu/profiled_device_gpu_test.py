"""NVML and CUDA describe the same GPU: a profile measured here fits a process that runs here."""

from __future__ import annotations

from tf_interop.measure.core import load_core_library
from tf_interop.measure.device import identify_device, running_device, visible_gpus
from tf_interop.profile.types import why_foreign


def test_nvml_describes_the_gpu_that_the_core_measures_on() -> None:
    description = load_core_library().open_backend("cudnn").describe()
    gpu = visible_gpus()[0]
    assert gpu.name == description.name
    assert gpu.compute_capability == description.compute_capability
    assert gpu.sm_count == description.sm_count
    assert gpu.driver
    assert gpu.clocks_mhz.keys() == {"sm", "memory"}


def test_what_is_measured_here_fits_here() -> None:
    device = identify_device(load_core_library().open_backend("cudnn").describe())
    here = running_device("cudnn")
    assert here is not None
    assert why_foreign(device, here) is None
