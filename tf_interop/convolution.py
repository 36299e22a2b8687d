"""The convolutions of a graph: their configurations, sizes and merging.

Convolutions that differ only in filters and output channels can run as one wider convolution:

image -+-> filter a [3, 3, 64, 96]                    image ---> filter a, b [3, 3, 64, 128]
       +-> filter b [3, 3, 64, 32]
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, cast

import msgspec

Shape = tuple[int | None, ...]
"""A tensor's shape; None is an unknown dimension."""

SPATIAL_AXES = {"NHWC": (1, 2), "NCHW": (2, 3), "NDHWC": (1, 2, 3), "NCDHW": (2, 3, 4)}
"""The layouts of images and volumes, with their axes of (depth,) height and width."""

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
"""The dtypes of stages, with the bytes of a number; in the order of the core's numbers."""

FUSED_OPS = (
    ("BiasAdd",),
    *(("BiasAdd", each) for each in ("Relu", "Relu6", "LeakyRelu", "Elu")),
)
"""The epilogues of convolutions in stages. The place of each is the core's number of its
activation."""

_PerSpatialDimension = Annotated[tuple[int, ...], msgspec.Meta(min_length=2, max_length=3)]


class ConvolutionKind(enum.Enum):
    """The tensor that a convolution computes; in the order of the core's numbers."""

    FORWARD = "forward"
    BACKWARD_INPUT = "backward-input"
    BACKWARD_FILTER = "backward-filter"


@dataclasses.dataclass(frozen=True, slots=True)
class ConvolutionConfiguration:
    """Everything that decides how one convolution is computed, except its data.

    Attributes:
        op: TensorFlow's op type, such as `Conv2D`, `_FusedConv2D` or `Conv3D`.
        kind: the computed tensor.
        depthwise: whether the op is depthwise.
        dtype: a key of `DTYPE_BYTES`.
        layout: a key of `SPATIAL_AXES`, for image and output.
        image_shape: shape of the image (or its gradient) in `layout`; like the other shapes, None
            if even the rank is unknown.
        filter_shape: `[R, S, C / group_count, K]` (HWIO), depthwise `[R, S, C, M]`; volumes have
            the depth before `R` (DHWIO).
        output_shape: shape of the output (or its gradient) in `layout`.
        strides: (height, width), or (depth, height, width) for volumes.
        dilations: in the same order.
        padding: `SAME`, `VALID` or `EXPLICIT`; volumes have no `EXPLICIT`.
        explicit_paddings: (top, bottom, left, right) if padding is `EXPLICIT`, else empty.
        group_count: image channels divided by filter channels; None if unknown.
        fused_ops: the epilogue of a fused op, in order, such as `("BiasAdd", "Relu")`; else empty.
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
        """2 for images, 3 for volumes."""
        return len(self.strides)


class RefusalReason(enum.Enum):
    """The kind of reason that keeps a node out of stages and units."""

    DTYPE = "dtype"
    LAYOUT = "layout"
    FUSED_OPS = "fused operations"
    ATTRIBUTE = "attribute"
    DEVICE = "device"
    XLA = "compiled by XLA"
    CONTROL_FLOW = "control flow"
    NOT_RUN = "not run"
    NOT_MEASURED = "not measured"
    NOT_LISTED = "not listed"
    KERNEL = "kernel"
    PAIRED = "joined with its gradient"
    PRESERVED = "preserved"
    REFERENCE = "reference"
    SHAPE = "shape"
    PATTERN = "another computation"
    READ_ELSEWHERE = "read elsewhere"
    CONTROL_DEPENDENCY = "control dependency"
    SLOWER = "slower"
    WRITTEN = "written in the same graph"
    SIZE = "size"
    NO_PARAMETER = "no parameter"


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A node that stays unchanged: its name and op type, a reason to count and a reason to read."""

    node: str
    op: str
    reason: RefusalReason
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class ConvolutionNode:
    """A convolution of a graph that can be part of a stage.

    Attributes:
        index: its place in the graph view.
        region: key of the control-flow region; nodes of different regions never share a stage,
            because one may be dead while the other is not.
    """

    name: str
    index: int
    device: str
    region: str
    configuration: ConvolutionConfiguration


def has_known_shapes(configuration: ConvolutionConfiguration) -> bool:
    """Whether every dimension is known, which measuring needs."""
    shapes = (configuration.image_shape, configuration.filter_shape, configuration.output_shape)
    return configuration.group_count is not None and all(
        shape is not None and None not in shape for shape in shapes
    )


def multiply_adds(configuration: ConvolutionConfiguration) -> int:
    """The number of multiply-adds of a convolution with known shapes."""
    assert configuration.filter_shape is not None
    assert configuration.output_shape is not None
    *taps, channels_per_group, _ = configuration.filter_shape
    per_output = 1 if configuration.depthwise else channels_per_group
    values = (*configuration.output_shape, *taps, per_output)
    return math.prod(value for value in values if value is not None)


