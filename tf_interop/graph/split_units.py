"""Finds operations that may run once for each part of the batch, on its own core.

                                    on 2 cores      x[:4] ── Conv2D ── Relu ── … ──┐
    x ── Conv2D ── Relu ── …       ────────────>                                   ├── …
                                                    x[4:] ── Conv2D ── Relu ── … ──┘

TensorFlow divides every operation over all cores, and after each one all cores wait for each other.
In inference the images of a batch do not depend on each other, so the batch may be divided once for
a whole network: the dimension *sample* of Jia et al. (ICML 2018, section 4).

An op is *batchwise* if image i of its results depends on image i of some of its operands, its
images, and on no other image of them. `_RULES` has a rule for each such op, about its attributes,
shapes and constants.

A node is a *member* if it is a convolution, or if it is batchwise and one of its images comes from
a member. Small parameters and batchwise nodes that only members read join them. So do *companions*:
nodes that make sizes from a member's shape, and small constants that wait for a member, which
Grappler makes.

Members are contracted by generation. A node's generation is the largest of its sources', plus one
on each edge out of a member to another kind of node, device or control-flow region. Members of one
generation, device and region form a unit. Contracting them leaves no cycle: generations never fall
along edges and rise on every edge out of a unit, so no path that leaves a unit returns to it. What
joins for its readers has only edges into their unit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_interop.convolution import Shape
from tf_interop.graph.ops import BROADCASTING_OPS, COMPANION_OPS, UNARY_OPS, attribute_of
from tf_interop.graph.properties import PARAMETER_OPS, GraphProperties, find_small, is_fully_known
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.units import ANCHOR_OPS, Unit, find_steps
from tf_interop.graph.view import GraphView

Positions = tuple[int, ...]


class Operation:
    """A node that may be batchwise."""

    def __init__(
        self,
        view: GraphView,
        properties: GraphProperties,
        index: int,
        *,
        preserved: Collection[str] = (),
    ) -> None:
        """Prepares to read node `index`; a Session may feed other values for `preserved`."""
        self._view, self._properties, self._index = view, properties, index
        self._preserved = preserved
        self.input_count = len(view.fanins[index])

    @property
    def result(self) -> Shape | None:
        """The shape of its first output."""
        return self._properties.output_shape(self._index, 0)

    def attribute(self, name: str) -> Any:
        """An attribute, or its default."""
        return attribute_of(self._view.nodes[self._index], name)

    def images(self) -> Positions | None:
        """The positions of its images among the operands; None if it is not batchwise."""
        rule = _RULES.get(self._view.ops[self._index])
        return None if rule is None else rule(self)

    def shape(self, position: int) -> Shape | None:
        """The shape of an operand."""
        return self._properties.input_shape(self._index, position)

    def rank(self, position: int = 0) -> int:
        """The rank of an operand; 0 if unknown."""
        return len(self.shape(position) or ()) if position < self.input_count else 0

    def constant(self, position: int) -> Any:
        """The value of an operand; None if it is not constant."""
        source, _ = self._view.fanins[self._index][position]
        if self._view.ops[source] != "Const" or self._view.names[source] in self._preserved:
            return None
        return tf.make_ndarray(self._view.nodes[source].attr["value"].tensor)

    def spares_first(self, position: int, rank: int) -> bool:
        """Whether the axes in an operand are constant and leave out the first dimension."""
        axes = self.constant(position)
        return axes is not None and rank > 0 and axes.size > 0 and 0 not in axes.reshape(-1) % rank

    def reads_others(self) -> bool:
        """Whether any node reads an output other than the first."""
        view = self._view
        return any(
            source == self._index and port > 0
            for reader in view.fanouts[self._index]
            for source, port in view.fanins[reader]
        )

    def with_operands(self, images: Positions, others: Iterable[int]) -> Positions | None:
        """Adds to `images` those of `others` that have the result's first dimension."""
        result = self.result
        shapes = {position: self.shape(position) for position in others}
        if result is None or None in shapes.values():
            return None
        return images + tuple(
            position
            for position, shape in shapes.items()
            if shape is not None and len(shape) == len(result) and shape[:1] != (1,)
        )


