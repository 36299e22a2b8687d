"""Checks that a graph with new stages or units computes what it did before; changes nothing.

It does not know how nodes were found and replaced: it compares the contents of the new ConvStage
and Unit nodes with the nodes that are gone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

from tensorflow.core.framework import node_def_pb2

from tf_interop.contraction import misplaced_step
from tf_interop.errors import GraphError
from tf_interop.graph.control_flow import ControlFlow
from tf_interop.graph.ops import (
    COMPANION_OPS,
    CONVOLUTION_KINDS,
    STAGE_KEPT_FILTER_OPS,
    STEP_OPS,
    UNIT_KEPT_FILTER_OPS,
    input_dtypes,
    output_dtypes,
)
from tf_interop.graph.program import (
    CONV_STAGE_OP,
    UNIT_OP,
    StageNode,
    UnitNode,
    decode_node,
    make_operation,
    result_operand,
)
from tf_interop.graph.view import GraphView, Tensor, recolocate, tensor_text
from tf_interop.stage import Stage, Step

_NewNode = StageNode | UnitNode


class _Correspondence:
    """Maps the tensors and nodes of `before` to those of `after`."""

    def __init__(self, before: GraphView, after: GraphView, new_nodes: Sequence[_NewNode]) -> None:
        self.before, self.after = before, after
        # Each step in `before`: how `after` reads its first output; empty if it cannot.
        self.steps: dict[int, str] = {}
        self.moved: dict[int, int] = {}  # the new node of each step that is gone
        self._outputs: dict[Tensor, Tensor] = {}
        for new in new_nodes:
            name, place_after = new.name, after.index_of[new.name]
            results = {result: port for port, result in enumerate(new.results)}
            for place, step in enumerate(new.steps):
                index = before.index_of.get(step.name)
                if index is None or index in self.steps:
                    raise GraphError(
                        f"Expected the steps of '{name}' to be nodes of the graph, each in one "
                        f"stage or unit, got '{step.name}'."
                    )
                port = results.get((place, 0))
                self.steps[index] = "" if port is None else tensor_text(name, port)
                if step.name not in before.preserved:
                    self.moved[index] = place_after
            for port, (place, port_before) in enumerate(new.results):
                source = before.index_of[new.steps[place].name]
                self._outputs[source, port_before] = (place_after, port)

    def tensor(self, tensor: Tensor) -> Tensor:
        """The counterpart of a tensor of `before`; raises if its new node does not return it."""
        source, port = tensor
        if source not in self.moved:
            return self.node(source), port
        if tensor not in self._outputs:
            raise GraphError(
                f"Expected '{self.after.names[self.moved[source]]}' to return every output that is "
                f"read, got none for output {port} of '{self.before.names[source]}'."
            )
        return self._outputs[tensor]

    def node(self, index: int) -> int:
        moved = self.moved.get(index)
        return self.after.index_of[self.before.names[index]] if moved is None else moved

    def controls(self, index: int, *, inside: Collection[int] = ()) -> set[int]:
        """The counterparts of node `index`'s control dependencies, except those in `inside`."""
        return {
            self.node(source)
            for source in self.before.control_fanins[index]
            if source not in inside
        }


