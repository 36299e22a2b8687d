"""The attributes by which a node says that XLA compiles it."""

from __future__ import annotations

from tensorflow.core.framework import node_def_pb2

_XLA_MARKS = frozenset(
    {
        "_XlaCluster",
        "_xla_compile_id",
        "_xla_cluster_id",
        "_xla_outside_compilation",
        "_tpu_replicate",
    }
)
_XLA_SWITCHES = frozenset({"_XlaMustCompile", "_XlaCompile"})


def xla_mark(node: node_def_pb2.NodeDef) -> str | None:
    """The attribute that says that XLA compiles a node; None where there is none."""
    for key in node.attr:
        if key in _XLA_MARKS or (key in _XLA_SWITCHES and node.attr[key].b):
            return str(key)
    return None
