"""The ConvStage node: what is written reads back, and what is malformed is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from graph_builder import FLOAT, HALF, GraphBuilder
from tensorflow.core.framework import node_def_pb2, types_pb2

from tf_interop.errors import GraphError
from tf_interop.graph.stage_node import (
    CONV_STAGE_OP,
    StageNode,
    StageStep,
    StepSchedule,
    decode_stage,
    encode_stage,
    make_step_def,
)
from tf_interop.plan.types import LaneOptions


def _stage() -> StageNode:
    graph = GraphBuilder()
    for name in ("x", "f", "s", "g"):
        graph.source(name)
    graph.conv("a", "x", "f")
    graph.conv("b", "s", "f", "g", op="Conv2DBackpropInput")
    return StageNode(
        name="stage",
        inputs=("x", "f:1", "g"),
        sizes=("s",),
        control_inputs=("^y", "^z"),
        input_dtypes=(FLOAT, FLOAT, FLOAT),
        output_dtypes=(FLOAT, FLOAT),
        steps=(
            StageStep(make_step_def(graph.node("a"), ["inputs:0", "inputs:1"]), 0, "FFT"),
            StageStep(make_step_def(graph.node("b"), ["sizes:0", "inputs:1", "inputs:2"]), 1),
        ),
    )


def _encoded() -> node_def_pb2.NodeDef:
    node = node_def_pb2.NodeDef()
    encode_stage(_stage(), node)
    return node


def test_decodes_what_was_encoded() -> None:
    assert decode_stage(_encoded()) == _stage()


def test_encodes_as_the_op_reads_it() -> None:
    node = _encoded()
    assert node.op == "TfInterop>ConvStage"
    assert list(node.input) == ["x", "f:1", "g", "s", "^y", "^z"]
    assert list(node.attr["Tin"].list.type) == [FLOAT] * 3
    assert list(node.attr["Tout"].list.type) == [FLOAT] * 2
    assert node.attr["num_sizes"].i == 1
    assert list(node.attr["step_lanes"].list.i) == [0, 1]
    assert list(node.attr["algorithms"].list.s) == [b"FFT", b""]
    step = node_def_pb2.NodeDef.FromString(node.attr["steps"].list.s[1])
    assert (step.name, step.op, step.device) == ("b", "Conv2DBackpropInput", "")
    assert list(step.input) == ["sizes:0", "inputs:1", "inputs:2"]
    assert step.attr["padding"].s == b"SAME"


def test_says_which_filters_are_constant() -> None:
    stage = dataclasses.replace(_stage(), constant_inputs=(1,))
    node = node_def_pb2.NodeDef()
    encode_stage(stage, node)
    assert list(node.attr["constant_inputs"].list.i) == [1]
    assert decode_stage(node) == stage


def test_decodes_a_stage_without_the_attributes_that_have_a_default() -> None:
    node = _encoded()
    del node.attr["constant_inputs"]
    assert decode_stage(node) == _stage()
    assert "constant_inputs" not in node.attr


def test_decodes_schedules_that_were_encoded() -> None:
    options = (LaneOptions(-2, 64), LaneOptions())
    stage = dataclasses.replace(
        _stage(),
        batch_sizes=(8, 32),
        later_schedules=(StepSchedule((0, 0), ("", "GEMM")),),
        lane_options=options,
    )
    node = node_def_pb2.NodeDef()
    encode_stage(stage, node)
    assert list(node.attr["batch_sizes"].list.i) == [8, 32]
    assert list(node.attr["step_lanes"].list.i) == [0, 1, 0, 0]
    assert list(node.attr["algorithms"].list.s) == [b"FFT", b"", b"", b"GEMM"]
    # Two lanes of the first schedule, and the one of the second.
    assert list(node.attr["lane_priorities"].list.i) == [-2, 0, 0]
    assert decode_stage(node) == stage


def test_encodes_to_the_same_bytes() -> None:
    first, second = _encoded(), _encoded()
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(
        deterministic=True
    )


def test_decodes_lane_options_that_were_encoded() -> None:
    stage = dataclasses.replace(_stage(), lane_options=(LaneOptions(-2, 64), LaneOptions()))
    node = node_def_pb2.NodeDef()
    encode_stage(stage, node)
    assert list(node.attr["lane_priorities"].list.i) == [-2, 0]
    assert list(node.attr["lane_sm_counts"].list.i) == [64, 0]
    assert decode_stage(node) == stage


def test_decodes_merged_lanes_that_were_encoded() -> None:
    options = (LaneOptions(-2, 64), LaneOptions(merged=True))
    stage = dataclasses.replace(_stage(), lane_options=options)
    node = node_def_pb2.NodeDef()
    encode_stage(stage, node)
    assert list(node.attr["merged_lanes"].list.i) == [0, 1]
    assert decode_stage(node) == stage


def test_writes_no_merged_lanes_where_there_are_none() -> None:
    stage = dataclasses.replace(_stage(), lane_options=(LaneOptions(-2), LaneOptions()))
    node = node_def_pb2.NodeDef()
    encode_stage(stage, node)
    assert "merged_lanes" not in node.attr
    assert decode_stage(node) == stage
    assert "merged_lanes" not in node.attr


def test_writes_no_lane_options_where_there_are_none() -> None:
    node = _encoded()
    assert decode_stage(node).lane_options == ()
    assert not {"lane_priorities", "lane_sm_counts", "merged_lanes"} & set(node.attr)


def test_reads_lane_options_as_the_op_does() -> None:
    node = _encoded()
    node.attr["lane_priorities"].list.SetInParent()  # As TensorFlow adds the default.
    assert decode_stage(node).lane_options == ()
    node.attr["lane_sm_counts"].list.i.extend([0, 8])
    assert decode_stage(node).lane_options == (LaneOptions(), LaneOptions(sm_count=8))
    node.attr["merged_lanes"].list.i.extend([1, 0])
    assert decode_stage(node).lane_options == (LaneOptions(merged=True), LaneOptions(sm_count=8))


def test_rejects_lanes_that_come_back() -> None:
    stage = _stage()
    third = node_def_pb2.NodeDef()
    third.CopyFrom(stage.steps[0].node_def)
    third.name = "c"
    steps = (*stage.steps, StageStep(third, 0))
    node = node_def_pb2.NodeDef()
    encode_stage(dataclasses.replace(stage, steps=steps, output_dtypes=(FLOAT, FLOAT, FLOAT)), node)
    with pytest.raises(GraphError, match="step_lanes"):
        decode_stage(node)


def test_step_keeps_only_what_the_convolution_is() -> None:
    graph = GraphBuilder()
    graph.source("x")
    graph.source("f")
    graph.conv("a", "x", "f", "^x", _input_shapes="", _class=["loc:@x"])
    node = graph.node("a")
    node.experimental_debug_info.original_node_names.append("old")
    before = node.SerializeToString(deterministic=True)
    step = make_step_def(node, ["inputs:0", "inputs:1"])
    assert sorted(step.attr) == [
        "T",
        "data_format",
        "dilations",
        "explicit_paddings",
        "padding",
        "strides",
    ]
    assert list(step.input) == ["inputs:0", "inputs:1"]
    assert step.device == ""
    assert not step.HasField("experimental_debug_info")
    assert node.SerializeToString(deterministic=True) == before


def _change_step(
    node: node_def_pb2.NodeDef, position: int, change: Callable[[node_def_pb2.NodeDef], object]
) -> None:
    step = node_def_pb2.NodeDef.FromString(node.attr["steps"].list.s[position])
    change(step)
    node.attr["steps"].list.s[position] = step.SerializeToString()


def _set_operand(position: int, operand: str) -> Callable[[node_def_pb2.NodeDef], None]:
    def change(step: node_def_pb2.NodeDef) -> None:
        step.input[position] = operand

    return change


def _set_constants(node: node_def_pb2.NodeDef, positions: list[int]) -> None:
    node.attr["constant_inputs"].list.i[:] = positions


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda node: node.attr.pop("Tout"), "'Tout'"),
        (lambda node: node.attr["Tout"].list.type.append(FLOAT), "as many of steps"),
        (lambda node: node.attr["algorithms"].list.s.pop(), "for 2 steps in 1 schedules"),
        (lambda node: node.attr["step_lanes"].list.i.append(1), "for 2 steps in 1 schedules"),
        (lambda node: node.attr["batch_sizes"].list.i.extend([8, 9]), "for 2 steps in 2 schedules"),
        (lambda node: node.attr["batch_sizes"].list.i.extend([0]), "batch_sizes of at least 1"),
        (lambda node: node.attr["batch_sizes"].list.i.extend([9, 8]), "batch_sizes.*ascending"),
        (lambda node: node.attr["step_lanes"].list.i.reverse(), "step_lanes"),
        (lambda node: node.attr["step_lanes"].list.i.__setitem__(1, 2), "step_lanes"),
        (lambda node: node.attr["Tin"].list.type.append(FLOAT), "4 inputs and 1 sizes"),
        (lambda node: node.input.pop(0), "4 tensors|3 tensors"),
        (lambda node: setattr(node.attr["num_sizes"], "i", -1), "-1 sizes"),
        (lambda node: node.attr["steps"].list.s.__setitem__(0, b"\xff"), "serialized"),
        (lambda node: _change_step(node, 0, lambda step: setattr(step, "op", "Relu")), "Relu"),
        (lambda node: _change_step(node, 0, lambda step: setattr(step, "name", "b")), "twice"),
        (lambda node: _change_step(node, 0, lambda step: step.input.pop()), "2 operands"),
        (lambda node: _change_step(node, 0, _set_operand(0, "inputs:3")), "inputs:3"),
        (lambda node: _change_step(node, 0, _set_operand(0, "inputs:-1")), "inputs:-1"),
        (lambda node: _change_step(node, 0, _set_operand(0, "x")), "'x'"),
        (lambda node: _change_step(node, 0, _set_operand(0, "sizes:0")), "sizes:0"),
        (lambda node: _change_step(node, 1, _set_operand(0, "inputs:0")), "inputs:0"),
        (lambda node: _change_step(node, 0, _set_operand(0, "inputs:2")), "inputs:0.*unused"),
        (lambda node: node.attr["Tout"].list.type.__setitem__(0, HALF), "Tout"),
        (lambda node: node.attr["Tin"].list.type.__setitem__(0, types_pb2.DT_INT32), "Tin"),
        (lambda node: node.attr["lane_sm_counts"].list.i.append(8), "lane_sm_counts.*2 lanes"),
        (lambda node: node.attr["lane_priorities"].list.i.extend([0] * 3), "lane_priorities"),
        (lambda node: node.attr["lane_sm_counts"].list.i.extend([8, -1]), "at least 0"),
        (lambda node: _set_constants(node, [0]), "constant_inputs among"),
        (lambda node: _set_constants(node, [3]), "constant_inputs among"),
        (lambda node: _set_constants(node, [1, 1]), "constant_inputs among"),
        (lambda node: setattr(node, "op", "Conv2D"), CONV_STAGE_OP),
    ],
)
def test_rejects_malformed(change: Callable[[node_def_pb2.NodeDef], object], match: str) -> None:
    node = _encoded()
    change(node)
    with pytest.raises(GraphError, match=match) as error:
        decode_stage(node)
    assert "'stage'" in str(error.value)
