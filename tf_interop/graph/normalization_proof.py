"""Proves which tensors of a graph are the results of a batch normalization and its gradient.

Every node that can be evaluated from the inputs of the normalization is evaluated at random points
(`sampled_values`), and compared with the formulas (Ioffe and Szegedy, Batch Normalization, 2015,
section 3):

    deviation = sqrt(mean((x - mean)^2) + epsilon),  xhat = (x - mean) / deviation
    y = scale * xhat + offset
    doffset = sum(dy),  dscale = sum(dy * xhat)
    dx = scale / deviation * (dy - doffset / n - xhat * dscale / n)

Means and sums are over the n pixels of the batch.

Grappler joins additions: y and dx may never exist, because their addends are those of a larger sum.

    x * inverse, other images --> AddN ---v
    shift, other vectors -----> AddN --> AddV2

Then one addend counts as the result, and the sum loses the others.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tf_interop.graph.sampled_values import (
    EVALUATED_OPS,
    POINTS,
    SAMPLES,
    Floats,
    ImageShapes,
    Sampled,
    Value,
    agree,
    evaluate,
)
from tf_interop.graph.view import GraphView, Tensor

_SUM_OPS = frozenset({"Add", "AddV2", "AddN"})
# The sizes of x and dy at the random points. What is small beside a result at one point, as epsilon
# is beside a variance, or weight decay beside a gradient, is large at another.
_IMAGE_SIZES = np.array([[1.0, 1.0, 1e-6, 1e6]])
_GRADIENT_SIZES = np.array([[1.0, 1e-12, 1.0, 1.0]])
_ON_IMAGE, _ON_GRADIENT, _ON_MEAN = 1, 2, 4
"""What a value depends on, as bits."""


class Result(enum.Enum):
    """What a tensor of a normalization is."""

    OUTPUT = "y"
    MEAN = "mean"
    VARIANCE = "variance"
    IMAGE_GRADIENT = "dx"
    SCALE_GRADIENT = "dscale"
    OFFSET_GRADIENT = "doffset"
    # Grappler may multiply it by the learning rate before it divides by the deviation.
    INVERSE_GRADIENT = "dscale * deviation"

    @property
    def is_image(self) -> bool:
        """Whether the tensor is an image; the others are vectors of channels."""
        return self in (Result.OUTPUT, Result.IMAGE_GRADIENT)

    @property
    def is_of_gradient(self) -> bool:
        """Whether the tensor depends on the gradient of the output."""
        return self not in (Result.OUTPUT, Result.MEAN, Result.VARIANCE)


@dataclasses.dataclass(frozen=True, slots=True)
class Vector:
    """A tensor with a number for each channel, of shape `[C]` or with more dimensions of size 1."""

    tensor: Tensor
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """What a normalization and its gradient are computed from.

    Attributes:
        image: x.
        scale: None stands for 1.
        offset: None stands for 0.
        gradient: dy; None if there is none.
        mean: the node of the mean.
        epsilon: a number.
    """

    image: Tensor
    scale: Vector | None
    offset: Vector | None
    gradient: Tensor | None
    mean: int
    epsilon: float

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that the fused operations read, the image first."""
        vectors = tuple(each.tensor for each in (self.scale, self.offset) if each is not None)
        return (self.image, *vectors, *(() if self.gradient is None else (self.gradient,)))