def _first(_: Operation) -> Positions:
    return (0,)


def _first_if(holds: Callable[[Operation], bool]) -> _Rule:
    return lambda node: (0,) if holds(node) else None


def _broadcasting(node: Operation) -> Positions | None:
    return node.with_operands((), range(node.input_count))


def _convolution(node: Operation) -> Positions | None:
    batch = node.shape(0)
    # A batch of one image, or none, cannot be split.
    if batch is None or len(batch) < 3 or batch[0] in (0, 1):
        return None
    return node.with_operands((0,), range(2, node.input_count))


def _normalization(node: Operation) -> Positions | None:
    if node.attribute("is_training").b or node.reads_others():
        return None
    return node.with_operands((0,), range(5, node.input_count))


def _product(node: Operation) -> Positions | None:
    if node.attribute("transpose_a").b:
        return None
    return node.with_operands((0,), range(2, node.input_count))


def _concatenation(node: Operation) -> Positions | None:
    last = node.input_count - 1
    return tuple(range(last)) if node.spares_first(last, node.rank()) else None


def _transposed_convolution(node: Operation) -> Positions | None:
    # Two sizes alone fit any batch, but the op would read the first one as the batch size.
    return (2,) if node.rank(2) and node.shape(0) == (node.rank(2),) else None


def _einsum(node: Operation) -> Positions | None:
    """Its images are the operands that start with the result's first label and have it once."""
    operands, _, result = node.attribute("equation").s.decode().replace(" ", "").partition("->")
    # Dimensions without a label may belong to one image.
    if not result or "." in operands or result.count(result[0]) > 1:
        return None
    labels = operands.split(",")
    images = tuple(place for place, each in enumerate(labels) if result[0] in each)
    if any(labels[place].rfind(result[0]) > 0 for place in images):
        return None
    return images


def _gathers_others(node: Operation) -> bool:
    """Whether a GatherV2 takes the same entries of each image."""
    return not node.attribute("batch_dims").i and node.spares_first(2, node.rank())


def _pools_each(node: Operation) -> bool:
    return all(node.attribute(name).list.i[:1] == [1] for name in ("ksize", "strides"))


def _has_first(value: int) -> _Rule:
    """The rule of ops whose second operand must be a constant that starts with `value`."""

    def holds(node: Operation) -> bool:
        constant = node.constant(1)
        return constant is not None and constant.size > 0 and bool((constant[0] == value).all())

    return _first_if(holds)


def _stack(node: Operation) -> Positions | None:
    spares_first = node.rank() > 0 and node.attribute("axis").i % (node.rank() + 1) != 0
    return tuple(range(node.input_count)) if spares_first else None


def _squeezes_others(node: Operation) -> bool:
    dims = np.array(node.attribute("squeeze_dims").list.i)
    return dims.size > 0 and node.rank() > 0 and 0 not in dims % node.rank()


def _slices_others(node: Operation) -> bool:
    """Whether a StridedSlice keeps all of the first dimension, like `x[:, 1:]`."""
    strides = node.constant(3)
    changes = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    return (
        strides is not None
        and strides.size > 0
        and strides[0] == 1
        and bool(node.attribute("begin_mask").i & node.attribute("end_mask").i & 1)
        and not any(node.attribute(name).i & 1 for name in changes)
    )


def _keeps_batch(node: Operation) -> bool:
    """Whether a Reshape turns each image into one of the result."""
    before, after = node.shape(0), node.result
    if not before or not after or before[0] != after[0]:
        return False
    return (
        is_fully_known(before[1:])
        and is_fully_known(after[1:])
        and math.prod(before[1:]) == math.prod(after[1:]) > 0  # type: ignore[arg-type]
    )


