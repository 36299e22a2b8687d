#!/usr/bin/env python3
"""Lists the interfaces of TensorFlow that tf_interop uses and TensorFlow does not promise to keep.

    tensorflow_interfaces.py          the list, a line each
    tensorflow_interfaces.py --look   with what the installed TensorFlow has under that name
    tensorflow_interfaces.py --compare THIS OTHER
                                      what differs between two such lists with looks, in files

They are read off the sources: what is imported from `tensorflow.python` and `tensorflow.core`,
attributes of other objects that begin with `_`, names in graphs that begin with `_`, the C++
headers that are no stable C API, and functions of TensorFlow's that our C++ declares itself.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import inspect
import mmap
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PRIVATE_PACKAGES = ("tensorflow.python", "tensorflow.core")
UNSTABLE_HEADER = re.compile(
    r'#include "((?:absl|Eigen|unsupported|tsl|xla|tensorflow/c/experimental'
    r'|tensorflow/(?!c/))/?[^"]+)"'
)
DECLARED_BY_US = re.compile(r"^namespace tensorflow::(\w+) \{\n(.*?)^\}", re.M | re.S)
GRAPH_NAME = re.compile(r"_[A-Za-z]\w{2,}")


def python_interfaces() -> set[str]:
    """What the package uses of private packages.

    Returns:
        Modules; `module:name` of what is read there; and `module:name().attribute` of what is read
        of what such a function returns without arguments. Modules of protobufs are named alone:
        their messages are part of TensorFlow's file formats.
    """
    found = set()
    for _, tree in _modules():
        found |= set(_imported(tree).values())
        # By function: the name of a module in one may be a variable's in another.
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            found |= _read_in(function)
    return found


def private_attributes() -> set[str]:
    """Attributes with a leading underscore of objects that are not the reading module's own."""
    listed = {interface.rpartition("().")[2] for interface in python_interfaces()}
    listed.add("_replace")  # of every NamedTuple, documented
    return {
        f"{path.name}:.{name}"
        for path, tree in _modules()
        for name in _private_attributes_in(tree) - _own_names(tree) - listed
    }


_TAKES_OTHER_NAMES = ("getattr", "hasattr", "TypeVar", "startswith")


def graph_names() -> set[str]:
    """Op types and node attributes whose names begin with an underscore: TensorFlow's own."""
    found = set()
    for _, tree in _modules():
        elsewhere = {
            id(argument)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).split(".")[-1] in _TAKES_OTHER_NAMES
            for argument in node.args
        }
        found |= {
            f"graph:{node.value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and GRAPH_NAME.fullmatch(node.value)
            and id(node) not in elsewhere
        }
    return found


def cc_headers() -> set[str]:
    """Headers that no release of TensorFlow promises to keep, and of what it brings along."""
    return {header for text in _cc_sources() for header in UNSTABLE_HEADER.findall(text)}


def cc_declarations() -> set[str]:
    """Functions of TensorFlow's without a header, which our C++ declares itself."""
    return {
        f"tensorflow::{namespace}::{name}"
        for text in _cc_sources()
        for namespace, declarations in DECLARED_BY_US.findall(text)
        for name in re.findall(r"^[\w:]+ (\w+)\(", declarations, re.M)
    }


def interfaces() -> list[str]:
    """All of them, in order."""
    return sorted(
        python_interfaces()
        | private_attributes()
        | graph_names()
        | cc_headers()
        | cc_declarations()
    )


def look(interface: str) -> str:
    """What the installed TensorFlow has under a name, so that a change of it shows."""
    if _is_header(interface):
        return _look_at_header(interface)
    if "::" in interface:
        return _look_for_symbol(interface)
    module, _, name = interface.partition(":")
    if module == "graph":
        return _look_at_op(name)
    if name.startswith("."):
        return "attribute of an object: see the tests"
    try:
        return _look_at_python(module, name)
    except (ImportError, AttributeError):
        return "MISSING"


