"""`tf-interop profile --backend cudnn` from a list to a profile, over stand-ins for CUDA and cuDNN.

The real cuDNN makes plans for a T4, for which it compiles little; a stand-in executes them on the
host. The C++ tests build the stand-ins; TF_INTEROP_STAND_INS names their folder.
"""

from __future__ import annotations

import os
import pathlib

import pytest
from command_line import run_process
from convolution_values import TINY

from tf_interop.profile.entries import FailureKind
from tf_interop.profile.file import load_profile
from tf_interop.profile.types import SmLimits
from tf_interop.profile.worklist import ConfigurationList, ListedConvolution, save_configurations

STAND_INS = pathlib.Path(os.environ.get("TF_INTEROP_STAND_INS", ""))
LIBRARIES = {
    "TF_INTEROP_LIBCUDA": str(STAND_INS / "libfake_cuda.so"),
    "TF_INTEROP_LIBCUDNN": str(STAND_INS / "libfake_cudnn.so"),
    "TF_INTEROP_FAKE_CUDNN_DEVICE": "t4",
}
pytestmark = pytest.mark.skipif(
    "TF_INTEROP_STAND_INS" not in os.environ,
    reason="TF_INTEROP_STAND_INS names no folder with stand-ins; scripts/test.sh builds them",
)


def test_measures_each_algorithm_once_under_whatever_name() -> None:
    save_configurations(ConfigurationList((ListedConvolution(TINY),)), "list.json")
    command = (
        "profile list.json -o profile.json --backend cudnn --repetitions 1 --warmup 0 "
        "--algorithms eng0,FFT,nchw+FFT,nchw+FFT_TILING,eng999"
    )
    for _ in range(2):
        ended = run_process(*command.split(), **LIBRARIES)
        assert ended.returncode == 0, ended.stderr
        profile = load_profile("profile.json")
        names = sorted((each.algorithm, each.tf32) for each in profile.algorithms)
        assert names == [("eng0", False), ("nchw+FFT", True), ("nchw+FFT_TILING", True)]
        assert all(each.relative_error < 1e-5 for each in profile.algorithms if not each.tf32)
        [failure] = profile.algorithm_failures
        assert (failure.algorithm, failure.kind) == ("eng999", FailureKind.UNSUPPORTED)
        assert "eng999" in failure.reason
    assert "profile.json: 0 measured now" in ended.stdout
    device = profile.device
    assert (device.backend, device.name, device.sm_count) == ("cudnn", "Invented GPU", 132)
    assert (device.compute_capability, device.memory_bytes) == ("9.1", 80 << 30)
    assert (device.cuda, device.cudnn.count(".")) == ("12.8", 2)
    assert device.sm_limits == SmLimits(65536, 233472, 2048, 32, 1024)
    # NVML knows of no GPU.
    assert (device.driver, device.clocks_mhz) == ("", {})
