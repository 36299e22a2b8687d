"""The check of a folded graph: what a node waits for."""

from __future__ import annotations

import pytest
from graph_builder import CPU, graph_of

from tf_interop.errors import GraphError
from tf_interop.graph.check_folds import check_folds
from tf_interop.graph.view import GraphView

OTHERS = "; result = Identity conv ^wait; returned = _Retval result"
BEFORE = "read = ReadVariableOp handle; conv = Conv2D image read; wait = NoOp ^read ^image" + OTHERS
OTHERS_AFTER = "; kept = TfInterop>Kept handle; conv = Conv2D image kept" + OTHERS


def graph(text: str) -> GraphView:
    builder = graph_of(text, CPU)
    for node in builder.graph_def.node:
        if node.op == "TfInterop>Kept":
            node.attr["N"].i = 1
    return GraphView(builder.graph_def)


def test_a_kept_node_may_be_waited_for_instead_of_a_read() -> None:
    check_folds(graph(BEFORE), graph("wait = NoOp ^kept ^image" + OTHERS_AFTER))


@pytest.mark.parametrize("waits", ["^image", "^kept", "^kept ^image ^conv"])
def test_other_waits_must_stay(waits: str) -> None:
    with pytest.raises(GraphError, match="Expected the control dependencies of 'wait' to stay"):
        check_folds(graph(BEFORE), graph(f"wait = NoOp {waits}" + OTHERS_AFTER))


def test_a_kept_node_of_another_variable_is_not_enough() -> None:
    second = "second = ReadVariableOp other; moved = Mul image second; also = _Retval moved; "
    after = second + "wait = NoOp ^kept ^image" + OTHERS_AFTER.replace("Kept handle", "Kept other")
    with pytest.raises(GraphError, match="Expected the control dependencies of 'wait' to stay"):
        check_folds(graph(second + BEFORE), graph(after))
