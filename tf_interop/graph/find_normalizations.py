"""Finds batch normalizations in training, which Keras 3 computes in separate operations.

    x --> Mean --> SquaredDifference --> Mean --> + epsilon --> Rsqrt --> * scale --> inverse
    x --> * inverse --> + (offset - mean * inverse) --> y
    dy, x, mean, inverse, ... --> about twenty operations --> dx, dscale, doffset

The statistics have one form, that of `tf.nn.moments`. They lead to the image, epsilon, the scale,
the offset, and the gradient of the output. `normalization_proof` finds what of the rest are
*results*, whose readers `fuse_normalizations` makes read the fused operations.

Preconditions:
  1. the statistics are over all axes but that of channels, of an image of rank 4, in float32 (mixed
     precision casts to it), and on CPUs under op determinism of at least `_LEAST_ELEMENTS`;
  2. scale and offset are parameters or absent, because others may depend on the statistics;
  3. nothing but the results is needed of any image between them;
  4. the nodes between are on one local CPU or GPU, not compiled by XLA, always run once, wait for
     nothing else, and are neither fed nor fetched.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping

from tensorflow.core.framework import types_pb2

from tf_interop.convolution import Refusal, RefusalReason, Shape
from tf_interop.graph.control_flow import ControlFlow
from tf_interop.graph.find import RefusedError, require
from tf_interop.graph.normalization_proof import Evaluation, Inputs, Result, Vector
from tf_interop.graph.ops import attribute_of
from tf_interop.graph.properties import PARAMETER_OPS, GraphProperties
from tf_interop.graph.sampled_values import ImageShapes, Sampled, Value, constant_value
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import GraphView, Tensor, device_type_of, is_local
from tf_interop.graph.xla import xla_mark
from tf_interop.tensorflow_internals import is_op_determinism_on

_PASS_ON_OPS = frozenset({"Identity", "Cast", "Reshape"})
_HALF_TYPES = frozenset({types_pb2.DT_HALF, types_pb2.DT_BFLOAT16})
# oneDNN's fused kernels take 0.2 ms even for tiny images. Units that time themselves have another
# way, but not under op determinism. How many times as fast as the separate operations oneDNN's are
# depends on the number of elements, hardly on sizes: 31,000: 0.6; 50,000: 0.8; 75,000: 0.8 to 1.1;
# 100,000: 1.4 to 1.6; 150,000: 1.7 to 2; 800,000: 2.2 to 2.6 (two cores with other load, least
# times in turns, both ways together, 4 and 32 images of 7 to 56 pixels a side).
_LEAST_ELEMENTS = 100_000
# Stands for an unknown batch size, which is 32 in Keras by default.
_USUAL_BATCH_SIZE = 16


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingNormalization:
    """A normalization in training that the fused operations can compute.

    Nodes are places in the view.

    Attributes:
        name: the name of the SquaredDifference.
        device: the device of its nodes.
        layout: `NHWC` or `NCHW`.
        dtype: of the image, output and their gradients; the rest is float32.
        image_shape: in `layout`; only the batch size may be unknown.
        inputs: what the new operations are computed from.
        results: the tensors that the new operations compute, with their shapes.
        dropped: inputs that additions lose, as (node, place): the other addends of y or dx, where
            one addend is the result, because the addition has foreign addends too.
        members: the nodes that go, except those that something else still needs.
    """

    name: str
    device: str
    layout: str
    dtype: int
    image_shape: tuple[int | None, ...]
    inputs: Inputs
    results: Mapping[Tensor, tuple[Result, tuple[int, ...]]]
    dropped: frozenset[tuple[int, int]]
    members: frozenset[int]


def find_training_normalizations(
    view: GraphView, properties: GraphProperties, device_type: str
) -> tuple[tuple[TrainingNormalization, ...], tuple[Refusal, ...]]:
    """Finds the normalizations in training that the fused operations compute faster.

    Returns:
        The normalizations, and those that stay as they are, each with a reason, at the
        SquaredDifference or, if the variance is computed otherwise, the Rsqrt.

    Raises:
        GraphError: the graph has a cycle.
    """
    if "Rsqrt" not in view.op_types:
        return (), ()
    finder = _Finder(view, properties)
    found, refusals, seen = [], [], set[int]()

    def anchors(op: str) -> list[int]:
        return view.by_rank(
            index
            for index, its in enumerate(view.ops)
            if its == op and device_type_of(view.nodes[index].device) == device_type
        )

    for index in anchors("SquaredDifference"):
        check_time_limit()
        statistics = finder.statistics(index)
        if statistics is None:
            continue
        seen.add(statistics.rsqrt)
        try:
            found.append(finder.match(statistics))
        except RefusedError as refused:
            refusals.append(view.refusal(index, *refused.args))
    for index in anchors("Rsqrt"):
        if index not in seen and (other := finder.other_statistics(index)) is not None:
            detail = (
                "Expected the mean of squared differences as the variance, got "
                f"{view.ops[other]} at node '{view.names[other]}', as of a normalization that is "
                "masked or synchronized."
            )
            refusals.append(view.refusal(index, RefusalReason.PATTERN, detail))
    return tuple(found), tuple(refusals)


@dataclasses.dataclass(frozen=True, slots=True)
class _Statistics:
    """The first part of a normalization, up to the Rsqrt."""

    squares: int  # the SquaredDifference
    mean: int
    variance: int
    rsqrt: int
    image: Tensor
    epsilon: float


class _Finder:
    def __init__(self, view: GraphView, properties: GraphProperties) -> None:
        self._view, self._properties = view, properties
        self._control_flow = ControlFlow(view)
        self._positions = positions(view)
        self._constants: dict[int, Value | None] = {}

    def statistics(self, squares: int) -> _Statistics | None:
        """The statistics that a SquaredDifference is part of; None if there are none.

        A loss has SquaredDifferences, too, and no reason to be refused.
        """
        view = self._view
        first, second = view.fanins[squares]
        for (mean, _), image in ((first, second), (second, first)):
            if view.ops[mean] != "Mean" or view.fanins[mean][0] != image:
                continue
            for variance in self._readers(squares, {"Mean"}):
                for vector in self._reshaped(variance):
                    for total in self._readers(vector, {"Add", "AddV2"}):
                        epsilon = self._positive_constant(self._other(total, (vector, 0)))
                        for rsqrt in self._readers(total, {"Rsqrt"}) if epsilon else ():
                            return _Statistics(squares, mean, variance, rsqrt, image, epsilon)
        return None

    def other_statistics(self, rsqrt: int) -> int | None:
        """The node that computes the variance of a batch otherwise; None if nothing does.

        Keras squeezes the variance of images to a vector, and adds epsilon to it.
        """
        view = self._view
        total = view.fanins[rsqrt][0][0]
        if view.ops[total] not in ("Add", "AddV2"):
            return None
        for place, (vector, _) in enumerate(view.fanins[total]):
            if view.ops[vector] != "Squeeze":
                continue
            variance, _ = view.fanins[vector][0]
            sources = [view.ops[source] for source, _ in view.fanins[variance][:1]]
            is_other = view.ops[variance] not in PARAMETER_OPS and sources != ["SquaredDifference"]
            if is_other and self._positive_constant(view.fanins[total][1 - place]):
                return variance
        return None

    def match(self, statistics: _Statistics) -> TrainingNormalization:
        """Matches a whole normalization; raises RefusedError if it must stay as it is."""
        node = self._view.nodes[statistics.squares]
        dtype = types_pb2.DataType.Name(attribute_of(node, "T").type)
        require(dtype == "DT_FLOAT", "statistics of DT_FLOAT", dtype, RefusalReason.DTYPE)
        is_ours = is_local(node.device)
        require(is_ours, "a device of this process", f"'{node.device}'", RefusalReason.DEVICE)
        shape, channel_axis = self._image_shape(statistics)
        known = tuple(_some_size(shape) if size is None else size for size in shape)
        shapes = ImageShapes(known, channel_axis)
        scale, offset = self._parameters(statistics.rsqrt, shapes)
        # Few images are multiplied by anything else that is then summed.
        for gradient in (*self._possible_gradients(statistics.image, shape), None):
            inputs = Inputs(
                statistics.image, scale, offset, gradient, statistics.mean, statistics.epsilon
            )
            evaluation = Evaluation(self._view, self._positions, self._constant, shapes, inputs)
            if evaluation.is_differentiated:
                break
        require(
            evaluation.has(Result.OUTPUT),
            "scale * (image - mean) / deviation + offset after the statistics",
            "none",
            RefusalReason.PATTERN,
        )
        match = TrainingNormalization(
            name=node.name,
            device=node.device,
            layout="NHWC" if channel_axis == 3 else "NCHW",
            dtype=types_pb2.DT_FLOAT,
            image_shape=shape,
            inputs=inputs,
            results=evaluation.results,
            dropped=frozenset(evaluation.dropped),
            members=frozenset(evaluation.members),
        )
        self._require_free(match, evaluation)
        return self._in_half(match)

    def _image_shape(self, statistics: _Statistics) -> tuple[tuple[int | None, ...], int]:
        """The shape of the image, and its axis of channels; raises if the passes should stay."""
        shape = self._properties.input_shape(statistics.mean, 0)
        has_rank = shape is not None and len(shape) == 4 and None not in shape[1:]
        expected = "an image of rank 4 with known height, width and channels"
        require(has_rank, expected, shape, RefusalReason.SHAPE)
        assert shape is not None
        axes = [self._axes(index) for index in (statistics.mean, statistics.variance)]
        is_cpu = device_type_of(self._view.nodes[statistics.squares].device) == "CPU"
        is_nchw = axes == [(0, 2, 3)] * 2 and not is_cpu
        require(
            axes == [(0, 1, 2)] * 2 or is_nchw,
            "statistics over axes 0, 1 and 2 (on a GPU also 0, 2 and 3)",
            " and ".join(map(str, axes)),
            RefusalReason.LAYOUT,
        )
        elements = math.prod(_USUAL_BATCH_SIZE if size is None else size for size in shape)
        require(
            not is_cpu or elements >= _LEAST_ELEMENTS or not is_op_determinism_on(),
            f"under op determinism an image of {_LEAST_ELEMENTS} elements (in batches of "
            f"{_USUAL_BATCH_SIZE} if their size is unknown)",
            elements,
            RefusalReason.SLOWER,
        )
        channel_axis = 1 if is_nchw else 3
        pixels = elements // (shape[channel_axis] or 1)
        require(pixels > 1, "more than one pixel", shape, RefusalReason.SHAPE)
        return shape, channel_axis

    def _parameters(self, inverse: int, shapes: ImageShapes) -> tuple[Vector | None, Vector | None]:
        view, scale = self._view, None
        for product in self._readers(inverse, {"Mul"}):
            scale = self._parameter(self._other(product, (inverse, 0)), shapes)
            if scale is not None:
                inverse = product
                break
        for product in self._readers(inverse, {"Mul"}):
            for shift in self._readers(product, {"Sub"}):
                offset = self._parameter(self._other(shift, (product, 0)), shapes)
                if offset is not None and view.fanins[shift][1] == (product, 0):
                    return scale, offset
        return scale, None

    def _parameter(self, tensor: Tensor | None, shapes: ImageShapes) -> Vector | None:
        """A parameter with one number for each channel; None for other tensors."""
        if tensor is None:
            return None
        view, index = self._view, tensor[0]
        while view.ops[index] in _PASS_ON_OPS:
            index = view.fanins[index][0][0]
        shape = self._properties.output_shape(*tensor)
        is_parameter = view.ops[index] in PARAMETER_OPS and shape in shapes.vectors
        return Vector(tensor, shape) if is_parameter else None  # type: ignore[arg-type]

    def _possible_gradients(self, image: Tensor, shape: Shape) -> Iterator[Tensor]:
        """The images that are multiplied by the image and then summed, as dy is."""
        for product in self._readers(image[0], {"Mul"}):
            other = self._other(product, image)
            if other is None or not self._readers(product, {"Sum"}):
                continue
            other_shape = self._properties.output_shape(*other)
            if other_shape is not None and _may_be_same(other_shape, shape):
                yield other

    def _require_free(self, match: TrainingNormalization, evaluation: Evaluation) -> None:
        """Requires that every image in between can go, and that nothing else is in the way."""
        view, flow = self._view, self._control_flow
        own = evaluation.inner | {index for index, _ in match.results}
        names = sorted(view.preserved & {view.names[index] for index in own})
        require(not names, "nodes that nobody feeds or fetches", names, RefusalReason.PRESERVED)
        removed = removed_members(view, [match], self._positions)
        for index in sorted(evaluation.images - removed, key=self._positions.__getitem__):
            self._refuse_reader(index, removed)
        for index in sorted(own, key=self._positions.__getitem__):
            node = view.nodes[index]
            name = f"'{node.device}' at node '{node.name}'"
            is_same = node.device == match.device
            require(is_same, f"nodes on '{match.device}'", name, RefusalReason.DEVICE)
            mark = xla_mark(node)
            require(not mark, "nodes that TensorFlow runs", f"'{mark}'", RefusalReason.XLA)
            waits = [each for each in view.control_fanins[index] if each not in removed]
            expected = "no control dependencies on other nodes"
            require(not waits, expected, f"'{node.name}'", RefusalReason.CONTROL_DEPENDENCY)
            once = flow.always_runs_once(index)
            require(once, "no loop or branch", f"'{node.name}'", RefusalReason.CONTROL_FLOW)
            runs = not flow.may_not_run(index)
            require(runs, "nodes that always run", f"'{node.name}'", RefusalReason.NOT_RUN)
        # The mean now waits for the scale and offset, and doffset for the image.
        inputs = match.inputs
        image, gradient = inputs.image[0], (inputs.gradient or inputs.image)[0]
        pairs = [(index, image) for index, _ in inputs.tensors[1:] if index != gradient]
        for early, late in (*pairs, (image, gradient)):
            what = f"'{view.names[early]}' to wait for nothing that '{view.names[late]}' does not"
            is_early = flow.waits_for_no_more(early, late)
            require(is_early, what, "more", RefusalReason.CONTROL_FLOW)

    def _refuse_reader(self, index: int, removed: Collection[int]) -> None:
        """Raises for the reason why an image stays."""
        view, name = self._view, self._view.names[index]
        for reader in view.fanouts[index]:
            if reader not in removed:
                raise RefusedError(
                    RefusalReason.CONTROL_DEPENDENCY
                    if index in view.control_fanins[reader]
                    else RefusalReason.READ_ELSEWHERE,
                    f"Expected only the normalization and its gradient to need '{name}', got "
                    f"{view.ops[reader]} at node '{view.names[reader]}'.",
                )
        raise RefusedError(RefusalReason.PATTERN, f"Expected '{name}' to be unneeded, got others.")

    def _in_half(self, match: TrainingNormalization) -> TrainingNormalization:
        """The normalization in the type of mixed precision, if it is exactly inside casts.

        Otherwise it stays in float32, between the casts.
        """
        view = self._view
        image, gradient = match.inputs.image, match.inputs.gradient
        dtype = attribute_of(view.nodes[image[0]], "SrcT").type
        of_casts = [image] if gradient is None else [image, gradient]
        if dtype not in _HALF_TYPES or match.dropped:
            return match
        for index, _ in of_casts:
            node = view.nodes[index]
            is_cast = node.op == "Cast" and attribute_of(node, "SrcT").type == dtype
            if not is_cast or not self._may_join(index, match):
                return match
        results, members = {}, set(match.members) | {index for index, _ in of_casts}
        for tensor, (result, shape) in match.results.items():
            if not result.is_image:
                results[tensor] = result, shape
                continue
            for reader in view.fanouts[tensor[0]]:
                node = view.nodes[reader]
                is_cast = node.op == "Cast" and attribute_of(node, "DstT").type == dtype
                reads = tensor in view.fanins[reader]
                if not is_cast or not reads or not self._may_join(reader, match):
                    return match
                results[reader, 0] = result, shape
                members.add(reader)
        half = [view.fanins[index][0] for index, _ in of_casts]
        inputs = dataclasses.replace(
            match.inputs, image=half[0], gradient=None if gradient is None else half[1]
        )
        return dataclasses.replace(
            match, dtype=dtype, inputs=inputs, results=results, members=frozenset(members)
        )

    def _may_join(self, index: int, match: TrainingNormalization) -> bool:
        """Whether a node may become part of a normalization on its device."""
        view = self._view
        node = view.nodes[index]
        is_free = not view.control_fanins[index] and node.name not in view.preserved
        return is_free and node.device == match.device

    def _readers(self, index: int, ops: Collection[str]) -> list[int]:
        view = self._view
        return [
            reader
            for reader in view.readers[index]
            if view.ops[reader] in ops and (index, 0) in view.fanins[reader]
        ]

    def _reshaped(self, index: int) -> Iterator[int]:
        """A node, and those that only give its output another shape."""
        yield index
        for reader in self._readers(index, {"Squeeze", "Reshape"}):
            yield from self._reshaped(reader)

    def _other(self, index: int, one: Tensor) -> Tensor | None:
        """The other input of a node with two; None if `one` is both or none of them."""
        others = [tensor for tensor in self._view.fanins[index] if tensor != one]
        return others[0] if len(others) == 1 == len(self._view.fanins[index]) - 1 else None

    def _constant(self, index: int) -> Value | None:
        if index not in self._constants:
            node = self._view.nodes[index]
            is_fixed = node.op == "Const" and node.name not in self._view.preserved
            self._constants[index] = constant_value(node) if is_fixed else None
        return self._constants[index]

    def _positive_constant(self, tensor: Tensor | None) -> float:
        """The value of a scalar; 0 for others."""
        value = None if tensor is None else self._constant(tensor[0])
        is_number = isinstance(value, Sampled) and math.prod(value.shape) == 1
        return max(float(value.data[0, 0]), 0.0) if is_number else 0.0  # type: ignore[union-attr]

    def _axes(self, index: int) -> tuple[int, ...]:
        """The axes of a reduction of rank 4, ascending; empty if unknown."""
        axes = self._constant(self._view.fanins[index][1][0])
        if axes is None or isinstance(axes, Sampled):
            return ()
        return tuple(sorted((axes.reshape(-1) % 4).tolist()))


def _may_be_same(first: Shape, second: Shape) -> bool:
    return len(first) == len(second) and all(
        one is None or other is None or one == other
        for one, other in zip(first, second, strict=True)
    )


def _some_size(shape: Shape) -> int:
    """A batch size that is none of the other sizes, so that no size is taken for another."""
    return next(size for size in (5, 7, 11, 13) if size not in shape)


def positions(view: GraphView) -> list[int]:
    """The place of each node in the topological order."""
    places = [0] * len(view)
    for place, index in enumerate(view.topological_order()):
        places[index] = place
    return places


def removed_members(
    view: GraphView, matches: Iterable[TrainingNormalization], places: list[int]
) -> set[int]:
    """The members that nothing needs once the new nodes compute the results.

    What nothing reads is there for another reason, such as a fetch, and stays.
    """
    results = {tensor for match in matches for tensor in match.results}
    result_nodes = {index for index, _ in results}
    dropped = {place for match in matches for place in match.dropped}
    inputs = {tensor for match in matches for tensor in match.inputs.tensors}
    needed = {index for index, _ in inputs - results}
    removed: set[int] = set()

    def needs(reader: int, index: int) -> bool:
        """Whether a reader will still read a node, or wait for one without a result."""
        if reader in removed:
            return False
        if index in view.control_fanins[reader] and index not in result_nodes:
            return True
        return any(
            tensor[0] == index and tensor not in results and (reader, place) not in dropped
            for place, tensor in enumerate(view.fanins[reader])
        )

    members = {index for match in matches for index in match.members}
    for index in sorted(members, key=places.__getitem__, reverse=True):
        readers = view.fanouts[index]
        is_needed = not readers or index in needed
        if not is_needed and not any(needs(reader, index) for reader in readers):
            removed.add(index)
    return removed
