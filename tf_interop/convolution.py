"""What a convolution of a graph is: its configuration, or the reason why it is left alone."""

from __future__ import annotations

import dataclasses
import enum
from typing import Annotated

import msgspec

Shape = tuple[int | None, ...]
"""A tensor's shape; None stands for a dimension that is not known."""


SPATIAL_AXES = {"NHWC": (1, 2), "NCHW": (2, 3), "NDHWC": (1, 2, 3), "NCDHW": (2, 3, 4)}
"""The layouts of images and of volumes, with the places of height and width, and of depth before
them."""

_PerSpatialDimension = Annotated[tuple[int, ...], msgspec.Meta(min_length=2, max_length=3)]


class ConvolutionKind(enum.Enum):
    """Which of the three tensors of a convolution is computed."""

    FORWARD = "forward"
    BACKWARD_INPUT = "backward-input"
    BACKWARD_FILTER = "backward-filter"


@dataclasses.dataclass(frozen=True, slots=True)
class ConvolutionConfiguration:
    """Everything that decides how one convolution is computed, apart from its data.

    Attributes:
        op: TensorFlow's op type, such as `Conv2D`, `_FusedConv2D` or `Conv3D`.
        kind: which tensor is computed.
        depthwise: whether the op is one of the three depthwise ones.
        dtype: `float32`, `float16`, `bfloat16` or `float64`.
        layout: `NHWC` or `NCHW`, of volumes `NDHWC` or `NCDHW`; of image and output.
        image_shape: shape of the image (or of its gradient) in `layout`, or None where even the
            rank is unknown.
        filter_shape: `[R, S, C / group_count, K]` (HWIO), depthwise `[R, S, C, M]`, of volumes with
            the depth before `R` (DHWIO), or None.
        output_shape: shape of the output (or of its gradient) in `layout`, or None.
        strides: (height, width), of volumes (depth, height, width).
        dilations: likewise.
        padding: `SAME`, `VALID` or `EXPLICIT`.
        explicit_paddings: (top, bottom, left, right) where padding is `EXPLICIT`, which that of
            volumes never is; else empty.
        group_count: channels of the image over channels of the filter; None where unknown.
        fused_ops: what `_FusedConv2D` or `_FusedConv3D` applies to the result, in order, such as
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
    strides: _PerSpatialDimension
    dilations: _PerSpatialDimension
    padding: str
    explicit_paddings: tuple[int, ...] = ()
    group_count: int | None = None
    fused_ops: tuple[str, ...] = ()
    leaky_relu_alpha: float = 0.0

    @property
    def spatial_rank(self) -> int:
        """2 of images, 3 of volumes."""
        return len(self.strides)


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
    NOT_MEASURED = "not measured"


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
