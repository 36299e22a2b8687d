"""Which convolutions of a graph read the same image and could run as one wider convolution."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from tf_interop.convolution import ConvolutionNode, filter_size, may_merge
from tf_interop.graph.view import GraphView


def find_merge_keys(view: GraphView, convolutions: Sequence[ConvolutionNode]) -> dict[str, str]:
    """A key, by name, for each convolution that could be merged with another one of them.

    Those with the same key can be merged as long as they are independent. They need not be: one may
    wait for another through a control dependency, or through what is fused to it.
    """
    keys = {node.name: key for node in convolutions if (key := _key(view, node)) is not None}
    counts = collections.Counter(keys.values())
    return {name: key for name, key in keys.items() if counts[key] > 1}


def _key(view: GraphView, node: ConvolutionNode) -> str | None:
    each = node.configuration
    if not may_merge(each) or not view.fanins[node.index]:
        return None
    source, port = view.fanins[node.index][0]
    same = (
        *(each.op, filter_size(each), each.strides, each.dilations, each.padding),
        *(each.explicit_paddings, each.layout, each.dtype, each.fused_ops, each.leaky_relu_alpha),
        *(node.device, node.region),
    )
    return f"{view.names[source]}:{port} " + " ".join(map(str, same))
