"""Runs an operation in parts on one device, and whole, and compares the results."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from graph_builder import node_of
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.op_parts import Operation, OpPart, are_addends
from tf_interop.parallel.regions import Box
from tf_interop.parallel.rules import RULES

Array = np.ndarray[Any, Any]


def values(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Random values."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def sizes(*numbers: Any) -> Array:
    """Sizes, axes or paddings, which a rule may know."""
    return np.array(numbers, np.int64)


def operation_of(
    op: str, inputs: Sequence[Array], attributes: Mapping[str, Any] | None = None, **others: Any
) -> tuple[Operation, list[Array]]:
    """An operation on these inputs, and what stock TensorFlow gives for it.

    Args:
        op: its op type.
        inputs: what it reads. Integers are constants.
        attributes: of the node, as NodeMaker takes them; all without a default but `T`, which is
            the dtype of the first input that is no integer. None leaves one out.
        **others: of the Operation.
    """
    known = [each if each.dtype.kind == "i" else None for each in inputs]
    graph_def = graph_pb2.GraphDef()
    maker = NodeMaker(graph_def, "", "whole", set())
    feeds = [maker("Placeholder", dtype=tf.as_dtype(each.dtype)) for each in inputs]
    dtypes = [tf.as_dtype(each.dtype) for each in inputs if each.dtype.kind not in "ib"]
    given = {"T": dtypes[0], **(attributes or {})}
    name = maker(op, *feeds, **{key: given[key] for key in given if given[key] is not None})
    results = run_graph(graph_def, dict(zip(feeds, inputs, strict=True)), name)
    shapes = (tuple(each.shape for each in tensors) for tensors in (inputs, results))
    return Operation(node_of(graph_def, name), *shapes, tuple(known), **others), results


def check(
    op: str,
    inputs: Sequence[Array],
    attributes: Mapping[str, Any] | None,
    degrees: Iterable[Degrees],
    *,
    tolerance: float = 0.0,
    outputs: int | None = None,
    **others: Any,
) -> list[Sequence[OpPart]]:
    """Divides an operation and compares with stock TensorFlow.

    Args:
        op: see `operation_of`.
        inputs: likewise.
        attributes: likewise.
        degrees: how it is divided, one after the other.
        tolerance: see `check_parts`.
        outputs: likewise.
        **others: see `operation_of`.

    Returns:
        The parts for each of `degrees`.
    """
    operation, results = operation_of(op, inputs, attributes, **others)
    return [
        check_parts(operation, inputs, results, each, tolerance=tolerance, outputs=outputs)
        for each in degrees
    ]


def check_parts(
    operation: Operation,
    inputs: Sequence[Array],
    results: Sequence[Array],
    degrees: Degrees,
    *,
    outputs: int | None = None,
    tolerance: float = 0.0,
) -> Sequence[OpPart]:
    """Runs all parts of an operation, and compares what they give with the whole's results.

    Every value of an output has to be given, as often as every other: once, or as copies or
    addends. Of a part nothing is known but the boxes that it reads.

    Args:
        operation: what is divided.
        inputs: its inputs.
        results: what it gives whole.
        degrees: how it is divided.
        outputs: how many outputs are compared; all where it is None.
        tolerance: the largest difference, as a share of the largest value.
    """
    parts = parts_of(operation, degrees)
    places = [part.place for part in parts]
    assert places == sorted(set(places) & set(range(degrees.count)))
    results = results[:outputs]
    totals = [np.zeros(each.shape, np.float64) for each in results]
    counts = [np.zeros(each.shape, np.int64) for each in results]
    for part in parts:
        graph_def = graph_pb2.GraphDef()
        maker = NodeMaker(graph_def, "", "part", set())
        feeds: dict[str, Array] = {}
        names = [""] * len(inputs)
        for place, (box, value) in enumerate(zip(part.reads, inputs, strict=True)):
            if box is not None:
                names[place] = maker("Placeholder", dtype=tf.as_dtype(value.dtype))
                feeds[names[place]] = value[_at(box)]
        given = list(part.emit(maker, names))
        assert len(given) == len(part.gives)
        found = run_graph(graph_def, feeds, given[: len(results)])
        for number, value in enumerate(found):
            at = _at(part.gives[number])
            assert value.shape == totals[number][at].shape, (degrees, at, value.shape)
            totals[number][at] += value
            counts[number][at] += 1
    for number, (total, count, result) in enumerate(zip(totals, counts, results, strict=True)):
        most = count.max(initial=1)
        is_even = count.min(initial=most) == most
        assert (is_even or are_addends(parts)) and count.all(), f"output {number} is not covered"
        copies = 1 if are_addends(parts) else most
        largest = max(np.abs(result.astype(np.float64)).max(initial=0.0), 1e-30)
        difference = np.abs(total / copies - result).max(initial=0.0) / largest
        assert difference <= tolerance, (str(degrees), number, difference)
    return parts


def parts_of(operation: Operation, degrees: Degrees) -> Sequence[OpPart]:
    """The parts of an operation that can be divided so."""
    parts = RULES[operation.node.op](operation, degrees)
    assert parts is not None, f"no parts for {degrees}"
    return parts


def stays_whole(operation: Operation, *degrees: Degrees) -> bool:
    """Whether an operation cannot be divided in any of these ways."""
    return all(RULES[operation.node.op](operation, each) is None for each in degrees)


def check_nchw(operation: Operation, degrees: Degrees, *, images: Sequence[int]) -> None:
    """Compares parts in NCHW, of which CPUs have few kernels, with those in NHWC.

    Args:
        operation: in NHWC.
        degrees: how it is divided.
        images: the places of its images among inputs and outputs.
    """
    parts, others = parts_of(operation, degrees), parts_of(_in_nchw(operation, images), degrees)
    assert are_addends(others) == are_addends(parts)
    for part, other in zip(parts, others, strict=True):
        assert (other.place, other.multiply_adds) == (part.place, part.multiply_adds)
        boxes, in_nchw = part.reads + part.gives, other.reads + other.gives
        for place, box in enumerate(boxes):
            is_image = place in images and box is not None
            assert in_nchw[place] == (transposed(box) if is_image else box)
        for node, node_in_nchw in zip(nodes_of(part), nodes_of(other), strict=True):
            assert node_in_nchw.op == node.op
            if node.op == "Const":
                value, value_in_nchw = (
                    tf.make_ndarray(each.attr["value"].tensor) for each in (node, node_in_nchw)
                )
                if value.ndim == 4:
                    value = value.transpose(0, 3, 1, 2)
                elif value.ndim and (value.ndim == 2 or len(boxes) - 1 in images):
                    value = np.array(transposed(value))
                assert value_in_nchw.tolist() == value.tolist()


def _in_nchw(operation: Operation, images: Sequence[int]) -> Operation:
    node = node_def_pb2.NodeDef()
    node.CopyFrom(operation.node)
    node.attr["data_format"].s = b"NCHW"
    for name in {"strides", "dilations", "ksize"} & set(node.attr):
        node.attr[name].list.i[:] = transposed(node.attr[name].list.i)
    if node.attr["explicit_paddings"].list.i:
        paddings = np.reshape(node.attr["explicit_paddings"].list.i, (-1, 2))
        node.attr["explicit_paddings"].list.i[:] = np.ravel(transposed(paddings))
    shapes = [
        transposed(shape) if place in images else shape
        for place, shape in enumerate(operation.input_shapes + operation.output_shapes)
    ]
    count = len(operation.input_shapes)
    return dataclasses.replace(
        operation,
        node=node,
        input_shapes=tuple(shapes[:count]),
        output_shapes=tuple(shapes[count:]),
        layout="NCHW",
    )


def transposed(along: Sequence[Any]) -> tuple[Any, ...]:
    """Of values along NHWC those along NCHW."""
    return along[0], along[3], along[1], along[2]


def nodes_of(part: OpPart) -> list[node_def_pb2.NodeDef]:
    """What a part makes."""
    graph_def = graph_pb2.GraphDef()
    part.emit(NodeMaker(graph_def, "", "", set()), ["x" if box else "" for box in part.reads])
    return list(graph_def.node)


def run_graph(
    graph_def: graph_pb2.GraphDef,
    feeds: Mapping[str, Array],
    fetches: str | Sequence[str],
    config: tf.compat.v1.ConfigProto | None = None,
) -> list[Array]:
    """The values of tensors, given by their names; or of all outputs of one node."""
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    if isinstance(fetches, str):
        tensors = graph.get_operation_by_name(fetches).outputs
    else:
        tensors = [name if ":" in name else f"{name}:0" for name in fetches]
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        found: list[Array] = session.run(tensors, {f"{name}:0": x for name, x in feeds.items()})
    return found


def _at(box: Box) -> tuple[slice, ...]:
    return tuple(slice(*interval) for interval in box)