_Rule = Callable[[Operation], Positions | None]

CONVOLUTIONS = frozenset(
    {"Conv2D", "Conv3D", "DepthwiseConv2dNative", "_FusedConv2D", "_FusedDepthwiseConv2dNative"}
)
_RULES_OF_SEVERAL: dict[str, _Rule] = {
    " ".join(CONVOLUTIONS): _convolution,
    "Conv2DBackpropInput Conv3DBackpropInputV2": _transposed_convolution,
    "Identity Snapshot StopGradient PreventGradient BiasAdd LRN DepthToSpace SpaceToDepth "
    "ResizeBilinear ResizeNearestNeighbor ResizeBicubic": _first,
    "MaxPool AvgPool MaxPool3D AvgPool3D": _first_if(_pools_each),
    "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 _FusedBatchNormEx": _normalization,
    "Softmax LogSoftmax TopKV2 FakeQuantWithMinMaxVarsPerChannel": _first_if(
        lambda node: node.rank() >= 2
    ),
    "MatMul _FusedMatMul": _product,
    "BatchMatMul BatchMatMulV2": lambda node: _broadcasting(node) if node.rank() >= 3 else None,
    "Einsum": _einsum,
    "Mean Sum Max Min Prod ArgMax ArgMin Cumsum Cumprod ReverseV2": _first_if(
        lambda node: node.spares_first(1, node.rank())
    ),
    "GatherV2": _first_if(_gathers_others),
    "Roll": _first_if(lambda node: node.spares_first(2, node.rank())),
    "ConcatV2": _concatenation,
    "Pack": _stack,
    "Tile": _has_first(1),
    "Pad PadV2 MirrorPad": _has_first(0),
    "Transpose": _has_first(0),
    "ExpandDims": _first_if(lambda node: node.spares_first(1, node.rank() and node.rank() + 1)),
    "Squeeze": _first_if(_squeezes_others),
    "Split": lambda node: (1,) if node.spares_first(0, node.rank(1)) else None,
    "SplitV": _first_if(lambda node: node.spares_first(2, node.rank())),
    "StridedSlice": _first_if(_slices_others),
    "Reshape": _first_if(_keeps_batch),
}
_RULES = {
    **dict.fromkeys(UNARY_OPS, _first),
    **dict.fromkeys(BROADCASTING_OPS, _broadcasting),
    **{op: rule for ops, rule in _RULES_OF_SEVERAL.items() for op in ops.split()},
}


_SIZES_POSITIONS = {"Reshape": 1, "Conv2DBackpropInput": 0, "Conv3DBackpropInputV2": 0}
"""The input of an op with the sizes of its result, possibly for the whole batch."""


def find_split_units(
    view: GraphView,
    properties: GraphProperties,
    *,
    nodes_to_preserve: Collection[str] = (),
    fetches: Collection[str] = (),
) -> tuple[Unit, ...]:
    """Finds the units of a graph on CPUs whose batch may be split.

    The arguments are those of `find_units`. The two kinds of units overlap.

    Raises:
        GraphError: the graph has a cycle.
    """
    return _find(_Search, view, properties, nodes_to_preserve, fetches)


def find_whole_unit(
    view: GraphView,
    properties: GraphProperties,
    *,
    nodes_to_preserve: Collection[str] = (),
    fetches: Collection[str] = (),
) -> Unit | None:
    """Finds the largest unit of any steps: in inference, the whole network.

    Its members are the convolutions, products and all steps that depend on them, batchwise or not,
    and steps that only members read. Its batch may be split if all that depend on convolutions and
    products are batchwise; then steps before these are members only if they are batchwise, too.

    The arguments are those of `find_units`.

    Raises:
        GraphError: the graph has a cycle.
    """
    units = _find(_WholeSearch, view, properties, nodes_to_preserve, fetches)
    if not units:
        return None
    whole = max(units, key=lambda unit: len(unit.steps))
    dependent: set[int] = set()
    for step in whole.steps:
        if view.ops[step] in ANCHOR_OPS or not dependent.isdisjoint(view.sources(step)):
            dependent.add(step)
    splits = find_split_units(
        view, properties, nodes_to_preserve=nodes_to_preserve, fetches=fetches
    )
    return next((unit for unit in splits if dependent <= set(unit.steps)), whole)


