"""Finds the convolutions that can be part of a stage, and the reasons why others cannot."""

from __future__ import annotations

import dataclasses

from tensorflow.core.framework import node_def_pb2, types_pb2

from tf_interop.convolution import (
    FUSED_OPS,
    SPATIAL_AXES,
    ConvolutionConfiguration,
    ConvolutionKind,
    ConvolutionNode,
    Refusal,
    RefusalReason,
    Shape,
    computed_output_shape,
)
from tf_interop.graph.control_flow import ControlFlow
from tf_interop.graph.ops import (
    CONVOLUTION_KINDS,
    SIZES_POSITIONS,
    SUPPORTED_DTYPES,
    attribute_of,
)
from tf_interop.graph.properties import GraphProperties, is_fully_known, merge_shapes
from tf_interop.graph.view import GraphView, device_type_of
from tf_interop.graph.xla import xla_mark

_DTYPES = ", ".join(SUPPORTED_DTYPES.values())


class RefusedError(Exception):
    """Ends the reading of one node, with a reason and the detail of its refusal."""


def require(
    holds: object, expected: str, got: object, reason: RefusalReason = RefusalReason.ATTRIBUTE
) -> None:
    """Refuses the node that is being read, unless a condition holds."""
    if not holds:
        raise RefusedError(reason, f"Expected {expected}, got {got}.")


def find_convolutions(
    view: GraphView, properties: GraphProperties
) -> tuple[tuple[ConvolutionNode, ...], tuple[Refusal, ...]]:
    """Finds the convolutions that can be part of a stage; unknown shapes are no obstacle.

    Returns:
        The convolutions, and the convolution nodes that stay as they are, each with a reason. Both
        are ordered by level in the graph and then by name, which is topological and independent of
        the order in the GraphDef.

    Raises:
        GraphError: the graph has a cycle.
    """
    indices = [index for index, op in enumerate(view.ops) if op in CONVOLUTION_KINDS]
    if not indices:
        return (), ()
    control_flow = ControlFlow(view)
    convolutions: list[ConvolutionNode] = []
    refusals: list[Refusal] = []
    for index in view.by_rank(indices):
        try:
            runs = not control_flow.may_not_run(index)
            require(runs, "a node that the fetches need", "another", RefusalReason.NOT_RUN)
            convolutions.append(_match_convolution(view, properties, control_flow, index))
        except RefusedError as refused:
            refusals.append(view.refusal(index, *refused.args))
    return tuple(convolutions), tuple(refusals)


def _match_convolution(
    view: GraphView,
    properties: GraphProperties,
    control_flow: ControlFlow,
    index: int,
) -> ConvolutionNode:
    """Reads one node; raises RefusedError if it must stay as it is."""
    node = view.nodes[index]
    op, device = node.op, node.device
    mark = xla_mark(node)
    require(not mark, "a node that TensorFlow runs", f"attribute '{mark}'", RefusalReason.XLA)
    is_ours = device_type_of(device) in ("", "CPU", "GPU")
    require(is_ours, "a CPU or a GPU", f"'{device}'", RefusalReason.DEVICE)
    depthwise = op.startswith("Depthwise")
    dtype = _dtype(node)
    layout = _layout(node)
    # Only Conv3DBackpropInputV2 has a choice, and TensorFlow's own gradients never use it.
    has_int64_sizes = attribute_of(node, "Tshape").type == types_pb2.DT_INT64
    require(not has_int64_sizes, "input_sizes of DT_INT32", "DT_INT64")
    fused_ops = _fused_ops(node, len(view.fanins[index])) if op.startswith("_Fused") else ()
    strides = _spatial_values(node, "strides", layout)
    dilations = _spatial_values(node, "dilations", layout)
    # TensorFlow's depthwise kernels refuse (forward) or ignore (backward) others.
    require(
        not depthwise or (strides[0] == strides[1] and dilations == (1, 1)),
        "equal strides and no dilations for a depthwise convolution",
        (strides, dilations),
    )
    label = _text(node, "_kernel")
    require(not label, "no label that chooses a kernel", label)
    use_cudnn = attribute_of(node, "use_cudnn_on_gpu")
    require(use_cudnn.b or not use_cudnn.HasField("b"), "use_cudnn_on_gpu to be true", "false")
    padding, explicit_paddings = _padding(node, layout)
    region = control_flow.region(index)
    if region is None:
        what = "Expected inputs from one loop frame, and Switches that a Merge joins, got others."
        raise RefusedError(RefusalReason.CONTROL_FLOW, what)

    image, filter_ = _image_and_filter_shapes(view, properties, index)
    configuration = ConvolutionConfiguration(
        op=op,
        kind=CONVOLUTION_KINDS[op],
        depthwise=depthwise,
        dtype=dtype,
        layout=layout,
        image_shape=image,
        filter_shape=filter_,
        output_shape=None,
        strides=strides,
        dilations=dilations,
        padding=padding,
        explicit_paddings=explicit_paddings,
        group_count=_group_count(image, filter_, layout, depthwise),
        fused_ops=fused_ops,
        leaky_relu_alpha=(
            attribute_of(node, "leakyrelu_alpha").f if "LeakyRelu" in fused_ops else 0.0
        ),
    )
    output = computed_output_shape(configuration)
    if not is_fully_known(output):
        if configuration.kind is ConvolutionKind.FORWARD:
            given = properties.output_shape(index, 0)
        else:
            given = properties.input_shape(index, 2)
        output = merge_shapes(given, output)
    for what, shape in (("image", image), ("filter", filter_), ("output", output)):
        has_rank = shape is None or len(shape) == len(layout)
        require(has_rank, f"the {what} to have rank {len(layout)}", shape)

    return ConvolutionNode(
        name=view.names[index],
        index=index,
        device=device,
        region=region,
        configuration=dataclasses.replace(configuration, output_shape=output),
    )


