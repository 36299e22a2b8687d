"""Programs of the ConvStage op, independent of the package's own code for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from graph_builder import set_attributes
from tensorflow.core.framework import node_def_pb2

Document = dict[str, Any]


def lane(*steps: int | tuple[int, str], **options: Any) -> Document:
    """A lane of operations, each by its place or with a pinned algorithm."""
    pinned = [(step, None) if isinstance(step, int) else step for step in steps]
    return {
        "steps": [{"operation": place, "algorithm": algorithm} for place, algorithm in pinned],
        "priority": 0,
        "merged": False,
    } | options


def schedule(*lanes: Document, batch_size: int | None = None) -> Document:
    """The lanes for one batch size, or for every one."""
    return {"batch_size": batch_size, "stage": {"lanes": list(lanes)}}


def program(
    steps: Sequence[node_def_pb2.NodeDef],
    *schedules: Document,
    outputs: Sequence[int] | None = None,
    kept_inputs: Sequence[int] = (),
) -> Document:
    """The op's attributes, before `schedules` is written as JSON.

    By default each step is an output and has its own lane.
    """
    every = range(len(steps))
    places = list(every if outputs is None else outputs)
    return {
        "Tout": [tf.as_dtype(steps[place].attr["T"].type) for place in places],
        "steps": [step.SerializeToString() for step in steps],
        "results": [f"steps:{place}:0" for place in places],
        "kept_inputs": list(kept_inputs),
        "schedules": list(schedules) or [schedule(*map(lane, every))],
    }


def operation(
    name: str, op: str, operands: Sequence[str], dtype: tf.DType = tf.float32, **attributes: Any
) -> node_def_pb2.NodeDef:
    """A NodeDef whose attributes are strings, booleans, numbers, lists of them, and dtypes."""
    node = node_def_pb2.NodeDef(name=name, op=op, input=operands)
    node.attr["T"].type = dtype.as_datatype_enum
    types = [each.as_datatype_enum for each in attributes.pop("TArgs", ())]
    set_attributes(node, **attributes, **({"TArgs": types} if types else {}))
    return node


def arguments(
    inputs: Sequence[Any], sizes: Sequence[Any], document: Document, **changes: Any
) -> dict[str, Any]:
    """The op's arguments."""
    of_op = document | {
        "inputs": inputs,
        "sizes": [np.array(each, np.int32) if isinstance(each, list) else each for each in sizes],
        "schedules": json.dumps(document["schedules"]),
    }
    return of_op | changes


REFUSED = (tf.errors.InvalidArgumentError, ValueError)
"""Errors of refused programs, from the kernel or from shape inference."""


def assert_refused(conv_stage: Any, *words: str, **of_op: Any) -> None:
    """Asserts that the op refuses its arguments with an error that has these words."""
    with pytest.raises(REFUSED) as refused:
        in_graph(conv_stage, **of_op)
    assert_names(refused, *words)


def assert_names(error: pytest.ExceptionInfo, *words: str) -> None:
    for word in words:
        assert word in str(error.value)


def in_graph(conv_stage: Any, *, jit_compile: bool = False, **of_op: Any) -> list[tf.Tensor]:
    """Runs the op in a graph, because eager execution sometimes used another program's kernel."""
    # Tensors from outside the function; otherwise Grappler would compute the stage.
    tensors = {key: list(map(tf.constant, of_op[key])) for key in ("inputs", "sizes")}
    return tf.function(
        lambda: conv_stage(**(of_op | tensors)), autograph=False, jit_compile=jit_compile
    )()
