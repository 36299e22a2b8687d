"""Fuses batch normalization in training, forward and backward.

    x, scale, offset --> FusedBatchNormV3 --:0--> y
                                          --:1--> mean         --> the moving mean, as before
                                          --:2--> * (n - 1)/n  --> the moving variance, as before
                                          --:3,4,5--> FusedBatchNormGradV3
    dy, x, scale --> FusedBatchNormGradV3 --:0,1,2--> dx, dscale, doffset

The operations pass over the image about fifteen times, the two kernels about five times. Operations
on vectors of channels stay where something reads them.

`find_normalizations` shows the graph before, and its matches are those of the view.

Guaranteed: names to preserve and devices stay; other nodes keep all but the inputs that were
results or dropped. A second run finds nothing. `check_fusions` checks the result.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from tf_interop.graph.find_normalizations import (
    TrainingNormalization,
    positions,
    removed_members,
)
from tf_interop.graph.normalization_proof import Result, Vector
from tf_interop.graph.ops import make_node, set_attributes
from tf_interop.graph.properties import state_shapes
from tf_interop.graph.view import GraphView, Tensor, recolocate

_FLOAT = types_pb2.DT_FLOAT


def rewrite_normalizations(
    view: GraphView, matches: Sequence[TrainingNormalization]
) -> graph_pb2.GraphDef:
    """Replaces normalizations by FusedBatchNormV3 and FusedBatchNormGradV3; `view` stays."""
    dropped = _dropped_places(view, matches)
    removed = removed_members(view, matches, positions(view))
    # A sum without addends was one of vectors that are all in y now.
    removed |= {index for index, lost in dropped.items() if len(lost) == len(view.fanins[index])}
    rewriting = _Rewriting(view, matches)
    stay = [index for index in range(len(view)) if index not in removed]
    graph_def = view.with_nodes(view.nodes[index] for index in stay)
    for index, node in zip(stay, graph_def.node, strict=True):
        rewriting.redirect(index, node, dropped.get(index, ()))
    recolocate(graph_def.node, dict.fromkeys(view.names[index] for index in removed))
    for match in matches:
        rewriting.add_fused_nodes(match)
    graph_def.node.extend(rewriting.new_nodes)
    return graph_def


def _dropped_places(
    view: GraphView, matches: Sequence[TrainingNormalization]
) -> Mapping[int, set[int]]:
    """The inputs that each sum loses, also because all addends of an addend are gone."""
    dropped = collections.defaultdict[int, set[int]](set)
    pending = [each for match in matches for each in match.dropped]
    while pending:
        index, place = pending.pop()
        dropped[index].add(place)
        if len(dropped[index]) == len(view.fanins[index]):
            (reader,) = view.fanouts[index]
            pending.append((reader, view.fanins[reader].index((index, 0))))
    return dropped


class _Rewriting:
    """Makes the new nodes of a graph, and redirects the readers of results to them.

    Attributes:
        new_nodes: the fused nodes, and small ones that are made when something reads them.
    """

    def __init__(self, view: GraphView, matches: Sequence[TrainingNormalization]) -> None:
        self._view = view
        self._results = {tensor: match for match in matches for tensor in match.results}
        self._matches_of_nodes = {index: match for (index, _), match in self._results.items()}
        self._names = set(view.index_of)
        self._suffixes: collections.Counter[str] = collections.Counter()
        self._fused = {match.name: self._free_name("FusedBatchNorm") for match in matches}
        self._gradients = {match.name: self._free_name("FusedBatchNormGrad") for match in matches}
        self._made: dict[bytes, str] = {}
        self.new_nodes: list[node_def_pb2.NodeDef] = []

    def redirect(self, index: int, node: node_def_pb2.NodeDef, dropped: Collection[int]) -> None:
        """Changes the inputs of a node that stays; a sum loses those that are dropped."""
        view = self._view
        tensors = [each for at, each in enumerate(view.fanins[index]) if at not in dropped]
        controls = view.control_fanins[index]
        is_changed = any(tensor in self._results for tensor in tensors) or any(
            source in self._matches_of_nodes for source in controls
        )
        if is_changed or dropped:
            waits = [self._control(source) for source in controls]
            node.input[:] = [*map(self._text, tensors), *dict.fromkeys(waits)]
        if dropped:
            # These list the shapes of the old inputs.
            node.attr.pop("_input_shapes", None)
            if len(tensors) == 1:
                node.op = "Identity"
                node.attr.pop("N", None)
            elif node.op == "AddN":
                node.attr["N"].i = len(tensors)

    def add_fused_nodes(self, match: TrainingNormalization) -> None:
        name, channels = self._fused[match.name], _channels(match)
        image, shape = self._text(match.inputs.image), match.image_shape
        scale, offset = (
            self._constant(match, np.full(channels, default, np.float32))
            if vector is None
            else self._flat(match, vector)
            for vector, default in ((match.inputs.scale, 1.0), (match.inputs.offset, 0.0))
        )
        none = self._constant(match, np.zeros(0, np.float32))
        inputs = [image, scale, offset, none, none]
        nodes = [
            make_node("FusedBatchNormV3", name, inputs, match.device, exponential_avg_factor=1.0)
        ]
        state_shapes(nodes[0], shape, *[(channels,)] * 4, None)
        if match.inputs.gradient is not None:
            reserved = [f"{name}:{port}" for port in (3, 4, 5)]
            inputs = [self._text(match.inputs.gradient), image, scale, *reserved]
            name = self._gradients[match.name]
            nodes.append(make_node("FusedBatchNormGradV3", name, inputs, match.device))
            state_shapes(nodes[1], shape, (channels,), (channels,), None, None)
        for node in nodes:
            set_attributes(
                node,
                T=match.dtype,
                U=_FLOAT,
                epsilon=match.inputs.epsilon,
                data_format=match.layout.encode(),
                is_training=True,
            )
        self.new_nodes += nodes

    def _control(self, source: int) -> str:
        """The input that waits for an old node, or for the new one that computes its result."""
        match = self._matches_of_nodes.get(source)
        if match is None:
            return f"^{self._view.names[source]}"
        result, _ = match.results[source, 0]
        names = self._gradients if result.is_of_gradient else self._fused
        return f"^{names[match.name]}"

    def _text(self, tensor: Tensor) -> str:
        """The input that reads a tensor of the old graph."""
        match = self._results.get(tensor)
        if match is None:
            return self._view.text(tensor)
        result, shape = match.results[tensor]
        text = self._result(match, result)
        return text if result.is_image or len(shape) == 1 else self._reshaped(match, text, shape)

    def _result(self, match: TrainingNormalization, result: Result) -> str:
        """The input that reads a result; vectors are of shape `[C]`."""
        fused, gradient = self._fused[match.name], self._gradients[match.name]
        texts = {
            Result.OUTPUT: fused,
            Result.MEAN: f"{fused}:1",
            Result.IMAGE_GRADIENT: gradient,
            Result.SCALE_GRADIENT: f"{gradient}:1",
            Result.OFFSET_GRADIENT: f"{gradient}:2",
        }
        if result in texts:
            return texts[result]
        # The op returns n / (n - 1) times the variance, for the moving variance of Keras 2.
        variance = self._add(match, "Mul", f"{fused}:2", self._bias_of_variance(match), T=_FLOAT)
        if result is Result.VARIANCE:
            return variance
        epsilon = self._constant(match, np.float32(match.inputs.epsilon))
        total = self._add(match, "AddV2", variance, epsilon, T=_FLOAT)
        deviation = self._add(match, "Sqrt", total, T=_FLOAT)
        return self._add(match, "Mul", f"{gradient}:1", deviation, T=_FLOAT)

    def _bias_of_variance(self, match: TrainingNormalization) -> str:
        """The input that reads (n - 1) / n, where n is the number of pixels."""
        channels = _channels(match)
        if match.image_shape[0] is not None:
            n = math.prod(size or 0 for size in match.image_shape) // channels
            return self._constant(match, np.float32((n - 1) / n))
        image = self._text(match.inputs.image)
        size = self._add(match, "Size", image, T=match.dtype, out_type=types_pb2.DT_INT64)
        size = self._add(match, "Cast", size, SrcT=types_pb2.DT_INT64, DstT=_FLOAT)
        part = self._constant(match, np.float32(channels))
        part = self._add(match, "RealDiv", part, size, T=_FLOAT)
        return self._add(match, "Sub", self._constant(match, np.float32(1)), part, T=_FLOAT)

    def _flat(self, match: TrainingNormalization, vector: Vector) -> str:
        """The input that reads a vector in the shape `[C]`."""
        text = self._text(vector.tensor)
        shape = (_channels(match),)
        return text if vector.shape == shape else self._reshaped(match, text, shape)

    def _reshaped(self, match: TrainingNormalization, text: str, shape: tuple[int, ...]) -> str:
        sizes = self._constant(match, np.array(shape, np.int32))
        return self._add(match, "Reshape", text, sizes, T=_FLOAT)

    def _constant(self, match: TrainingNormalization, value: npt.ArrayLike) -> str:
        tensor = tf.make_tensor_proto(value)
        return self._add(match, "Const", dtype=tensor.dtype, value=tensor)

    def _add(self, match: TrainingNormalization, op: str, *inputs: str, **attributes: Any) -> str:
        """Adds a small node, unless there is the same already; returns its name."""
        node = make_node(op, "", inputs, match.device, **attributes)
        content = node.SerializeToString(deterministic=True)
        if content not in self._made:
            self._made[content] = node.name = self._free_name(op)
            self.new_nodes.append(node)
        return self._made[content]

    def _free_name(self, op: str) -> str:
        while True:
            name = f"tf_interop/normalization/{op}_{self._suffixes[op]}"
            self._suffixes[op] += 1
            if name not in self._names:
                return name


def _channels(match: TrainingNormalization) -> int:
    channels = match.image_shape[match.layout.index("C")]
    assert channels is not None
    return channels
