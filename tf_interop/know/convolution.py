"""What a convolution of a graph is: its configuration, or the reason why it is left alone."""

from __future__ import annotations

import dataclasses
import enum

Shape = tuple[int | None, ...]
"""A tensor's shape; None stands for a dimension that is not known."""


class ConvolutionKind(enum.Enum):
    """Which of the three tensors of a convolution is computed."""

    FORWARD = "forward"
    BACKWARD_INPUT = "backward-input"
    BACKWARD_FILTER = "backward-filter"


@dataclasses.dataclass(frozen=True, slots=True)
class ConvolutionConfiguration:
    """Everything that decides how one convolution is computed, apart from its data.

    Attributes:
        op: TensorFlow's op type, such as `Conv2D` or `_FusedConv2D`.
        kind: which tensor is computed.
        depthwise: whether the op is one of the three depthwise ones.
        dtype: `float32`, `float16` or `bfloat16`.
        layout: `NHWC` or `NCHW`, of image and output.
        image_shape: shape of the image (or of its gradient) in `layout`, or None where even the
            rank is unknown.
        filter_shape: `[R, S, C / group_count, K]` (HWIO), depthwise `[R, S, C, M]`, or None.
        output_shape: shape of the output (or of its gradient) in `layout`, or None.
        strides: (height, width).
        dilations: (height, width).
        padding: `SAME`, `VALID` or `EXPLICIT`.
        explicit_paddings: (top, bottom, left, right) where padding is `EXPLICIT`, else empty.
        group_count: channels of the image over channels of the filter; None where unknown.
        fused_ops: what `_FusedConv2D` applies to the result, in order, such as
            `("BiasAdd", "Relu")`; else empty.
        leaky_relu_alpha: slope of a fused LeakyRelu, else 0.
    """

    op: str
    kind: ConvolutionKind
    depthwise: bool
    dtype: str
    layout: str
    image_shape: Shape | None
    filter_shape: Shape | None
    output_shape: Shape | None
    strides: tuple[int, int]
    dilations: tuple[int, int]
    padding: str
    explicit_paddings: tuple[int, ...] = ()
    group_count: int | None = None
    fused_ops: tuple[str, ...] = ()
    leaky_relu_alpha: float = 0.0


class RefusalReason(enum.Enum):
    """Why a convolution node is left as it is."""

    DTYPE = "dtype"
    LAYOUT = "layout"
    FUSED_OPS = "fused operations"
    ATTRIBUTE = "attribute"
    DEVICE = "device"
    XLA = "compiled by XLA"
    CONTROL_FLOW = "control flow"
    NOT_RUN = "not run"


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A convolution node that is left alone.

    Attributes:
        node: the node's name.
        op: its op type.
        reason: the class of reason, for counting.
        detail: what was expected and what the node has, for reading.
    """

    node: str
    op: str
    reason: RefusalReason
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class ConvolutionNode:
    """A convolution of a graph that can be part of a stage.

    Attributes:
        name: the node's name.
        index: its place in the graph view.
        device: the device string, as in the node.
        region: an opaque key of the control-flow region; nodes of different regions never share a
            stage, because one may be dead while the other is not.
        configuration: what it computes.
    """

    name: str
    index: int
    device: str
    region: str
    configuration: ConvolutionConfiguration