def _find(
    kind: type[_Search],
    view: GraphView,
    properties: GraphProperties,
    nodes_to_preserve: Collection[str],
    fetches: Collection[str],
) -> tuple[Unit, ...]:
    order = view.by_rank(range(len(view)))
    companions = _find_companions(view, order, properties)
    preserved = frozenset(nodes_to_preserve)
    while True:
        regions, _ = find_steps(view, order, preserved, fetches, companions=companions)
        search = kind(view, order, regions, companions, properties, preserved)
        units = search.units()
        # Another unit must not read the sizes of a part, nor its constants.
        astray = search.find_astray(units)
        if not astray:
            return units
        companions -= astray


def _find_companions(
    view: GraphView, order: Iterable[int], properties: GraphProperties
) -> set[int]:
    """Finds nodes that only make sizes of results, and small constants that wait for a node."""
    companions: set[int] = set()
    for index in reversed([*order]):
        op, readers = view.ops[index], view.readers[index]
        if op == "Const":
            shape = properties.output_shape(index, 0)
            is_companion = bool(view.control_fanins[index]) and shape in ((), (1,))
        else:
            is_companion = op in COMPANION_OPS and all(
                reader in companions or _reads_as_sizes(view, reader, index) for reader in readers
            )
        if is_companion and readers:
            companions.add(index)
    return companions


def _reads_as_sizes(view: GraphView, reader: int, index: int) -> bool:
    """Whether `reader` reads node `index` only as the sizes of its result."""
    positions = [place for place, (source, _) in enumerate(view.fanins[reader]) if source == index]
    return positions == [_SIZES_POSITIONS.get(view.ops[reader])]