def check_rewrite(before: GraphView, after: GraphView) -> None:
    """Checks that a graph with new stages or units computes what it did before.

    `after` has no cycle, and its ConvStage and Unit nodes are well-formed. Its view has checked
    names and inputs. In addition:

    1. The nodes are those of `before` without the steps, and the new nodes; a preserved step is an
       Identity of its output.
    2. A step equals its original: op, attributes, operands, dtypes, device. The steps of a node are
       in one control-flow region, and one that depends on another comes after it in its lane.
       Neither a filter that a node keeps nor a step's operand from another step can be fed.
    3. Readers of a step's output read the same output of its new node; every control dependency is
       still there, and there are no new ones. Everything else in these readers is as before, except
       that a node placed with a step is placed with its new node.

    Other nodes need only be present: comparing them would take longer than all other checks.

    Raises:
        GraphError: one of these is violated. The message names the node.
    """
    after.topological_order()
    new_ops = (CONV_STAGE_OP, UNIT_OP)
    old = {(before.names[index], op) for index, op in enumerate(before.ops) if op in new_ops}
    new_nodes = [
        decode_node(after.nodes[index])
        for index, op in enumerate(after.ops)
        if op in new_ops and (after.names[index], op) not in old
    ]
    correspondence = _Correspondence(before, after, new_nodes)
    moved = correspondence.moved
    expected = {name for index, name in enumerate(before.names) if index not in moved}
    expected.update(new.name for new in new_nodes)
    if expected != after.index_of.keys():
        raise GraphError(
            "Expected the nodes of the graph, and stages or units instead of their steps, got "
            f"{sorted(expected - after.index_of.keys())[:5]} missing and "
            f"{sorted(after.index_of.keys() - expected)[:5]} too many."
        )
    control_flow = ControlFlow(before)
    # A Session may also feed what it fetches.
    feeds = frozenset() if before.is_function else before.preserved
    for new in new_nodes:
        _check_new_node(new, correspondence, control_flow, feeds)
        _check_filters(new, after, feeds)
    for index in correspondence.steps.keys() - moved.keys():
        _check_identity(index, correspondence)

    readers = {reader for index in moved for reader in before.fanouts[index]}
    for index in sorted(readers - correspondence.steps.keys()):
        _check_reader(index, correspondence)


def _check_new_node(
    new: _NewNode,
    correspondence: _Correspondence,
    control_flow: ControlFlow,
    feeds: Collection[str],
) -> None:
    """Compares a node's operands, dependencies, device and region with its steps' originals."""
    before, after, new_name = correspondence.before, correspondence.after, new.name
    new_index = after.index_of[new_name]
    device = after.nodes[new_index].device
    tensors = zip(after.fanins[new_index], new.input_dtypes, strict=True)
    # The tensor, with its dtype, behind each operand that is an input.
    inputs = {f"inputs:{place}": each for place, each in enumerate(tensors)}
    ways: list[Stage[int]] = [Stage.in_sequence(map(Step, range(len(new.steps))))]
    allowed_ops: Collection[str] = STEP_OPS | COMPANION_OPS
    if isinstance(new, StageNode):
        ways = [schedule.stage for schedule in new.schedules]
        allowed_ops = CONVOLUTION_KINDS.keys()
    indices = [before.index_of[step.name] for step in new.steps]
    place_of = {index: place for place, index in enumerate(indices)}
    region = control_flow.region(indices[0])
    controls: set[int] = set()
    unused = set(inputs)
    for step, index in zip(new.steps, indices, strict=True):
        node, fanins = before.nodes[index], before.fanins[index]
        name = node.name
        if node.op not in allowed_ops:
            raise GraphError(
                f"Expected ops that may be steps of '{new_name}', got {node.op} at '{name}'."
            )
        _expect_same(node.device, device, "device", name, new_name)
        if region is None or control_flow.region(index) != region:
            raise GraphError(
                f"Expected the steps of '{new_name}' in one control-flow region, got "
                f"'{before.names[indices[0]]}' and '{name}' in different or unclear ones."
            )
        _expect_same(len(fanins), len(step.input), "operands", name, new_name)
        for tensor, operand, dtype in zip(fanins, step.input, input_dtypes(node), strict=True):
            source, port = tensor
            if source in place_of:
                of_step = result_operand((place_of[source], port))
                _expect_same(of_step, operand, "operand", name, new_name)
                if before.names[source] in feeds:
                    raise GraphError(
                        f"Expected no step of '{new_name}' to read another that a Session may "
                        f"feed, got '{name}', which reads '{before.names[source]}'."
                    )
            else:
                expected = correspondence.tensor(tensor), dtype
                _expect_same(expected, inputs.get(operand), "operand", name, new_name)
        unused.difference_update(step.input)
        made = make_operation(node, step.input)
        _expect_same(made, step, "op and attributes", name, new_name)
        controls |= correspondence.controls(index, inside=place_of)
    if unused:
        raise GraphError(
            f"Expected every input of '{new_name}' to be an operand, got {sorted(unused)} unused."
        )
    _check_controls(after, new_index, controls)
    for (place, port), dtype in zip(new.results, new.output_dtypes, strict=True):
        node = before.nodes[indices[place]]
        if (port, dtype) not in enumerate(output_dtypes(node)):
            raise GraphError(
                f"Expected an output of '{node.name}' with its dtype, got output {port} of dtype "
                f"{dtype} at node '{new_name}'."
            )
    for way in ways:
        edge = misplaced_step(before.readers, way.map(indices.__getitem__))
        if edge is not None:
            source_name, reader_name = (before.names[each] for each in edge)
            raise GraphError(
                f"Expected '{source_name}' before '{reader_name}', which depends on it, in one "
                f"lane of '{new_name}', got another order or lane."
            )


