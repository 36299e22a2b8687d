"""What a rewrite does to the nodes that stay: how they read, and are placed with, those that go."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tf_interop.graph.view import GraphView

COLOCATION = "_class"
"""The attribute of a node that says what it is placed with."""

COLOCATED_WITH = b"loc:@"
"""What an entry of it starts with, if it names a node."""


def is_constant(
    view: GraphView, tensor: tuple[int, int], device: str, preserved: Collection[str]
) -> bool:
    """Whether every call finds the same value in the same memory of `device` at `tensor`.

    A Session may feed another value in the place of a node whose name must be preserved.
    """
    index, port = tensor
    return (
        view.ops[index] == "Const"
        and port == 0
        and view.nodes[index].device == device
        and view.names[index] not in preserved
    )


def redirect_inputs(texts: Sequence[str], redirected: Mapping[str, str]) -> list[str]:
    """Rewrites the inputs of a node; no stage comes up twice because of a control dependency."""
    rewritten: list[str] = []
    read: set[str] = set()
    for text in texts:
        target = redirected.get(text)
        if target is None:
            rewritten.append(text)
            continue
        name = target.removeprefix("^").partition(":")[0]
        if not target.startswith("^") or name not in read:
            rewritten.append(target)
        read.add(name)
    return rewritten


def redirect_classes(classes: Sequence[bytes], redirected: Mapping[str, str]) -> list[bytes]:
    """Rewrites the entries of `_class`; a stage comes up once, however many of its steps did."""
    targets = []
    for entry in classes:
        name = entry.removeprefix(COLOCATED_WITH).decode("utf-8", "replace")
        target = redirected.get(f"^{name}") if entry.startswith(COLOCATED_WITH) else None
        targets.append(entry if target is None else COLOCATED_WITH + target[1:].encode())
    return list(classes) if targets == list(classes) else list(dict.fromkeys(targets))
