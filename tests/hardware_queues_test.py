"""What this process asks of CUDA, and what it finds where that is too late."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess

import pytest
from profile_values import CPU, GPU
from unnoticed import run_python

from tf_interop import hardware_queues
from tf_interop.measure import device

_DRIVER = """
static int has_started = 0;
extern "C" int cuInit(unsigned) { has_started = 1; return 0; }
extern "C" int cuDeviceGetCount(int*) { return has_started ? 0 : 3; }
"""

_STARTS_CUDA = """
import ctypes, os
from tf_interop import hardware_queues
assert not hardware_queues.has_cuda_started()
driver = ctypes.CDLL(os.environ["DRIVER"])
assert not hardware_queues.has_cuda_started()
driver.cuInit(0)
assert hardware_queues.has_cuda_started()
assert "CUDA_DEVICE_MAX_CONNECTIONS=32" in hardware_queues.ask_for_all_hardware_queues()
assert hardware_queues.hardware_queues() == 8
"""


@pytest.fixture(autouse=True, name="environment")
def fixture_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    # Noted first, so that what a test has set is taken back.
    monkeypatch.setenv(hardware_queues.VARIABLE, "1")
    monkeypatch.delenv(hardware_queues.VARIABLE)
    return monkeypatch


@pytest.mark.parametrize(
    ("value", "count"), [("1", 1), ("16", 16), ("64", 32), ("0", 1), ("many", 8)]
)
def test_leaves_the_number_that_the_user_chose(
    environment: pytest.MonkeyPatch, value: str, count: int
) -> None:
    environment.setenv(hardware_queues.VARIABLE, value)
    assert not hardware_queues.ask_for_all_hardware_queues()
    assert os.environ[hardware_queues.VARIABLE] == value
    assert hardware_queues.hardware_queues() == count


def test_asks_for_all_before_cuda_starts() -> None:
    assert hardware_queues.hardware_queues() == 8
    assert not hardware_queues.ask_for_all_hardware_queues()
    assert hardware_queues.hardware_queues() == 32


def test_says_what_to_do_where_cuda_has_started(tmp_path: pathlib.Path) -> None:
    source, library = tmp_path / "driver.cc", tmp_path / "libcuda.so.1"
    source.write_text(_DRIVER)
    command = ["g++", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source]
    subprocess.run(command, check=True)
    run_python(_STARTS_CUDA, DRIVER=str(library))


def test_enabling_asks_for_all() -> None:
    run_python(
        "import os, tf_interop; tf_interop.enable();"
        f"assert os.environ['{hardware_queues.VARIABLE}'] == '32'"
    )


def test_a_profile_of_a_gpu_holds_the_number(environment: pytest.MonkeyPatch) -> None:
    environment.setenv(hardware_queues.VARIABLE, "16")
    described = dataclasses.replace(GPU, hardware_queues=None)
    assert device.identify_device(described).hardware_queues == 16
    assert device.identify_device(CPU).hardware_queues is None
