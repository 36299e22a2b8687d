"""Finds paddings with zeros that the convolutions after them can do themselves.

    before                                  after

    x ──> Pad ──> Conv2D (VALID)            x ──> Conv2D (EXPLICIT)
            └───> DepthwiseConv2dNative     └───> DepthwiseConv2dNative (SAME)

Keras pads like this before convolutions with strides. The padded copy is a pass over x; the kernels
of oneDNN need none, and return the same bits. TensorFlow itself merges a Pad with a Conv2D, but not
with a depthwise convolution, and not in a unit.

A Pad goes if:
  1. only convolutions without padding read it, in NHWC, and each can have its amounts: a Conv2D
     has any, a depthwise convolution those of SAME, for which the image's size must be known;
  2. its amounts are constants, zero for batch and channels;
  3. it is on one CPU with its readers, without control dependencies, and no Session may feed or
     fetch it.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tf_interop import tensorflow_internals
from tf_interop.graph.channel_changes import ChannelChanges
from tf_interop.graph.ops import attribute_of
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView

_DEPTHWISE = frozenset({"DepthwiseConv2dNative", "_FusedDepthwiseConv2dNative"})


@dataclasses.dataclass(frozen=True, slots=True)
class Padding:
    """A Pad that its readers replace.

    Attributes:
        node: the Pad.
        readers: all convolutions that read it.
        amounts: (top, bottom, left, right), in pixels.
    """

    node: int
    readers: tuple[int, ...]
    amounts: tuple[int, int, int, int]


def find_paddings(changes: ChannelChanges) -> tuple[Padding, ...]:
    """Finds the paddings of a graph."""
    view = changes.view
    if not changes.is_cpu or not tensorflow_internals.is_onednn_on():
        return ()
    found = []
    for index, op in enumerate(view.ops):
        if op != "Pad" or not changes.may_join(index, view.nodes[index].device):
            continue
        amounts = _amounts(view, index)
        readers = changes.readers(index)
        if (
            amounts is not None
            and readers
            and all(
                position == 0 and _can_pad(view, changes.properties, reader, index, amounts)
                for reader, position in readers
            )
        ):
            found.append(Padding(index, tuple(reader for reader, _ in readers), amounts))
    return tuple(found)


def _amounts(view: GraphView, index: int) -> tuple[int, int, int, int] | None:
    """The amounts of a Pad; None if they are no constants, or if it pads more than pixels."""
    source, _ = view.fanins[index][1]
    if view.ops[source] != "Const" or view.names[source] in view.preserved:
        return None
    amounts = tf.make_ndarray(view.nodes[source].attr["value"].tensor)
    if amounts.shape != (4, 2) or amounts[[0, 3]].any():
        return None
    top, bottom, left, right = map(int, amounts[1:3].flatten())
    return top, bottom, left, right


def _can_pad(
    view: GraphView,
    properties: GraphProperties,
    reader: int,
    pad: int,
    amounts: tuple[int, int, int, int],
) -> bool:
    node, op = view.nodes[reader], view.ops[reader]
    if (
        op not in _DEPTHWISE | {"Conv2D", "_FusedConv2D"}
        or attribute_of(node, "padding").s != b"VALID"
        or attribute_of(node, "data_format").s != b"NHWC"
    ):
        return False
    if op not in _DEPTHWISE:
        return True
    image = properties.input_shape(pad, 0)
    filter_shape = properties.input_shape(reader, 1)
    strides = attribute_of(node, "strides").list.i
    if (
        image is None
        or filter_shape is None
        or any(rate != 1 for rate in attribute_of(node, "dilations").list.i)
    ):
        return False
    same: list[int] = []
    for size, reach, stride in zip(image[1:3], filter_shape[:2], strides[1:3], strict=True):
        if size is None or reach is None:
            return False
        total = max((-(-size // stride) - 1) * stride + reach - size, 0)
        same += (total // 2, total - total // 2)
    return tuple(same) == amounts
