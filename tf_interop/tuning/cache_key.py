"""What a tuned plan depends on: a digest of it names the plan in the cache."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence

import tensorflow as tf

from tf_interop import tensorflow_internals
from tf_interop.convolution import (
    ConvolutionNode,
    batch_size_of,
    canonical_names,
    fingerprint_convolutions,
)
from tf_interop.graph.units import Unit, planned_name
from tf_interop.graph.view import GraphView
from tf_interop.measure.device import this_cpu


def cache_key(
    view: GraphView, units: Sequence[Unit], convolutions: Sequence[ConvolutionNode]
) -> str:
    """A digest of a graph and of this machine.

    It depends on the graph's convolutions, units, batch and input shapes; on the CPU and the cores
    that this process may use; on the versions of TensorFlow and of this package; and on
    TensorFlow's settings for threads and for oneDNN.

    Args:
        view: the graph as Grappler hands it over.
        units: of the graph.
        convolutions: of the graph.
    """
    import tf_interop

    inputs = sorted(
        (node.attr["dtype"].type, str(tf.TensorShape(node.attr["shape"].shape)))
        for node in view.nodes
        if node.op == "Placeholder"
    )
    key = [
        fingerprint_convolutions(convolutions),
        batch_size_of(node.configuration for node in convolutions),
        sorted(canonical_names(planned_name(view, unit) for unit in units).values()),
        [len(unit.steps) for unit in units],
        inputs,
        this_cpu().name,
        sorted(os.sched_getaffinity(0)),
        tensorflow_internals.tensorflow_version(),
        tf_interop.__version__,
        tf.config.threading.get_intra_op_parallelism_threads(),
        tf.config.threading.get_inter_op_parallelism_threads(),
        os.environ.get("TF_ENABLE_ONEDNN_OPTS", ""),
    ]
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]
