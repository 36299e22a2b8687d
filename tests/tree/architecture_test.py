"""Imports go downward only, the core and the programs keep to their interfaces, and CMake and Bazel
build all sources with the same options.
"""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = (
    *("graph", "profile", "measure", "planning", "parallel", "runtime"),
    *("model", "tuning", "report", "benchmark", "cli"),
)
"""The folders of the package, from the bottom up."""


def imported_modules(path: pathlib.Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
            modules.update(f"{node.module}.{alias.name}" for alias in node.names)
    return modules


def folder_of(module: str) -> str:
    """The package's folder that contains a module, else the module."""
    parts = module.split(".")
    return parts[1] if len(parts) > 2 else module


def test_each_folder_imports_only_what_is_below() -> None:
    imports = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): imported_modules(path)
        for path in (ROOT / "tf_interop").rglob("*.py")
    }
    assert {folder_of(module) for module in imports} >= set(FOLDERS)
    for module, imported in imports.items():
        folder = folder_of(module)
        if folder not in FOLDERS:
            continue
        above = set(FOLDERS[FOLDERS.index(folder) + 1 :]) | {"tf_interop.keras"}
        upward = {name for name in imported & imports.keys() if folder_of(name) in above}
        assert not upward, f"{module} imports {upward}"


def test_only_the_command_line_uses_the_public_names() -> None:
    for path in (ROOT / "tf_interop").rglob("*.py"):
        imports = (
            each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.Import)
        )
        names = {alias.name for each in imports for alias in each.names}
        assert "tf_interop" not in names or path.parent.name == "cli", path


def test_the_pass_of_one_device_knows_only_the_door_of_layers_over_devices() -> None:
    for path in (ROOT / "tf_interop" / "runtime").rglob("*.py"):
        behind = {name for name in imported_modules(path) if name.startswith("tf_interop.parallel")}
        outside = {name for name in behind if not name.startswith("tf_interop.parallel.divide")}
        assert not outside, f"{path} imports {outside}"


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
                (
                    *("tensorflow/", "xla/", "tsl/", "absl/"),
                    *("cc_kernels/tf", "cc_kernels/plugin", "cc_kernels/xla"),
                )
            )
        }
        assert not foreign, f"{path} includes {foreign}"


# Every addition makes the next version of TensorFlow harder to support.
PRIVATE_MODULES = {
    *(
        "eager.context",
        "framework.config",
        "framework.kernels",
        "framework.op_def_registry",
    ),
    *("framework.load_library", "grappler.cluster", "grappler.tf_optimizer"),
    *("eager.execute", "eager.record", "framework.ops", "eager.polymorphic_function"),
    "eager.polymorphic_function.atomic_function",
    "eager.polymorphic_function.concrete_function",
    "eager.polymorphic_function.function_type_utils",
    "eager.polymorphic_function.polymorphic_function",
    "eager.polymorphic_function.tracing_compilation",
    *("framework.convert_to_constants", "ops.handle_data_util", "util._pywrap_util_port"),
    "util._pywrap_utils",
    *("ops.resource_variable_ops", "saved_model.save_context"),
}
PRIVATE_HEADERS = {
    "tensorflow/c/experimental/grappler/grappler.h",
    "tensorflow/core/grappler/grappler_item.h",
    "tensorflow/core/grappler/optimizers/custom_graph_optimizer_registry.h",
    "tensorflow/core/grappler/utils/functions.h",
}


def test_private_interfaces_of_tensorflow_are_in_one_place_and_few() -> None:
    found = set()
    for path in (ROOT / "tf_interop").rglob("*.py"):
        private = {
            each.removeprefix("tensorflow.python.")
            for each in imported_modules(path)
            if each.startswith("tensorflow.python.")
        }
        allowed = (
            "tensorflow_internals.py",
            "known_calls.py",
            "packed_calls.py",
            "kept_shares.py",
            "known_shapes.py",
        )
        assert not private or path.name in allowed, f"{path} imports {private}"
        # `from package import module` lists both.
        found |= {each for each in private if "." in each}
    assert found == PRIVATE_MODULES
    sources = [*(ROOT / "cc_kernels").rglob("*.cc"), *(ROOT / "cc_kernels").rglob("*.h")]
    included = set().union(*map(included_headers, sources))
    assert {each for each in included if "grappler" in each} == PRIVATE_HEADERS
    declaring = [path.name for path in sources if "\nnamespace tensorflow" in path.read_text()]
    # kernel_call.h spares its readers XLA's headers.
    assert sorted(declaring) == ["kernel_call.h", "own_memory.cc", "tensorflow_registry.cc"]


def test_programs_use_the_public_names_only() -> None:
    for path in (ROOT / "python").rglob("*.py"):
        if path.parent.name == "benchmarks":
            continue  # they measure internals
        inner = {
            module for module in imported_modules(path) if module.startswith("tf_interop.")
        } - {"tf_interop.keras"}
        assert not inner, f"{path} imports {inner}"


# Commands of the build files that look like names of tests.
RULES = {"add_test", "cc_test", "shell_test"}


def cmake_commands(folder: str) -> set[str]:
    """All words of a folder's CMakeLists.txt, without comments; `.cc` is part of a word."""
    text = re.sub(r"#.*", "", (ROOT / folder / "CMakeLists.txt").read_text())
    return set(re.findall(r"[\w/.]+", text))


def bazel_strings(folder: str) -> set[str]:
    """All strings in a folder's BUILD file, which can be parsed as Python."""
    tree = ast.parse((ROOT / folder / "BUILD").read_text())
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def sources(folder: str) -> set[str]:
    path = ROOT / folder
    return {str(file.relative_to(path)) for file in path.rglob("*.cc")}


def test_cmake_builds_every_source() -> None:
    """Bazel takes the files of its folders."""
    assert len(sources("cc_kernels")) > 40
    named = {word for word in cmake_commands("cc_kernels") if word.endswith(".cc")}
    assert named == sources("cc_kernels")


@pytest.mark.parametrize("read", [cmake_commands, bazel_strings])
def test_builds_every_test(read) -> None:
    named = read("tests/cc")
    # Tests are listed without `.cc`.
    built = {word for word in named if re.fullmatch(r"\w+\.cc", word)}
    built |= {f"{word}.cc" for word in named - RULES if re.fullmatch(r"\w+_test", word)}
    assert len(sources("tests/cc")) > 15
    assert built == sources("tests/cc")


def test_compiles_with_the_same_options() -> None:
    options = (ROOT / "bazel" / "cc_options.bzl").read_text()
    cmake = (ROOT / "CMakeLists.txt").read_text()
    words = re.findall(r"[-\w]+", cmake)
    for option in ("-Wall", "-Wextra", "-Werror", "-mavx2", "-mfma"):
        assert f'"{option}"' in options
        assert option in words
    standard = re.search(r"set\(CMAKE_CXX_STANDARD (\d+)\)", cmake)
    assert f'"-std=c++{standard[1]}"' in options
    assert "EIGEN_MAX_ALIGN_BYTES=64" in (ROOT / "cc_kernels" / "CMakeLists.txt").read_text()
    assert "EIGEN_MAX_ALIGN_BYTES=64" in (ROOT / "bazel" / "installed_packages.bzl").read_text()
