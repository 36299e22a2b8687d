"""Graphs with variables, and how they run before and after their parameters are folded.

Values are small whole numbers and powers of two unless a test says otherwise: their products and
sums are exact in any order, so results are compared to the bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from graph_builder import CPU
from tensorflow.core.framework import graph_pb2

from tf_interop.convolution import Refusal
from tf_interop.graph.check_folds import check_folds
from tf_interop.graph.fold import Fold, find_folds
from tf_interop.graph.keep import Rewriting, rewrite_folds
from tf_interop.graph.parameters import find_parameters
from tf_interop.graph.program import KEPT_OP
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.runtime.kernel_library import load_kernel_library

v1 = tf.compat.v1

CHANNELS = 4
"""Of the images, which are `[2, 6, 6, CHANNELS]`."""

_VALUES = "values of variables"

Layers = Callable[[tf.Tensor], Any]


def digits(*shape: int, seed: int = 0) -> np.ndarray:
    """Whole numbers from -2 to 2."""
    return np.random.default_rng([seed, *shape]).integers(-2, 3, shape).astype(np.float32)


def powers(*shape: int, seed: int = 0) -> np.ndarray:
    """Powers of two from 1/2 to 4, half of them negative."""
    numbers = np.random.default_rng([seed, *shape])
    values = 2.0 ** numbers.integers(-1, 3, shape) * numbers.choice([-1, 1], shape)
    return np.asarray(values, np.float32)


IMAGES = digits(2, 6, 6, CHANNELS)


def variable(value: np.ndarray, shape: Sequence[int | None] | None | str = "of the value") -> Any:
    """The handle of a new variable."""
    graph = v1.get_default_graph()
    name = graph.unique_name("variable", mark_as_used=False)
    shape = value.shape if shape == "of the value" else shape
    handle = tf.raw_ops.VarHandleOp(
        dtype=value.dtype, shape=tf.TensorShape(shape), shared_name=name, name=name
    )
    graph.add_to_collection(_VALUES, (handle.op.name, value))
    return handle


def read(handle: Any, dtype: Any = tf.float32) -> tf.Tensor:
    """Another read of a variable."""
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def parameter(value: np.ndarray) -> tf.Tensor:
    """The value of a new variable."""
    result = read(variable(value), value.dtype)
    result.set_shape(value.shape)
    return result


def factor(*shape: int, seed: int = 0) -> tf.Tensor:
    """A new variable of powers of two, which divide and multiply without rounding."""
    return parameter(powers(*shape, seed=seed))


def offset(*shape: int, seed: int = 0) -> tf.Tensor:
    """A new variable of whole numbers."""
    return parameter(digits(*shape, seed=seed))


def conv(
    image: tf.Tensor, channels: int = 5, size: int = 3, padding: Any = "SAME", **options: Any
) -> tf.Tensor:
    """A convolution with a new variable as filter, in any layout."""
    is_last = options.get("data_format", "NHWC") == "NHWC"
    depth = image.shape[-1 if is_last else 1]
    filters = offset(size, size, depth // options.pop("groups", 1), channels, seed=1)
    strides = options.pop("strides", 1)
    return tf.nn.conv2d(image, filters, strides, padding, **options)


@dataclasses.dataclass(frozen=True)
class Graph:
    """A graph whose results are computed from images and variables.

    Attributes:
        values: the values of its variables, by the names of their handles.
        results: the names of the nodes with its results.
    """

    graph_def: graph_pb2.GraphDef
    values: Mapping[str, np.ndarray]
    results: tuple[str, ...]

    def fold(
        self,
        preserve: Collection[str] = (),
        device_type: str = "CPU",
        most_bytes: int = 1 << 30,
    ) -> Folded:
        """Runs the pass, and checks that it left its input alone and finds nothing in its output."""
        before = self.graph_def.SerializeToString(deterministic=True)
        folded = self._fold(self.graph_def, preserve, device_type, most_bytes)
        assert self.graph_def.SerializeToString(deterministic=True) == before
        if folded.graph_def is not None:
            again = self._fold(folded.graph_def, preserve, device_type, most_bytes)
            assert again.graph_def is None
            assert again.folds == ()
        return folded

    def _fold(
        self,
        graph_def: graph_pb2.GraphDef,
        preserve: Collection[str],
        device_type: str,
        most_bytes: int,
    ) -> Folded:
        view = GraphView(graph_def)
        properties = GraphProperties(view)
        names = {*preserve, *self.results}
        parameters = find_parameters(view, properties, device_type, nodes_to_preserve=names)
        folds, refusals = find_folds(
            view, properties, parameters, device_type=device_type, nodes_to_preserve=names
        )
        rewriting = rewrite_folds(view, properties, parameters, folds, most_bytes=most_bytes)
        if rewriting is not None:
            check_folds(view, GraphView(rewriting.graph_def), names)
        return Folded(view, folds, refusals, rewriting)

    def run(
        self,
        graph_def: graph_pb2.GraphDef | None = None,
        images: np.ndarray = IMAGES,
        changes: Sequence[Mapping[str, np.ndarray]] = ({},),
    ) -> list[np.ndarray]:
        """Runs the graph, or another form of it, after each change of its variables."""
        load_kernel_library()
        config = v1.ConfigProto(intra_op_parallelism_threads=2)
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        found: list[np.ndarray] = []
        with tf.Graph().as_default() as graph, v1.Session(graph=graph, config=config) as session:
            graph_def = self.graph_def if graph_def is None else graph_def
            tf.graph_util.import_graph_def(graph_def, name="")
            for number, change in enumerate(changes):
                values = {**self.values, **change} if number == 0 else change
                for name, value in values.items():
                    with tf.device(graph.get_operation_by_name(name).device):
                        handle = graph.get_tensor_by_name(f"{name}:0")
                        assign = tf.raw_ops.AssignVariableOp(resource=handle, value=value)
                    session.run(assign)
                tensors = [f"{name}:0" for name in self.results]
                found += session.run(tensors, {"images:0": images})
        return found


@dataclasses.dataclass(frozen=True)
class Folded:
    """What the pass made of a graph; `graph_def` is None if it changed nothing."""

    view: GraphView
    folds: tuple[Fold, ...]
    refusals: tuple[Refusal, ...]
    rewriting: Rewriting | None

    @property
    def graph_def(self) -> graph_pb2.GraphDef | None:
        return self.rewriting and self.rewriting.graph_def

    @property
    def ops(self) -> str:
        """The ops of the new graph that compute, such as `_FusedConv2D[BiasAdd,Relu] Mul`."""
        graph_def = self.graph_def or self.view.graph_def
        view = GraphView(graph_def)
        texts = []
        for index in view.by_rank(range(len(view))):
            node = view.nodes[index]
            fused = [op.decode() for op in node.attr["fused_ops"].list.s]
            text = f"{node.op}[{','.join(fused)}]" if fused else node.op
            if node.op not in _NO_ARITHMETIC:
                texts.append(text)
        return " ".join(texts)


_NO_ARITHMETIC = {"VarHandleOp", "ReadVariableOp", "Const", "Placeholder", "Identity", KEPT_OP}


def graph_of(make: Layers, images: np.ndarray = IMAGES, device: str = CPU) -> Graph:
    """The graph of what `make` computes from images."""
    with tf.Graph().as_default() as graph:
        placeholder = v1.placeholder(tf.float32, images.shape, "images")
        results = [
            tf.identity(each, f"result_{number}")
            for number, each in enumerate(tf.nest.flatten(make(placeholder)))
        ]
    graph_def = graph.as_graph_def(add_shapes=True)
    for node in graph_def.node:
        node.device = node.device or device
    values = dict(graph.get_collection(_VALUES))
    return Graph(graph_def, values, tuple(each.op.name for each in results))


def assert_computes_the_same(
    graph: Graph,
    folded: Folded,
    images: np.ndarray = IMAGES,
    rounding: float = 0.0,
) -> None:
    """Compares the results, also after every variable has another value.

    Args:
        graph: the graph.
        folded: the same graph after the pass.
        images: what it runs on.
        rounding: how far results may be apart, as a part of the largest one; 0 for not at all.
    """
    assert folded.graph_def is not None
    changes = [{}, {name: value[::-1] for name, value in graph.values.items() if value.ndim}]
    expected = graph.run(images=images, changes=changes)
    found = graph.run(folded.graph_def, images, changes)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert np.isfinite(other).all()
        np.testing.assert_allclose(one, other, rtol=0, atol=rounding * np.abs(other).max(initial=0))
