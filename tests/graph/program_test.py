"""The ConvStage node: what is written reads back, and what is malformed is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from graph_builder import FLOAT, HALF, GraphBuilder
from tensorflow.core.framework import node_def_pb2, types_pb2

from tf_interop.errors import GraphError
from tf_interop.graph.program import (
    Schedule,
    StageNode,
    decode_stage,
    encode_stage,
    make_operation,
)
from tf_interop.stage import Lane, Stage, Step

Json = Any


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

    def lane(*steps: tuple[int, str | None], priority: int = 0, sm_count: int = 0) -> Json:
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


def _program(change: Callable[[Json], object]) -> Callable[[node_def_pb2.NodeDef], None]:
    def changed(node: node_def_pb2.NodeDef) -> None:
        program = json.loads(node.attr["program"].s)
        change(program)
        node.attr["program"].s = json.dumps(program).encode()

    return changed


def _lanes(schedule: int, change: Callable[[Json], object]) -> Callable[[Any], None]:
    return _program(lambda program: change(program["schedules"][schedule]["stage"]["lanes"]))


def _operation(
    place: int, change: Callable[[node_def_pb2.NodeDef], object]
) -> Callable[[node_def_pb2.NodeDef], None]:
    def changed(program: Json) -> None:
        serialized = base64.b64decode(program["operations"][place])
        operation = node_def_pb2.NodeDef.FromString(serialized)
        change(operation)
        program["operations"][place] = base64.b64encode(operation.SerializeToString()).decode()

    return _program(changed)


def _operand(place: int, position: int, operand: str) -> Callable[[Any], None]:
    return _operation(place, lambda operation: operation.input.__setitem__(position, operand))


def _set(key: str, value: Json) -> Callable[[node_def_pb2.NodeDef], None]:
    return _program(lambda program: program.__setitem__(key, value))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda node: setattr(node, "op", "Conv2D"), "Conv2D"),
        (lambda node: node.attr.pop("Tout"), "'Tout'"),
        (lambda node: node.attr["Tout"].list.type.append(FLOAT), "Tout"),
        (lambda node: node.attr["Tout"].list.type.__setitem__(0, HALF), "Tout"),
        (lambda node: node.attr["Tin"].list.type.append(FLOAT), "4 inputs and 1 sizes"),
        (lambda node: node.attr["Tin"].list.type.__setitem__(0, types_pb2.DT_INT32), "'inputs:0'"),
        (lambda node: node.input.pop(0), "tensors"),
        (lambda node: setattr(node.attr["num_sizes"], "i", -1), "-1 sizes"),
        (lambda node: setattr(node.attr["program"], "s", b"{"), "stage"),
        (
            lambda node: setattr(node.attr["program"], "s", b'{"more":' + b"[" * 100_000),
            "recursion",
        ),
        (_set("more", 1), "`more`"),
        (_set("version", 2), "version"),
        (_set("operations", ["%"]), "operations"),
        (_set("operations", [base64.b64encode(b"\xff").decode()]), "stage"),
        (_set("operations", []), "operations"),
        (_set("outputs", []), "outputs"),
        (_set("outputs", [2, 3]), "outputs"),
        (_set("outputs", [1, 1]), "outputs"),
        (_set("outputs", [-1, 1]), "outputs"),
        (_set("constant_inputs", [0]), "constant inputs"),
        (_set("constant_inputs", [2]), "constant inputs"),
        (_set("constant_inputs", [3]), "constant inputs"),
        (_set("constant_inputs", [1, 1]), "constant inputs"),
        (_set("schedules", []), "schedules"),
        (_operation(0, lambda operation: setattr(operation, "op", "Neg")), "Neg"),
        (_operation(0, lambda operation: setattr(operation, "name", "b")), "twice"),
        (_operation(0, lambda operation: operation.input.pop()), "'a'"),
        (_operation(0, lambda operation: operation.attr.pop("T")), "'a'"),
        (_operand(0, 0, "inputs:3"), "inputs:3"),
        (_operand(0, 0, "inputs:-1"), "inputs:-1"),
        (_operand(0, 0, "x"), "'x'"),
        (_operand(0, 0, "sizes:0"), "sizes:0"),
        (_operand(0, 0, "steps:3"), "steps:3"),
        (_operand(1, 0, "inputs:0"), "inputs:0"),
        (_operand(0, 0, "inputs:2"), "inputs:0.*unused"),
        (_lanes(0, lambda lanes: lanes.pop()), "one step"),
        (_lanes(1, lambda lanes: lanes.append(lanes[0])), "one step"),
        (_lanes(0, lambda lanes: lanes[0]["steps"].reverse()), "'b'.*steps:0"),
        (_lanes(0, lambda lanes: lanes[1]["steps"].append(lanes[0]["steps"].pop())), "'b'"),
        (_lanes(0, lambda lanes: lanes[0].update(sm_count=-1)), "sm_count"),
        (_lanes(0, lambda lanes: lanes[1].update(merged=True)), "merged"),
        (_program(lambda program: program["schedules"].reverse()), "batch sizes"),
        (_program(lambda program: program["schedules"][0].update(batch_size=0)), "batch_size"),
        (_program(lambda program: program["schedules"][0].update(batch_size=None)), "batch sizes"),
    ],
)
def test_rejects_malformed(change: Callable[[node_def_pb2.NodeDef], object], match: str) -> None:
    node = encode_stage(_stage())
    change(node)
    with pytest.raises(GraphError, match=match):
        decode_stage(node)
