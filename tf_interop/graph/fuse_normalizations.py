"""Fuses batch normalization in training, which Keras 3 computes in separate operations.

    x --> Mean --> SquaredDifference --> Mean --> + epsilon --> Rsqrt --> * scale --> inverse
    x --> * inverse --> + (offset - mean * inverse) --> y
    dy, x, mean, inverse, ... --> about twenty operations --> dx, dscale, doffset

                                         ==>

    x, scale, offset --> FusedBatchNormV3 --:0--> y
                                          --:1--> mean         --> the moving mean, as before
                                          --:2--> * (n - 1)/n  --> the moving variance, as before
                                          --:3,4,5--> FusedBatchNormGradV3
    dy, x, scale --> FusedBatchNormGradV3 --:0,1,2--> dx, dscale, doffset

The operations pass over the image about fifteen times, the two kernels about five times.

*Finding.* The forward part has one form, that of `tf.nn.moments` and `tf.nn.batch_normalization`.
It gives the image, the scale, the offset, epsilon and the gradient of the output. The gradient has
many forms, so there is a randomized proof instead (`sampled_values`): every node that can be
evaluated from these tensors is, and its value is compared with the formulas of

    deviation = sqrt(mean((x - mean)^2) + epsilon),  xhat = (x - mean) / deviation
    y = scale * xhat + offset
    doffset = sum(dy),  dscale = sum(dy * xhat)
    dx = scale / deviation * (dy - doffset / n - xhat * dscale / n)

(Ioffe and Szegedy, Batch Normalization, 2015, section 3), with means and sums over the n pixels of
the batch. Tensors that agree are *results*; readers of a result then read the fused operations. No
reader may be left for any image between them; otherwise the passes would stay. Operations on
vectors of channels stay where something reads them: `dscale * deviation` is a result, too, because
Grappler may multiply it by the learning rate first.

Preconditions:
  1. the statistics are over all axes but that of channels, of an image of rank 4, in float32 (mixed
     precision casts to it), and on CPUs of at least `_LEAST_ELEMENTS`;
  2. scale and offset are parameters or absent;
  3. the nodes that go are on one local CPU or GPU, not compiled by XLA, always run once, and are
     neither fed nor fetched; control dependencies lead only to y and dx;
  4. the new graph has no cycle (`check_normalizations`).

Guaranteed: y and dx keep their names; devices and names to preserve stay; other nodes keep all but
the inputs that were results. A second run finds nothing.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import heapq
import math
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from tf_interop.convolution import Refusal, RefusalReason, Shape
from tf_interop.errors import GraphError
from tf_interop.graph.control_flow import ControlFlow
from tf_interop.graph.ops import attribute_of
from tf_interop.graph.properties import PARAMETER_OPS, GraphProperties
from tf_interop.graph.rewrite import COLOCATED_WITH, COLOCATION, Tensor
from tf_interop.graph.sampled_values import (
    EVALUATED_OPS,
    Floats,
    ImageShapes,
    Sampled,
    Value,
    agree,
    constant_value,
    evaluate,
)
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import GraphView, device_type_of, is_local
from tf_interop.graph.xla import xla_mark

_ADD_OPS = frozenset({"Add", "AddV2"})
_SUM_OPS = _ADD_OPS | {"AddN"}
# Grappler's joined additions have two levels. Blocks that add to one another have more.
_MOST_SUMS = 8
_PASS_ON_OPS = frozenset({"Identity", "Cast", "Reshape"})
_HALF_TYPES = frozenset({types_pb2.DT_HALF, types_pb2.DT_BFLOAT16})
# The fused kernels of CPUs (oneDNN's) take 0.4 to 0.8 ms even for tiny images. How many times
# as fast as the separate operations they are depends on the number of elements, hardly on sizes:
# 16,384: 0.2 to 0.4; 50,000: 0.4 to 0.7; 65,536: 0.6 to 1.0; 200,000: 1.6 to 2.4; 800,000: 2.7 to
# 4.7; 3,200,000: 2.2 to 6 (two cores, in pairs, both ways together, 1 to 16 images of 2 to 112
# pixels a side and 16 to 1,024 channels).
_LEAST_ELEMENTS = 1 << 17
# Stands for an unknown batch size, which is 32 in Keras by default.
_USUAL_BATCH_SIZE = 16
# Stands for an unknown batch size in formulas; others that depend on it differ at this one, too.
_SOME_BATCH_SIZE = 104729


class Result(enum.Enum):
    """What a tensor of the replaced part is."""

    MEAN = "mean"
    VARIANCE = "variance"
    OFFSET_GRADIENT = "doffset"
    SCALE_GRADIENT = "dscale"
    INVERSE_GRADIENT = "dscale * deviation"


@dataclasses.dataclass(frozen=True, slots=True)
class Vector:
    """A tensor with a number for each channel, of shape `[C]` or with more dimensions of size 1."""

    tensor: Tensor
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingNormalization:
    """A normalization in training that the fused operations can compute.

    Nodes are places in the view.

    Attributes:
        name: the name of the SquaredDifference.
        device: the device of its nodes.
        layout: `NHWC` or `NCHW`.
        dtype: of the image, output and their gradients; the rest is float32.
        epsilon: as in the graph.
        image_shape: in `layout`; only the batch size may be unknown.
        image: the tensor x.
        scale: None stands for 1.
        offset: None stands for 0.
        inverse_deviation: the Rsqrt.
        output: the node that becomes y.
        output_gradient: the tensor dy; None if nothing is differentiated.
        image_gradient: the node that becomes dx; None if nothing reads dx.
        dropped: inputs that additions lose, as (node, place), because an `output` or
            `image_gradient` that was an addend of y or dx includes the others now.
        results: other tensors that the new operations compute.
        members: the nodes that go, except those that something else still reads.
    """

    name: str
    device: str
    layout: str
    dtype: int
    epsilon: float
    image_shape: tuple[int | None, ...]
    image: Tensor
    scale: Vector | None
    offset: Vector | None
    inverse_deviation: Vector
    output: int
    output_gradient: Tensor | None
    image_gradient: int | None
    dropped: frozenset[tuple[int, int]]
    results: tuple[tuple[Vector, Result], ...]
    members: tuple[int, ...]


class _RefusalError(Exception):
    """Ends the reading of one normalization; never leaves this module."""


def _require(holds: object, reason: RefusalReason, expected: str, got: object) -> None:
    if not holds:
        raise _RefusalError(reason, f"Expected {expected}, got {got}.")


def find_training_normalizations(
    view: GraphView,
    properties: GraphProperties,
    *,
    nodes_to_preserve: Collection[str] = (),
    fetches: Collection[str] = (),
) -> tuple[tuple[TrainingNormalization, ...], tuple[Refusal, ...]]:
    """Finds the normalizations in training that the fused operations compute faster.

    Returns:
        The normalizations, and those that stay as they are, each with a reason, at the
        SquaredDifference. Both are ordered by level in the graph and then by name.

    Raises:
        GraphError: the graph has a cycle.
    """
    if not {"SquaredDifference", "Rsqrt", "Mean"} <= view.op_types:
        return (), ()
    finder = _Finder(view, properties, nodes_to_preserve, fetches)
    found: list[TrainingNormalization] = []
    refusals: list[Refusal] = []
    anchors = [index for index, op in enumerate(view.ops) if op == "SquaredDifference"]
    for index in view.by_rank(anchors):
        check_time_limit()
        try:
            statistics = finder.statistics(index)
            if statistics is not None:
                found.append(finder.match(statistics))
        except _RefusalError as refused:
            refusals.append(Refusal(view.names[index], view.ops[index], *refused.args))
    return tuple(found), tuple(refusals)


@dataclasses.dataclass(frozen=True, slots=True)
class _Statistics:
    """The first part of a normalization, up to the Rsqrt."""

    squares: int  # the SquaredDifference
    mean: int
    variance: int
    image: Tensor
    epsilon: float
    inverse_deviation: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Forward:
    """The rest of the forward part; `inverse` is the scale divided by the deviation."""

    inverse: int
    scale: Vector | None
    offset: Vector | None
    shift: int  # offset - mean * inverse
    output: int  # y, or the product image * inverse if they are addends of a larger sum
    dropped: tuple[int, int] | None  # where the shift is an addend of that sum


class _Finder:
    """Finds the normalizations of one graph."""

    def __init__(
        self,
        view: GraphView,
        properties: GraphProperties,
        nodes_to_preserve: Collection[str],
        fetches: Collection[str],
    ) -> None:
        self._view, self._properties = view, properties
        self._control_flow = ControlFlow(view, nodes_to_preserve, fetches)
        self._preserved = _preserved_nodes(view, nodes_to_preserve)
        self._position = _positions(view)
        self._constants: dict[int, Value | None] = {}

    def statistics(self, squares: int) -> _Statistics | None:
        """The statistics that a SquaredDifference is part of; None if there are none.

        A loss has SquaredDifferences, too, and no reason to be refused.
        """
        view = self._view
        for (mean, _), image in _both_orders(view.fanins[squares]):
            if view.ops[mean] != "Mean" or view.fanins[mean][0] != image:
                continue
            for variance in self._readers(squares, {"Mean"}):
                for vector in self._reshapes(variance):
                    for total in self._readers(vector, _ADD_OPS):
                        epsilon = self._epsilon(total, vector)
                        for inverse in self._readers(total, {"Rsqrt"}):
                            if epsilon is not None:
                                return _Statistics(squares, mean, variance, image, epsilon, inverse)
        return None

    def match(self, statistics: _Statistics) -> TrainingNormalization:
        """Matches a whole normalization; raises _RefusalError if it must stay as it is."""
        node = self._view.nodes[statistics.squares]
        dtype = types_pb2.DataType.Name(attribute_of(node, "T").type)
        _require(dtype == "DT_FLOAT", RefusalReason.DTYPE, "statistics of DT_FLOAT", dtype)
        device_type = device_type_of(node.device)
        is_ours = device_type in ("CPU", "GPU") and is_local(node.device)
        _require(is_ours, RefusalReason.DEVICE, "a CPU or GPU of this process", f"'{node.device}'")
        image_shape, channel_axis = self._layout(statistics, device_type)
        _require_gain(device_type, image_shape)
        forward = self._forward(statistics)
        gradient = self._output_gradient(statistics, forward, image_shape)
        sizes = tuple(_SOME_BATCH_SIZE if size is None else size for size in image_shape)
        evaluation = _Evaluation(
            self._view,
            self._position,
            self._constant,
            ImageShapes(sizes, channel_axis),
            _Inputs(statistics, forward, gradient),
        )
        evaluation.run()
        is_differentiated = evaluation.image_gradient is not None or any(
            vector.tensor[0] in evaluation.backward for vector, _ in evaluation.results
        )
        match = TrainingNormalization(
            name=node.name,
            device=node.device,
            layout="NHWC" if channel_axis == 3 else "NCHW",
            dtype=types_pb2.DT_FLOAT,
            epsilon=statistics.epsilon,
            image_shape=image_shape,
            image=statistics.image,
            scale=self._before_reshape(forward.scale),
            offset=self._before_reshape(forward.offset),
            inverse_deviation=evaluation.inverse_deviation(),
            output=forward.output,
            output_gradient=gradient if is_differentiated else None,
            image_gradient=evaluation.image_gradient,
            dropped=frozenset(evaluation.dropped),
            results=tuple(evaluation.results),
            members=tuple(
                sorted(
                    {*evaluation.members()}.union(
                        vector.tensor[0] for vector in (forward.scale, forward.offset) if vector
                    )
                )
            ),
        )
        self._require_free(match, evaluation)
        return self._without_casts(match)

    def _layout(
        self, statistics: _Statistics, device_type: str
    ) -> tuple[tuple[int | None, ...], int]:
        """The shape of the image, and its axis of channels."""
        shape = self._properties.input_shape(statistics.mean, 0)
        has_rank = shape is not None and len(shape) == 4
        _require(has_rank, RefusalReason.SHAPE, "an image of rank 4", shape)
        assert shape is not None
        axes = [self._axes(index) for index in (statistics.mean, statistics.variance)]
        is_nchw = axes == [(0, 2, 3)] * 2 and device_type == "GPU"
        _require(
            axes == [(0, 1, 2)] * 2 or is_nchw,
            RefusalReason.LAYOUT,
            "statistics over axes 0, 1 and 2 (on a GPU also 0, 2 and 3)",
            " and ".join(map(str, axes)),
        )
        is_known = None not in shape[1:]
        _require(is_known, RefusalReason.SHAPE, "known height, width and channels", shape)
        return shape, 1 if is_nchw else 3

    def _forward(self, statistics: _Statistics) -> _Forward:
        """The part after the statistics, by its form."""
        view, inverse = self._view, statistics.inverse_deviation
        scaled: list[tuple[int, Tensor | None]] = [(inverse, None)]
        for index in self._readers(inverse, {"Mul"}):
            scaled.append((index, _other(view.fanins[index], (inverse, 0))))
        for factor, scale in scaled:
            products = self._readers(factor, {"Mul"})
            of_image = (
                each
                for each in products
                if _other(view.fanins[each], (factor, 0)) == statistics.image
            )
            for product in of_image:
                for shift, offset in self._shifts(products):
                    output, dropped = self._sum(product, shift)
                    if output is not None:
                        scale_vector, offset_vector = map(self._parameter, (scale, offset))
                        return _Forward(factor, scale_vector, offset_vector, shift, output, dropped)
        expected = "image * inverse + (offset - mean * inverse) after the statistics"
        raise _RefusalError(RefusalReason.PATTERN, f"Expected {expected}, got none.")

    def _shifts(self, products: Sequence[int]) -> Iterator[tuple[int, Tensor | None]]:
        """The nodes that may be offset - mean * inverse, each with the offset."""
        view = self._view
        for product in products:
            for shift in self._readers(product, {"Sub"}):
                offset, subtracted = view.fanins[shift]
                if subtracted == (product, 0):
                    yield shift, offset
        for product in products:
            yield product, None

    def _sum(self, product: int, shift: int) -> tuple[int | None, tuple[int, int] | None]:
        """The node that adds product and shift, and nothing else; None if there is none.

        Grappler may join their sum with that of a residual block, and add images and vectors
        separately: `AddV2(AddN(product, image, ...), AddV2(shift, vector))`. Then it is the
        product, and the second value is the shift's place as an addend.
        """
        view = self._view
        for output in self._readers(product, _ADD_OPS | {"Sub"}):
            if _other(view.fanins[output], (product, 0)) == (shift, 0):
                return output, None
        above = set(self._sums_of(product))
        node = shift
        dropped: tuple[int, int] | None = None
        for total in self._sums_of(shift):
            dropped = dropped or (total, view.fanins[total].index((node, 0)))
            if total in above:
                return product, dropped
        return None, None

    def _sums_of(self, index: int) -> Iterator[int]:
        """The additions of an addend, each only read by the next, except the last."""
        view = self._view
        readers = self._readers(index, _SUM_OPS)
        for _ in range(_MOST_SUMS):
            if len(readers) != 1 or view.fanins[readers[0]].count((index, 0)) != 1:
                return
            index = readers[0]
            yield index
            readers = self._readers(index, _SUM_OPS) if len(view.fanouts[index]) == 1 else []

    def _parameter(self, tensor: Tensor | None) -> Vector | None:
        """A scale or offset; raises if it is no parameter, because it may depend on statistics."""
        if tensor is None:
            return None
        view, index = self._view, tensor[0]
        while view.ops[index] in _PASS_ON_OPS:
            index = view.fanins[index][0][0]
        name = view.names[index]
        _require(
            view.ops[index] in PARAMETER_OPS,
            RefusalReason.PATTERN,
            "scale and offset to be parameters",
            f"{view.ops[index]} at node '{name}'",
        )
        shape = self._properties.output_shape(*tensor)
        is_known = shape is not None and None not in shape
        _require(is_known, RefusalReason.SHAPE, f"a known shape of '{name}'", shape)
        return Vector(tensor, tuple(size for size in shape or () if size is not None))

    def _before_reshape(self, vector: Vector | None) -> Vector | None:
        """A parameter as the fused op takes it, of shape `[C]`, if the graph has it."""
        if vector is None or self._view.ops[vector.tensor[0]] != "Reshape":
            return vector
        source = self._view.fanins[vector.tensor[0]][0]
        shape = self._properties.output_shape(*source)
        return Vector(source, (max(vector.shape),)) if shape == (max(vector.shape),) else vector

    def _output_gradient(
        self,
        statistics: _Statistics,
        forward: _Forward,
        image_shape: Sequence[int | None],
    ) -> Tensor | None:
        """The tensor that is multiplied like a gradient of the output; None if there is none."""
        view = self._view
        image, factor = statistics.image, (forward.inverse, 0)

        def candidates(factor: Tensor) -> set[Tensor]:
            found = set()
            for index in view.readers[factor[0]]:
                other = _other(view.fanins[index], factor) if view.ops[index] == "Mul" else None
                if other is not None and other not in (image, (forward.inverse, 0)):
                    shape = self._properties.output_shape(*other)
                    is_image = shape is not None and _may_be_same(shape, image_shape)
                    if is_image and (factor != image or self._readers(index, {"Sum"})):
                        found.add(other)
            return found

        # Nothing reads dx if the image is the network's input.
        found = candidates(factor) or candidates(image)
        names = sorted(view.names[index] for index, _ in found)
        _require(len(names) < 2, RefusalReason.PATTERN, "one gradient of the output", names)
        return found.pop() if found else None

    def _require_free(self, match: TrainingNormalization, evaluation: _Evaluation) -> None:
        """Requires that every image in between can go, and that nothing else is in the way."""
        view = self._view
        own = evaluation.inner | _replaced(match)
        own |= {vector.tensor[0] for vector, _ in match.results}
        names = sorted(view.names[index] for index in own & self._preserved)
        _require(not names, RefusalReason.PRESERVED, "nodes that nobody feeds or fetches", names)
        removed = _removed(view, self._position, [match], ())
        for index in sorted(evaluation.images, key=self._position.__getitem__):
            if index not in removed:
                self._refuse_reader(index, removed)
        gone = removed | _replaced(match)
        regions: dict[bool, set[str | None]] = {}
        for index in sorted(gone, key=self._position.__getitem__):
            node = view.nodes[index]
            if node.op == "Const":
                continue
            is_same = node.device == match.device
            name = f"'{node.device}' at node '{node.name}'"
            _require(is_same, RefusalReason.DEVICE, f"nodes on '{match.device}'", name)
            mark = xla_mark(node)
            _require(not mark, RefusalReason.XLA, "nodes that TensorFlow runs", f"'{mark}'")
            waits = [each for each in view.control_fanins[index] if each not in gone]
            _require(
                not waits,
                RefusalReason.CONTROL_DEPENDENCY,
                "no control dependencies on other nodes",
                f"one of '{node.name}'",
            )
            once = self._control_flow.always_runs_once(index)
            _require(once, RefusalReason.CONTROL_FLOW, "no loop or branch", f"'{node.name}'")
            is_backward = index in evaluation.backward
            regions.setdefault(is_backward, set()).add(self._control_flow.region(index))
        is_one = all(len(each) == 1 for each in regions.values())
        what = "nodes that run after the same waits"
        _require(is_one, RefusalReason.CONTROL_FLOW, what, "others")

    def _refuse_reader(self, index: int, removed: Collection[int]) -> None:
        """Raises for the reason why an image stays."""
        view, name = self._view, self._view.names[index]
        for reader in view.fanouts[index]:
            if reader not in removed:
                is_control = index in view.control_fanins[reader]
                raise _RefusalError(
                    RefusalReason.CONTROL_DEPENDENCY
                    if is_control
                    else RefusalReason.READ_ELSEWHERE,
                    f"Expected only the normalization and its gradient to need '{name}', got "
                    f"{view.ops[reader]} at node '{view.names[reader]}'.",
                )
        raise _RefusalError(RefusalReason.PATTERN, f"Expected '{name}' to be unneeded, got others.")

    def _without_casts(self, match: TrainingNormalization) -> TrainingNormalization:
        """The normalization in the type of mixed precision, if it is exactly inside casts.

        Otherwise it stays in float32, between the casts.
        """
        view = self._view
        cast = match.image[0]
        dtype: int = attribute_of(view.nodes[cast], "SrcT").type
        if view.ops[cast] != "Cast" or dtype not in _HALF_TYPES or match.dropped:
            return match

        def casts_to(index: int) -> int | None:
            """The Cast to the type, if it is all that reads a node."""
            readers = view.fanouts[index]
            if len(readers) != 1 or view.ops[readers[0]] != "Cast":
                return None
            node = view.nodes[readers[0]]
            return readers[0] if attribute_of(node, "DstT").type == dtype else None

        output = casts_to(match.output)
        gradient, image_gradient = match.output_gradient, match.image_gradient
        members = [*match.members, cast, match.output]
        if gradient is not None:
            source = view.nodes[gradient[0]]
            if source.op != "Cast" or attribute_of(source, "SrcT").type != dtype:
                return match
            members.append(gradient[0])
            gradient = view.fanins[gradient[0]][0]
        if image_gradient is not None:
            members.append(image_gradient)
            image_gradient = casts_to(image_gradient)
            if image_gradient is None:
                return match
        if output is None or self._preserved.intersection([*members, output, image_gradient]):
            return match
        return dataclasses.replace(
            match,
            dtype=dtype,
            image=view.fanins[cast][0],
            output=output,
            output_gradient=gradient,
            image_gradient=image_gradient,
            members=tuple(sorted(set(members))),
        )

    def _readers(self, index: int, ops: Collection[str]) -> list[int]:
        """The nodes of `ops` that read the first output of a node."""
        view = self._view
        return [
            reader
            for reader in view.readers[index]
            if view.ops[reader] in ops and (index, 0) in view.fanins[reader]
        ]

    def _reshapes(self, index: int) -> Iterator[int]:
        """A node, and those that only give its output another shape."""
        yield index
        for reader in self._readers(index, {"Squeeze", "Reshape"}):
            yield from self._reshapes(reader)

    def _constant(self, index: int) -> Value | None:
        """The value of a Const; None for other nodes."""
        if index not in self._constants:
            node = self._view.nodes[index]
            self._constants[index] = constant_value(node) if node.op == "Const" else None
        return self._constants[index]

    def _epsilon(self, total: int, vector: int) -> float | None:
        """The positive number that a node adds to a vector."""
        other = _other(self._view.fanins[total], (vector, 0))
        value = None if other is None else self._constant(other[0])
        if not isinstance(value, Sampled) or np.prod(value.shape) != 1:
            return None
        return float(value.data[0, 0]) if value.data[0, 0] > 0 else None

    def _axes(self, index: int) -> tuple[int, ...]:
        """The axes of a reduction of rank 4, ascending; empty if unknown."""
        axes = self._constant(self._view.fanins[index][1][0])
        if axes is None or isinstance(axes, Sampled):
            return ()
        return tuple(sorted((axes.reshape(-1) % 4).tolist()))


@dataclasses.dataclass(frozen=True, slots=True)
class _Inputs:
    """What a normalization and its gradient are computed from."""

    statistics: _Statistics
    forward: _Forward
    output_gradient: Tensor | None


_ON_IMAGE, _ON_GRADIENT, _ON_MEAN = 1, 2, 4
"""What a value depends on, as bits."""


class _Evaluation:
    """Evaluates everything that depends on nothing but a normalization's inputs.

    Attributes:
        results: as in `TrainingNormalization`, like `image_gradient` and `dropped`.
        inner: the nodes that belong to this normalization alone.
        images: those of them whose outputs are images.
        backward: the nodes that depend on the gradient of the output.
    """

    def __init__(
        self,
        view: GraphView,
        position: Sequence[int],
        constant: Callable[[int], Value | None],
        shapes: ImageShapes,
        inputs: _Inputs,
    ) -> None:
        self._view, self._position, self._constant = view, position, constant
        self._shapes, self._inputs = shapes, inputs
        self.results: list[tuple[Vector, Result]] = []
        self.image_gradient: int | None = None
        self.dropped: set[tuple[int, int]] = set()
        self.inner: set[int] = set()
        self.images: set[int] = set()
        self.backward: set[int] = set()
        self._values: dict[Tensor, Value] = {}
        self._depends: dict[Tensor, int] = {}
        self._used_constants: set[int] = set()
        self._set_inputs()

    def _set_inputs(self) -> None:
        """Gives the inputs random values, and computes the results from them by formula."""
        inputs, shapes = self._inputs, self._shapes
        forward, statistics = inputs.forward, inputs.statistics
        random = np.random.default_rng(0)
        image, gradient = shapes.random_image(random), shapes.random_image(random)
        self._values[statistics.image] = image
        self._depends[statistics.image] = _ON_IMAGE
        if inputs.output_gradient is not None:
            self._values[inputs.output_gradient] = gradient
            self._depends[inputs.output_gradient] = _ON_GRADIENT
        scale = offset = np.zeros((1, 1))
        scale = scale + 1
        if forward.scale is not None:
            scale = self._set_vector(forward.scale, random)
        if forward.offset is not None:
            offset = self._set_vector(forward.offset, random)
        x, dy, n = image.data, gradient.data, shapes.pixels
        mean = x.mean(0, keepdims=True)
        variance = np.square(x - mean).mean(0, keepdims=True)
        deviation = np.sqrt(variance + statistics.epsilon)
        normalized = (x - mean) / deviation
        offset_gradient = n * dy.mean(0, keepdims=True)
        scale_gradient = n * (dy * normalized).mean(0, keepdims=True)
        self._input_tensors = set(self._values)
        self._output = scale * normalized + offset
        self._image_gradient = (
            scale / deviation * (dy - offset_gradient / n - normalized * scale_gradient / n)
        )
        self._vectors = {
            Result.MEAN: mean,
            Result.VARIANCE: variance,
            Result.OFFSET_GRADIENT: offset_gradient,
            Result.SCALE_GRADIENT: scale_gradient,
            Result.INVERSE_GRADIENT: scale_gradient * deviation,
        }

    def _set_vector(self, vector: Vector, random: np.random.Generator) -> Floats:
        is_vector = vector.shape in self._shapes.vectors
        expected = "a scale and offset for each channel"
        _require(is_vector, RefusalReason.SHAPE, expected, vector.shape)
        value = self._shapes.random_vector(random, vector.shape)
        self._values[vector.tensor], self._depends[vector.tensor] = value, 0
        return value.data

    def run(self) -> None:
        """Evaluates; raises _RefusalError if the output is not that of a normalization."""
        view, forward = self._view, self._inputs.forward
        output: Floats | None = None
        pending: list[tuple[int, int]] = []
        seen: set[int] = set()

        def add_readers(index: int) -> None:
            for reader in view.readers[index]:
                if reader not in seen and view.ops[reader] in EVALUATED_OPS:
                    seen.add(reader)
                    heapq.heappush(pending, (self._position[reader], reader))

        for index, _ in list(self._values):
            add_readers(index)
        while pending:
            _, index = heapq.heappop(pending)
            if (index, 0) in self._values or self._is_sum_of_addends(index):
                continue
            value = self._evaluate(index)
            if value is None:
                continue
            depends = 0
            for tensor in view.fanins[index]:
                depends |= self._depends.get(tensor, 0)
            if index == self._inputs.statistics.mean:
                depends |= _ON_MEAN
            if depends & _ON_GRADIENT:
                self.backward.add(index)
            if depends & _ON_MEAN or depends == _ON_IMAGE | _ON_GRADIENT:
                self.inner.add(index)
            if isinstance(value, Sampled):
                if index == forward.output:
                    output = value.data
                    self.inner.discard(index)
                    continue
                if value.shape == self._shapes.image:
                    if self._is_image_gradient(value) and self.image_gradient is None:
                        self.image_gradient = index
                        self.inner.discard(index)
                        continue
                    if index in self.inner:
                        self.images.add(index)
                elif value.shape in self._shapes.vectors:
                    self._find_result(index, value)
            self._values[index, 0], self._depends[index, 0] = value, depends
            add_readers(index)
        shift = self._values.get((forward.shift, 0))
        if forward.dropped is not None and output is not None and isinstance(shift, Sampled):
            self.dropped.add(forward.dropped)
            output = output + shift.data
        _require(
            output is not None and agree(output, self._output),
            RefusalReason.PATTERN,
            "image * inverse + (offset - mean * inverse) after the statistics",
            f"another value at node '{view.names[forward.output]}'",
        )

    def members(self) -> tuple[int, ...]:
        """The evaluated nodes, except the output and dx, and the constants that they read."""
        nodes = {index for index, _ in self._values.keys() - self._input_tensors}
        return tuple(sorted(nodes | self._used_constants))

    def inverse_deviation(self) -> Vector:
        """The Rsqrt."""
        tensor = (self._inputs.statistics.inverse_deviation, 0)
        value = self._values[tensor]
        assert isinstance(value, Sampled)
        return Vector(tensor, value.shape)

    def _evaluate(self, index: int) -> Value | None:
        operands: list[Value] = []
        constants: list[int] = []
        for tensor in self._view.fanins[index]:
            value = self._values.get(tensor)
            if value is None:
                value = self._constant(tensor[0])
                constants.append(tensor[0])
                if value is None:
                    return None
            operands.append(value)
        result = evaluate(self._view.nodes[index], operands, self._shapes)
        if result is not None:
            self._used_constants.update(constants)
        return result

    def _is_sum_of_addends(self, index: int) -> bool:
        """Whether a node adds dx, in several addends, and other images."""
        if self._view.ops[index] != "AddN" or self.image_gradient is not None:
            return False
        total: Floats = np.zeros((1, 1))
        places: list[int] = []
        tensors = self._view.fanins[index]
        for place, tensor in enumerate(tensors):
            value = self._values.get(tensor)
            if isinstance(value, Sampled) and self._depends[tensor] & _ON_MEAN:
                total = total + value.data
                places.append(place)
        is_part = 0 < len(places) < len(tensors)
        if not is_part or not self._is_image_gradient(Sampled(total, self._shapes.image)):
            return False
        first = next((at for at in places if self._is_read_once(tensors[at][0])), None)
        if first is None:
            return False
        # This addend becomes dx.
        self.image_gradient = tensors[first][0]
        self.inner.discard(self.image_gradient)
        self.images.discard(self.image_gradient)
        self.dropped.update((index, place) for place in places if place != first)
        return True

    def _is_read_once(self, index: int) -> bool:
        view = self._view
        readers = view.fanouts[index]
        return (
            len(readers) == 1
            and [source for source, _ in view.fanins[readers[0]]].count(index) == 1
        )

    def _is_image_gradient(self, value: Sampled) -> bool:
        return self._inputs.output_gradient is not None and agree(value.data, self._image_gradient)

    def _find_result(self, index: int, value: Sampled) -> None:
        is_backward = index in self.backward
        for result, expected in self._vectors.items():
            of_gradient = result not in (Result.MEAN, Result.VARIANCE)
            if of_gradient == is_backward and agree(value.data, expected):
                self.results.append((Vector((index, 0), value.shape), result))
                return


def _require_gain(device_type: str, image_shape: Sequence[int | None]) -> None:
    """Requires an image for which the fused operations are faster."""
    if device_type == "GPU":
        return
    batch, *sizes = image_shape
    elements = (_USUAL_BATCH_SIZE if batch is None else batch) * math.prod(
        size for size in sizes if size is not None
    )
    _require(
        elements >= _LEAST_ELEMENTS,
        RefusalReason.SLOWER,
        f"an image of {_LEAST_ELEMENTS} elements"
        + (f" in batches of {_USUAL_BATCH_SIZE}" if batch is None else ""),
        elements,
    )


def _both_orders(tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    if len(tensors) == 2:
        yield tensors[0], tensors[1]
        yield tensors[1], tensors[0]


def _other(tensors: Sequence[Tensor], one: Tensor) -> Tensor | None:
    """The other of two inputs; None if there are others or more."""
    return next((other for first, other in _both_orders(tensors) if first == one), None)


def _may_be_same(first: Shape, second: Sequence[int | None]) -> bool:
    return len(first) == len(second) and all(
        one is None or other is None or one == other
        for one, other in zip(first, second, strict=True)
    )


def _positions(view: GraphView) -> list[int]:
    """The place of each node in the topological order."""
    positions = [0] * len(view)
    for position, index in enumerate(view.topological_order()):
        positions[index] = position
    return positions


def _preserved_nodes(view: GraphView, names: Collection[str]) -> frozenset[int]:
    return frozenset(view.index_of[name] for name in names if name in view.index_of)


def _replaced(match: TrainingNormalization) -> set[int]:
    """The nodes whose names the new nodes take."""
    gradient = match.image_gradient
    return {match.output} if gradient is None else {match.output, gradient}


def _removed(
    view: GraphView,
    position: Sequence[int],
    matches: Sequence[TrainingNormalization],
    preserved: Collection[int],
) -> set[int]:
    """The members that nothing needs once the new nodes are there."""
    replaced = set().union(*map(_replaced, matches))
    results = {
        vector.tensor[0]: (match, result) for match in matches for vector, result in match.results
    }
    dropped = frozenset[tuple[int, int]]().union(*(match.dropped for match in matches))
    needed = set(preserved)
    for match in matches:
        for tensor in (match.image, match.output_gradient):
            if tensor is not None:
                needed.add(tensor[0])
        for vector in (match.scale, match.offset):
            if vector is not None:
                needed.add(vector.tensor[0])
    removed: set[int] = set()

    def needs(reader: int, index: int) -> bool:
        if reader in removed or reader in replaced:
            return False
        if index in view.control_fanins[reader]:
            return True
        return index not in results and any(
            source == index and (reader, place) not in dropped
            for place, (source, _) in enumerate(view.fanins[reader])
        )

    members = {index for match in matches for index in match.members} - replaced
    for index in sorted(members, key=position.__getitem__, reverse=True):
        readers = view.fanouts[index]
        if index in results:
            match, result = results[index]
            if result is Result.INVERSE_GRADIENT and not removed.issuperset(readers):
                needed.add(match.inverse_deviation.tensor[0])
        # A node that nothing reads is there for another reason, such as a fetch.
        is_needed = index in needed or not readers
        if not is_needed and not any(needs(reader, index) for reader in readers):
            removed.add(index)
    return removed


def rewrite_normalizations(
    view: GraphView,
    matches: Sequence[TrainingNormalization],
    nodes_to_preserve: Collection[str] = (),
) -> graph_pb2.GraphDef:
    """Replaces normalizations by FusedBatchNormV3 and FusedBatchNormGradV3.

    Args:
        view: the graph; it is not changed.
        matches: any that `find_training_normalizations` found in it.
        nodes_to_preserve: names that must stay in the graph.
    """
    position = _positions(view)
    preserved = _preserved_nodes(view, nodes_to_preserve)
    removed = _removed(view, position, matches, preserved)
    dropped = _dropped(view, position, matches)
    # A sum without addends is one of vectors that all became parts of images.
    removed |= {
        index for index, places in dropped.items() if len(places) == len(view.fanins[index])
    }
    rewriting = _Rewriting(view, matches)
    graph_def = graph_pb2.GraphDef(versions=view.graph_def.versions)
    graph_def.library.CopyFrom(view.graph_def.library)
    new_nodes = {node.name: node for match in matches for node in rewriting.fused_nodes(match)}
    gone = {COLOCATED_WITH + view.names[index].encode() for index in removed}
    changed = rewriting.readers() | dropped.keys()
    for index, node in enumerate(view.nodes):
        if index in removed:
            continue
        new_node = new_nodes.pop(node.name, node)
        copy = graph_def.node.add()
        copy.CopyFrom(new_node)
        if new_node is node and index in changed:
            rewriting.redirect(index, copy, dropped.get(index, ()))
        if COLOCATION in copy.attr:
            classes = copy.attr[COLOCATION].list.s
            classes[:] = [entry for entry in classes if entry not in gone]
    graph_def.node.extend(new_nodes.values())
    graph_def.node.extend(rewriting.small_nodes)
    return graph_def


def _dropped(
    view: GraphView, position: Sequence[int], matches: Sequence[TrainingNormalization]
) -> dict[int, set[int]]:
    """The inputs that each addition loses, also because all of their addends are gone."""
    dropped: dict[int, set[int]] = {}
    for match in matches:
        for index, place in match.dropped:
            dropped.setdefault(index, set()).add(place)
    pending = [(position[index], index) for index in dropped]
    heapq.heapify(pending)
    while pending:
        _, index = heapq.heappop(pending)
        if len(dropped[index]) == len(view.fanins[index]):
            for reader in view.readers[index]:
                if reader not in dropped:
                    heapq.heappush(pending, (position[reader], reader))
                dropped.setdefault(reader, set()).update(
                    place
                    for place, (source, _) in enumerate(view.fanins[reader])
                    if source == index
                )
    return dropped


class _Rewriting:
    """Makes the new nodes of a graph, and redirects the readers of results to them.

    Attributes:
        small_nodes: the new nodes beside the fused ones, made when something reads them.
    """

    def __init__(self, view: GraphView, matches: Sequence[TrainingNormalization]) -> None:
        self._view = view
        self._matches = matches
        self._result_of: dict[Tensor, tuple[TrainingNormalization, Vector, Result]] = {}
        for match in matches:
            for vector, result in match.results:
                self._result_of.setdefault(vector.tensor, (match, vector, result))
        self._names = set(view.index_of)
        self._suffixes: collections.Counter[str] = collections.Counter()
        self._gradient_names = {match.name: self._gradient_name(match) for match in matches}
        self._made: dict[tuple[object, ...], str] = {}
        self.small_nodes: list[node_def_pb2.NodeDef] = []

    def readers(self) -> set[int]:
        """The nodes that read results."""
        view = self._view
        return {reader for source, _ in self._result_of for reader in view.fanouts[source]}

    def redirect(self, index: int, node: node_def_pb2.NodeDef, dropped: Collection[int]) -> None:
        """Changes the inputs of a node that stays; an addition loses those that are dropped."""
        tensors = self._view.fanins[index]
        controls = node.input[len(tensors) :]
        texts = [self._text(tensor) for place, tensor in enumerate(tensors) if place not in dropped]
        node.input[:] = [*texts, *controls]
        if dropped:
            # These list the shapes of the old inputs.
            node.attr.pop("_input_shapes", None)
            if len(texts) == 1:
                node.op = "Identity"
                node.attr.pop("N", None)
            elif node.op == "AddN":
                node.attr["N"].i = len(texts)

    def fused_nodes(self, match: TrainingNormalization) -> Iterator[node_def_pb2.NodeDef]:
        """The fused nodes of a normalization."""
        output, channels = self._view.names[match.output], _channels(match)
        image, shape = self._text(match.image), match.image_shape
        scale, offset = (
            self._constant(match, value, (channels,))
            if vector is None
            else self._flat(match, vector)
            for vector, value in ((match.scale, 1.0), (match.offset, 0.0))
        )
        none = self._constant(match, 0.0, (0,))
        inputs = [image, scale, offset, none, none]
        forward = _new_node(output, "FusedBatchNormV3", match.device, inputs)
        forward.attr["exponential_avg_factor"].f = 1.0
        _set_shapes(forward, shape, *[(channels,)] * 4, None)
        nodes = [forward]
        if match.output_gradient is not None:
            reserved = [f"{output}:{port}" for port in (3, 4, 5)]
            inputs = [self._text(match.output_gradient), image, scale, *reserved]
            name = self._gradient_names[match.name]
            gradient = _new_node(name, "FusedBatchNormGradV3", match.device, inputs)
            _set_shapes(gradient, shape, (channels,), (channels,), None, None)
            nodes.append(gradient)
        for node in nodes:
            node.attr["T"].type = match.dtype
            node.attr["U"].type = types_pb2.DT_FLOAT
            node.attr["epsilon"].f = match.epsilon
            node.attr["data_format"].s = match.layout.encode()
            node.attr["is_training"].b = True
        yield from nodes

    def _gradient_name(self, match: TrainingNormalization) -> str:
        if match.image_gradient is not None:
            return self._view.names[match.image_gradient]
        return self._free_name(f"{self._view.names[match.output]}/gradient")

    def _text(self, tensor: Tensor) -> str:
        """The input that reads a tensor of the old graph."""
        if tensor in self._result_of:
            match, vector, result = self._result_of[tensor]
            text = self._result(match, result)
            return text if len(vector.shape) == 1 else self._reshaped(match, text, vector.shape)
        index, port = tensor
        name = self._view.names[index]
        return f"{name}:{port}" if port else name

    def _result(self, match: TrainingNormalization, result: Result) -> str:
        """The input that reads a result, of shape `[C]`."""
        output, gradient = self._view.names[match.output], self._gradient_names[match.name]
        if result is Result.MEAN:
            return f"{output}:1"
        if result is Result.VARIANCE:
            # The op returns n / (n - 1) times the variance, for the moving variance of Keras 2.
            factor = self._biased_by(match)
            return self._add(match, "Mul", f"{output}:2", factor, T=types_pb2.DT_FLOAT)
        if result is Result.SCALE_GRADIENT:
            return f"{gradient}:1"
        if result is Result.OFFSET_GRADIENT:
            return f"{gradient}:2"
        inverse = self._flat(match, match.inverse_deviation)
        return self._add(match, "RealDiv", f"{gradient}:1", inverse, T=types_pb2.DT_FLOAT)

    def _biased_by(self, match: TrainingNormalization) -> str:
        """The input that reads (n - 1) / n, where n is the number of pixels."""
        channels = _channels(match)
        if match.image_shape[0] is not None:
            n = math.prod(size or 0 for size in match.image_shape) // channels
            return self._constant(match, (n - 1) / n, ())
        image, number = self._text(match.image), types_pb2.DT_FLOAT
        size = self._add(match, "Size", image, T=match.dtype, out_type=types_pb2.DT_INT64)
        size = self._add(match, "Cast", size, SrcT=types_pb2.DT_INT64, DstT=number)
        part = self._add(match, "RealDiv", self._constant(match, channels, ()), size, T=number)
        return self._add(match, "Sub", self._constant(match, 1.0, ()), part, T=number)

    def _flat(self, match: TrainingNormalization, vector: Vector) -> str:
        """The input that reads a vector in the shape `[C]`."""
        text = self._text(vector.tensor)
        if len(vector.shape) == 1:
            return text
        return self._reshaped(match, text, (_channels(match),))

    def _reshaped(self, match: TrainingNormalization, text: str, shape: tuple[int, ...]) -> str:
        sizes = self._add(match, "Const", value=np.array(shape, np.int32))
        return self._add(match, "Reshape", text, sizes, T=types_pb2.DT_FLOAT)

    def _constant(self, match: TrainingNormalization, value: float, shape: tuple[int, ...]) -> str:
        return self._add(match, "Const", value=np.full(shape, value, np.float32))

    def _add(
        self,
        match: TrainingNormalization,
        op: str,
        *inputs: str,
        value: npt.NDArray[np.generic] | None = None,
        **types: int,
    ) -> str:
        """Adds a small node, unless there is the same already; returns its name."""
        content = None if value is None else (value.dtype.name, value.shape, value.tobytes())
        key = (match.device, op, inputs, content)
        if key not in self._made:
            name = self._free_name(f"tf_interop/normalization/{op}")
            node = _new_node(name, op, match.device, inputs)
            if value is not None:
                proto = tf.make_tensor_proto(value)
                node.attr["value"].tensor.CopyFrom(proto)
                types = {"dtype": proto.dtype}
            for attribute, dtype in types.items():
                node.attr[attribute].type = dtype
            self.small_nodes.append(node)
            self._made[key] = name
        return self._made[key]

    def _free_name(self, base: str) -> str:
        name = base
        while name in self._names:
            self._suffixes[base] += 1
            name = f"{base}_{self._suffixes[base]}"
        self._names.add(name)
        return name


def _channels(match: TrainingNormalization) -> int:
    channels = match.image_shape[match.layout.index("C")]
    assert channels is not None
    return channels


def _new_node(name: str, op: str, device: str, inputs: Sequence[str]) -> node_def_pb2.NodeDef:
    return node_def_pb2.NodeDef(name=name, op=op, device=device, input=inputs)


def _set_shapes(node: node_def_pb2.NodeDef, *shapes: Sequence[int | None] | None) -> None:
    """States the shapes of a node's outputs; None is an unknown rank."""
    protos = [tf.TensorShape(shape).as_proto() for shape in shapes]
    node.attr["_output_shapes"].list.shape.extend(protos)


