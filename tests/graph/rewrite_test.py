"""Stages in place of their steps: the new graph, what stays as it was, and what is refused."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Collection, Sequence

import pytest
from graph_builder import CPU, FLOAT, GraphBuilder, node_of, set_attributes
from planning_graphs import make_lanes
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.graph.activations import add_activations
from tf_interop.graph.check import check_rewrite
from tf_interop.graph.control_flow import ControlFlow
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.independence import Independence
from tf_interop.graph.program import CONV_STAGE_OP, Schedule, StageNode, decode_stage
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.rewrite import rewrite_stages
from tf_interop.graph.view import GraphView
from tf_interop.stage import Lane, Stage, Step

STAGE = "tf_interop/stage_0"


def _rewrite(
    graph: GraphBuilder,
    *stages: Stage[str],
    preserve: Collection[str] = (),
    with_activations: bool = False,
) -> graph_pb2.GraphDef:
    """Rewrites a graph; the judge looks at it, and nothing may have changed in the old one."""
    before = graph.graph_def.SerializeToString(deterministic=True)
    view = GraphView(graph.graph_def)
    schedules = [(Schedule(None, stage),) for stage in stages]
    if with_activations:
        schedules = [add_activations(view, each, preserve) for each in schedules]
    rewritten = rewrite_stages(view, schedules, preserve)
    assert graph.graph_def.SerializeToString(deterministic=True) == before
    check_rewrite(view, GraphView(rewritten), preserve)
    return rewritten


def _names(graph_def: graph_pb2.GraphDef) -> list[str]:
    return [node.name for node in graph_def.node]


def _inputs(graph_def: graph_pb2.GraphDef, name: str = STAGE) -> list[str]:
    return list(node_of(graph_def, name).input)


def _decoded(graph_def: graph_pb2.GraphDef) -> StageNode:
    return decode_stage(node_of(graph_def, STAGE))


def _operands(graph_def: graph_pb2.GraphDef) -> list[list[str]]:
    return [list(operation.input) for operation in _decoded(graph_def).operations]


def _sources(*convolutions: str, device: str | None = None) -> GraphBuilder:
    """A graph with some sources, and convolutions of `x` by `f`."""
    graph = GraphBuilder() if device is None else GraphBuilder(device)
    for name in ("x", "f", "g", "c"):
        graph.source(name)
    for name in convolutions:
        graph.conv(name, "x", "f")
    return graph


def test_groups_two_convolutions() -> None:
    graph = _sources()
    graph.conv("a", "x", "f", "^c")
    graph.conv("b", "x:0", "g")
    graph.add("after_a", "Relu", "a")
    graph.add("after_b", "Add", "b:0", "x", "^a", "^b")
    rewritten = _rewrite(graph, make_lanes("a", "b"))
    assert _names(rewritten) == ["x", "f", "g", "c", STAGE, "after_a", "after_b"]
    stage = node_of(rewritten, STAGE)
    assert stage.op == CONV_STAGE_OP
    assert stage.device == graph.node("a").device
    assert _inputs(rewritten) == ["x", "f", "g", "^c"]
    assert list(stage.experimental_debug_info.original_node_names) == ["a", "b"]
    assert _operands(rewritten) == [["inputs:0", "inputs:1"], ["inputs:0", "inputs:2"]]
    assert _inputs(rewritten, "after_a") == [STAGE]
    assert _inputs(rewritten, "after_b") == [f"{STAGE}:1", "x"]


def test_writes_each_schedule_in_the_same_bytes_each_time() -> None:
    graph = _sources("a", "b", "d")
    planned = [
        Schedule(8, Stage((Lane((Step("b", "FFT"),), -1), Lane((Step("a"), Step("d")), 0, 8)))),
        Schedule(32, make_lanes("+d:GEMM a:GEMM", "b")),
    ]
    view = GraphView(graph.graph_def)
    first, second = (
        rewrite_stages(view, [planned], ()).SerializeToString(deterministic=True) for _ in range(2)
    )
    assert first == second
    decoded = _decoded(graph_pb2.GraphDef.FromString(first))
    names = [operation.name for operation in decoded.operations]
    assert names == ["b", "a", "d"]
    assert [
        Schedule(each.batch_size, each.stage.map(names.__getitem__)) for each in decoded.schedules
    ] == planned


def test_chains_in_a_lane_read_steps() -> None:
    graph = _sources("a", "apart")
    graph.conv("b", "a", "a")
    graph.conv("d", "b:0", "a", "^a")
    graph.add("reads", "Add", "b", "apart")
    graph.add("waits", "NoOp", "^a", "^d")
    rewritten = _rewrite(graph, make_lanes("a b d", "apart"))
    assert _operands(rewritten) == [
        ["inputs:0", "inputs:1"],
        ["steps:0", "steps:0"],
        ["steps:1", "steps:0"],
        ["inputs:0", "inputs:1"],
    ]
    # What nobody outside reads is no output; what nobody reads at all is one.
    assert _decoded(rewritten).outputs == (1, 2, 3)
    assert _inputs(rewritten, "reads") == [STAGE, f"{STAGE}:2"]
    assert _inputs(rewritten, "waits") == [f"^{STAGE}"]


def test_a_preserved_step_of_a_chain_is_an_output() -> None:
    graph = _sources("a")
    graph.conv("b", "a", "f", "^a")
    rewritten = _rewrite(graph, make_lanes("a b"), preserve=["a"])
    assert _decoded(rewritten).outputs == (0, 1)
    assert _inputs(rewritten, "a") == [STAGE]
    assert _operands(rewritten)[1] == ["steps:0", "inputs:1"]


def _constants(graph_def: graph_pb2.GraphDef) -> list[str]:
    """The inputs of the stage that it takes as constant."""
    stage = _decoded(graph_def)
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
    rewritten = _rewrite(graph, make_lanes("a", "b", "d", "e", "h"))
    assert _constants(rewritten) == ["l", "k:0", "m"]


def test_keeps_unmarked_what_is_no_filter() -> None:
    graph = _sources()
    for name in ("image", "bias", "gradient"):
        graph.add(name, "Const")
    graph.sizes("s", [3, 3, 4, 4])
    graph.fused_conv("a", "image", "f", "bias")
    graph.conv("b", "s", "g", "gradient", op="Conv2DBackpropInput")
    graph.conv("d", "image", "s", "gradient", op="Conv2DBackpropFilter")
    assert _constants(_rewrite(graph, make_lanes("a", "b", "d"))) == []


def test_keeps_unmarked_what_may_change() -> None:
    graph = _sources()
    graph.add("fed", "Const")
    graph.add("elsewhere", "Const", device=CPU)
    graph.add("k", "Const")
    graph.add("same", "Identity", "k")
    filters = ("fed", "elsewhere", "same", "f")
    for filter_ in filters:
        graph.conv(f"of_{filter_}", "x", filter_)
    stage = make_lanes(*(f"of_{filter_}" for filter_ in filters))
    assert _constants(_rewrite(graph, stage, preserve=["fed"])) == []


def test_groups_gradients_with_sizes() -> None:
    graph = _sources()
    graph.sizes("image_sizes", [1, 8, 8, 4])
    graph.sizes("filter_sizes", [3, 3, 4, 4])
    inputs = ("image_sizes", "f", "c")
    graph.conv("by_input", *inputs, op="Conv2DBackpropInput")
    graph.conv("by_filter", "x", "filter_sizes", "c", op="Conv2DBackpropFilter")
    graph.conv("by_input_too", *inputs, op="Conv2DBackpropInput")
    rewritten = _rewrite(graph, make_lanes("by_input", "by_filter", "by_input_too"))
    assert _inputs(rewritten) == ["f", "c", "x", "image_sizes", "filter_sizes"]
    assert _operands(rewritten) == [
        ["sizes:0", "inputs:0", "inputs:1"],
        ["inputs:2", "sizes:1", "inputs:1"],
        ["sizes:0", "inputs:0", "inputs:1"],
    ]


def test_groups_stage_that_reads_a_stage() -> None:
    graph = _sources("a1")
    graph.conv("a2", "x", "g")
    graph.conv("b1", "a2", "f", "^a1")
    graph.conv("b2", "x", "a1", "^a2", "^c")
    rewritten = _rewrite(graph, make_lanes("a1", "a2"), make_lanes("b1", "b2"))
    # Dependencies on a stage whose outputs are read are there already.
    expected = [f"{STAGE}:1", "f", "x", STAGE, "^c"]
    assert _inputs(rewritten, "tf_interop/stage_1") == expected


def test_unites_control_dependencies() -> None:
    graph = _sources()
    graph.source("d")
    graph.conv("a", "x", "f", "^c", "^d")
    graph.conv("b", "x", "g", "^d", "^f", "^c")
    graph.add("waits", "NoOp", "^a", "^c", "^b")
    rewritten = _rewrite(graph, make_lanes("a", "b"))
    assert _inputs(rewritten) == ["x", "f", "g", "^c", "^d"]
    assert _inputs(rewritten, "waits") == [f"^{STAGE}", "^c"]


def test_keeps_preserved_name_as_identity() -> None:
    graph = _sources("a", "b")
    graph.add("after", "Add", "a", "b", "^b")
    rewritten = _rewrite(graph, make_lanes("a", "b"), preserve={"b", "not there"})
    identity = node_of(rewritten, "b")
    assert (identity.op, list(identity.input)) == ("Identity", [f"{STAGE}:1"])
    assert identity.device == graph.node("b").device
    assert identity.attr["T"].type == FLOAT
    # Whoever feeds b must still reach its readers.
    assert _inputs(rewritten, "after") == [STAGE, "b", "^b"]


def test_keeps_all_names_where_all_are_preserved() -> None:
    rewritten = _rewrite(_sources("a", "b"), make_lanes("a", "b"), preserve=["a", "b"])
    assert _names(rewritten) == ["x", "f", "g", "c", "a", "b", STAGE]
    assert _inputs(rewritten, "a") == [STAGE]


def test_redirects_colocation() -> None:
    graph = _sources("another")
    graph.conv("a", "x", "f", _class=["loc:@x", "loc:@b"])
    graph.conv("b", "x", "g", _class=["loc:@a", "loc:@other"])
    graph.conv("other", "x", "g", _class=["loc:@g"])
    graph.add("near_both", "Neg", "x", _class=["loc:@b", "loc:@c", "loc:@a"])
    rewritten = _rewrite(graph, make_lanes("a", "b"), make_lanes("other", "another"))
    classes = {
        node.name: list(node.attr["_class"].list.s)
        for node in rewritten.node
        if "_class" in node.attr
    }
    assert classes == {
        STAGE: [b"loc:@tf_interop/stage_1", b"loc:@x"],
        "tf_interop/stage_1": [b"loc:@g"],
        "near_both": [f"loc:@{STAGE}".encode(), b"loc:@c"],
    }


def test_takes_a_name_that_is_free() -> None:
    graph = _sources("a", "b")
    graph.source(STAGE)
    graph.source(f"{STAGE}_1")
    assert f"{STAGE}_2" in _names(_rewrite(graph, make_lanes("a", "b")))


def test_keeps_everything_else() -> None:
    graph = _sources("a", "b", "alone")
    graph.add("after", "Neg", "alone")
    graph.graph_def.library.function.add().signature.name = "function"
    rewritten = _rewrite(graph, make_lanes("a", "b"))
    for name in ("x", "f", "g", "c", "alone", "after"):
        assert node_of(rewritten, name).SerializeToString(deterministic=True) == graph.node(
            name
        ).SerializeToString(deterministic=True)
    assert rewritten.library == graph.graph_def.library
    assert rewritten.versions == graph.graph_def.versions


def test_keeps_graph_without_stages() -> None:
    graph = _sources("a")
    assert _rewrite(graph) == graph.graph_def


def test_finds_nothing_more_in_what_was_rewritten() -> None:
    view = GraphView(_rewrite(_sources("a", "b"), make_lanes("a", "b")))
    assert find_convolutions(view, GraphProperties(view)) == ((), ())


def test_regions_of_stages_are_those_of_their_members() -> None:
    graph = _sources()
    graph.add("switch", "Switch", "x", "c")
    graph.conv("a", "switch:1", "f")
    graph.conv("b", "x", "g", "^a_is_alive")
    graph.add("a_is_alive", "Identity", "switch:1")
    before = GraphView(graph.graph_def)
    after = GraphView(_rewrite(graph, make_lanes("a", "b")))
    assert _inputs(after.graph_def)[0] == "switch:1"
    region = ControlFlow(before).region(before.index_of["a"])
    assert ControlFlow(after).region(after.index_of[STAGE]) == region


def _with_relu() -> tuple[GraphBuilder, Stage[str]]:
    """Two convolutions on a CPU, one with a Relu that something reads."""
    graph = _sources("a", "b", device=CPU)
    graph.add("relu", "Relu", "a", T=FLOAT)
    graph.add("reads", "Add", "relu", "b")
    return graph, make_lanes("a", "b")


def test_takes_an_activation_into_the_lane() -> None:
    graph, stage = _with_relu()
    rewritten = _rewrite(graph, stage, with_activations=True)
    assert _names(rewritten) == ["x", "f", "g", "c", STAGE, "reads"]
    decoded = _decoded(rewritten)
    assert [operation.op for operation in decoded.operations] == ["Conv2D", "Relu", "Conv2D"]
    assert decoded.schedules[0].stage.map(str) == make_lanes("0 1", "2")
    assert decoded.outputs == (1, 2)
    assert _inputs(rewritten, "reads") == [STAGE, f"{STAGE}:1"]


def test_takes_an_activation_of_a_convolution_that_others_read() -> None:
    graph, stage = _with_relu()
    graph.add("reads_too", "Neg", "a")
    rewritten = _rewrite(graph, stage, with_activations=True, preserve=["b"])
    assert _decoded(rewritten).outputs == (0, 1, 2)


@pytest.mark.parametrize(
    ("changes", "preserve"),
    [
        pytest.param({}, ["relu"], id="preserved"),
        pytest.param({}, ["a"], id="of_what_is_preserved"),
        pytest.param({"op": "Relu6"}, [], id="another_op"),
        pytest.param({"device": "/device:CPU:1"}, [], id="another_device"),
        pytest.param({"input": ["a", "^c"]}, [], id="waits_for_something"),
        pytest.param({"input": ["x"]}, [], id="reads_something_else"),
    ],
)
def test_keeps_an_activation(changes: dict[str, object], preserve: list[str]) -> None:
    graph, stage = _with_relu()
    relu = graph.node("relu")
    for field, value in changes.items():
        if field == "input":
            relu.input[:] = value
        else:
            setattr(relu, field, value)
    assert "relu" in _names(_rewrite(graph, stage, with_activations=True, preserve=preserve))


def test_keeps_activations_on_a_gpu_and_of_merged_lanes() -> None:
    graph, _ = _with_relu()
    merged = make_lanes("+a b")
    assert "relu" in _names(_rewrite(graph, merged, with_activations=True))
    on_gpu = _sources("a")
    on_gpu.add("relu", "Relu", "a", T=FLOAT)
    assert "relu" in _names(_rewrite(on_gpu, make_lanes("a"), with_activations=True))


def _expect_refusal(graph: GraphBuilder, *stages: Stage[str], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        _rewrite(graph, *stages)


def test_refuses_two_devices() -> None:
    graph = _sources("a")
    graph.conv("b", "x", "f", device=CPU)
    _expect_refusal(graph, make_lanes("a", "b"), match="device.*'a'.*'b'")


@pytest.mark.parametrize("name", ["x", "nowhere"])
def test_refuses_what_a_stage_cannot_run(name: str) -> None:
    _expect_refusal(_sources("a"), make_lanes("a", name), match=f"'{name}'")


def test_refuses_a_convolution_named_twice() -> None:
    graph = _sources("a", "b", "d")
    _expect_refusal(graph, make_lanes("a", "a"), match="'a'")
    _expect_refusal(
        graph, make_lanes("a", "b"), make_lanes("b", "d"), match="'b'.*stage 0.*stage 1"
    )


def test_refuses_schedules_of_different_nodes() -> None:
    view = GraphView(_sources("a", "b").graph_def)
    schedules = [Schedule(1, make_lanes("a", "b")), Schedule(2, make_lanes("a"))]
    with pytest.raises(ValueError, match="same nodes"):
        rewrite_stages(view, [schedules], ())


@pytest.mark.parametrize("lanes", [("a", "b"), ("a b",), ("a relu b",)])
@pytest.mark.parametrize("op", ["Relu", "Neg"])
def test_refuses_dependence_through_another_node(lanes: tuple[str, ...], op: str) -> None:
    graph = _sources("a")
    graph.add("relu", op, "a", T=FLOAT)
    graph.conv("b", "relu", "f")
    if lanes == ("a relu b",) and op == "Relu":
        assert _decoded(_rewrite(graph, make_lanes(*lanes))).outputs == (2,)
    else:
        _expect_refusal(graph, make_lanes(*lanes), match="'relu'")


def test_refuses_stages_that_wait_for_each_other() -> None:
    graph = _sources("a1", "b1")
    graph.conv("a2", "b1", "f")
    graph.conv("b2", "a1", "f")
    names = "'a1'.*'b2'.*'b1'.*'a2'|'b1'.*'a2'.*'a1'.*'b2'"
    _expect_refusal(graph, make_lanes("a1", "a2"), make_lanes("b1", "b2"), match=names)


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

    def run_stage(
        node: node_def_pb2.NodeDef, operands: list[object], before: set[str]
    ) -> tuple[list[object], set[str]]:
        program = json.loads(node.attr["program"].s)
        operations = [
            node_def_pb2.NodeDef.FromString(base64.b64decode(each))
            for each in program["operations"]
        ]
        count = len(node.attr["Tin"].list.type)
        values: dict[int, object] = {}
        lists = {"inputs": operands[:count], "sizes": operands[count:], "steps": values}
        for lane in program["schedules"][0]["stage"]["lanes"]:
            earlier = set(before)
            for step in lane["steps"]:
                operation = operations[step["operation"]]
                read = [text.split(":") for text in operation.input]
                value = value_of(operation, [lists[kind][int(place)] for kind, place in read])
                values[step["operation"]] = value
                steps[operation.name] = (value, frozenset(earlier))
                earlier.add(operation.name)
        done = before | {operation.name for operation in operations}
        return [values[place] for place in program["outputs"]], done

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
            outputs, done = run_stage(node, operands, before)
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
    graph = GraphBuilder(CPU)
    names = [graph.source("x"), graph.source("f")]
    for number in range(choose.randrange(4, 30)):
        name = f"{choose.choice('abc')}{number}"
        inputs = [choose.choice(names), choose.choice(names)]
        controls = sorted({f"^{choose.choice(names)}" for _ in range(choose.randrange(3))})
        kind = choose.randrange(6)
        if kind < 2:
            graph.conv(name, *inputs, *controls)
        elif kind == 2:
            graph.conv(name, "x", *inputs, *controls, op="Conv2DBackpropInput")
        elif kind == 3:
            graph.add(name, "Relu", names[-1], T=FLOAT)
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


def _make_lanes(choose: random.Random, names: Sequence[str]) -> Stage[str]:
    lanes: list[list[str]] = []
    for name in names:
        if lanes and choose.random() < 0.5:
            lanes[-1].append(name)
        else:
            lanes.append([name])
    return make_lanes(*(" ".join(lane) for lane in lanes))


@pytest.mark.parametrize("seed", range(200))
def test_random_graphs_compute_the_same(seed: int) -> None:
    choose = random.Random(seed)
    graph = _random_graph(choose)
    view = GraphView(graph.graph_def)
    convolutions, _ = find_convolutions(view, GraphProperties(view))
    by_depth: dict[int, list[str]] = {}
    for node, depth in zip(convolutions, Independence(view, convolutions).depths, strict=True):
        if choose.random() < 0.8:
            by_depth.setdefault(depth, []).append(node.name)
    stages = [_make_lanes(choose, names) for names in by_depth.values()]
    preserve = {name for name in view.names if choose.random() < 0.1}
    _expect_same(graph, stages, preserve)


def _expect_same(
    graph: GraphBuilder, stages: Sequence[Stage[str]], preserve: Collection[str]
) -> None:
    rewritten = _rewrite(graph, *stages, preserve=preserve, with_activations=True)
    before, after = _run_symbolically(graph.graph_def), _run_symbolically(rewritten)
    assert before.keys() == after.keys()
    for name, (value, earlier) in before.items():
        assert after[name][0] == value
        assert after[name][1] >= earlier
    assert set(preserve) <= set(_names(rewritten))
    assert sum(node.op == CONV_STAGE_OP for node in rewritten.node) == len(stages)


def _is_legal(graph_def: graph_pb2.GraphDef, stages: Sequence[Stage[str]]) -> bool:
    """Whether no cycle is left, by removing what waits for nothing, and lanes are in order."""
    place = {
        name: (number, lane, step)
        for number, stage in enumerate(stages)
        for lane, each in enumerate(stage.lanes)
        for step, name in enumerate(each.operations)
    }
    waits: dict[object, set[object]] = {}
    for node in graph_def.node:
        own = place.get(node.name)
        unit = waits.setdefault(node.name if own is None else own[0], set())
        for text in node.input:
            source = text.removeprefix("^").partition(":")[0]
            other = place.get(source)
            if own is None or other is None or own[0] != other[0]:
                unit.add(source if other is None else other[0])
            elif own[1] != other[1] or own[2] <= other[2]:
                return False
    while True:
        free = {name for name, sources in waits.items() if not sources & waits.keys()}
        if not free:
            return not waits
        for name in free:
            del waits[name]


def test_random_stages_are_refused_if_and_only_if_they_are_not_legal() -> None:
    outcomes = {True: 0, False: 0}
    chains = 0
    for seed in range(400):
        choose = random.Random(seed)
        graph = _random_graph(choose)
        view = GraphView(graph.graph_def)
        names = [name for name, op in zip(view.names, view.ops, strict=True) if "Conv2D" in op]
        if choose.random() < 0.5:
            choose.shuffle(names)
        else:
            names.sort(key=lambda name: int(name[1:]))
        stages = []
        while len(names) > 1:
            size = choose.randrange(2, 4)
            stages.append(_make_lanes(choose, names[:size]))
            names = names[size:]
        stages = stages[: choose.randrange(4)]
        is_legal = _is_legal(graph.graph_def, stages)
        outcomes[is_legal] += 1
        if is_legal:
            _expect_same(graph, stages, ())
            depends = [
                set(lane.operations).intersection(graph.node(name).input)
                for stage in stages
                for lane in stage.lanes
                for name in lane.operations
            ]
            chains += any(depends)
        else:
            _expect_refusal(graph, *stages, match="lane|wait")
    assert min(outcomes.values()) > 50
    assert chains > 10
