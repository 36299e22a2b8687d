"""CMake and Bazel build all sources, with the same options."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

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


@pytest.mark.parametrize("read", [cmake_commands, bazel_strings])
def test_builds_every_source(read) -> None:
    assert len(sources("cc_kernels")) > 40
    named = {word for word in read("cc_kernels") if word.endswith(".cc")}
    assert named == sources("cc_kernels")
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
