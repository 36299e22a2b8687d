"""What a profile says of the parts of convolutions."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop.graph.find import find_convolutions
from tf_interop.graph.ops import input_dtypes
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.op_parts import Operation, OpPart
from tf_interop.parallel.regions import sizes
from tf_interop.profile.types import Profile


class MeasuredParts:
    """Looks parts up in a profile, as the convolutions that their nodes hold."""

    def __init__(self, profile: Profile, *, allow_tf32: bool) -> None:
        """Goes by `profile`, under TensorFlow's switch for TF32."""
        self._profile = profile
        self._allow_tf32 = allow_tf32

    def seconds(self, operation: Operation, part: OpPart) -> float | None:
        """What the convolution of a part takes; None where there is none or it was not measured."""
        view = GraphView(_graph_of(operation, part))
        convolutions, _ = find_convolutions(view, GraphProperties(view))
        if len(convolutions) != 1:
            return None
        found = self._profile.find_algorithms(
            convolutions[0].configuration, allow_tf32=self._allow_tf32
        )
        return found[0].latency_us * 1e-6 if found else None


def _graph_of(operation: Operation, part: OpPart) -> graph_pb2.GraphDef:
    """The nodes of a part, with the shapes of all that they compute."""
    graph_def = graph_pb2.GraphDef()
    maker = NodeMaker(graph_def, "", "part", set())
    dtypes = map(tf.as_dtype, input_dtypes(operation.node))
    names = [
        "" if box is None else maker("Placeholder", dtype=dtype, shape=tf.TensorShape(sizes(box)))
        for box, dtype in zip(part.reads, dtypes, strict=True)
    ]
    part.emit(maker, names)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    return graph.as_graph_def(add_shapes=True)
