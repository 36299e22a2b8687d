"""The rules of the folders: imports go downward only, and the core knows nothing of TensorFlow."""

from __future__ import annotations

import ast
import graphlib
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLOORS = ("know", "decide", "use")


def imported_modules(path: pathlib.Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
            modules.update(f"{node.module}.{alias.name}" for alias in node.names)
    return modules


@pytest.mark.parametrize("floor", FLOORS)
def test_each_floor_imports_only_what_is_below(floor: str) -> None:
    above = FLOORS[FLOORS.index(floor) + 1 :]
    files = list((ROOT / "tf_interop" / floor).rglob("*.py"))
    assert len(files) > 10
    for path in files:
        upward = {
            module
            for module in imported_modules(path)
            if module.startswith(tuple(f"tf_interop.{each}" for each in above))
            or module == "tf_interop.keras"
        }
        assert not upward, f"{path} imports {upward}"


def folder_of(module: str) -> str:
    """The folder of a floor that holds a module, or the module where none does."""
    parts = module.split(".")
    return ".".join(parts[:3]) if len(parts) == 4 else module


def test_no_folders_import_one_another_in_a_circle() -> None:
    imports = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): imported_modules(path)
        for path in (ROOT / "tf_interop").rglob("*.py")
    }
    below: dict[str, set[str]] = {folder_of(module): set() for module in imports}
    for module, imported in imports.items():
        below[folder_of(module)] |= {folder_of(name) for name in imported & imports.keys()}
    assert len(below) > 20
    for folder in below:
        below[folder].discard(folder)
    # Raises CycleError, which names the circle.
    tuple(graphlib.TopologicalSorter(below).static_order())


def included_headers(path: pathlib.Path) -> set[str]:
    return set(re.findall(r'^#include ["<]([^">]+)[">]', path.read_text(), re.MULTILINE))


def test_the_core_knows_nothing_of_tensorflow() -> None:
    files = [*(ROOT / "cc_kernels" / "core").rglob("*.h")]
    files += (ROOT / "cc_kernels" / "core").rglob("*.cc")
    assert len(files) > 20
    for path in files:
        foreign = {
            header
            for header in included_headers(path)
            if header.startswith(
                ("tensorflow/", "xla/", "tsl/", "absl/", "cc_kernels/tf", "cc_kernels/plugin")
            )
        }
        assert not foreign, f"{path} includes {foreign}"


def test_private_interfaces_of_tensorflow_are_in_one_place() -> None:
    allowed = {"tensorflow_internals.py", "keras_internals.py"}
    for path in (ROOT / "tf_interop").rglob("*.py"):
        private = {
            module for module in imported_modules(path) if module.startswith("tensorflow.python")
        }
        assert not private or path.name in allowed, f"{path} imports {private}"


def test_programs_use_the_public_names_only() -> None:
    for path in (ROOT / "python").rglob("*.py"):
        if path.parent.name == "benchmarks":
            continue  # they measure the parts
        inner = {
            module for module in imported_modules(path) if module.startswith("tf_interop.")
        } - {"tf_interop.keras"}
        assert not inner, f"{path} imports {inner}"


def test_every_source_of_the_core_is_built() -> None:
    listed = (ROOT / "cc_kernels" / "CMakeLists.txt").read_text()
    for path in (ROOT / "cc_kernels").rglob("*.cc"):
        assert str(path.relative_to(ROOT / "cc_kernels")) in listed, path


# What a machine needs that measures without TensorFlow.
MEASURING_MODULES = (
    "know.algorithm",
    "know.installed.core_interface",
    "know.installed.core_library",
    "know.installed.measuring_backend",
    "know.profiles.nsight_compute",
    "know.installed.nvidia",
    "know.profiles.occupancy",
    "know.profiles.paper",
    "know.profiles.profile",
    "know.profiles.profile_check",
    "know.profiles.profile_file",
    "know.profiles.profile_journal",
    "know.profiles.profile_merge",
    "know.installed.profiled_device",
    "know.versioned_file",
    "use.doctor.doctor",
    "use.doctor.doctor_command",
    "use.profiling.profile_run",
    "use.profiling.profile_tables",
    "use.report.report_command",
    "use.report.report_page",
    "use.report.timeline_trace",
)


def test_what_measures_needs_no_tensorflow() -> None:
    program = (
        "import importlib, sys\n"
        "for module in ('tensorflow', 'keras', 'tf_keras', 'google.protobuf'):\n"
        "    sys.modules[module] = None\n"
        f"for module in {MEASURING_MODULES}:\n"
        "    importlib.import_module(f'tf_interop.{module}')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
