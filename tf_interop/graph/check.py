"""Checks that a graph with new stages computes what it did without them; it changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.errors import GraphError
from tf_interop.graph.control_flow import ControlFlow
from tf_interop.graph.convolution_ops import CONVOLUTION_KINDS
from tf_interop.graph.session_feeds import find_fed
from tf_interop.graph.stage_node import (
    CONV_STAGE_OP,
    StageNode,
    decode_stage,
    operand_positions,
)
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import GraphView

_COLOCATION = "_class"
_COLOCATED_WITH = b"loc:@"


def check_rewrite(
    before: GraphView,
    after: GraphView,
    nodes_to_preserve: Collection[str],
    *,
    fetches: Collection[str] = (),
    readers_only: bool = False,
) -> None:
    """Checks that a graph with new stages computes what it did without them.

    It knows nothing of the plan: what the new ConvStage nodes say about themselves is held against
    the convolutions that are gone. Checks that `after` is well-formed: there is no cycle, the nodes
    to preserve are there, ConvStage nodes are well-formed, and who reads one reads an output that
    it has. Names and inputs were checked when its view was made. And:

    1. Nodes are those of `before`, without the convolutions that are steps of new stages, and with
       those stages; a convolution that is to be preserved is an Identity of its output.
    2. A step is its convolution: op, attributes, operands, device. The members of a stage are in
       one control-flow region. What it takes as constant is a Const that cannot be fed.
    3. Who read a convolution reads the stage that has it as a step, at that step's output; every
       control dependency is still there, and there are no new ones.
    4. All else in the nodes is as it was, except that who was placed with a convolution is placed
       with its stage. So are the functions, versions and all other parts of the graph.

    Work is linear in the nodes and edges of both graphs.

    Args:
        before: the graph without the new stages.
        after: the graph with them.
        nodes_to_preserve: names of nodes that must live on. Those that `before` lacks are not
            asked for.
        fetches: what the graph is run for, names of nodes or tensors; none where that is not known.
        readers_only: leaves out of 4 the nodes that read no convolution that has moved, and the
            other parts of the graph; comparing them takes longer than all the rest.

    Raises:
        GraphError: one of these does not hold. It names the node.
    """
    preserved = {name for name in nodes_to_preserve if name in before.index_of}
    stages = [
        stage for stage in _check_structure(after, preserved) if stage.name not in before.index_of
    ]
    steps = _new_steps(before, after, stages)
    _check_names(before, after, stages, steps, preserved)
    moved = {name: output for name, output in steps.items() if name not in preserved}
    correspondence = _Correspondence(before, after, moved)

    control_flow = ControlFlow(before, find_fed(before, nodes_to_preserve, fetches))
    for stage in stages:
        check_time_limit()
        _check_stage(before, after, stage, correspondence, control_flow)
        _check_constant_inputs(after, stage, preserved)
    for name, output in steps.items():
        if name in preserved:
            _check_identity(before, after, name, output)

    readers = {reader for name in moved for reader in before.fanouts[before.index_of[name]]}
    step_indices = {before.index_of[name] for name in steps}
    for index in sorted(readers - step_indices):
        index_after = after.index_of[before.names[index]]
        _check_reader(before, after, index, index_after, correspondence)
    if not readers_only:
        _check_others(before, after, readers | step_indices, correspondence)


class _Correspondence:
    """Which node of the rewritten graph stands for each node of the graph before.

    Attributes:
        moved: the output of a stage, as (node, port), for each name that is no longer there.
    """

    def __init__(
        self, before: GraphView, after: GraphView, moved: Mapping[str, tuple[int, int]]
    ) -> None:
        self._before = before
        self._moved_indices = {before.index_of[name]: output for name, output in moved.items()}
        self._index_after = after.index_of
        self.moved = moved

    def tensors(self, index: int) -> tuple[tuple[int, int], ...]:
        """What in the rewritten graph stands for the tensors that node `index` reads.

        Raises:
            GraphError: it reads an output that convolutions lack.
        """
        tensors = []
        for source, port in self._before.fanins[index]:
            output = self._moved_indices.get(source)
            if output is None:
                output = (self._index_after[self._before.names[source]], port)
            elif port:
                raise GraphError(
                    f"Expected output 0 of convolution '{self._before.names[source]}', got "
                    f"{port} at node '{self._before.names[index]}'."
                )
            tensors.append(output)
        return tuple(tensors)

    def controls(self, index: int) -> set[int]:
        """What in the rewritten graph stands for the nodes that node `index` waits for."""
        controls = set()
        for source in self._before.control_fanins[index]:
            output = self._moved_indices.get(source)
            if output is None:
                controls.add(self._index_after[self._before.names[source]])
            else:
                controls.add(output[0])
        return controls


def _check_structure(view: GraphView, nodes_to_preserve: Iterable[str]) -> list[StageNode]:
    """Checks that a graph is well-formed; returns its stages."""
    view.topological_order()
    for name in nodes_to_preserve:
        if name not in view.index_of:
            raise GraphError(f"Expected the graph to keep node '{name}', got none of that name.")
    if CONV_STAGE_OP not in view.op_types:
        return []
    stages = []
    for index, op in enumerate(view.ops):
        if op != CONV_STAGE_OP:
            continue
        stage = decode_stage(view.nodes[index])
        for reader in view.fanouts[index]:
            for source, port in view.fanins[reader]:
                if source == index and port >= len(stage.steps):
                    raise GraphError(
                        f"Expected an output of '{stage.name}' below {len(stage.steps)}, got "
                        f"{port} at node '{view.names[reader]}'."
                    )
        stages.append(stage)
    return stages


def _new_steps(
    before: GraphView, after: GraphView, stages: Iterable[StageNode]
) -> dict[str, tuple[int, int]]:
    """For each convolution that is a step now, the output that stands for it."""
    steps: dict[str, tuple[int, int]] = {}
    for stage in stages:
        for port, step in enumerate(stage.steps):
            name = step.node_def.name
            index = before.index_of.get(name)
            if index is None or before.ops[index] not in CONVOLUTION_KINDS:
                raise GraphError(
                    f"Expected the steps of '{stage.name}' to be convolutions of the graph, got "
                    f"'{name}'."
                )
            if name in steps:
                raise GraphError(
                    f"Expected convolution '{name}' to be one step, got one more at node "
                    f"'{stage.name}'."
                )
            steps[name] = (after.index_of[stage.name], port)
    return steps


def _check_names(
    before: GraphView,
    after: GraphView,
    stages: Iterable[StageNode],
    steps: Mapping[str, tuple[int, int]],
    preserved: Collection[str],
) -> None:
    expected = {name for name in before.names if name not in steps or name in preserved}
    expected.update(stage.name for stage in stages)
    if expected != after.index_of.keys():
        lost = sorted(expected - after.index_of.keys())[:5]
        new = sorted(after.index_of.keys() - expected)[:5]
        raise GraphError(
            "Expected the nodes of the graph, and stages instead of their convolutions, got "
            f"{lost} missing and {new} too many."
        )


def _check_stage(
    before: GraphView,
    after: GraphView,
    stage: StageNode,
    correspondence: _Correspondence,
    control_flow: ControlFlow,
) -> None:
    """Checks that `stage` has the operands, dependencies, device and region of its steps."""
    index_after = after.index_of[stage.name]
    device = after.nodes[index_after].device
    read = after.fanins[index_after]
    positions = operand_positions(stage)
    indices = [before.index_of[step.node_def.name] for step in stage.steps]
    region = control_flow.region(indices[0])
    controls: set[int] = set()
    for step, index in zip(stage.steps, indices, strict=True):
        name = before.names[index]
        _expect(before.nodes[index].device, device, "device", name, stage.name)
        if region is None or control_flow.region(index) != region:
            raise GraphError(
                f"Expected the steps of '{stage.name}' in one control-flow region, got "
                f"'{before.names[indices[0]]}' and '{name}' in different or unclear ones."
            )
        operands = step.node_def.input[:]
        tensors = tuple([read[positions[operand]] for operand in operands])
        _expect(correspondence.tensors(index), tensors, "operands", name, stage.name)
        expected = node_def_pb2.NodeDef()
        expected.CopyFrom(before.nodes[index])
        for field in ("device", "experimental_debug_info", "experimental_type"):
            expected.ClearField(field)
        for attribute in [key for key in expected.attr if key.startswith("_")]:
            del expected.attr[attribute]
        expected.input[:] = operands
        _expect(expected, step.node_def, "op and attributes", name, stage.name)
        controls |= correspondence.controls(index)
    _check_controls(after, index_after, controls)


def _check_constant_inputs(after: GraphView, stage: StageNode, preserved: Collection[str]) -> None:
    """Checks that what a stage takes as constant is, and cannot be fed."""
    index = after.index_of[stage.name]
    for position in stage.constant_inputs:
        source, _ = after.fanins[index][position]
        node = after.nodes[source]
        is_on_device = node.device == after.nodes[index].device
        if node.op != "Const" or not is_on_device or node.name in preserved:
            raise GraphError(
                f"Expected constant_inputs of '{stage.name}' to be Const nodes on its device that "
                f"cannot be fed, got input {position}, '{node.name}' of op {node.op}."
            )


def _check_identity(
    before: GraphView, after: GraphView, name: str, output: tuple[int, int]
) -> None:
    index = after.index_of[name]
    old, new = before.nodes[before.index_of[name]], after.nodes[index]
    _expect("Identity", new.op, "op", name, name)
    _expect(old.device, new.device, "device", name, name)
    _expect(old.attr["T"], new.attr["T"], "dtype", name, name)
    _expect((output,), after.fanins[index], "input", name, name)
    _check_controls(after, index, set())


def _check_reader(
    before: GraphView,
    after: GraphView,
    index: int,
    index_after: int,
    correspondence: _Correspondence,
) -> None:
    """Checks a node that reads a convolution that has moved, or was placed with it."""
    old, new = before.nodes[index], after.nodes[index_after]
    name = before.names[index]
    _expect(correspondence.tensors(index), after.fanins[index_after], "inputs", name, name)
    _check_controls(after, index_after, correspondence.controls(index))
    expected = node_def_pb2.NodeDef()
    expected.CopyFrom(old)
    expected.input[:] = new.input
    if _COLOCATION in old.attr:
        classes = {
            _redirect_class(entry, after, correspondence.moved)
            for entry in old.attr[_COLOCATION].list.s
        }
        got = set(new.attr[_COLOCATION].list.s) if _COLOCATION in new.attr else set()
        _expect(classes, got, _COLOCATION, name, name)
        expected.attr[_COLOCATION].CopyFrom(new.attr[_COLOCATION])
    _expect(expected, new, "op, device and attributes", name, name)


def _check_controls(view: GraphView, index: int, expected: set[int]) -> None:
    """Checks that a node waits for `expected`, where it does not read them, and for no others."""
    controls = set(view.control_fanins[index])
    missing = expected - controls
    if missing:
        missing.difference_update(source for source, _ in view.fanins[index])
    if missing or not controls <= expected:
        raise GraphError(
            "Expected control dependencies on "
            f"{sorted(view.names[source] for source in expected)}, got "
            f"{sorted(view.names[source] for source in controls)} at node '{view.names[index]}'."
        )


def _redirect_class(entry: bytes, after: GraphView, moved: Mapping[str, tuple[int, int]]) -> bytes:
    if not entry.startswith(_COLOCATED_WITH):
        return entry
    output = moved.get(entry.removeprefix(_COLOCATED_WITH).decode("utf-8", "replace"))
    return entry if output is None else _COLOCATED_WITH + after.names[output[0]].encode()


def _check_others(
    before: GraphView, after: GraphView, checked: Collection[int], correspondence: _Correspondence
) -> None:
    """Checks all but the nodes of `before` in `checked`; some may be placed with a stage."""
    for index_after, (name, node) in enumerate(zip(after.names, after.nodes, strict=True)):
        index = before.index_of.get(name)
        if index is None or index in checked:
            continue
        if before.nodes[index] != node or _COLOCATION in node.attr:
            _check_reader(before, after, index, index_after, correspondence)
    for field in graph_pb2.GraphDef.DESCRIPTOR.fields:
        if field.name == "node":
            continue
        if getattr(before.graph_def, field.name) != getattr(after.graph_def, field.name):
            raise GraphError(f"Expected the graph's {field.name} as before, got another.")


def _expect(expected: object, got: object, what: str, old: str, new: str) -> None:
    if expected != got:
        raise GraphError(
            f"Expected the {what} of '{old}' as before the rewrite, {_short(expected)}, got "
            f"{_short(got)} at node '{new}'."
        )


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
