"""Stages in place of convolutions: the new graph, what stays as it was, and what is refused."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Sequence

import pytest
from graph_builder import CPU, FLOAT, GraphBuilder, node_of, set_attributes
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.graph.check import check_rewrite
from tf_interop.graph.control_flow import ControlFlow
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.independence import Independence
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.rewrite import rewrite_stages
from tf_interop.graph.stage_node import CONV_STAGE_OP, StepSchedule, decode_stage
from tf_interop.graph.view import GraphView
from tf_interop.plan.types import BatchSchedule, LaneOptions, PinnedConvolution, PlannedStage


def _stage(*lanes: str) -> PlannedStage:
    """A stage whose lanes are given as the names they hold, separated by spaces."""
    return PlannedStage(
        tuple(tuple(PinnedConvolution(name) for name in lane.split()) for lane in lanes)
    )


def _rewrite(
    graph: GraphBuilder, *stages: PlannedStage, preserve: Collection[str] = ()
) -> graph_pb2.GraphDef:
    """Rewrites a graph; the judge looks at it, and nothing may have changed in the old one."""
    before = graph.graph_def.SerializeToString(deterministic=True)
    view = GraphView(graph.graph_def)
    convolutions, _ = find_convolutions(view, GraphProperties(view))
    rewritten = rewrite_stages(view, stages, convolutions, preserve)
    assert graph.graph_def.SerializeToString(deterministic=True) == before
    check_rewrite(view, GraphView(rewritten), preserve)
    return rewritten


def _names(graph_def: graph_pb2.GraphDef) -> list[str]:
    return [node.name for node in graph_def.node]


def _inputs(graph_def: graph_pb2.GraphDef, name: str) -> list[str]:
    return list(node_of(graph_def, name).input)


def _operands(graph_def: graph_pb2.GraphDef, stage: str = "tf_interop/stage_0") -> list[list[str]]:
    return [list(step.node_def.input) for step in decode_stage(node_of(graph_def, stage)).steps]


def _sources() -> GraphBuilder:
    graph = GraphBuilder()
    for name in ("x", "f", "g", "c"):
        graph.source(name)
    return graph


def test_groups_two_convolutions() -> None:
    graph = _sources()
    graph.conv("a", "x", "f", "^c")
    graph.conv("b", "x:0", "g")
    graph.add("after_a", "Relu", "a")
    graph.add("after_b", "Add", "b:0", "x", "^a", "^b")
    rewritten = _rewrite(graph, _stage("a", "b"))
    assert _names(rewritten) == ["x", "f", "g", "c", "tf_interop/stage_0", "after_a", "after_b"]
    stage = node_of(rewritten, "tf_interop/stage_0")
    assert stage.op == CONV_STAGE_OP
    assert stage.device == graph.node("a").device
    assert list(stage.input) == ["x", "f", "g", "^c"]
    assert list(stage.experimental_debug_info.original_node_names) == ["a", "b"]
    assert _operands(rewritten) == [["inputs:0", "inputs:1"], ["inputs:0", "inputs:2"]]
    assert _inputs(rewritten, "after_a") == ["tf_interop/stage_0"]
    assert _inputs(rewritten, "after_b") == ["tf_interop/stage_0:1", "x"]


def test_numbers_the_lanes_of_each_schedule_as_the_steps_come() -> None:
    graph = _sources()
    for name in ("a", "b", "d"):
        graph.conv(name, "x", "f")
    options = (LaneOptions(priority=-1), LaneOptions(sm_count=8))
    stage = dataclasses.replace(
        _stage("b", "a", "d"),
        schedules=(
            BatchSchedule(8, _stage("d a", "b").lanes, options),
            BatchSchedule(32, ((PinnedConvolution("d", "FFT"), *_stage("a b").lanes[0]),)),
        ),
    )
    node = node_of(_rewrite(graph, stage), "tf_interop/stage_0")
    decoded = decode_stage(node)
    assert [step.node_def.name for step in decoded.steps] == ["b", "a", "d"]
    assert decoded.batch_sizes == (8, 32)
    # b comes first, so its lane is lane 0.
    assert decoded.schedules == (
        StepSchedule((0, 1, 1), ("", "", ""), (options[1], options[0])),
        StepSchedule((0, 0, 0), ("", "", "FFT")),
    )
    assert node == node_of(_rewrite(graph, stage), "tf_interop/stage_0")


def test_groups_lanes_and_pins_algorithms() -> None:
    graph = _sources()
    for name in ("a", "b", "d"):
        graph.conv(name, "x", "f")
    pinned = PlannedStage(
        (
            (PinnedConvolution("d", "WINOGRAD"), PinnedConvolution("a")),
            (PinnedConvolution("b", "FFT"),),
        )
    )
    stage = decode_stage(node_of(_rewrite(graph, pinned), "tf_interop/stage_0"))
    assert [(step.node_def.name, step.lane, step.algorithm) for step in stage.steps] == [
        ("d", 0, "WINOGRAD"),
        ("a", 0, ""),
        ("b", 1, "FFT"),
    ]


def test_groups_with_options_of_lanes_in_the_same_bytes_each_time() -> None:
    graph = _sources()
    for name in ("a", "b"):
        graph.conv(name, "x", "f")
    options = (LaneOptions(-1, 64), LaneOptions())
    planned = dataclasses.replace(_stage("a", "b"), lane_options=options)
    rewritten = _rewrite(graph, planned)
    assert decode_stage(node_of(rewritten, "tf_interop/stage_0")).lane_options == options
    assert rewritten.SerializeToString(deterministic=True) == _rewrite(
        graph, planned
    ).SerializeToString(deterministic=True)
    view = GraphView(rewritten)
    assert find_convolutions(view, GraphProperties(view)) == ((), ())


def test_refuses_options_of_some_lanes() -> None:
    graph = _sources()
    for name in ("a", "b"):
        graph.conv(name, "x", "f")
    stage = dataclasses.replace(_stage("a", "b"), lane_options=(LaneOptions(),))
    _expect_refusal(graph, stage, match="all of 2 lanes, got 1 in stage 0")


def _constants(graph_def: graph_pb2.GraphDef) -> list[str]:
    """The inputs of the stage that it takes as constant."""
    stage = decode_stage(node_of(graph_def, "tf_interop/stage_0"))
    return [stage.inputs[position] for position in stage.constant_inputs]


def test_marks_filters_that_are_constants() -> None:
    graph = _sources()
    for name in ("k", "l", "m"):
        graph.add(name, "Const")
    graph.sizes("s", [1, 8, 8, 4])
    graph.conv("a", "x", "l")
    graph.fused_conv("b", "x", "k:0", "c")
    graph.conv("d", "s", "m", "g", op="Conv2DBackpropInput")
    graph.conv("e", "x", "l", op="DepthwiseConv2dNative")
    graph.conv("h", "x", "f")
    rewritten = _rewrite(graph, _stage("a", "b", "d", "e", "h"))
    assert _constants(rewritten) == ["l", "k:0", "m"]


def test_keeps_unmarked_what_is_no_filter() -> None:
    graph = _sources()
    for name in ("image", "bias", "gradient"):
        graph.add(name, "Const")
    graph.sizes("s", [3, 3, 4, 4])
    graph.fused_conv("a", "image", "f", "bias")
    graph.conv("b", "s", "g", "gradient", op="Conv2DBackpropInput")
    graph.conv("d", "image", "s", "gradient", op="Conv2DBackpropFilter")
    assert _constants(_rewrite(graph, _stage("a", "b", "d"))) == []


def test_keeps_unmarked_what_may_change() -> None:
    graph = _sources()
    graph.add("fed", "Const")
    graph.add("elsewhere", "Const", device=CPU)
    graph.add("k", "Const")
    graph.add("same", "Identity", "k")
    filters = ("fed", "elsewhere", "same", "f")
    for filter_ in filters:
        graph.conv(f"of_{filter_}", "x", filter_)
    stage = _stage(*(f"of_{filter_}" for filter_ in filters))
    assert _constants(_rewrite(graph, stage, preserve=["fed"])) == []


def test_groups_gradients_with_sizes() -> None:
    graph = _sources()
    graph.sizes("image_sizes", [1, 8, 8, 4])
    graph.sizes("filter_sizes", [3, 3, 4, 4])
    graph.source("gradient")
    inputs = ("image_sizes", "f", "gradient")
    graph.conv("by_input", *inputs, op="Conv2DBackpropInput")
    graph.conv("by_filter", "x", "filter_sizes", "gradient", op="Conv2DBackpropFilter")
    graph.conv("by_input_too", *inputs, op="Conv2DBackpropInput")
    rewritten = _rewrite(graph, _stage("by_input", "by_filter", "by_input_too"))
    assert _inputs(rewritten, "tf_interop/stage_0") == [
        "f",
        "gradient",
        "x",
        "image_sizes",
        "filter_sizes",
    ]
    assert _operands(rewritten) == [
        ["sizes:0", "inputs:0", "inputs:1"],
        ["inputs:2", "sizes:1", "inputs:1"],
        ["sizes:0", "inputs:0", "inputs:1"],
    ]


def test_groups_fused_with_plain() -> None:
    graph = _sources()
    graph.fused_conv("a", "x", "f", "c")
    graph.conv("b", "x", "f")
    rewritten = _rewrite(graph, _stage("a", "b"))
    assert _operands(rewritten) == [["inputs:0", "inputs:1", "inputs:2"], ["inputs:0", "inputs:1"]]


def test_groups_stage_that_reads_a_stage() -> None:
    graph = _sources()
    graph.conv("a1", "x", "f")
    graph.conv("a2", "x", "g")
    graph.conv("b1", "a2", "f", "^a1")
    graph.conv("b2", "x", "a1", "^a2", "^c")
    rewritten = _rewrite(graph, _stage("a1", "a2"), _stage("b1", "b2"))
    # Dependencies on a stage whose outputs are read are there already.
    assert _inputs(rewritten, "tf_interop/stage_1") == [
        "tf_interop/stage_0:1",
        "f",
        "x",
        "tf_interop/stage_0",
        "^c",
    ]


def test_unites_control_dependencies() -> None:
    graph = _sources()
    graph.source("d")
    graph.conv("a", "x", "f", "^c", "^d")
    graph.conv("b", "x", "g", "^d", "^f", "^c")
    rewritten = _rewrite(graph, _stage("a", "b"))
    assert _inputs(rewritten, "tf_interop/stage_0") == ["x", "f", "g", "^c", "^d"]


def test_control_dependents_wait_for_the_stage_once() -> None:
    graph = _sources()
    graph.conv("a", "x", "f")
    graph.conv("b", "x", "g")
    graph.add("waits", "NoOp", "^a", "^c", "^b")
    rewritten = _rewrite(graph, _stage("a", "b"))
    assert _inputs(rewritten, "waits") == ["^tf_interop/stage_0", "^c"]


def test_keeps_preserved_name_as_identity() -> None:
    graph = _sources()
    graph.conv("a", "x", "f")
    graph.conv("b", "x", "g")
    graph.add("after", "Add", "a", "b", "^b")
    rewritten = _rewrite(graph, _stage("a", "b"), preserve={"b", "not there"})
    identity = node_of(rewritten, "b")
    assert (identity.op, list(identity.input)) == ("Identity", ["tf_interop/stage_0:1"])
    assert identity.device == graph.node("b").device
    assert identity.attr["T"].type == FLOAT
    # Whoever feeds b must still reach its readers.
    assert _inputs(rewritten, "after") == ["tf_interop/stage_0", "b", "^b"]


def test_keeps_all_names_where_all_are_preserved() -> None:
    graph = _sources()
    graph.conv("a", "x", "f")
    graph.conv("b", "x", "g")
    rewritten = _rewrite(graph, _stage("a", "b"), preserve=["a", "b"])
    assert _names(rewritten) == ["x", "f", "g", "c", "a", "b", "tf_interop/stage_0"]
    assert _inputs(rewritten, "a") == ["tf_interop/stage_0"]


def test_redirects_colocation() -> None:
    graph = _sources()
    graph.conv("a", "x", "f", _class=["loc:@x", "loc:@b"])
    graph.conv("b", "x", "g", _class=["loc:@a", "loc:@other"])
    graph.conv("other", "x", "g", _class=["loc:@g"])
    graph.conv("another", "x", "g")
    graph.add("near_both", "Neg", "x", _class=["loc:@b", "loc:@c", "loc:@a"])
    rewritten = _rewrite(graph, _stage("a", "b"), _stage("other", "another"))
    classes = {
        node.name: list(node.attr["_class"].list.s)
        for node in rewritten.node
        if "_class" in node.attr
    }
    assert classes == {
        "tf_interop/stage_0": [b"loc:@tf_interop/stage_1", b"loc:@x"],
        "tf_interop/stage_1": [b"loc:@g"],
        "near_both": [b"loc:@tf_interop/stage_0", b"loc:@c"],
    }


def test_takes_a_name_that_is_free() -> None:
    graph = _sources()
    graph.source("tf_interop/stage_0")
    graph.source("tf_interop/stage_0_1")
    graph.conv("a", "x", "f")
    graph.conv("b", "x", "g")
    rewritten = _rewrite(graph, _stage("a", "b"))
    assert "tf_interop/stage_0_2" in _names(rewritten)


def test_keeps_everything_else() -> None:
    graph = _sources()
    graph.conv("a", "x", "f")
    graph.conv("b", "x", "g")
    graph.conv("alone", "x", "g")
    graph.add("after", "Neg", "alone")
    graph.graph_def.library.function.add().signature.name = "function"
    rewritten = _rewrite(graph, _stage("a", "b"))
    for name in ("x", "f", "g", "c", "alone", "after"):
        assert node_of(rewritten, name).SerializeToString(deterministic=True) == graph.node(
            name
        ).SerializeToString(deterministic=True)
    assert rewritten.library == graph.graph_def.library
    assert rewritten.versions == graph.graph_def.versions


def test_keeps_graph_without_stages() -> None:
    graph = _sources()
    graph.conv("a", "x", "f")
    assert _rewrite(graph) == graph.graph_def


def test_finds_nothing_more_in_what_was_rewritten() -> None:
    graph = _sources()
    graph.conv("a", "x", "f")
    graph.conv("b", "x", "g")
    view = GraphView(_rewrite(graph, _stage("a", "b")))
    assert find_convolutions(view, GraphProperties(view)) == ((), ())


def test_groups_within_a_branch() -> None:
    graph = _sources()
    graph.add("switch", "Switch", "x", "c")
    graph.conv("a", "switch:1", "f")
    graph.conv("b", "switch:1", "g")
    rewritten = _rewrite(graph, _stage("a", "b"))
    assert _inputs(rewritten, "tf_interop/stage_0") == ["switch:1", "f", "g"]


def _expect_refusal(graph: GraphBuilder, *stages: PlannedStage, match: str) -> str:
    with pytest.raises(ValueError, match=match) as error:
        _rewrite(graph, *stages)
    return str(error.value)


def test_refuses_branches_of_a_conditional() -> None:
    graph = _sources()
    graph.add("switch", "Switch", "x", "c")
    graph.conv("else", "switch", "f")
    graph.conv("then", "switch:1", "f")
    graph.conv("outside", "x", "f")
    _expect_refusal(graph, _stage("else", "then"), match="one region.*'else'.*'then'")
    _expect_refusal(graph, _stage("outside", "then"), match="one region.*'outside'.*'then'")


def test_refuses_inside_with_outside_of_a_loop() -> None:
    graph = _sources()
    graph.add("enter", "Enter", "x", frame_name="loop")
    graph.add("enter_filter", "Enter", "f", frame_name="loop")
    graph.conv("inside", "enter", "enter_filter")
    graph.conv("outside", "x", "f")
    _expect_refusal(graph, _stage("inside", "outside"), match="one region")


def test_refuses_two_devices() -> None:
    graph = _sources()
    graph.conv("a", "x", "f")
    graph.conv("b", "x", "f", device=CPU)
    _expect_refusal(graph, _stage("a", "b"), match="one device.*'a'.*'b'")


def test_refuses_what_was_not_found() -> None:
    graph = _sources()
    graph.conv("a", "x", "f")
    graph.conv("b", "x", "f", padding="EXPLICIT")
    _expect_refusal(graph, _stage("a", "b"), match="found.*'b'")
    _expect_refusal(graph, _stage("a", "x"), match="found.*'x'")
    _expect_refusal(graph, _stage("a", "nowhere"), match="found.*'nowhere'")


def test_refuses_convolutions_of_another_graph() -> None:
    graph = _sources()
    graph.conv("a", "x", "f")
    other = _sources()
    other.source("y")
    other.conv("a", "x", "f")
    view = GraphView(graph.graph_def)
    other_view = GraphView(other.graph_def)
    convolutions, _ = find_convolutions(other_view, GraphProperties(other_view))
    with pytest.raises(ValueError, match="found in this graph, got 'a'"):
        rewrite_stages(view, [_stage("a")], convolutions, ())


def test_refuses_a_convolution_named_twice() -> None:
    graph = _sources()
    graph.conv("a", "x", "f")
    graph.conv("b", "x", "f")
    graph.conv("d", "x", "f")
    _expect_refusal(graph, _stage("a", "a"), match="'a'")
    _expect_refusal(graph, _stage("a", "b"), _stage("b", "d"), match="'b'.*stage 0.*stage 1")


@pytest.mark.parametrize("stage", [PlannedStage(()), PlannedStage(((),))])
def test_refuses_a_stage_of_nothing(stage: PlannedStage) -> None:
    _expect_refusal(_sources(), stage, match="lanes that hold convolutions")


@pytest.mark.parametrize("lanes", [("a", "b"), ("a b",)])
def test_refuses_dependent_convolutions(lanes: tuple[str, ...]) -> None:
    graph = _sources()
    graph.conv("a", "x", "f")
    graph.add("relu", "Relu", "a")
    graph.conv("b", "relu", "f")
    message = _expect_refusal(graph, _stage(*lanes), match="stage 0 to be independent")
    assert all(f"'{name}'" in message for name in ("a", "relu", "b"))


def test_refuses_dependence_by_control() -> None:
    graph = _sources()
    graph.conv("a", "x", "f")
    graph.add("assign", "NoOp", "^a")
    graph.conv("b", "x", "f", "^assign")
    _expect_refusal(graph, _stage("a", "b"), match="'assign'")


def test_refuses_stages_that_wait_for_each_other() -> None:
    graph = _sources()
    graph.conv("a1", "x", "f")
    graph.conv("b1", "x", "f")
    graph.conv("a2", "b1", "f")
    graph.conv("b2", "a1", "f")
    message = _expect_refusal(
        graph, _stage("a1", "a2"), _stage("b1", "b2"), match=r"cycle of \[0, 1\]"
    )
    assert all(f"'{name}'" in message for name in ("a1", "b2", "b1", "a2"))


def test_same_input_gives_same_bytes() -> None:
    graph = _sources()
    for name in "abde":
        graph.conv(name, "x", "f", "^c", _class=["loc:@x", "loc:@f"])
    graph.add("after", "AddN", *"abde")
    results = {
        _rewrite(graph, _stage("a", "b"), _stage("d", "e")).SerializeToString(deterministic=True)
        for _ in range(3)
    }
    assert len(results) == 1


# A judge for random graphs that shares no code with the rewriter: it runs a graph on symbols.


def _run_symbolically(graph_def: graph_pb2.GraphDef) -> dict[str, tuple[object, frozenset[str]]]:
    """For each node, and each step of a stage: its value, and the names of all that ran before."""
    nodes = {node.name: node for node in graph_def.node}
    results: dict[str, tuple[list[object], frozenset[str]]] = {}
    steps: dict[str, tuple[object, frozenset[str]]] = {}

    def value_of(node: node_def_pb2.NodeDef, operands: Sequence[object]) -> object:
        attributes = sorted(
            (name, node.attr[name].SerializeToString(deterministic=True))
            for name in node.attr
            if not name.startswith("_")
        )
        return hash((node.op, node.name, tuple(attributes), tuple(operands)))

    def run(name: str) -> tuple[list[object], frozenset[str]]:
        if name in results:
            return results[name]
        node = nodes[name]
        operands: list[object] = []
        before: set[str] = set()
        for text in node.input:
            source, _, port = text.removeprefix("^").partition(":")
            outputs, earlier = run(source)
            if not text.startswith("^"):
                operands.append(outputs[int(port or 0)])
            before |= earlier
        if node.op == "TfInterop>ConvStage":
            count = len(node.attr["Tin"].list.type)
            lists = {"inputs": operands[:count], "sizes": operands[count:]}
            outputs, done = [], set(before)
            for serialized in node.attr["steps"].list.s:
                step = node_def_pb2.NodeDef.FromString(serialized)
                read = [text.split(":") for text in step.input]
                value = value_of(step, [lists[kind][int(place)] for kind, place in read])
                outputs.append(value)
                steps[step.name] = (value, frozenset(before))
                done.add(step.name)
        elif node.op == "Identity":
            outputs, done = operands, before | {name}
        else:
            outputs, done = [value_of(node, operands)], before | {name}
            steps[name] = (outputs[0], frozenset(before))
        results[name] = (outputs, frozenset(done))
        return results[name]

    for name in nodes:
        run(name)
    return steps


def _random_graph(choose: random.Random) -> GraphBuilder:
    graph = GraphBuilder()
    names = [graph.source("x"), graph.source("f")]
    for number in range(choose.randrange(4, 30)):
        name = f"{choose.choice('abc')}{number}"
        inputs = [choose.choice(names), choose.choice(names)]
        controls = sorted({f"^{choose.choice(names)}" for _ in range(choose.randrange(3))})
        kind = choose.randrange(5)
        if kind < 2:
            graph.conv(name, *inputs, *controls)
        elif kind == 2:
            graph.conv(name, "x", *inputs, *controls, op="Conv2DBackpropInput")
        else:
            graph.add(name, "Add", *inputs, *controls)
        if choose.random() < 0.2:
            set_attributes(graph.node(name), _class=[f"loc:@{choose.choice(names)}"])
        names.append(name)
    order = list(graph.graph_def.node)
    choose.shuffle(order)
    shuffled = GraphBuilder()
    shuffled.graph_def.node.extend(order)
    return shuffled


def _make_lanes(choose: random.Random, names: Sequence[str]) -> PlannedStage:
    lanes: list[list[str]] = []
    for name in names:
        if lanes and choose.random() < 0.3:
            lanes[-1].append(name)
        else:
            lanes.append([name])
    return _stage(*(" ".join(lane) for lane in lanes))


@pytest.mark.parametrize("seed", range(200))
def test_random_graphs_compute_the_same(seed: int) -> None:
    choose = random.Random(seed)
    graph = _random_graph(choose)
    view = GraphView(graph.graph_def)
    convolutions, _ = find_convolutions(view, GraphProperties(view))
    depths = Independence(view, convolutions).depths
    by_depth: dict[int, list[str]] = {}
    for node, depth in zip(convolutions, depths, strict=True):
        if choose.random() < 0.8:
            by_depth.setdefault(depth, []).append(node.name)
    stages = [_make_lanes(choose, names) for names in by_depth.values()]
    preserve = {name for name in view.names if choose.random() < 0.1}
    rewritten = _rewrite(graph, *stages, preserve=preserve)

    before, after = _run_symbolically(graph.graph_def), _run_symbolically(rewritten)
    assert before.keys() == after.keys()
    for name, (value, earlier) in before.items():
        assert after[name][0] == value
        assert after[name][1] >= earlier
    assert preserve <= set(_names(rewritten))
    assert sum(node.op == CONV_STAGE_OP for node in rewritten.node) == len(stages)


def _has_cycle(graph_def: graph_pb2.GraphDef, stages: Sequence[PlannedStage]) -> bool:
    """Whether one node for each stage leaves a cycle, by removing what waits for nothing."""
    merged = {
        pinned.node: f"stage {number}"
        for number, stage in enumerate(stages)
        for pinned in stage.convolutions
    }
    waits: dict[str, set[str]] = {}
    for node in graph_def.node:
        sources = {text.removeprefix("^").partition(":")[0] for text in node.input}
        waits.setdefault(merged.get(node.name, node.name), set()).update(
            merged.get(source, source) for source in sources
        )
    while True:
        free = {name for name, sources in waits.items() if not sources & waits.keys()}
        if not free:
            return bool(waits)
        for name in free:
            del waits[name]


def test_random_stages_are_refused_if_and_only_if_they_make_a_cycle() -> None:
    outcomes = {True: 0, False: 0}
    for seed in range(300):
        choose = random.Random(seed)
        graph = _random_graph(choose)
        view = GraphView(graph.graph_def)
        convolutions, _ = find_convolutions(view, GraphProperties(view))
        names = [node.name for node in convolutions]
        choose.shuffle(names)
        stages = []
        while len(names) > 1:
            size = choose.randrange(2, 4)
            stages.append(_make_lanes(choose, names[:size]))
            names = names[size:]
        stages = stages[: choose.randrange(4)]
        cyclic = _has_cycle(graph.graph_def, stages)
        outcomes[cyclic] += 1
        if cyclic:
            _expect_refusal(graph, *stages, match="independent|cycle")
        else:
            _rewrite(graph, *stages)
    assert min(outcomes.values()) > 50


def test_regions_of_stages_are_those_of_their_members() -> None:
    graph = _sources()
    graph.add("switch", "Switch", "x", "c")
    graph.conv("a", "switch:1", "f")
    graph.conv("b", "x", "g", "^a_is_alive")
    graph.add("a_is_alive", "Identity", "switch:1")
    before = GraphView(graph.graph_def)
    after = GraphView(_rewrite(graph, _stage("a", "b")))
    assert ControlFlow(after).region(after.index_of["tf_interop/stage_0"]) == ControlFlow(
        before
    ).region(before.index_of["a"])
