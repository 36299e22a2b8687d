"""Runs an operation whole and in parts, on one device, and compares the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from graph_builder import node_of
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import rewriter_config_pb2

from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.op_parts import Operation, OpPart, are_addends
from tf_interop.parallel.regions import Box
from tf_interop.parallel.rules import RULES
from tf_interop.parallel.types import Degrees

Array = np.ndarray[Any, Any]


def values(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Random values."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def sizes(*numbers: Any) -> Array:
    """Sizes, axes or paddings, which rules see as constants."""
    return np.array(numbers, np.int64)


def in_nchw(along: Sequence[Any]) -> list[Any]:
    """Values along NHWC in the order of NCHW."""
    return [along[0], along[3], along[1], along[2]]


def operation_of(
    op: str, inputs: Sequence[Array], attributes: Mapping[str, Any] | None = None, **others: Any
) -> tuple[Operation, list[Array]]:
    """An operation, and its results in stock TensorFlow.

    Args:
        op: its op type.
        inputs: its inputs. Integers are constants.
        attributes: attributes for NodeMaker. `T` is by default the dtype of the first input that is
            not an integer; None omits an attribute.
        **others: other fields of the Operation.
    """
    known = [each if each.dtype.kind == "i" else None for each in inputs]
    graph_def = graph_pb2.GraphDef()
    maker = NodeMaker(graph_def, "", "whole", set())
    feeds = _placeholders(maker, inputs)
    dtypes = [tf.as_dtype(each.dtype) for each in inputs if each.dtype.kind not in "ib"]
    given = {"T": dtypes[0], **(attributes or {})}
    name = maker(op, *feeds, **{key: given[key] for key in given if given[key] is not None})
    results = run_graph(graph_def, dict(zip(feeds, inputs, strict=True)), name)
    shapes = (tuple(each.shape for each in tensors) for tensors in (inputs, results))
    return Operation(node_of(graph_def, name), *shapes, tuple(known), **others), results


def _placeholders(maker: NodeMaker, inputs: Iterable[Array]) -> list[str]:
    return [
        maker("Placeholder", dtype=tf.as_dtype(each.dtype), shape=tf.TensorShape(each.shape))
        for each in inputs
    ]


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
    """Divides an operation in several ways, and compares each with stock TensorFlow.

    See `operation_of` and `check_parts` for the arguments.
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
    """Runs all parts of an operation, and compares their results with those of the whole.

    Each part gets only the boxes that it reads. Parts must compute every value of an output equally
    often: once, or several times as copies or addends.

    Args:
        operation: the operation.
        inputs: its inputs.
        results: its results as a whole.
        degrees: how it is divided.
        outputs: the number of outputs to compare; None for all.
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
        read = {
            place: value[_at(box)]
            for place, (box, value) in enumerate(zip(part.reads, inputs, strict=True))
            if box is not None
        }
        names = dict(zip(read, _placeholders(maker, read.values()), strict=True))
        given = list(part.emit(maker, [names.get(place, "") for place in range(len(inputs))]))
        assert len(given) == len(part.gives)
        feeds = {name: read[place] for place, name in names.items()}
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
    """The parts of an operation, which must be divisible."""
    parts = RULES[operation.node.op].divide(operation, degrees)
    assert parts is not None, f"no parts for {degrees}"
    return parts


def stays_whole(operation: Operation, *degrees: Degrees) -> bool:
    """Whether an operation cannot be divided in any of these ways."""
    return all(RULES[operation.node.op].divide(operation, each) is None for each in degrees)


def run_graph(
    graph_def: graph_pb2.GraphDef,
    feeds: Mapping[str, Array],
    fetches: str | Sequence[str],
    *,
    optimizes: bool = True,
) -> list[Array]:
    """The values of tensors by name, or of all outputs of one node.

    CPUs have few kernels for NCHW, so Grappler converts a graph to NHWC if it may optimize it.
    """
    config = tf.compat.v1.ConfigProto()
    options = config.graph_options.rewrite_options
    options.disable_meta_optimizer = not optimizes
    options.cpu_layout_conversion = rewriter_config_pb2.RewriterConfig.NCHW_TO_NHWC
    options.min_graph_nodes = -1
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
        if isinstance(fetches, str):
            tensors = graph.get_operation_by_name(fetches).outputs
        else:
            names = (name if ":" in name else f"{name}:0" for name in fetches)
            tensors = [graph.get_tensor_by_name(name) for name in names]
        # Grappler does not convert a node that is itself fetched.
        tensors = [tf.identity(each) for each in tensors]
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        found: list[Array] = session.run(tensors, {f"{name}:0": x for name, x in feeds.items()})
    return found


def _at(box: Box) -> tuple[slice, ...]:
    return tuple(slice(*interval) for interval in box)