def differences(this: str, other: str) -> list[str]:
    """What differs between two lists with looks; headers, which nearly all do, in one line."""
    looks, others = (
        dict(line.split("  ", 1) for line in each.splitlines()) for each in (this, other)
    )
    changed = [name for name in looks if looks[name] != others.get(name)]
    headers = [
        name
        for name in changed
        if _is_header(name) and "MISSING" not in (looks[name], others.get(name))
    ]
    lines = [
        f"{name}: {looks[name]} -> {others.get(name)}" for name in changed if name not in headers
    ]
    if headers:
        count = sum(map(_is_header, looks))
        lines.append(f"{len(headers)} of {count} headers have another content: {' '.join(headers)}")
    return lines


def _is_header(interface: str) -> bool:
    return interface.endswith(".h") or interface.startswith(("Eigen/", "unsupported/"))


def _modules() -> list[tuple[pathlib.Path, ast.Module]]:
    paths = sorted((ROOT / "tf_interop").rglob("*.py"))
    return [(path, ast.parse(path.read_text())) for path in paths]


def _cc_sources() -> list[str]:
    paths = sorted((ROOT / "cc_kernels").rglob("*"))
    return [path.read_text() for path in paths if path.suffix in (".cc", ".h")]


def _imported(tree: ast.AST) -> dict[str, str]:
    """The private modules that are imported somewhere in `tree`, by the names they have there."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PRIVATE_PACKAGES)
        for alias in node.names
    }


def _read_in(function: ast.FunctionDef) -> set[str]:
    """What a function reads of the private modules that it imports."""
    modules = {
        name: module for name, module in _imported(function).items() if not module.endswith("_pb2")
    }
    # Variables that stand for what was assigned to them.
    values = {
        target.id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute):
            base = values.get(getattr(node.value, "id", ""), node.value)
            # As `context.context()._physical_devices`.
            if isinstance(base, ast.Call) and not base.args and not base.keywords:
                base = base.func
            path = re.fullmatch(r"(\w+)(?:\.(\w+))?", ast.unparse(base))
            if path is not None and path[1] in modules:
                function_call = f"{path[2]}()." if path[2] else ""
                found.add(f"{modules[path[1]]}:{function_call}{node.attr}")
    return found


def _private_attributes_in(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name)
            and node.value.id in {"self", "cls", *sys.stdlib_module_names}
        ):
            found.add(node.attr)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            found |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    return {name for name in found if re.match(r"_(?!_)", str(name))}


def _own_names(tree: ast.AST) -> set[str]:
    """Names that the module's own classes give their parts."""
    names = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("self", "cls")
    }
    return names | {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def _look_at_header(header: str) -> str:
    import tensorflow as tf

    path = pathlib.Path(tf.sysconfig.get_include()) / header
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8] if path.is_file() else "MISSING"


def _look_for_symbol(function: str) -> str:
    import tensorflow as tf

    mangled = "".join(f"{len(part)}{part}" for part in function.split("::")).encode()
    for library in pathlib.Path(tf.sysconfig.get_lib()).glob("libtensorflow_*.so.*"):
        with library.open("rb") as file:
            if mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ).find(mangled) >= 0:
                return f"in {library.name}"
    return "MISSING"


def _look_at_op(name: str) -> str:
    from tensorflow.python.framework import op_def_registry

    op_def = op_def_registry.get(name)
    if op_def is None:
        return "attribute of nodes, or an op that no library registers: see the tests"
    return "op " + hashlib.sha256(op_def.SerializeToString(deterministic=True)).hexdigest()[:8]


def _look_at_python(module: str, name: str) -> str:
    value = importlib.import_module(module)
    function, _, attribute = name.partition("().")
    if function:
        value = getattr(value, function)
    if attribute:
        value = getattr(value(), attribute)
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
    parser.add_argument("--compare", nargs=2, type=pathlib.Path, help="two lists with looks")
    arguments = parser.parse_args()
    if arguments.compare:
        print("\n".join(differences(*(file.read_text() for file in arguments.compare))) or "none")
        return
    for interface in interfaces():
        print(f"{interface}  {look(interface)}" if arguments.look else interface)


if __name__ == "__main__":
    main()