def check_normalizations(
    before: GraphView,
    after: GraphView,
    matches: Sequence[TrainingNormalization],
    nodes_to_preserve: Collection[str] = (),
) -> None:
    """Checks that a graph with fused normalizations differs from the old one only where it may.

    `after` has no cycle, and all names to preserve. Its view has checked names and inputs. Nodes of
    `before` are gone only if they are members; each of the others keeps its op, attributes, device,
    control dependencies, and all inputs that are no results. Beside them there are only the fused
    nodes and small ones.

    Raises:
        GraphError: one of these is violated. The message names the node.
    """
    after.topological_order()
    replaced = {before.names[index] for match in matches for index in _replaced(match)}
    members = {before.names[index] for match in matches for index in match.members}
    preserved = {name for name in nodes_to_preserve if name in before.index_of}
    gone = before.index_of.keys() - after.index_of.keys()
    empty = {
        before.names[index]
        for index, places in _dropped(before, _positions(before), matches).items()
        if len(places) == len(before.fanins[index])
    }
    members |= empty
    if not gone <= members - preserved or replaced & preserved:
        names = sorted((gone - members) | (preserved & (gone | replaced)))
        raise GraphError(f"Expected no nodes gone but members, got {names[:5]} gone.")
    results = {vector.tensor for match in matches for vector, _ in match.results}
    shorter = _dropped(before, _positions(before), matches)
    for index, old in enumerate(before.nodes):
        if old.name in gone or old.name in replaced:
            continue
        place = after.index_of[old.name]
        new = after.nodes[place]
        if new == old:
            continue
        expected = node_def_pb2.NodeDef()
        expected.CopyFrom(old)
        expected.input[:] = new.input
        dropped = shorter.get(index, ())
        kept = [each for each in range(len(before.fanins[index])) if each not in dropped]
        texts = [old.input[each] for each in kept]
        tensors = [before.fanins[index][each] for each in kept]
        if dropped:
            expected.op = new.op if new.op == "Identity" and len(kept) == 1 else old.op
            for name in ("N", "_input_shapes"):
                expected.attr.pop(name, None)
            if "N" in new.attr:
                expected.attr["N"].i = len(kept)
        if COLOCATION in new.attr:
            expected.attr[COLOCATION].CopyFrom(new.attr[COLOCATION])
        is_same = (
            expected == new
            and len(after.fanins[place]) == len(kept)
            and new.input[len(kept) :] == old.input[len(before.fanins[index]) :]
            and all(
                one == other or tensor in results
                for tensor, one, other in zip(tensors, texts, new.input, strict=False)
            )
        )
        if not is_same:
            raise GraphError(
                f"Expected node '{old.name}' to keep all but its reads of results, got another."
            )
    fused = [after.ops[after.index_of[name]] for name in replaced]
    if fused.count("FusedBatchNormV3") != len(matches):
        raise GraphError(f"Expected {len(matches)} fused normalizations, got {sorted(fused)}.")
