#!/usr/bin/env python3
"""Lists the interfaces of TensorFlow that tf_interop uses and TensorFlow does not promise to keep.

    tensorflow_interfaces.py          the list, a line each
    tensorflow_interfaces.py --look   with what the installed TensorFlow has under that name

They are read off the sources: what is imported from `tensorflow.python` and
`tensorflow.core`, attributes of TensorFlow's and Keras' objects that begin with `_`, and the C++
headers that are no C API.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import inspect
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
PRIVATE_PACKAGES = ("tensorflow.python", "tensorflow.core")
INTERNALS = ("tensorflow_internals.py", "keras_internals.py")


def python_interfaces() -> set[str]:
    """What the package uses of private packages: modules, and `module:name` of what it reads there.

    Modules of protobufs are named alone: their messages are part of TensorFlow's file formats.
    """
    found = set()
    for path in (ROOT / "tf_interop").rglob("*.py"):
        tree = ast.parse(path.read_text())
        found |= set(_imported(tree).values())
        # By function: the name of a module in one may be a variable's in another.
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            modules = _imported(function)
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    module = modules.get(node.value.id, "_pb2")
                    if not module.endswith("_pb2"):
                        found.add(f"{module}:{node.attr}")
    return found


def _imported(tree: ast.AST) -> dict[str, str]:
    """The private modules that are imported somewhere in `tree`, by the names they have there."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PRIVATE_PACKAGES)
        for alias in node.names
    }


def private_attributes() -> set[str]:
    """Attributes with a leading underscore that the modules of internals read."""
    found = set()
    for name in INTERNALS:
        tree = ast.parse((ROOT / "tf_interop" / "know" / "installed" / name).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                found.add(f"{name}:.{node.attr}")
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
                attribute = node.args[1]
                if isinstance(attribute, ast.Constant) and str(attribute.value).startswith("_"):
                    found.add(f"{name}:.{attribute.value}")
    return found


def cc_headers() -> set[str]:
    """Headers of TensorFlow's C++ API, which no release promises to keep."""
    found = set()
    for path in (ROOT / "cc_kernels").rglob("*"):
        if path.suffix in (".cc", ".h"):
            found |= set(
                re.findall(r'#include "((?:tensorflow|tsl|xla)/(?!c/)[^"]+)"', path.read_text())
            )
    return found


def interfaces() -> list[str]:
    """All of them, in order."""
    return sorted(python_interfaces() | private_attributes() | cc_headers())


def look(interface: str) -> str:
    """What the installed TensorFlow has under a name, so that a change of it shows."""
    if interface.endswith(".h"):
        import tensorflow as tf

        header = pathlib.Path(tf.sysconfig.get_include()) / interface
        return (
            hashlib.sha256(header.read_bytes()).hexdigest()[:8] if header.is_file() else "MISSING"
        )
    module, _, name = interface.partition(":")
    if name.startswith("."):
        return "attribute of an object: see the tests"
    try:
        value = importlib.import_module(module)
        value = getattr(value, name) if name else value
    except (ImportError, AttributeError):
        return "MISSING"
    if inspect.ismodule(value):
        return "module"
    try:
        return f"{type(value).__name__} {inspect.signature(value)}"
    except (TypeError, ValueError):
        return type(value).__name__


def main() -> None:
    """Prints the list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--look", action="store_true", help="look each of them up")
    is_looking = parser.parse_args().look
    for interface in interfaces():
        print(f"{interface}  {look(interface)}" if is_looking else interface)


if __name__ == "__main__":
    main()