class Evaluation:
    """Evaluates everything that depends on nothing but a normalization's inputs.

    Attributes:
        results: the tensors that agree with a formula, with their shapes.
        dropped: inputs that sums lose, as (node, place), because another addend is a result.
        members: the evaluated nodes, and the constants that they read.
        inner: those that belong to this normalization alone.
        images: those of `inner` whose outputs are images, in either layout.
    """

    def __init__(
        self,
        view: GraphView,
        positions: Sequence[int],
        constant: Callable[[int], Value | None],
        shapes: ImageShapes,
        inputs: Inputs,
    ) -> None:
        self._view, self._positions, self._constant = view, positions, constant
        self._shapes, self._inputs = shapes, inputs
        self.results: dict[Tensor, tuple[Result, tuple[int, ...]]] = {}
        self.dropped: set[tuple[int, int]] = set()
        self.members: set[int] = set()
        self.inner: set[int] = set()
        self.images: set[int] = set()
        self._values: dict[Tensor, Value] = {}
        self._depends: dict[Tensor, int] = {}
        self._products: list[int] = []
        self._shifts: list[int] = []
        self._set_inputs()
        self._evaluate_all()
        if not self.has(Result.OUTPUT):
            self._find_joined_output()

    def has(self, *results: Result) -> bool:
        """Whether one of the results was found."""
        return any(result in results for result, _ in self.results.values())

    @property
    def is_differentiated(self) -> bool:
        """Whether a result was found that only the gradient has.

        A sum of dy alone may be anything.
        """
        return self.has(Result.IMAGE_GRADIENT, Result.SCALE_GRADIENT, Result.INVERSE_GRADIENT)

    def _set_inputs(self) -> None:
        """Gives the inputs random values, and computes the results from them by formula."""
        inputs, random = self._inputs, np.random.default_rng(0)
        x, dy = (
            sizes * random.uniform(-2, 3, (SAMPLES, POINTS))
            for sizes in (_IMAGE_SIZES, _GRADIENT_SIZES)
        )
        self._set(inputs.image, Sampled(x, self._shapes.image), _ON_IMAGE)
        if inputs.gradient is not None:
            self._set(inputs.gradient, Sampled(dy, self._shapes.image), _ON_GRADIENT)
        scale, offset = np.ones((1, 1)), np.zeros((1, 1))
        if inputs.scale is not None:
            scale = random.uniform(0.5, 2, (1, POINTS))
            self._set_vector(inputs.scale, scale)
        if inputs.offset is not None:
            offset = random.uniform(0.5, 2, (1, POINTS))
            self._set_vector(inputs.offset, offset)
        self._input_nodes = {index for index, _ in self._values}
        n = self._shapes.pixels
        mean = x.mean(0, keepdims=True)
        variance = np.square(x - mean).mean(0, keepdims=True)
        deviation = np.sqrt(variance + inputs.epsilon)
        normalized = (x - mean) / deviation
        offset_gradient = n * dy.mean(0, keepdims=True)
        scale_gradient = n * (dy * normalized).mean(0, keepdims=True)
        self._product = x * scale / deviation
        self._shift = offset - mean * scale / deviation
        self._formulas: Mapping[Result, Floats] = {
            Result.OUTPUT: scale * normalized + offset,
            Result.MEAN: mean,
            Result.VARIANCE: variance,
            Result.IMAGE_GRADIENT: scale
            / deviation
            * (dy - offset_gradient / n - normalized * scale_gradient / n),
            Result.SCALE_GRADIENT: scale_gradient,
            Result.OFFSET_GRADIENT: offset_gradient,
            Result.INVERSE_GRADIENT: scale_gradient * deviation,
        }

    def _set(self, tensor: Tensor, value: Value, depends: int) -> None:
        self._values[tensor], self._depends[tensor] = value, depends

    def _set_vector(self, vector: Vector, data: Floats) -> None:
        value = self._shapes.vector(data, vector.shape)
        assert value is not None, "the finder looked for shapes that are known"
        self._set(vector.tensor, value, 0)

    def _evaluate_all(self) -> None:
        view = self._view
        pending: list[tuple[int, int]] = []
        seen = set(self._input_nodes)

        def add_readers(index: int) -> None:
            for reader in view.readers[index]:
                if reader not in seen and view.ops[reader] in EVALUATED_OPS:
                    seen.add(reader)
                    heapq.heappush(pending, (self._positions[reader], reader))

        for index in self._input_nodes:
            add_readers(index)
        while pending:
            _, index = heapq.heappop(pending)
            # A node after dx or y is no part of the normalization.
            if self._evaluate(index):
                add_readers(index)

    def _evaluate(self, index: int) -> bool:
        """Evaluates a node; returns whether others are to be evaluated from it."""
        view, operands, constants, depends = self._view, list[Value](), set[int](), 0
        for tensor in view.fanins[index]:
            value = self._values.get(tensor)
            if value is None:
                constants.add(tensor[0])
                value = self._constant(tensor[0])
            if value is None:
                self._find_joined_gradient(index)
                return False
            operands.append(value)
            depends |= self._depends.get(tensor, 0)
        value = evaluate(view.nodes[index], operands, self._shapes)
        if value is None or self._find_joined_gradient(index):
            return False
        if index == self._inputs.mean:
            depends |= _ON_MEAN
        self.members.update({index}, constants)
        if not isinstance(value, Sampled):
            self._set((index, 0), value, depends)
            return True
        result = self._result(value, depends)
        if result is not None:
            self.results[index, 0] = result, value.shape
            if result.is_image:
                return False
        is_image = self._shapes.is_image(value)
        if depends & _ON_MEAN or depends == _ON_IMAGE | _ON_GRADIENT:
            self.inner.add(index)
            if math.prod(value.shape) == math.prod(self._shapes.image):
                self.images.add(index)
        if is_image and agree(value.data, self._product):
            self._products.append(index)
        elif not is_image and agree(value.data, self._shift):
            self._shifts.append(index)
        self._set((index, 0), value, depends)
        return True

    def _result(self, value: Sampled, depends: int) -> Result | None:
        """The formula that a value agrees with."""
        is_image, is_backward = self._shapes.is_image(value), bool(depends & _ON_GRADIENT)
        if not is_image and value.shape not in self._shapes.vectors:
            return None
        for result, expected in self._formulas.items():
            is_of_kind = (result.is_image, result.is_of_gradient) == (is_image, is_backward)
            if is_of_kind and agree(value.data, expected):
                return result
        return None

    def _find_joined_output(self) -> None:
        """Finds y in a sum with others, as `image * inverse` and `offset - mean * inverse`."""
        for product in self._products:
            sums = {total for total, _ in self._sums_of(product)}
            for shift in self._shifts:
                places = list(self._sums_of(shift))
                if not sums.isdisjoint(total for total, _ in places):
                    self.results[product, 0] = Result.OUTPUT, self._shapes.image
                    self.dropped.add(places[0])
                    self.images.discard(product)
                    return

    def _sums_of(self, index: int) -> Iterator[tuple[int, int]]:
        """The sums above an addend, with its places, while nothing else needs them."""
        view = self._view
        while len(view.fanouts[index]) == 1:
            (reader,) = view.fanouts[index]
            if view.ops[reader] not in _SUM_OPS or view.fanins[reader].count((index, 0)) != 1:
                return
            yield reader, view.fanins[reader].index((index, 0))
            if view.names[reader] in view.preserved:
                return
            index = reader

    def _find_joined_gradient(self, index: int) -> bool:
        """Finds dx in a sum with others, in several addends; returns whether it is there."""
        view = self._view
        if view.ops[index] not in _SUM_OPS or self._inputs.gradient is None:
            return False
        total, places = np.zeros((1, 1)), list[int]()
        for place, tensor in enumerate(view.fanins[index]):
            value = self._values.get(tensor)
            if isinstance(value, Sampled) and self._depends[tensor] & _ON_MEAN:
                total = total + value.data
                places.append(place)
        is_part = len(places) < len(view.fanins[index])
        if not is_part or not agree(total, self._formulas[Result.IMAGE_GRADIENT]):
            return False
        for first in places:
            addend = view.fanins[index][first][0]
            if next(self._sums_of(addend), None) == (index, first):
                self.results[addend, 0] = Result.IMAGE_GRADIENT, self._shapes.image
                self.images.discard(addend)
                self.dropped.update((index, place) for place in places if place != first)
                return True
        return False
