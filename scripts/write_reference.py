#!/usr/bin/env python3
"""Writes docs/api.md: the options of the commands, and the signatures of the Python names."""

from __future__ import annotations

import inspect
import pathlib
from collections.abc import Iterator
from typing import Any

import click

import tf_interop
from tf_interop.cli.main import cli

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "api.md"

_INTRODUCTION = """# Commands and Python names

The help of every command, and the signatures and docstrings of the package's names. The
[reference](reference.md) explains files and exit codes."""


def render() -> str:
    """The page."""
    with click.Context(cli, info_name="tf-interop", **cli.context_settings) as context:
        commands = [(name, cli.get_command(context, name)) for name in cli.list_commands(context)]
        helps = [
            (f"tf-interop {name}", found.get_help(click.Context(found, context, info_name=name)))
            for name, found in commands
            if found is not None
        ]
    names = [
        (f"tf_interop.{name}", getattr(tf_interop, name)) for name in sorted(tf_interop.__all__)
    ]
    names = [pair for pair in names if not inspect.ismodule(pair[1])]
    names.append(("tf_interop.keras.Enable", tf_interop.keras.Enable))
    return "\n".join(
        [
            _INTRODUCTION,
            "\n## Commands",
            *(_section(name, text) for name, text in helps),
            "\n## Python",
            *(_section(name, "\n".join(_describe(found))) for name, found in names),
            "",
        ]
    )


def _section(name: str, text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return f"\n### `{name}`\n\n```text\n{lines}\n```"


def _describe(found: Any) -> Iterator[str]:
    if not inspect.isclass(found):
        yield from _with_docstring(found, found.__name__)
        return
    yield from _with_docstring(found, f"class {found.__name__}")
    for name, member in vars(found).items():
        if isinstance(member, property):
            yield f"\n{name}: {_annotation(member.fget.__annotations__.get('return'))}"
            yield f"    {inspect.getdoc(member)}"
        elif name == "__init__" and member.__doc__:
            yield ""
            yield from _with_docstring(member, found.__name__)


def _with_docstring(found: Any, title: str) -> Iterator[str]:
    if inspect.isfunction(found):
        yield f"{title}{_signature(found)}"
    else:
        yield title
    yield ""
    yield from (f"    {line}".rstrip() for line in (inspect.getdoc(found) or "").splitlines())


def _signature(function: Any) -> str:
    """A line for each argument."""
    signature = inspect.signature(function)
    lines = []
    is_named_only = False
    for each in signature.parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.KEYWORD_ONLY and not is_named_only:
            is_named_only = True
            lines.append("    *,\n")
        default = "" if each.default is each.empty else f" = {each.default!r}"
        if callable(each.default) and default:
            default = " = …"
        lines.append(f"    {each.name}: {_annotation(each.annotation)}{default},\n")
    arguments = "".join(["(\n", *lines, ")"]) if lines else "()"
    result = signature.return_annotation
    return f"{arguments} -> {_annotation(result)}" if result not in ("None", None) else arguments


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "Any")


def main() -> None:
    """Writes the page."""
    PAGE.write_text(render())


if __name__ == "__main__":
    main()