def output_bytes(configuration: ConvolutionConfiguration) -> int:
    """The size of a convolution's result; its shapes must be known."""
    shape = {
        ConvolutionKind.FORWARD: configuration.output_shape,
        ConvolutionKind.BACKWARD_INPUT: configuration.image_shape,
        ConvolutionKind.BACKWARD_FILTER: configuration.filter_shape,
    }[configuration.kind]
    assert shape is not None
    return math.prod(size for size in shape if size is not None) * DTYPE_BYTES[configuration.dtype]


def computed_output_shape(configuration: ConvolutionConfiguration) -> Shape | None:
    """The known part of the output's shape, from image and filter; None if nothing is known."""
    each, rank = configuration, len(configuration.layout)
    unknown: Shape = (None,) * rank
    image, filter_ = (
        unknown if shape is None or len(shape) != rank else shape
        for shape in (each.image_shape, each.filter_shape)
    )
    channels = filter_[-1]
    if each.depthwise and channels is not None:
        channels = None if filter_[-2] is None else filter_[-2] * channels
    shape = [image[0], *unknown[1:]]
    shape[each.layout.index("C")] = channels
    for spatial, axis in enumerate(SPATIAL_AXES[each.layout]):
        shape[axis] = _output_size(
            image[axis],
            filter_[spatial],
            each.strides[spatial],
            each.dilations[spatial],
            each.padding,
            sum(each.explicit_paddings[2 * spatial : 2 * spatial + 2]),
        )
    return None if tuple(shape) == unknown else tuple(shape)


def _output_size(
    size: int | None,
    filter_size: int | None,
    stride: int,
    dilation: int,
    padding: str,
    total_padding: int,
) -> int | None:
    if size is None:
        return None
    if padding == "SAME":
        return -(-size // stride)
    if filter_size is None:
        return None
    reach = (filter_size - 1) * dilation + 1
    return max(0, (size + total_padding - reach) // stride + 1)


def batch_size_of(configurations: Iterable[ConvolutionConfiguration]) -> int | None:
    """The most frequent batch size of a graph's convolutions, the first if tied; None if unknown.

    Some may have another, such as those on regions that a detector crops from its images.
    """
    sizes = collections.Counter(
        each.image_shape[0] for each in configurations if each.image_shape and each.image_shape[0]
    )
    return sizes.most_common(1)[0][0] if sizes else None


def merge_form(configuration: ConvolutionConfiguration) -> ConvolutionConfiguration | None:
    """A convolution without its output channels; None if it cannot be part of a wider one.

    Convolutions of one form that read the same image can run as one wider convolution.
    """
    shape = configuration.filter_shape
    if (
        configuration.kind is not ConvolutionKind.FORWARD
        or configuration.depthwise
        or configuration.group_count != 1
        or shape is None
    ):
        return None
    return dataclasses.replace(configuration, filter_shape=shape[:-1], output_shape=None)


def can_merge(configurations: Sequence[ConvolutionConfiguration]) -> bool:
    """Whether these are two or more convolutions of one form."""
    forms = set(map(merge_form, configurations))
    return len(configurations) > 1 and len(forms) == 1 and None not in forms


def merged_configuration(
    configurations: Sequence[ConvolutionConfiguration],
) -> ConvolutionConfiguration:
    """The wider convolution that computes convolutions that `can_merge` accepts, in their order.

    All shapes must be known.
    """
    first = configurations[0]
    channel_axis = 1 if first.layout.startswith("NC") else -1
    return dataclasses.replace(
        first,
        filter_shape=_widened([each.filter_shape for each in configurations], -1),
        output_shape=_widened([each.output_shape for each in configurations], channel_axis),
    )


def _widened(shapes: Iterable[Shape | None], axis: int) -> Shape:
    known = [cast("tuple[int, ...]", shape) for shape in shapes]
    sizes = list(known[0])
    sizes[axis] = sum(shape[axis] for shape in known)
    return tuple(sizes)


def describe_form(configuration: ConvolutionConfiguration) -> str:
    """Everything by which a plan recognizes a convolution, in words.

    Such as `Conv2D 3x3x64x96 strides 2x2 SAME float32 NHWC`. Batch and image sizes are not in it,
    because one plan serves several.
    """
    each = configuration
    filter_ = each.filter_shape
    words = [each.op, "filter of unknown shape" if filter_ is None else _by_x(filter_)]
    if set(each.strides) != {1}:
        words.append(f"strides {_by_x(each.strides)}")
    if set(each.dilations) != {1}:
        words.append(f"dilations {_by_x(each.dilations)}")
    words.append(each.padding)
    if each.explicit_paddings:
        words.append(",".join(map(str, each.explicit_paddings)))
    words += [each.dtype, each.layout, *(f"+{name}" for name in each.fused_ops)]
    if "LeakyRelu" in each.fused_ops:
        words.append(f"alpha {each.leaky_relu_alpha:g}")
    return " ".join(words)


def _by_x(sizes: Iterable[int | None]) -> str:
    return "x".join("?" if size is None else str(size) for size in sizes)
