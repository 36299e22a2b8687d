"""What a Session's run feeds, and what is left to be run then.

A Session may be given the value of any tensor. Whatever only that tensor needs does not run:

    p: Placeholder --> a: Conv2D --> f (fed) --+
    q: Placeholder --> b: Conv2D --------------+--> fetched

Here `a` does not run, and `p` has no value. A stage of `a` and `b` would ask for `p`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tf_interop.graph.view import GraphView, parse_input


def is_function(view: GraphView) -> bool:
    """Whether a graph is that of a function, whose values all come with the call."""
    return not view.op_types.isdisjoint({"_Arg", "_Retval"})


def find_fed(
    view: GraphView, nodes_to_preserve: Iterable[str], fetches: Collection[str]
) -> frozenset[int]:
    """The nodes that the run of a Session for `fetches` may feed; none for the graph of a function.

    They are those of `nodes_to_preserve` that are not fetched.
    """
    if not fetches or is_function(view):
        return frozenset()
    fetched = {parse_input(text)[0] for text in fetches}
    fed = (view.index_of.get(name) for name in nodes_to_preserve if name not in fetched)
    return frozenset(index for index in fed if index is not None)


def find_run(view: GraphView, fed: Collection[int], fetches: Collection[str]) -> bytearray | None:
    """Which nodes run for certain: those that the fetches need if all of `fed` are fed.

    For each node 1 if it runs, else 0; None where that is not known: in a function, TensorFlow also
    runs what has side effects, and has removed the rest already.
    """
    if not fetches or is_function(view):
        return None
    runs = bytearray(len(view))
    pending = [
        index
        for index in (view.index_of.get(parse_input(text)[0]) for text in fetches)
        if index is not None
    ]
    while pending:
        index = pending.pop()
        if runs[index] or index in fed:
            continue
        runs[index] = 1
        pending += [source for source, _ in view.fanins[index]]
        pending += view.control_fanins[index]
    return runs
