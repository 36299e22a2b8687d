"""Finds the convolutions of a graph that can be part of a stage, and says why others cannot."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tensorflow.core.framework import types_pb2

from tf_interop.convolution import (
    SPATIAL_AXES,
    ConvolutionConfiguration,
    ConvolutionKind,
    ConvolutionNode,
    Refusal,
    RefusalReason,
    Shape,
    computed_output_shape,
)
from tf_interop.errors import GraphError
from tf_interop.graph.control_flow import ControlFlow
from tf_interop.graph.convolution_ops import (
    CONVOLUTION_KINDS,
    FUSED_CONVOLUTIONS,
    SIZES_POSITIONS,
    SUPPORTED_DTYPES,
    SUPPORTED_FUSED_OPS,
    VOLUME_OPS,
)
from tf_interop.graph.device_names import device_type_of
from tf_interop.graph.properties import GraphProperties, is_fully_known, merge_shapes
from tf_interop.graph.session_feeds import find_fed, find_run
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import GraphView

# TensorFlow's default, for graphs whose default attributes were stripped.
_DEFAULT_LEAKY_RELU_ALPHA = 0.2

# By spatial rank, TensorFlow's default first.
_LAYOUTS = {2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}
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


class _RefusalError(Exception):
    """Ends the reading of one node, inside this module only."""

    def __init__(self, reason: RefusalReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def find_convolutions(
    view: GraphView,
    properties: GraphProperties,
    *,
    nodes_to_preserve: Collection[str] = (),
    fetches: Collection[str] = (),
) -> tuple[tuple[ConvolutionNode, ...], tuple[Refusal, ...]]:
    """Finds the convolutions that can be part of a stage.

    A shape that is not known is no reason to refuse a node.

    Args:
        view: the graph.
        properties: the shapes of its tensors.
        nodes_to_preserve: names that have to stay in the graph.
        fetches: what the graph is run for, names of nodes or tensors; none where that is not known.

    Returns:
        The convolutions, and the convolution nodes that are left alone with the reason for each.
        Both are in topological order, by level in the graph and then by name, so that they do not
        depend on the order of the nodes in the GraphDef.

    Raises:
        GraphError: a convolution node has another number of inputs than its op, or the graph has a
            cycle.
    """
    indices = [index for index, op in enumerate(view.ops) if op in CONVOLUTION_KINDS]
    if not indices:
        return (), ()
    levels = view.levels
    indices.sort(key=lambda index: (levels[index], view.names[index]))

    fed = find_fed(view, nodes_to_preserve, fetches)
    runs = find_run(view, fed, fetches)
    control_flow = ControlFlow(view, fed)
    convolutions: list[ConvolutionNode] = []
    refusals: list[Refusal] = []
    for index in indices:
        check_time_limit()
        try:
            _check_runs(runs, index)
            convolutions.append(_match_convolution(view, properties, control_flow, index))
        except _RefusalError as refused:
            name, op = view.names[index], view.ops[index]
            refusals.append(Refusal(name, op, refused.reason, refused.detail))
    return tuple(convolutions), tuple(refusals)


def _match_convolution(
    view: GraphView,
    properties: GraphProperties,
    control_flow: ControlFlow,
    index: int,
) -> ConvolutionNode:
    """Reads one node; raises _RefusalError where it must be left alone."""
    op = view.ops[index]
    device = view.nodes[index].device
    attributes = view.nodes[index].attr
    _check_input_count(view, index)
    _check_not_compiled_by_xla(attributes)
    device_type = device_type_of(device)
    if device_type not in ("", "CPU", "GPU"):
        raise _RefusalError(RefusalReason.DEVICE, f"Expected a CPU or a GPU, got '{device}'.")
    dtype = _dtype(attributes)
    layout = _layout(attributes, op)
    _check_sizes_type(attributes)
    fused_ops = _fused_ops(attributes, op, view.fanins[index]) if op in FUSED_CONVOLUTIONS else ()

    depthwise = op.startswith("Depthwise")
    strides = _spatial_values(attributes, "strides", layout)
    dilations = _spatial_values(attributes, "dilations", layout)
    if depthwise:
        # TensorFlow's depthwise kernels refuse these (forward) or ignore them (backward).
        if strides[0] != strides[1]:
            raise _unexpected("equal strides of a depthwise convolution", strides)
        if dilations != (1, 1):
            raise _unexpected("a depthwise convolution without dilations", dilations)
    if "_kernel" in attributes and attributes["_kernel"].s:
        raise _unexpected("no label that chooses a kernel", attributes["_kernel"].s.decode())
    if "use_cudnn_on_gpu" in attributes and not attributes["use_cudnn_on_gpu"].b:
        raise _unexpected("use_cudnn_on_gpu to be true", "false")
    padding = _required(attributes, "padding").s.decode("utf-8", "replace")
    explicit_paddings = _explicit_paddings(attributes, padding, layout)

    region = control_flow.region(index)
    if region is None:
        raise _RefusalError(
            RefusalReason.CONTROL_FLOW,
            "Expected inputs of one loop frame, and Switches that Merges join again, got others.",
        )

    image, filter_ = _image_and_filter_shapes(view, properties, index)
    group_count = _group_count(image, filter_, layout, depthwise)
    output = computed_output_shape(
        image, filter_, layout, depthwise, strides, dilations, padding, explicit_paddings
    )
    if not is_fully_known(output):
        output = merge_shapes(_given_output_shape(view, properties, index), output)
    for what, shape in (("image", image), ("filter", filter_), ("output", output)):
        if shape is not None and len(shape) != len(layout):
            raise _unexpected(f"the {what} to have rank {len(layout)}", f"shape {shape}")

    return ConvolutionNode(
        name=view.names[index],
        index=index,
        device=device,
        region=region,
        configuration=ConvolutionConfiguration(
            op=op,
            kind=CONVOLUTION_KINDS[op],
            depthwise=depthwise,
            dtype=dtype,
            layout=layout,
            image_shape=image,
            filter_shape=filter_,
            output_shape=output,
            strides=strides,
            dilations=dilations,
            padding=padding,
            explicit_paddings=explicit_paddings,
            group_count=group_count,
            fused_ops=fused_ops,
            leaky_relu_alpha=_leaky_relu_alpha(attributes, fused_ops),
        ),
    )


def _unexpected(expected: str, got: object) -> _RefusalError:
    return _RefusalError(RefusalReason.ATTRIBUTE, f"Expected {expected}, got {got}.")


def _required(attributes: Any, name: str) -> Any:
    # Reading a missing key of a protobuf map would add it to the graph.
    if name not in attributes:
        raise _unexpected(f"an attribute '{name}'", "none")
    return attributes[name]


def _check_input_count(view: GraphView, index: int) -> None:
    count = len(view.fanins[index])
    op = view.ops[index]
    if CONVOLUTION_KINDS[op] is not ConvolutionKind.FORWARD:
        legal = count == 3
    elif op in FUSED_CONVOLUTIONS:
        legal = count >= 2
    else:
        legal = count == 2
    if not legal:
        raise GraphError(
            f"Expected the inputs of {op}, got {count} tensors at node '{view.names[index]}'."
        )


def _check_runs(runs: bytearray | None, index: int) -> None:
    if runs is not None and not runs[index]:
        raise _RefusalError(
            RefusalReason.NOT_RUN,
            "Expected a node that the fetches need, got one that they do not.",
        )


def _check_not_compiled_by_xla(attributes: Any) -> None:
    for key in attributes:
        if key in _XLA_MARKS or (key in _XLA_SWITCHES and attributes[key].b):
            raise _RefusalError(
                RefusalReason.XLA, f"Expected a node that TensorFlow runs, got attribute '{key}'."
            )


def _dtype(attributes: Any) -> str:
    dtype = _required(attributes, "T").type
    if dtype not in SUPPORTED_DTYPES:
        names = list(SUPPORTED_DTYPES.values())
        raise _RefusalError(
            RefusalReason.DTYPE,
            f"Expected {', '.join(names[:-1])} or {names[-1]}, "
            f"got {types_pb2.DataType.Name(dtype)}.",
        )
    return SUPPORTED_DTYPES[dtype]


def _spatial_rank(op: str) -> int:
    return 3 if op in VOLUME_OPS else 2


def _layout(attributes: Any, op: str) -> str:
    layouts = _LAYOUTS[_spatial_rank(op)]
    layout = layouts[0]
    if "data_format" in attributes:
        layout = attributes["data_format"].s.decode("utf-8", "replace")
    if layout not in layouts:
        raise _RefusalError(RefusalReason.LAYOUT, f"Expected {' or '.join(layouts)}, got {layout}.")
    if "filter_format" in attributes and attributes["filter_format"].s != b"HWIO":
        got = attributes["filter_format"].s.decode("utf-8", "replace")
        raise _RefusalError(RefusalReason.LAYOUT, f"Expected a filter in HWIO, got {got}.")
    return layout


def _check_sizes_type(attributes: Any) -> None:
    # Conv3DBackpropInputV2 alone has a choice, and no gradient of TensorFlow's own makes it.
    if "Tshape" in attributes and attributes["Tshape"].type != types_pb2.DT_INT32:
        got = types_pb2.DataType.Name(attributes["Tshape"].type)
        raise _unexpected("input_sizes of DT_INT32, as a stage's are", got)


def _fused_ops(attributes: Any, op: str, fanins: tuple[tuple[int, int], ...]) -> tuple[str, ...]:
    fused: tuple[str, ...] = ()
    if "fused_ops" in attributes:
        fused = tuple(name.decode("utf-8", "replace") for name in attributes["fused_ops"].list.s)
    if fused not in SUPPORTED_FUSED_OPS:
        raise _RefusalError(
            RefusalReason.FUSED_OPS,
            f"Expected BiasAdd, alone or with an activation, got [{', '.join(fused)}].",
        )
    argument_count = _required(attributes, "num_args").i
    host_argument_count = 0
    if "num_host_args" in attributes:
        host_argument_count = attributes["num_host_args"].i
    if argument_count != 1 or host_argument_count or len(fanins) != 3:
        raise _RefusalError(
            RefusalReason.FUSED_OPS,
            f"Expected [{', '.join(fused)}] with the bias as its one argument, got "
            f"{argument_count} arguments, {host_argument_count} in host memory.",
        )
    if op == "_FusedConv3D":
        # Its bias has its dtype. oneDNN may give it the paddings of a Pad.
        if "padding_list" in attributes and attributes["padding_list"].list.i:
            raise _unexpected("no padding_list", list(attributes["padding_list"].list.i))
        return fused
    types = list(_required(attributes, "TArgs").list.type)
    if types != [attributes["T"].type]:
        raise _RefusalError(
            RefusalReason.FUSED_OPS,
            "Expected a bias of the convolution's dtype, got "
            f"[{', '.join(types_pb2.DataType.Name(dtype) for dtype in types)}].",
        )
    return fused


def _leaky_relu_alpha(attributes: Any, fused_ops: tuple[str, ...]) -> float:
    if "LeakyRelu" not in fused_ops:
        return 0.0
    if "leakyrelu_alpha" not in attributes:
        return _DEFAULT_LEAKY_RELU_ALPHA
    return float(attributes["leakyrelu_alpha"].f)


def _spatial_values(attributes: Any, name: str, layout: str) -> tuple[int, ...]:
    """The spatial dimensions of `strides` or `dilations`; only `strides` have no default."""
    axes = SPATIAL_AXES[layout]
    if name == "dilations" and name not in attributes:
        return (1,) * len(axes)
    values = tuple(_required(attributes, name).list.i)
    if len(values) != len(layout):
        raise _unexpected(f"{len(layout)} {name}", values)
    if values[0] != 1 or values[layout.index("C")] != 1:
        raise _unexpected(f"{name} of 1 in batch and channels", values)
    spatial = tuple(values[axis] for axis in axes)
    if min(spatial) < 1:
        raise _unexpected(f"positive {name}", values)
    return spatial


def _explicit_paddings(attributes: Any, padding: str, layout: str) -> tuple[int, ...]:
    values: tuple[int, ...] = ()
    if "explicit_paddings" in attributes:
        values = tuple(attributes["explicit_paddings"].list.i)
    if padding in ("SAME", "VALID"):
        if values:
            raise _unexpected(f"no explicit_paddings with {padding}", values)
        return ()
    if len(layout) == 5:
        raise _unexpected("padding SAME or VALID of volumes", padding)
    if padding != "EXPLICIT":
        raise _unexpected("padding SAME, VALID or EXPLICIT", padding)
    if len(values) != 8:
        raise _unexpected("8 explicit_paddings", values)
    height, width = SPATIAL_AXES[layout]
    channel = layout.index("C")
    if any(values[0:2]) or any(values[2 * channel : 2 * channel + 2]):
        raise _unexpected("no explicit_paddings in batch and channels", values)
    if min(values) < 0:
        raise _unexpected("explicit_paddings that are not negative", values)
    return (*values[2 * height : 2 * height + 2], *values[2 * width : 2 * width + 2])


def _image_and_filter_shapes(
    view: GraphView, properties: GraphProperties, index: int
) -> tuple[Shape | None, Shape | None]:
    """What the inputs say; of the tensor that is computed, what its sizes or the output say."""
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
    if shape is not None and len(shape) != rank:
        # Conv2DBackpropInput takes (height, width) alone, too.
        raise _unexpected(f"{rank} sizes", shape)
    if is_fully_known(shape):
        return shape
    return merge_shapes(shape, properties.output_shape(index, 0))


def _given_output_shape(view: GraphView, properties: GraphProperties, index: int) -> Shape | None:
    if CONVOLUTION_KINDS[view.ops[index]] is ConvolutionKind.FORWARD:
        return properties.output_shape(index, 0)
    return properties.input_shape(index, 2)


def _group_count(
    image: Shape | None, filter_: Shape | None, layout: str, depthwise: bool
) -> int | None:
    rank = len(layout)
    channels = image[layout.index("C")] if image is not None and len(image) == rank else None
    per_group = filter_[rank - 2] if filter_ is not None and len(filter_) == rank else None
    if depthwise:
        if channels is not None and per_group is not None and channels != per_group:
            raise _unexpected(f"a depthwise filter of {channels} channels", per_group)
        return per_group if channels is None else channels
    if channels is None or not per_group:
        return None
    if channels % per_group:
        raise _unexpected(f"filter channels that divide the image's {channels}", per_group)
    return channels // per_group
