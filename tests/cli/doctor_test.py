"""`tf-interop doctor`: its findings, checks that crash, and exit codes."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import pathlib
import types

import profile_values
import pytest
from command_line import invoke, run_process

import tf_interop
from tf_interop.cli import doctor, doctor_checks
from tf_interop.cli.doctor_checks import Finding, Level, ok, problem, warning
from tf_interop.errors import LibraryError
from tf_interop.profile.types import ProfiledDevice
from tf_interop.runtime import plugin

CHECKS = """
import os, signal, sys, time
from tf_interop.cli.doctor_checks import ok

def raises():
    yield ok("fine", "first")
    raise OSError("no such thing")

def last():
    print("the last words", file=sys.stderr, flush=True)
    {last}

CHECKS = {{"group": {{
    "raises": raises,
    "last": last,
    "never": lambda: ok("reached"),
}}}}
"""


def _check(name: str, group: str = "machine") -> list[Finding]:
    return list(doctor_checks.run_check(name, doctor_checks.CHECKS[group][name]))


@pytest.mark.parametrize(
    ("last", "timeout_seconds", "expected"),
    [
        ("raise KeyError", 100, ["KeyError"]),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 100, ["SIGSEGV", "the last words"]),
        ("time.sleep(60)", 8, ["within 8 seconds"]),
    ],
)
def test_a_check_that_raises_ends_the_process_or_hangs_is_a_finding(
    last: str,
    timeout_seconds: float,
    expected: list[str],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "made_up_checks.py").write_text(CHECKS.format(last=last))
    first, raised, ended, *others = doctor.run_group("group", "made_up_checks", timeout_seconds)
    assert first == Finding("first", Level.OK, "fine")
    assert (raised.name, raised.level) == ("raises", Level.PROBLEM)
    assert "OSError: no such thing" in raised.text and raised.fix
    assert (ended.name, ended.level) == ("last", Level.PROBLEM)
    assert all(words in ended.text for words in expected)
    assert [each.name for each in others] == ["never"] * (last == "raise KeyError")


@pytest.mark.parametrize("has_host_stages", ["0", "1"])
def test_this_machine_is_healthy_and_its_graphs_are_rewritten(
    has_host_stages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_INTEROP_HOST_STAGES", has_host_stages)
    found = json.loads(invoke("doctor --json").stdout)
    levels = {each["name"]: each["level"] for each in found["findings"]}
    assert found["healthy"]
    for name in ("two convolutions", "plugin for CPU", "compiled library"):
        assert levels[name] == "ok"
    assert not {each["level"] for each in found["findings"]} - {"ok", "warning"}
    assert all(each["fix"] for each in found["findings"] if each["level"] != "ok")


def test_works_without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = ("tensorflow", "keras", "google")
    ended = run_process("doctor", "--json", blocked=blocked)
    levels = {each["name"]: each["level"] for each in json.loads(ended.stdout)["findings"]}
    assert ended.returncode == 1
    assert (levels["Python"], levels["measuring library"], levels["cuDNN"]) == ("ok",) * 3
    assert levels["TensorFlow imports"] == "problem"
    monkeypatch.setattr(importlib.metadata, "packages_distributions", dict)
    [finding] = _check("TensorFlow")
    assert finding.level is Level.PROBLEM and "not installed" in finding.text


def test_the_exit_code_is_1_for_a_problem_and_not_for_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for last, code in ((warning, 0), (problem, 1)):
        finding = last("not fine", "fix it", "last")
        monkeypatch.setattr(doctor, "run_group", lambda group, it=finding: [ok("fine", group), it])
        assert "→ fix it" in invoke("doctor", exit_code=code).stdout


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("TF_XLA_FLAGS", "--tf_xla_auto_jit=2", Level.WARNING),
        ("TF_XLA_FLAGS", "--tf_xla_auto_jit=0", Level.OK),
        ("TF_ENABLE_ONEDNN_OPTS", "0", Level.WARNING),
        ("TF_ENABLE_ONEDNN_OPTS", "1", Level.OK),
        ("NVIDIA_TF32_OVERRIDE", "0", Level.WARNING),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "32", Level.OK),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "8", Level.WARNING),
    ],
)
def test_warns_of_troublesome_settings(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, level: Level
) -> None:
    monkeypatch.setenv(name, value)
    [finding] = [each for each in _check("settings") if each.name == name]
    assert finding.level is level
    assert bool(finding.fix) == (level is not Level.OK)


GPU = dataclasses.replace(
    profile_values.GPU, name="NVIDIA H100", driver="570.86", memory_bytes=80 << 30
)


def _set_gpus(
    monkeypatch: pytest.MonkeyPatch, *gpus: ProfiledDevice, free: int | None = 1 << 36
) -> None:
    monkeypatch.setattr(doctor_checks, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(doctor_checks, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(doctor_checks, "free_memory_bytes", lambda: free)


def test_describes_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_gpus(monkeypatch, GPU)
    driver, gpu, memory = _check("NVIDIA driver")
    assert driver.text == "570.86, for CUDA up to 12.8"
    assert gpu.text == "NVIDIA H100, compute capability 9.0, 132 SMs, 85.9 GB"
    assert memory == Finding("free memory", Level.OK, "68.7 GB on GPU 0")
    for free in (None, 1 << 20):
        _set_gpus(monkeypatch, GPU, free=free)
        assert _check("NVIDIA driver")[-1].level is Level.WARNING
    _set_gpus(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    [finding] = _check("NVIDIA driver")
    assert finding.level is Level.PROBLEM and "CUDA_VISIBLE_DEVICES='-1'" in finding.text


@pytest.mark.parametrize(("vendor", "level"), [("0x8086", "ok"), ("0x10de", "warning")])
def test_no_driver_is_a_warning_if_there_is_a_gpu(
    vendor: str, level: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "vendor").write_text(f"{vendor}\n")
    monkeypatch.setattr(doctor_checks, "_PCI_DEVICES", tmp_path)
    monkeypatch.setattr(doctor_checks, "has_nvidia_gpu", lambda: False)
    [finding] = _check("NVIDIA driver")
    assert finding.level.value == level


@pytest.mark.parametrize(("has_gpu", "level"), [(True, Level.PROBLEM), (False, Level.OK)])
def test_a_gpu_needs_cudnn(has_gpu: bool, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    core = types.SimpleNamespace(cudnn_version=str)
    monkeypatch.setattr(doctor_checks, "load_core_library", lambda: core)
    monkeypatch.setattr(doctor_checks, "has_nvidia_gpu", lambda: has_gpu)
    [finding] = _check("cuDNN")
    assert finding.level is level


@pytest.mark.parametrize(("gpus", "level"), [((GPU,), Level.PROBLEM), ((), Level.OK)])
def test_another_plugin_is_a_problem_if_there_is_such_a_device(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[ProfiledDevice, ...], level: Level
) -> None:
    refused = {"GPU": "Another graph-optimizer plugin is registered."}
    found = types.SimpleNamespace(device_types=("CPU",), refused_device_types=refused)
    monkeypatch.setattr(plugin, "get_plugin", lambda: found)
    monkeypatch.setattr(doctor_checks, "visible_gpus", lambda: gpus)
    for_cpu, for_gpu = _check("plugin", "TensorFlow")
    assert (for_cpu.name, for_cpu.level) == ("plugin for CPU", Level.OK)
    assert (for_gpu.name, for_gpu.level) == ("plugin for GPU", level)


def test_libraries_that_do_not_fit_say_how_to_build_them_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    def fail(**_: object) -> None:
        raise LibraryError("Uninstall that plugin.")

    monkeypatch.setattr(doctor_checks, "load_core_library", fail)
    [finding] = _check("measuring library")
    assert finding.level is Level.PROBLEM and "scripts/setup.sh" in finding.fix
    monkeypatch.setattr(tf_interop, "enable", fail)
    [finding] = _check("two convolutions", "TensorFlow")
    assert finding.level is Level.PROBLEM and "Uninstall that plugin" in finding.text
    assert "pip install" not in finding.fix

    library = tmp_path / "libtf_interop.so"
    library.touch()
    monkeypatch.setenv("TF_INTEROP_LIBRARY", str(library))
    info = {"tensorflow": "1.0.0", "cudnn_backend": True}
    (tmp_path / "build_info.json").write_text(json.dumps(info))
    [finding] = _check("compiled library", "TensorFlow")
    assert finding.level is Level.PROBLEM
    assert "1.0.0" in finding.text and "pip install" in finding.fix
    library.unlink()
    [finding] = _check("compiled library", "TensorFlow")
    assert finding.level is Level.PROBLEM and str(library) in finding.text