def _text(node: node_def_pb2.NodeDef, name: str) -> str:
    text: bytes = attribute_of(node, name).s
    return text.decode("utf-8", "replace")


def _dtype(node: node_def_pb2.NodeDef) -> str:
    dtype = attribute_of(node, "T").type
    name = types_pb2.DataType.Name(dtype)
    require(dtype in SUPPORTED_DTYPES, f"one of {_DTYPES}", name, RefusalReason.DTYPE)
    return SUPPORTED_DTYPES[dtype]


def _layout(node: node_def_pb2.NodeDef) -> str:
    layouts = [each for each in SPATIAL_AXES if len(each) == _spatial_rank(node.op) + 2]
    layout = _text(node, "data_format")
    require(layout in layouts, " or ".join(layouts), layout, RefusalReason.LAYOUT)
    filter_layout = _text(node, "filter_format")
    is_hwio = filter_layout in ("", "HWIO")
    require(is_hwio, "a filter in HWIO", filter_layout, RefusalReason.LAYOUT)
    return layout


def _spatial_rank(op: str) -> int:
    return 3 if "Conv3D" in op else 2


def _fused_ops(node: node_def_pb2.NodeDef, input_count: int) -> tuple[str, ...]:
    listed = attribute_of(node, "fused_ops").list.s
    fused = tuple(name.decode("utf-8", "replace") for name in listed)
    shown = f"[{', '.join(fused)}]"
    reason = RefusalReason.FUSED_OPS
    is_supported = fused in FUSED_OPS
    require(is_supported, "BiasAdd, alone or with an activation", shown, reason)
    counts = (*(attribute_of(node, name).i for name in ("num_args", "num_host_args")), input_count)
    got = f"{counts[0]} arguments, {counts[1]} in host memory"
    require(counts == (1, 0, 3), f"{shown} with the bias as its one argument", got, reason)
    if node.op == "_FusedConv3D":
        # Its bias always has its dtype. oneDNN may have fused a Pad into it.
        require(not attribute_of(node, "padding_list").list.i, "no padding_list", "one")
        return fused
    types = list(attribute_of(node, "TArgs").list.type)
    is_same = types == [attribute_of(node, "T").type]
    got = f"[{', '.join(map(types_pb2.DataType.Name, types))}]"
    require(is_same, "a bias of the convolution's dtype", got, reason)
    return fused


def _spatial_values(node: node_def_pb2.NodeDef, name: str, layout: str) -> tuple[int, ...]:
    values = tuple(attribute_of(node, name).list.i)
    is_spatial = len(values) == len(layout) and values[0] == values[layout.index("C")] == 1
    require(is_spatial, f"{len(layout)} {name}, 1 for batch and channels", values)
    require(min(values) > 0, f"positive {name}", values)
    return tuple(values[axis] for axis in SPATIAL_AXES[layout])


def _padding(node: node_def_pb2.NodeDef, layout: str) -> tuple[str, tuple[int, ...]]:
    padding = _text(node, "padding")
    values = tuple(attribute_of(node, "explicit_paddings").list.i)
    if padding in ("SAME", "VALID"):
        require(not values, f"no explicit_paddings with {padding}", values)
        return padding, ()
    is_explicit = padding == "EXPLICIT" and len(layout) == 4
    require(is_explicit, "padding SAME or VALID, or EXPLICIT for images", padding)
    first = 2 * SPATIAL_AXES[layout][0]
    spatial = values[first : first + 4]
    is_spatial = len(values) == 8 and min(values) >= 0 and sum(values) == sum(spatial)
    require(is_spatial, "8 explicit_paddings, 0 for batch and channels", values)
    return padding, spatial


def _image_and_filter_shapes(
    view: GraphView, properties: GraphProperties, index: int
) -> tuple[Shape | None, Shape | None]:
    """Reads the shapes of the inputs; the result's shape comes from its sizes or the output."""
    kind = CONVOLUTION_KINDS[view.ops[index]]
    if kind is ConvolutionKind.FORWARD:
        return properties.input_shape(index, 0), properties.input_shape(index, 1)
    if kind is ConvolutionKind.BACKWARD_INPUT:
        return _result_shape(view, properties, index), properties.input_shape(index, 1)
    return properties.input_shape(index, 0), _result_shape(view, properties, index)


def _result_shape(view: GraphView, properties: GraphProperties, index: int) -> Shape | None:
    """The shape of the gradient that node `index` computes."""
    shape = properties.held_shape(*view.fanins[index][SIZES_POSITIONS[view.ops[index]]])
    rank = _spatial_rank(view.ops[index]) + 2
    # Conv2DBackpropInput also accepts just (height, width).
    require(shape is None or len(shape) == rank, f"{rank} sizes", shape)
    if is_fully_known(shape):
        return shape
    return merge_shapes(shape, properties.output_shape(index, 0))


def _group_count(
    image: Shape | None, filter_: Shape | None, layout: str, depthwise: bool
) -> int | None:
    rank = len(layout)
    channels = image[layout.index("C")] if image is not None and len(image) == rank else None
    per_group = filter_[rank - 2] if filter_ is not None and len(filter_) == rank else None
    if channels is None:
        return per_group if depthwise else None
    if depthwise:
        fits = per_group in (None, channels)
        require(fits, f"a depthwise filter of {channels} channels", per_group)
        return channels
    if not per_group:
        return None
    divides = channels % per_group == 0
    require(divides, f"filter channels that divide the image's {channels}", per_group)
    return channels // per_group
