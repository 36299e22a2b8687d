"""The nodes of a graph as rules see them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_interop.convolution import ConvolutionKind
from tf_interop.graph.ops import output_dtypes
from tf_interop.graph.properties import GraphProperties, is_fully_known
from tf_interop.graph.view import GraphView
from tf_interop.parallel.layers.heads import Head
from tf_interop.parallel.op_parts import Operation

_MOST_KNOWN_VALUES = 64
"""The most values of a constant that rules see: sizes, axes, paddings, scalars."""


class Operations:
    """Makes the operation of a node when it is asked for.

    Attributes:
        layouts: of nodes' tensors of rank 4, where it is not NHWC.
    """

    def __init__(
        self, view: GraphView, properties: GraphProperties, heads: Mapping[int, Head]
    ) -> None:
        """Prepares to look at `view`, whose convolutions and products are `heads`."""
        self.layouts: dict[int, str] = {}
        self._view = view
        self._properties = properties
        self._heads = heads
        self._made: dict[int, Operation | None] = {}

    def __getitem__(self, node: int) -> Operation:
        """That of a node whose shapes are known."""
        operation = self.get(node)
        assert operation is not None
        return operation

    def get(self, node: int) -> Operation | None:
        """That of a node; None where a shape is not known."""
        if node not in self._made:
            self._made[node] = self._make(node)
        return self._made[node]

    def _make(self, node: int) -> Operation | None:
        view, properties = self._view, self._properties
        inputs = [properties.input_shape(node, place) for place in range(len(view.fanins[node]))]
        ports = range(len(output_dtypes(view.nodes[node])))
        outputs = [properties.output_shape(node, port) for port in ports]
        if not all(map(is_fully_known, inputs + outputs)):
            return None
        return Operation(
            view.nodes[node],
            tuple(inputs),  # type: ignore[arg-type]
            tuple(outputs),  # type: ignore[arg-type]
            tuple(self._value(*tensor) for tensor in view.fanins[node]),
            self.layouts.get(node, "NHWC"),
            self._heads[node].role if node in self._heads else ConvolutionKind.FORWARD,
        )

    def _value(self, node: int, port: int) -> np.ndarray[Any, Any] | None:
        """The value of a small constant, or of a vector of sizes."""
        if self._view.ops[node] == "Const":
            shape = self._properties.output_shape(node, 0)
            if is_fully_known(shape) and math.prod(shape or ()) <= _MOST_KNOWN_VALUES:  # type: ignore[arg-type]
                value: np.ndarray[Any, Any] = tf.make_ndarray(
                    self._view.nodes[node].attr["value"].tensor
                )
                return value
            return None
        sizes = self._properties.held_shape(node, port)
        return np.asarray(sizes, np.int32) if is_fully_known(sizes) else None
