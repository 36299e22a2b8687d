"""The ConvStage node: what is written reads back; op/stage_program_test.py has what is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

from graph_builder import FLOAT, GraphBuilder
from tensorflow.core.framework import node_def_pb2

from tf_interop.graph.program import (
    Schedule,
    StageNode,
    decode_stage,
    encode_stage,
    make_operation,
)
from tf_interop.stage import Lane, Stage, Step


def _stage() -> StageNode:
    graph = GraphBuilder()
    for name in ("x", "f", "s", "g"):
        graph.source(name)
    graph.conv("a", "x", "f")
    graph.conv("b", "s", "f", "a", op="Conv2DBackpropInput")
    graph.add("r", "Relu", "g", T=FLOAT)
    in_sequence = Lane((Step(2), Step(0), Step(1, "GEMM")))
    return StageNode(
        name="stage",
        inputs=("x", "f:1", "g"),
        sizes=("s",),
        control_inputs=("^y", "^z"),
        input_dtypes=(FLOAT, FLOAT, FLOAT),
        operations=(
            make_operation(graph.node("a"), ["inputs:0", "inputs:1"]),
            make_operation(graph.node("b"), ["sizes:0", "inputs:1", "steps:0"]),
            make_operation(graph.node("r"), ["inputs:2"]),
        ),
        outputs=(2, 1),
        schedules=(
            Schedule(8, Stage((Lane((Step(0, "FFT"), Step(1)), -2, 64), Lane((Step(2),))))),
            Schedule(32, Stage((in_sequence,))),
        ),
        constant_inputs=(1,),
    )


def test_decodes_what_was_encoded() -> None:
    assert decode_stage(encode_stage(_stage())) == _stage()


def test_encodes_as_the_op_reads_it() -> None:
    node = encode_stage(_stage())
    assert node == encode_stage(_stage())
    assert node.op == "TfInterop>ConvStage"
    assert list(node.input) == ["x", "f:1", "g", "s", "^y", "^z"]
    assert list(node.attr["Tin"].list.type) == [FLOAT] * 3
    assert list(node.attr["Tout"].list.type) == [FLOAT] * 2
    assert node.attr["num_sizes"].i == 1
    assert sorted(node.attr) == ["Tin", "Tout", "num_sizes", "program"]
    program = json.loads(node.attr["program"].s)
    operation = node_def_pb2.NodeDef.FromString(base64.b64decode(program.pop("operations")[1]))
    assert (operation.name, operation.op) == ("b", "Conv2DBackpropInput")
    assert list(operation.input) == ["sizes:0", "inputs:1", "steps:0"]
    assert operation.attr["padding"].s == b"SAME"

    def lane(*steps: tuple[int, str | None], priority: int = 0, sm_count: int = 0) -> Any:
        listed = [{"operation": place, "algorithm": algorithm} for place, algorithm in steps]
        options = {"priority": priority, "sm_count": sm_count, "merged": False}
        return {"steps": listed, **options}

    first = [lane((0, "FFT"), (1, None), priority=-2, sm_count=64), lane((2, None))]
    assert program == {
        "version": 1,
        "outputs": [2, 1],
        "constant_inputs": [1],
        "schedules": [
            {"batch_size": 8, "stage": {"lanes": first}},
            {"batch_size": 32, "stage": {"lanes": [lane((2, None), (0, None), (1, "GEMM"))]}},
        ],
    }


def test_an_operation_is_what_the_kernel_is_made_of() -> None:
    graph = GraphBuilder()
    graph.source("x")
    graph.conv("a", "x", "x", "^x", _input_shapes="", _class=["loc:@x"])
    node = graph.node("a")
    node.experimental_debug_info.original_node_names.append("old")
    before = node.SerializeToString(deterministic=True)
    operation = make_operation(node, ["inputs:0", "inputs:1"])
    expected = GraphBuilder(device="")
    expected.conv("a", "inputs:0", "inputs:1")
    assert operation == expected.node("a")
    assert node.SerializeToString(deterministic=True) == before
