"""Finds the parameters of a graph: tensors that depend only on variables and constants.

    handle --> ReadVariableOp --> Mul --> Reshape --+
    Const ----------------------^                   +--> Conv2D
                                   images ----------+

Here everything above Conv2D is a parameter. Its value is the same in every call until a variable is
assigned, so it can be kept between calls.

A variable is a parameter only if no op of the graph can write it: every op that has its handle only
reads it. Resource variables alone qualify. TensorFlow 1's reference variables are written in place,
and so are variables on another device or in another process, out of sight.

A node is a parameter if all of its operands are, its op is pure, it has no control dependency in or
out, no Session may feed or fetch it, it is in no loop or branch, and it is on the device of its
operands and of all that read it. So what is made of parameters stays on one device of this process:
TensorFlow sends the same bytes as before between devices, and no other process needs our ops. Other
nodes may wait for a read, as each output of a function does for all of its reads: they can wait for
whatever reads the variable instead.

A Session's run may feed a value so that a variable need not be read; such a read is no parameter
either, because the variable may have no value.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Mapping

import numpy as np

from tf_interop.convolution import Refusal, RefusalReason, Shape
from tf_interop.graph.control_flow import ControlFlow
from tf_interop.graph.ops import HANDLE_OPS, STEP_OPS, attribute_of, why_no_step_node
from tf_interop.graph.properties import GraphProperties, is_fully_known
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import GraphView, device_type_of, is_local
from tf_interop.graph.xla import xla_mark

_READING_OPS = frozenset({"ReadVariableOp", "VariableShape", "VarIsInitializedOp"})


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The parameters of a graph.

    Attributes:
        shapes: the shape of each parameter node's first output, and of all outputs of an Unpack;
            all outputs of these nodes are parameters.
        refusals: reads of variables that are no parameters, each with the reason.
    """

    shapes: Mapping[int, Shape | None]
    refusals: tuple[Refusal, ...]


def find_parameters(view: GraphView, properties: GraphProperties, device_type: str) -> Parameters:
    """Finds the parameters on the local devices of one type.

    Raises:
        GraphError: the graph has a cycle.
    """
    control_flow = ControlFlow(view)
    written = _written_handles(view)
    has_control_readers = {source for controls in view.control_fanins for source in controls}
    found: dict[int, Shape | None] = {}
    refusals = []
    for index in view.topological_order():
        op = view.ops[index]
        is_read = op == "ReadVariableOp"
        fanins = view.fanins[index]
        if (
            not is_read
            and op != "Const"
            and (
                op not in STEP_OPS or not fanins or any(source not in found for source, _ in fanins)
            )
        ):
            continue
        check_time_limit()
        node = view.nodes[index]
        reason = None
        if is_read and (len(fanins) != 1 or fanins[0] in written):
            reason = RefusalReason.WRITTEN
        elif is_read and not control_flow.always_runs_once(fanins[0][0]):
            reason = RefusalReason.CONTROL_FLOW
        elif view.control_fanins[index] or (index in has_control_readers and not is_read):
            reason = RefusalReason.CONTROL_DEPENDENCY
        # TensorFlow preserves all reads of a function among its effects, but to read is no effect.
        elif node.name in view.preserved and not (is_read and view.is_function):
            reason = RefusalReason.PRESERVED
        elif control_flow.may_not_run(index):
            reason = RefusalReason.NOT_RUN
        elif not _is_in_place(view, index, device_type):
            reason = RefusalReason.DEVICE
        elif xla_mark(node) is not None:
            reason = RefusalReason.XLA
        elif op in STEP_OPS and why_no_step_node(node) is not None:
            reason = why_no_step_node(node)
        if reason is None:
            found[index] = _shape(view, properties, index, found)
        elif is_read:
            refusals.append(view.refusal(index, reason, f"Not kept: {reason.value}."))
    return Parameters(found, tuple(refusals))


def _is_in_place(view: GraphView, index: int, device_type: str) -> bool:
    """Whether a node is on a local device of the type, with all of its operands and readers."""
    device = view.nodes[index].device
    return (
        device_type_of(device) == device_type
        and is_local(device)
        and all(view.nodes[source].device == device for source, _ in view.fanins[index])
        and all(view.nodes[reader].device == device for reader in view.fanouts[index])
    )


def _shape(
    view: GraphView,
    properties: GraphProperties,
    index: int,
    known: Mapping[int, Shape | None],
) -> Shape | None:
    """The shape of a parameter; most follow from their operands, without inference."""
    op = view.ops[index]
    operands = [None if port else known.get(source) for source, port in view.fanins[index]]
    if op in _ELEMENTWISE and all(map(is_fully_known, operands)):
        with contextlib.suppress(ValueError):  # TensorFlow has an error for it, too
            return np.broadcast_shapes(*operands)  # type: ignore[arg-type]
    if op == "Reshape":
        sizes = properties.held_shape(view.fanins[index][1][0], 0)
        if is_fully_known(sizes):
            return sizes
    if op == "Unpack" and operands[0] is not None:
        axis = attribute_of(view.nodes[index], "axis").i % len(operands[0])
        return operands[0][:axis] + operands[0][axis + 1 :]
    if op == "Squeeze" and is_fully_known(operands[0]):
        shape = operands[0] or ()
        axes = attribute_of(view.nodes[index], "squeeze_dims").list.i
        gone = {axis % len(shape) for axis in axes} if axes else None
        return tuple(
            size
            for axis, size in enumerate(shape)
            if size != 1 or (gone is not None and axis not in gone)
        )
    return properties.output_shape(index, 0)


_ELEMENTWISE = {
    *("Add", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "Maximum"),
    *("Rsqrt", "Sqrt", "Neg", "Square", "Cast", "Identity"),
    *("Sigmoid", "Tanh", "Softplus", "Exp", "Abs", "_UnaryOpsComposition"),
}


def _written_handles(view: GraphView) -> set[tuple[int, int]]:
    """The handles, as nodes and ports, that an op may write through or pass on to others."""
    written: set[tuple[int, int]] = set()
    names = collections.defaultdict(list)
    for index, op in enumerate(view.ops):
        if op == "VarHandleOp":
            node = view.nodes[index]
            shared = attribute_of(node, "shared_name").s or node.name.encode()
            names[attribute_of(node, "container").s, shared].append((index, 0))
        for source, port in view.fanins[index]:
            if op not in _READING_OPS or view.ops[source] not in HANDLE_OPS:
                written.add((source, port))
    # Handles of one name are handles of one variable.
    for same in names.values():
        if not written.isdisjoint(same):
            written.update(same)
    return written
