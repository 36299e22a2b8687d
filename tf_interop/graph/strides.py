"""Computes only the pixels that strided convolutions read.

    before                                    after

    x ──> 3x3 ──> 1x1, adds ──> 1x1 / 2       x ──> 3x3 / 2 ──> 1x1, adds ──> 1x1
    shortcut ──────┘    └─────> 1x1 / 2       shortcut ── AvgPool / 2 ──┘ └─> 1x1

A convolution of one pixel with strides of two reads a quarter of its image. In a ResNet the last
block of each stage computes the rest, too. What is computed are the same sums, so only kernels may
round differently.

A convolution takes the strides of its readers if:
  1. only convolutions of one pixel, in NHWC, with the same strides and without padding, read it, as
     their image;
  2. it has no padding, or amounts that its strides do not change: explicit ones, or those of SAME
     without strides, which become explicit;
  3. it is on one CPU with its readers, without control dependencies, and no Session may feed or
     fetch it.

A shortcut that it adds is read with the same strides: an average of one pixel is the pixel. Nodes
whose shape changes get a new name, because inference knows shapes by name, and state their shapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container

from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop import tensorflow_internals
from tf_interop.convolution import Shape
from tf_interop.graph.ops import attribute_of, make_node, set_attributes
from tf_interop.graph.properties import GraphProperties, state_shapes
from tf_interop.graph.view import GraphView, device_type_of, free_name

_CONVOLUTIONS = frozenset({"Conv2D", "_FusedConv2D"})
_SUFFIX = "/strided"

Strides = tuple[int, int]


@dataclasses.dataclass(slots=True)
class _Change:
    """What a convolution becomes.

    Attributes:
        paddings: the explicit ones that replace SAME; None if the padding stays.
        step: which pixels of its result are left.
    """

    strides: Strides
    paddings: tuple[int, ...] | None = None
    step: Strides = (1, 1)

    @property
    def is_smaller(self) -> bool:
        return self.step != (1, 1)


def move_strides(view: GraphView, properties: GraphProperties) -> graph_pb2.GraphDef | None:
    """Moves the strides of convolutions of one pixel to those that they read.

    Args:
        view: the graph, of a CPU.
        properties: of this graph.

    Returns:
        The new graph, or None if no strides move.
    """
    if not tensorflow_internals.is_onednn_on():
        return None
    changed = _find(view, properties)
    if not changed:
        return None
    renamed = {
        view.names[index]: free_name(view.names[index] + _SUFFIX, view.index_of)
        for index, change in changed.items()
        if change.is_smaller
    }
    result = graph_pb2.GraphDef()
    result.CopyFrom(view.graph_def)
    for index, change in changed.items():
        node = result.node[index]
        set_attributes(node, strides=[1, *change.strides, 1])
        node.attr.pop("_input_shapes", None)
        if not change.is_smaller:
            continue
        node.name = renamed[node.name]
        state_shapes(node, _every_nth(properties.output_shape(index, 0), change.step))
        if change.paddings is not None:
            set_attributes(node, padding=b"EXPLICIT", explicit_paddings=change.paddings)
        if b"Add" in attribute_of(view.nodes[index], "fused_ops").list.s:
            result.node.append(_make_shortcut(node, change.step, view.index_of))
    for node in result.node:
        for position, text in enumerate(node.input):
            name = renamed.get(text.removesuffix(":0"))
            if name is not None:
                node.input[position] = name
    GraphView(result)  # raises if an input is missing
    return result


def _find(view: GraphView, properties: GraphProperties) -> dict[int, _Change]:
    changed: dict[int, _Change] = {}
    for index in reversed(view.topological_order()):
        if (
            view.ops[index] not in _CONVOLUTIONS
            or view.names[index] in view.preserved
            or device_type_of(view.nodes[index].device) != "CPU"
        ):
            continue
        step = _strides_of_readers(view, properties, index, changed)
        own = None if step is None else _own(view, properties, index)
        if step is None or own is None:
            continue
        for reader in view.fanouts[index]:
            changed.setdefault(reader, _Change(step)).strides = (1, 1)
        own.strides = (own.strides[0] * step[0], own.strides[1] * step[1])
        own.step = step
        changed[index] = own
    return changed


def _strides_of_readers(
    view: GraphView,
    properties: GraphProperties,
    index: int,
    changed: dict[int, _Change],
) -> Strides | None:
    """The strides that all readers of a node have, as convolutions of one pixel; else None."""
    found: set[Strides] = set()
    node = view.nodes[index]
    for reader in view.fanouts[index]:
        reads = [place for place, (source, _) in enumerate(view.fanins[reader]) if source == index]
        if (
            reads != [0]
            or view.ops[reader] not in _CONVOLUTIONS
            or view.nodes[reader].device != node.device
            or not _is_plain(view, reader)
            or not _has_one_pixel(properties, reader)
            or attribute_of(view.nodes[reader], "padding").s == b"EXPLICIT"
        ):
            return None
        known = changed.get(reader)
        found.add(_strides(view, reader) if known is None else known.strides)
    if len(found) != 1 or found == {(1, 1)}:
        return None
    return found.pop()


def _own(view: GraphView, properties: GraphProperties, index: int) -> _Change | None:
    """The padding that allows other strides; None if they cannot change."""
    if not _is_plain(view, index) or view.control_fanins[index]:
        return None
    strides = _strides(view, index)
    padding = attribute_of(view.nodes[index], "padding").s
    if padding != b"SAME" or _has_one_pixel(properties, index):
        return _Change(strides)
    shape = properties.input_shape(index, 1)
    if strides != (1, 1) or shape is None or None in shape[:2]:
        return None
    rates = attribute_of(view.nodes[index], "dilations").list.i or [1, 1, 1, 1]
    amounts = [0, 0]
    for size, rate in zip(shape[:2], rates[1:3], strict=True):
        assert size is not None
        total = (size - 1) * rate
        amounts += (total // 2, total - total // 2)
    return _Change(strides, (*amounts, 0, 0))


def _is_plain(view: GraphView, index: int) -> bool:
    """Whether a convolution is in NHWC, and nothing waits for it but its readers."""
    node = view.nodes[index]
    return attribute_of(node, "data_format").s == b"NHWC" and all(
        index not in view.control_fanins[reader] for reader in view.fanouts[index]
    )


def _has_one_pixel(properties: GraphProperties, index: int) -> bool:
    shape = properties.input_shape(index, 1)
    return shape is not None and shape[:2] == (1, 1)


def _strides(view: GraphView, index: int) -> Strides:
    strides = attribute_of(view.nodes[index], "strides").list.i
    return strides[1], strides[2]


def _every_nth(shape: Shape | None, step: Strides) -> Shape | None:
    if shape is None:
        return None
    steps = (1, *step, 1)
    return tuple(
        None if size is None else -(-size // each) for size, each in zip(shape, steps, strict=True)
    )


def _make_shortcut(
    node: node_def_pb2.NodeDef, step: Strides, taken: Container[str]
) -> node_def_pb2.NodeDef:
    """Makes a fused convolution add every nth pixel of its shortcut."""
    position = len(node.input) - 1
    pool = make_node(
        "AvgPool",
        free_name(f"{node.name}/shortcut", taken),
        [node.input[position]],
        node.device,
        T=node.attr["T"].type,
        ksize=[1, 1, 1, 1],
        strides=[1, *step, 1],
        padding=b"VALID",
        data_format=b"NHWC",
    )
    pool.attr["_output_shapes"].CopyFrom(node.attr["_output_shapes"])
    node.input[position] = pool.name
    return pool
