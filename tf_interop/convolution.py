"""The convolutions of a graph: their configurations, sizes, merging, and fingerprint.

Convolutions that differ only in filters and output channels can run as one wider convolution:

image -+-> filter a [3, 3, 64, 96]                    image ---> filter a, b [3, 3, 64, 128]
       +-> filter b [3, 3, 64, 32]

Plans recognize a graph by the fingerprint of its convolutions.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import hashlib
import json
import math
import operator
import os
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, cast

import msgspec

Shape = tuple[int | None, ...]
"""A tensor's shape; None is an unknown dimension."""

SPATIAL_AXES = {"NHWC": (1, 2), "NCHW": (2, 3), "NDHWC": (1, 2, 3), "NCDHW": (2, 3, 4)}
"""The layouts of images and volumes, with their axes of (depth,) height and width."""

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
"""The dtypes of stages, with the bytes of a number."""

_PerSpatialDimension = Annotated[tuple[int, ...], msgspec.Meta(min_length=2, max_length=3)]


class ConvolutionKind(enum.Enum):
    """The tensor that a convolution computes."""

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
    """A node that is left alone: its name and op type, a reason to count and a reason to read."""

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


_fields_covered = operator.attrgetter(
    *("op", "dtype", "layout", "filter_shape", "strides", "dilations", "padding"),
    *("explicit_paddings", "fused_ops", "leaky_relu_alpha"),
)
# The prefixes that inlined functions add to node names.
_CALL_SCOPES = re.compile(r"(?:(?:Stateful)?PartitionedCall(?:_\d+)?/)*")
# The model's own scope, with the number that distinguishes its traces.
_MODEL_SCOPE = re.compile(r"(gradient_tape/)?([^/]+?)(?:_\d+)?(?=/)")


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """Names of convolutions without the parts that differ between traces of one model.

    `StatefulPartitionedCall/googlenet_1/conv1/Relu` under `fit` is `googlenet_2/conv1/Relu` in a
    user's function, and both are `googlenet/conv1/Relu` here. If two names would become equal (two
    models in one graph, or two calls of one function), all lose only the calls that they share.
    """
    canonical = {name: _canonical_name(name) for name in names}
    if max(collections.Counter(canonical.values()).values(), default=1) > 1:
        shared = os.path.commonpath(list(canonical)) + "/"
        calls = len(shared) - len(_CALL_SCOPES.sub("", shared, count=1))
        return {name: name[calls:] for name in canonical}
    return canonical


def fingerprint_convolutions(convolutions: Sequence[ConvolutionNode]) -> str:
    """A digest of everything that a plan for these convolutions depends on.

    It covers canonical names, op types, dtypes, layouts, filter shapes, strides, dilations,
    paddings and fused operations. It does not cover batch and image sizes, because one plan serves
    several, nor devices or the order of the convolutions.

    Returns:
        16 hexadecimal digits, the same in every process and release.
    """
    canonical = canonical_names(convolution.name for convolution in convolutions)
    rows = sorted(
        ((canonical[each.name], _fields_covered(each.configuration)) for each in convolutions),
        key=lambda row: row[0],
    )
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def _canonical_name(name: str) -> str:
    return _MODEL_SCOPE.sub(r"\1\2", _CALL_SCOPES.sub("", name, count=1), count=1)
