"""What `check_folds` accepts of control dependencies and of missing nodes."""

from __future__ import annotations

import pytest
from graph_builder import CPU, graph_of

from tf_interop.errors import GraphError
from tf_interop.graph.check_fusions import check_folds
from tf_interop.graph.program import KEPT_OP
from tf_interop.graph.view import GraphView


@pytest.mark.parametrize(
    ("handle", "waits", "is_right"),
    [
        ("handle", "^kept", True),
        ("handle", "^kept ^other", True),
        ("handle", "^other", False),
        ("handle", "^kept ^other ^image", False),
        ("other_handle", "^kept ^other", False),
    ],
    ids=["for_kept", "for_both", "lost", "new", "of_another_variable"],
)
def test_waits_for_a_read_or_for_what_reads_the_variable(
    handle: str, waits: str, is_right: bool
) -> None:
    reads = {"read": "ReadVariableOp handle", "other": "ReadVariableOp other_handle"}
    before = graph_of(
        reads
        | {"conv": "Conv2D image read ^read" + " ^other" * ("other" in waits), "end": "Relu other"},
        CPU,
    )
    after = graph_of(
        {
            "handle": "_Arg",
            "kept": f"{KEPT_OP} {handle}",
            "other": reads["other"],
            "conv": f"Conv2D image kept {waits}",
            "end": "Relu other",
        },
        CPU,
    )
    after.node("kept").attr["N"].i = 1
    views = GraphView(before.graph_def), GraphView(after.graph_def)
    if is_right:
        check_folds(*views)
    else:
        with pytest.raises(GraphError, match="control dependencies of 'conv'"):
            check_folds(*views)


@pytest.mark.parametrize(("preserved", "is_right"), [((), True), (("gone",), False)])
def test_what_is_fed_or_fetched_stays(preserved: tuple[str, ...], is_right: bool) -> None:
    before = GraphView(graph_of("gone = Mul x y; end = Relu gone", CPU).graph_def, preserved)
    after = GraphView(graph_of({"x": "_Arg", "y": "_Arg", "end": "Relu x"}, CPU).graph_def)
    if is_right:
        check_folds(before, after)
    else:
        with pytest.raises(GraphError, match=r"'gone'.* missing"):
            check_folds(before, after)