@dataclasses.dataclass
class _Search:
    """One search for members."""

    _view: GraphView
    _order: list[int]
    _regions: dict[int, str]
    _companions: Collection[int]
    _properties: GraphProperties
    _preserved: Collection[str]

    def __post_init__(self) -> None:
        self._images: dict[int, tuple[int, ...]] = {}  # the positions of each member's images
        self._members: set[int] = set()  # with companions
        self._is_parameter = [False] * len(self._view)
        self._generation = [0] * len(self._view)

    def units(self) -> tuple[Unit, ...]:
        members: dict[tuple[int, str, str], list[int]] = {}
        for index in self._order:
            check_time_limit()
            self._find_kind(index)
            if index in self._members:
                members.setdefault(self._key(index), []).append(index)
        key_of: dict[int, tuple[int, str, str]] = {
            index: key for key, indices in members.items() for index in indices
        }
        small = find_small(self._view, self._regions, self._properties)
        for index in reversed(self._order):
            keys = {key_of.get(reader) for reader in self._view.readers[index]}
            key = keys.pop() if len(keys) == 1 else None
            if (
                key is not None
                and index in self._regions
                and index not in key_of
                and self._place(index) == key[1:]
                and (
                    small[index]
                    if self._is_parameter[index]
                    else self._has_one_size(index) and self._is_before(index)
                )
            ):
                key_of[index] = key
                members[key].append(index)
        rank = {index: place for place, index in enumerate(self._order)}
        made = (self._unit(sorted(members[key], key=rank.__getitem__)) for key in sorted(members))
        return tuple(unit for unit in made if unit is not None)

    def find_astray(self, units: Iterable[Unit]) -> set[int]:
        """The companions in a unit that are read outside it or read a node outside."""
        astray = set()
        for unit in units:
            inside = set(unit.steps)
            for step in inside & set(self._companions):
                neighbours = {
                    *self._view.readers[step],
                    *(each for each in self._view.sources(step) if not self._is_parameter[each]),
                }
                if not neighbours <= inside:
                    astray.add(step)
        return astray

    def _unit(self, steps: list[int]) -> Unit | None:
        view = self._view
        inside = set(steps)
        split: set[tuple[int, int]] = set()
        shared: set[tuple[int, int]] = set()
        for index in steps:
            images = self._images.get(index, ())
            for position, tensor in enumerate(view.fanins[index]):
                if tensor[0] not in inside:
                    (split if position in images else shared).add(tensor)
        if split & shared:  # such as an image that is a filter, too
            return None
        head = next((each for each in steps if view.ops[each] in ANCHOR_OPS), None)
        return None if head is None else Unit(tuple(steps), head, frozenset(split))

    def _find_kind(self, index: int) -> None:
        """Decides whether a node is a member, a parameter or neither, and sets its generation."""
        view = self._view
        sources = view.sources(index)
        is_step = index in self._regions
        if index in self._companions and is_step and not self._members.isdisjoint(sources):
            self._members.add(index)
        elif view.ops[index] in PARAMETER_OPS or (
            is_step and sources and all(self._is_parameter[source] for source in sources)
        ):
            self._is_parameter[index] = True
        elif is_step and (images := self._images_of(index)) is not None:
            self._images[index] = images
            self._members.add(index)
        generation = 0
        for source in sources:
            leaves = source in self._members and (
                index not in self._members or self._place(source) != self._place(index)
            )
            generation = max(generation, self._generation[source] + leaves)
        self._generation[index] = generation

    def _place(self, index: int) -> tuple[str, str]:
        return self._view.nodes[index].device, self._regions[index]

    def _key(self, index: int) -> tuple[int, str, str]:
        return (self._generation[index], *self._place(index))

    def _images_of(self, index: int) -> tuple[int, ...] | None:
        """The positions of a step's images; None if it is not a member."""
        view = self._view
        fanins = view.fanins[index]
        comes_in = [source in self._images for source, _ in fanins]
        if view.ops[index] not in CONVOLUTIONS and not any(comes_in):
            return None
        images = Operation(view, self._properties, index, preserved=self._preserved).images()
        if images is None or any(
            is_member and position not in images for position, is_member in enumerate(comes_in)
        ):
            return None
        if any(self._is_parameter[fanins[position][0]] for position in images):
            return None
        return images

    def _has_one_size(self, index: int) -> bool:
        """Whether a step's images have one size, so that it hides no other from those who time."""
        shapes = (
            self._properties.input_shape(index, position)
            for position in range(len(self._view.fanins[index]))
        )
        return all(shape is not None and is_fully_known(shape[1:]) for shape in shapes)

    def _is_before(self, index: int) -> bool:
        """Whether a step that only members read is one, too, such as the scaling of an input."""
        view = self._view
        found = Operation(view, self._properties, index, preserved=self._preserved).images()
        images = found or ()
        operands = list(enumerate(view.fanins[index]))
        split = {tensor for position, tensor in operands if position in images}
        shared = {tensor for position, tensor in operands if position not in images}
        if not split or split & shared or any(self._is_parameter[source] for source, _ in split):
            return False
        self._images[index] = images
        return all(
            position in self._images.get(reader, ())
            for reader in view.readers[index]
            for position, (source, _) in enumerate(view.fanins[reader])
            if source == index
        )


class _WholeSearch(_Search):
    """One search for members that need not be batchwise."""

    def _images_of(self, index: int) -> tuple[int, ...] | None:
        comes_in = any(source in self._images for source, _ in self._view.fanins[index])
        return () if comes_in or self._view.ops[index] in ANCHOR_OPS else None

    def _is_before(self, index: int) -> bool:
        return True