def _check_filters(new: _NewNode, after: GraphView, feeds: Collection[str]) -> None:
    ops = STAGE_KEPT_FILTER_OPS if isinstance(new, StageNode) else UNIT_KEPT_FILTER_OPS
    index = after.index_of[new.name]
    for position in new.kept_inputs:
        source, _ = after.fanins[index][position]
        node = after.nodes[source]
        is_on_device = node.device == after.nodes[index].device
        if node.op not in ops or not is_on_device or node.name in feeds:
            raise GraphError(
                f"Expected filters that '{new.name}' keeps to come from "
                f"{' or '.join(ops)} nodes on its device that cannot be fed, got input "
                f"{position}, '{node.name}' of op {node.op}."
            )


def _check_identity(index: int, correspondence: _Correspondence) -> None:
    old, after = correspondence.before.nodes[index], correspondence.after
    source = correspondence.steps[index]
    expected = node_def_pb2.NodeDef(
        name=old.name, op="Identity", input=[source], device=old.device, attr={"T": old.attr["T"]}
    )
    new = after.nodes[after.index_of[old.name]]
    _expect_same(expected, new, "output", old.name, old.name)


def _check_reader(index: int, correspondence: _Correspondence) -> None:
    before, after = correspondence.before, correspondence.after
    name = before.names[index]
    index_after = after.index_of[name]
    old, new = before.nodes[index], after.nodes[index_after]
    tensors = tuple(map(correspondence.tensor, before.fanins[index]))
    _expect_same(tensors, after.fanins[index_after], "inputs", name, name)
    _check_controls(after, index_after, correspondence.controls(index))
    expected = node_def_pb2.NodeDef()
    expected.CopyFrom(old)
    expected.input[:] = new.input
    moved = correspondence.moved.items()
    recolocate([expected], {before.names[step]: after.names[place] for step, place in moved})
    _expect_same(expected, new, "op, device and attributes", name, name)


def _check_controls(view: GraphView, index: int, expected: set[int]) -> None:
    """Checks that a node waits for all of `expected` that it does not read, and for no others."""
    controls = set(view.control_fanins[index])
    missing = expected - controls - {source for source, _ in view.fanins[index]}
    if missing or not controls <= expected:
        raise GraphError(
            "Expected control dependencies on "
            f"{sorted(view.names[source] for source in expected)}, got "
            f"{sorted(view.names[source] for source in controls)} at node '{view.names[index]}'."
        )


def _expect_same(expected: object, got: object, what: str, old: str, new: str) -> None:
    """Checks that `what` of the node `old` is unchanged in the node `new`."""
    if expected != got:
        texts = (textwrap.shorten(str(value), 200, placeholder="...") for value in (expected, got))
        raise GraphError(
            f"Expected the {what} of '{old}' as before the rewrite, {', got '.join(texts)} at node "
            f"'{new}'."
        )
