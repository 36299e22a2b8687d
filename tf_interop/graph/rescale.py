"""Finds normalizations in inference that no filter can absorb; each becomes one operation.

    before                                             after

    x ──> Mul ──> AddV2 ──> Relu                       x ──> _FusedDepthwiseConv2dNative
    scale ──^       ^                                  scale ──^       (BiasAdd, Relu)
    offset ─────────┘                                  offset ─┘

These stand before their convolution, as in DenseNet, or after a concatenation, an addition or a
convolution that others read too. On a CPU each operation is a pass over x. A depthwise convolution
with one pixel as its filter is a single pass; of TensorFlow's kernels it is the fastest, ahead of
`_FusedBatchNormEx`. It has no padding, and each channel is a sum of its own, so infinite values and
NaN stay in their places.

A chain of such nodes becomes one operation if:
  1. no fold has any of them;
  2. one operand of one node alone reads each value but the last, and no Session may feed or fetch
     one of them;
  3. the nodes are on one CPU with oneDNN, without control dependencies, and of the type float32;
  4. x has four dimensions, channels last, and only its batch may be unknown;
  5. every factor and offset has one value for each channel, or one for all;
  6. the passes that it saves are longer than the time that oneDNN takes to start;
  7. x is no Cast: a unit joins those of mixed precision with the chain
     (`cc_kernels/tf/elementwise.cc`).

The new node has the name of the last one. A second run finds nothing.
"""

from __future__ import annotations

import dataclasses
import math

from tensorflow.core.framework import types_pb2

from tf_interop.convolution import Refusal, RefusalReason, Shape
from tf_interop.graph.channel_changes import Change, ChannelChanges, Kind
from tf_interop.graph.ops import attribute_of
from tf_interop.graph.properties import is_fully_known
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import Tensor

LEAST_ELEMENTS = 1 << 18
"""The elements of all passes together. On two cores Mul, AddV2 and Relu take as long as the one
operation at [1, 14, 14, 400], Mul and AddV2 at [1, 14, 14, 700]."""

LEAST_ELEMENTS_OF_JOINED = 1 << 14
"""Those of a concatenation, which a unit then need not make
(`cc_kernels/tf/rescaled_concatenation.cc`)."""

_ACTIVATIONS = frozenset({"Relu", "Relu6", "Elu"})


@dataclasses.dataclass(frozen=True, slots=True)
class Rescaling:
    """A chain of nodes that change each channel of a tensor.

    Attributes:
        image: the tensor that the first one changes.
        absorbed: the nodes, in order.
        changes: of the channels, in order.
        channel_count: channels of the image.
        activation: the op of the activation that ends the chain; empty if there is none.
    """

    image: Tensor
    absorbed: tuple[int, ...]
    changes: tuple[Change, ...]
    channel_count: int
    activation: str = ""

    @property
    def node(self) -> int:
        """The node that becomes the operation."""
        return self.absorbed[-1]


def find_rescalings(
    changes: ChannelChanges,
) -> tuple[tuple[Rescaling, ...], tuple[Refusal, ...]]:
    """Finds the chains that no fold has absorbed.

    Returns:
        The chains, and nodes of those whose images are of unknown size.
    """
    view = changes.view
    if not changes.has_onednn:
        return (), ()
    found, refusals = [], []
    for index in view.topological_order():
        images = [
            position
            for position, (source, _) in enumerate(view.fanins[index])
            if source not in changes.parameters
        ]
        if (
            len(images) != 1
            or not changes.is_change(index, images[0])
            or not changes.may_join(index, view.nodes[index].device)
            or attribute_of(view.nodes[index], "T").type != types_pb2.DT_FLOAT
            or view.ops[view.fanins[index][images[0]][0]] == "Cast"
        ):
            continue
        check_time_limit()
        shape = changes.properties.input_shape(index, images[0])
        if shape is None or len(shape) != 4:
            continue
        if not is_fully_known(shape[1:]):
            detail = "Not one operation: expected an image of known size."
            refusals.append(view.refusal(index, RefusalReason.SHAPE, detail))
            continue
        rescaling = _follow(changes, index, images[0], shape)
        if rescaling is not None:
            changes.absorbed.update(rescaling.absorbed)
            found.append(rescaling)
    return tuple(found), tuple(refusals)


def _follow(changes: ChannelChanges, index: int, position: int, shape: Shape) -> Rescaling | None:
    view = changes.view
    image = view.fanins[index][position]
    channels = shape[3]
    assert channels is not None
    absorbed, made, activation = list[int](), list[Change](), ""
    reader: tuple[int, int] | None = (index, position)
    while reader is not None and not activation:
        change = changes.change(*reader, channels, b"NHWC")
        if change is not None:
            made.append(change)
            activation = change.activation
        elif made and view.ops[reader[0]] in _ACTIVATIONS:
            activation = view.ops[reader[0]]
        else:
            break
        absorbed.append(reader[0])
        reader = changes.only_reader(reader[0])
    # An unknown batch counts as one image.
    elements = math.prod(size or 1 for size in shape) * len(absorbed)
    # FusedBatchNormV3 in inference is slower than the other two at every size.
    is_slow = any(change.kind is Kind.NORMALIZATION for change in made)
    is_joined = view.ops[image[0]] == "ConcatV2"
    least = LEAST_ELEMENTS_OF_JOINED if is_joined else LEAST_ELEMENTS
    if not absorbed or not (is_slow or (len(absorbed) > 1 and elements >= least)):
        return None
    return Rescaling(image, tuple(absorbed), tuple(made), channels, activation)
