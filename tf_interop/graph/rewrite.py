"""Replaces the convolutions of each planned stage by one ConvStage node.

    x --> a: Conv2D --> f              x --+--> stage: ConvStage --:0--> f
    x --> b: Conv2D --> g     ==>          |                     --:1--> g
    c --^ b                            c --^

Preconditions, of which a failed one raises and leaves everything as it was:

1. Every member of a stage is a convolution that `find_convolutions` found in this graph, and is in
   no other stage.
2. The members of a stage have one device and one control-flow region.
3. With all stages in place the graph has no cycle. This holds only if the members of each stage are
   independent.

Guaranteed: the graph that was given is not altered; nodes that do not depend on a member directly
keep their bytes, and so do the function library and the versions; a member whose name must be
preserved stays, as an Identity of the stage's output, and whoever read it goes on reading it, so
that it can still be fed; no dependency is lost; devices stay. The rewritten graph holds fewer
convolution nodes and nothing here looks inside a ConvStage, so a second run finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.convolution import ConvolutionNode
from tf_interop.graph.convolution_ops import CONVOLUTION_KINDS
from tf_interop.graph.make_stage_def import COLOCATION, make_stage_def, redirect_classes
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import GraphView
from tf_interop.plan.types import PlannedStage

STAGE_NAME_PREFIX = "tf_interop/stage_"


def rewrite_stages(
    view: GraphView,
    stages: Sequence[PlannedStage],
    convolutions: Sequence[ConvolutionNode],
    nodes_to_preserve: Collection[str],
) -> graph_pb2.GraphDef:
    """Replaces the convolutions of each stage by one ConvStage node.

    Args:
        view: the graph.
        stages: what to put together. Stage `k` becomes the node `tf_interop/stage_<k>`, with a
            number behind it where that name is taken.
        convolutions: what `find_convolutions` found in the graph.
        nodes_to_preserve: names that must live on, because they are fed or fetched.

    Returns:
        The rewritten graph. The stage stands where the first of its members that goes away stood,
        or at the end. The same arguments give the same graph.

    Raises:
        ValueError: a precondition does not hold. It names the nodes.
    """
    members = _members(view, stages, convolutions)
    _check_contraction(view, members)

    preserved = frozenset(nodes_to_preserve)
    stage_names = _stage_names(view, len(stages))
    # How a node that read an input of the old graph reads it in the new one.
    redirected: dict[str, str] = {}
    for stage_name, nodes in zip(stage_names, members, strict=True):
        for port, member in enumerate(nodes):
            if member.name not in preserved:
                output = _output(stage_name, port)
                redirected[member.name] = output
                redirected[f"{member.name}:0"] = output
                redirected[f"^{member.name}"] = f"^{stage_name}"

    graph_def = graph_pb2.GraphDef()
    graph_def.CopyFrom(view.graph_def)
    _redirect_readers(view, graph_def, members, redirected)
    _redirect_colocations(view, graph_def, members, redirected)
    unused: list[int] = []
    for stage_name, stage, nodes in zip(stage_names, stages, members, strict=True):
        check_time_limit()
        stage_def = make_stage_def(view, stage_name, stage, nodes, redirected, preserved)
        free = sorted(member.index for member in nodes if member.name not in preserved)
        if free:
            graph_def.node[free[0]].CopyFrom(stage_def)
            unused += free[1:]
        else:
            graph_def.node.append(stage_def)
        for port, member in enumerate(nodes):
            if member.name in preserved:
                identity = _make_identity(view, member, _output(stage_name, port))
                graph_def.node[member.index].CopyFrom(identity)
    for index in sorted(unused, reverse=True):
        del graph_def.node[index]
    return graph_def


def _members(
    view: GraphView, stages: Sequence[PlannedStage], convolutions: Sequence[ConvolutionNode]
) -> list[list[ConvolutionNode]]:
    """The convolutions of each stage, lane after lane; checks preconditions 1 and 2."""
    found = {node.name: node for node in convolutions}
    stage_of: dict[str, int] = {}
    members: list[list[ConvolutionNode]] = []
    for number, stage in enumerate(stages):
        if not stage.lanes or not all(stage.lanes):
            raise ValueError(f"Expected lanes that hold convolutions, got {stage} as {number}.")
        try:
            stage.check_lane_options()
            stage.check_schedules()
        except ValueError as error:
            raise ValueError(f"{error} in stage {number}.") from error
        nodes: list[ConvolutionNode] = []
        for pinned in stage.convolutions:
            node = found.get(pinned.node)
            if node is None or not _is_convolution_of(view, node):
                raise ValueError(
                    f"Expected a convolution that was found in this graph, got '{pinned.node}' in "
                    f"stage {number}. Plan with the convolutions of the graph that is rewritten."
                )
            if node.name in stage_of:
                raise ValueError(
                    f"Expected every convolution in one stage at most, got '{node.name}' in stage "
                    f"{stage_of[node.name]} and again in stage {number}."
                )
            stage_of[node.name] = number
            nodes.append(node)
        for node in nodes[1:]:
            _check_equal(number, nodes[0], node, "device", nodes[0].device, node.device)
            _check_equal(number, nodes[0], node, "region", nodes[0].region, node.region)
        members.append(nodes)
    return members


def _is_convolution_of(view: GraphView, node: ConvolutionNode) -> bool:
    return view.index_of.get(node.name) == node.index and view.ops[node.index] in CONVOLUTION_KINDS


def _check_equal(
    number: int,
    first: ConvolutionNode,
    other: ConvolutionNode,
    what: str,
    expected: str,
    got: str,
) -> None:
    if expected != got:
        raise ValueError(
            f"Expected one {what} in stage {number}, got '{expected}' at node '{first.name}' and "
            f"'{got}' at node '{other.name}'."
        )


def _check_contraction(view: GraphView, members: Sequence[Sequence[ConvolutionNode]]) -> None:
    """Checks precondition 3: runs the graph, each stage only when all its members can run."""
    stage_of = {node.index: number for number, nodes in enumerate(members) for node in nodes}
    stage_indices = [tuple(node.index for node in nodes) for nodes in members]
    waiting_members = [len(nodes) for nodes in members]
    indegrees = view.indegrees()
    fanouts, has_back_edges = view.fanouts, view.has_back_edges
    has_run = bytearray(len(view))
    run_count = 0
    running: tuple[int, ...]
    ready = [index for index, indegree in enumerate(indegrees) if not indegree]
    while ready:
        index = ready.pop()
        number = stage_of.get(index)
        if number is None:
            running = (index,)
        else:
            waiting_members[number] -= 1
            if waiting_members[number]:
                continue
            running = stage_indices[number]
        run_count += len(running)
        for source in running:
            has_run[source] = 1
            for reader in fanouts[source]:
                if has_back_edges and view.is_back_edge(source, reader):
                    continue
                indegrees[reader] -= 1
                if not indegrees[reader]:
                    ready.append(reader)
    if run_count != len(view):
        raise ValueError(_describe_cycle(view, members, stage_of, has_run))


def _describe_cycle(
    view: GraphView,
    members: Sequence[Sequence[ConvolutionNode]],
    stage_of: dict[int, int],
    has_run: bytearray,
) -> str:
    """Walks back from a node that could not run until a node comes up again."""

    def waits_for(index: int) -> int | None:
        return next((source for source in view.sources(index) if not has_run[source]), None)

    index = has_run.index(0)
    path: dict[int, None] = {}
    while index not in path:
        path[index] = None
        source = waits_for(index)
        if source is None:
            # It could run, but another member of its stage could not.
            source = next(
                node.index for node in members[stage_of[index]] if waits_for(node.index) is not None
            )
        index = source
    walked = list(path)
    cycle = walked[walked.index(index) :][::-1]
    numbers = sorted({stage_of[node] for node in cycle if node in stage_of})
    names = " -> ".join(
        f"'{view.names[node]}'" + (f" (stage {stage_of[node]})" if node in stage_of else "")
        for node in cycle
    )
    if len(numbers) == 1:
        return f"Expected the convolutions of stage {numbers[0]} to be independent, got {names}."
    return f"Expected stages that can run one after another, got a cycle of {numbers}: {names}."


def _stage_names(view: GraphView, count: int) -> list[str]:
    names = []
    for number in range(count):
        name = base = f"{STAGE_NAME_PREFIX}{number}"
        suffix = 0
        while name in view.index_of:
            suffix += 1
            name = f"{base}_{suffix}"
        names.append(name)
    return names


def _output(stage_name: str, port: int) -> str:
    return f"{stage_name}:{port}" if port else stage_name


def _redirect_readers(
    view: GraphView,
    graph_def: graph_pb2.GraphDef,
    members: Sequence[Sequence[ConvolutionNode]],
    redirected: dict[str, str],
) -> None:
    """Lets nodes outside of stages read the stages instead of their members."""
    readers: set[int] = set()
    for nodes in members:
        for member in nodes:
            if member.name in redirected:
                readers.update(view.fanouts[member.index])
    readers.difference_update(member.index for nodes in members for member in nodes)
    for index in readers:
        inputs = graph_def.node[index].input
        texts = _redirect_inputs(list(inputs), redirected)
        del inputs[:]
        inputs.extend(texts)


def _redirect_inputs(texts: Sequence[str], redirected: dict[str, str]) -> list[str]:
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


def _redirect_colocations(
    view: GraphView,
    graph_def: graph_pb2.GraphDef,
    members: Sequence[Sequence[ConvolutionNode]],
    redirected: dict[str, str],
) -> None:
    """Lets nodes that were placed with a member be placed with its stage."""
    in_stages = {member.index for nodes in members for member in nodes}
    for index, node in enumerate(view.nodes):
        if COLOCATION in node.attr and index not in in_stages:
            old = list(node.attr[COLOCATION].list.s)
            new = redirect_classes(old, redirected)
            if new != old:
                classes = graph_def.node[index].attr[COLOCATION].list.s
                del classes[:]
                classes.extend(new)


def _make_identity(view: GraphView, member: ConvolutionNode, output: str) -> node_def_pb2.NodeDef:
    identity = node_def_pb2.NodeDef(
        name=member.name, op="Identity", input=[output], device=member.device
    )
    identity.attr["T"].type = view.nodes[member.index].attr["T"].type
    return identity
