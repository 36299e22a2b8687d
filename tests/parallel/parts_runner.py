"""Runs an operation in parts on one device, and whole, and compares the results."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.op_parts import Operation, OpParts, Role, Rule

Array = np.ndarray[Any, Any]


def operation_of(
    op: str,
    inputs: Sequence[Array],
    attributes: dict[str, Any],
    *,
    constants: Sequence[int] = (),
    layout: str = "NHWC",
    role: Role = Role.FORWARD,
) -> tuple[Operation, list[Array]]:
    """An operation on these inputs, and what stock TensorFlow gives for it.

    Args:
        op: its op type.
        inputs: what it reads.
        attributes: of the node, as NodeMaker takes them; all without a default.
        constants: places of inputs whose values a rule may know.
        layout: see Operation.
        role: likewise.
    """
    graph_def = graph_pb2.GraphDef()
    maker = _maker(graph_def, "whole")
    feeds = [maker("Placeholder", dtype=tf.as_dtype(each.dtype)) for each in inputs]
    name = maker(op, *feeds, **attributes)
    results = _run(graph_def, dict(zip(feeds, inputs, strict=True)), name)
    (node,) = (each for each in graph_def.node if each.name == name)
    operation = Operation(
        node,
        tuple(each.shape for each in inputs),
        tuple(each.shape for each in results),
        tuple(each if place in constants else None for place, each in enumerate(inputs)),
        layout,
        role,
    )
    return operation, results


def check_parts(
    rule: Rule,
    operation: Operation,
    inputs: Sequence[Array],
    results: Sequence[Array],
    degrees: Degrees,
    *,
    outputs: Sequence[int] | None = None,
    tolerance: float = 0.0,
) -> OpParts:
    """Runs all parts that the rule makes, and compares what they give with the whole's results.

    Every value of an output has to be given: once, or by addends where the rule says so. Of a part
    nothing is known but the boxes that it reads.

    Args:
        rule: the rule.
        operation: what it divides.
        inputs: its inputs.
        results: what it gives whole.
        degrees: how it is divided.
        outputs: the outputs to compare; all where it is None.
        tolerance: the largest difference, as a share of the largest value.
    """
    parts = rule(operation, degrees)
    assert parts is not None, f"no parts for {degrees}"
    assert len({part.place for part in parts.parts}) == len(parts.parts)
    assert all(0 <= part.place < degrees.count for part in parts.parts)
    totals = [np.zeros(each.shape, np.float64) for each in results]
    counts = [np.zeros(each.shape, np.int64) for each in results]
    for part in parts.parts:
        assert len(part.reads) == len(inputs)
        assert len(part.gives) == len(results)
        graph_def = graph_pb2.GraphDef()
        maker = _maker(graph_def, f"part{part.place}")
        feeds: dict[str, Array] = {}
        names = []
        for box, value in zip(part.reads, inputs, strict=True):
            if box is None:
                names.append("")
                continue
            name = maker("Placeholder", dtype=tf.as_dtype(value.dtype))
            feeds[name] = value[tuple(slice(*each) for each in box)]
            names.append(name)
        given = list(part.emit(maker, names))
        for number, (box, name) in enumerate(zip(part.gives, given, strict=True)):
            if outputs is not None and number not in outputs:
                continue
            (value,) = _run(graph_def, feeds, name, one=True)
            place = tuple(slice(*each) for each in box)
            assert value.shape == totals[number][place].shape, (degrees, box, value.shape)
            totals[number][place] += value
            counts[number][place] += 1
    for number, result in enumerate(results):
        if outputs is not None and number not in outputs:
            continue
        most = counts[number].max(initial=1)
        least = counts[number].min(initial=most)
        assert least == most or parts.are_sums[number], f"output {number} is not covered evenly"
        assert least >= 1, f"output {number} is not covered"
        if most > 1 and not parts.are_sums[number]:
            totals[number] /= most  # copies
        largest = max(np.abs(result.astype(np.float64)).max(initial=0.0), 1e-30)
        difference = np.abs(totals[number] - result).max(initial=0.0) / largest
        assert difference <= tolerance, (str(degrees), number, difference)
    return parts


def _maker(graph_def: graph_pb2.GraphDef, prefix: str) -> NodeMaker:
    numbers = itertools.count()
    return NodeMaker(graph_def, "", prefix, lambda name: f"{name}_{next(numbers)}")


def _run(
    graph_def: graph_pb2.GraphDef, feeds: dict[str, Array], name: str, *, one: bool = False
) -> list[Array]:
    """The outputs of a node, or one tensor."""
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    node, _, port = name.partition(":")
    tensors = graph.get_operation_by_name(node).outputs
    if one:
        tensors = [tensors[int(port or 0)]]
    with tf.compat.v1.Session(graph=graph) as session:
        return session.run(tensors, {f"{feed}:0": value for feed, value in feeds.items()})
