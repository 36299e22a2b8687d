"""The ops that this package replaces: the convolutions, and all possible steps of a unit.

Our kernel, not TensorFlow's executor, runs the kernels of steps. So an op is listed only if its CPU
kernel computes its results from nothing but its inputs, and before it returns: no state, resources,
strings, random numbers, function calls or waiting. The kernel may ask the device for memory and
threads and for nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, node_def_pb2, types_pb2

from tf_interop import tensorflow_internals
from tf_interop.convolution import ConvolutionKind, RefusalReason

PACK_OP = "TfInterop>PackVariables"
UNPACK_OP = "TfInterop>UnpackVariables"
"""The ops that pass the variables of a function in one tensor."""

HANDLE_OPS = {"_Arg": "_handle_shapes", "VarHandleOp": "shape", UNPACK_OP: "shapes"}
"""The ops that give handles of variables, and the attribute with the shape of each."""

CONVOLUTION_KINDS = {
    "Conv2D": ConvolutionKind.FORWARD,
    "_FusedConv2D": ConvolutionKind.FORWARD,
    "Conv2DBackpropInput": ConvolutionKind.BACKWARD_INPUT,
    "Conv2DBackpropFilter": ConvolutionKind.BACKWARD_FILTER,
    "DepthwiseConv2dNative": ConvolutionKind.FORWARD,
    "DepthwiseConv2dNativeBackpropInput": ConvolutionKind.BACKWARD_INPUT,
    "DepthwiseConv2dNativeBackpropFilter": ConvolutionKind.BACKWARD_FILTER,
    "Conv3D": ConvolutionKind.FORWARD,
    "_FusedConv3D": ConvolutionKind.FORWARD,
    "Conv3DBackpropInputV2": ConvolutionKind.BACKWARD_INPUT,
    "Conv3DBackpropFilterV2": ConvolutionKind.BACKWARD_FILTER,
}
"""The convolution ops."""

SIZES_POSITIONS = {
    op: 0 if kind is ConvolutionKind.BACKWARD_INPUT else 1
    for op, kind in CONVOLUTION_KINDS.items()
    if kind is not ConvolutionKind.FORWARD
}
"""The input of a gradient that is its `input_sizes` or `filter_sizes`."""

FILTER_POSITIONS = {
    op: 1 for op, kind in CONVOLUTION_KINDS.items() if kind is not ConvolutionKind.BACKWARD_FILTER
}
"""The input of a convolution that is its filter."""

UNIT_KEPT_FILTER_OPS = ("Const", "TfInterop>Kept")
STAGE_KEPT_FILTER_OPS = (*UNIT_KEPT_FILTER_OPS, "ReadVariableOp")
"""The ops whose filters seldom or never change, and which nobody writes while they are held. If a
resource variable's value is held, an update gives the variable new memory; TensorFlow 1's reference
variables (VariableV2) are written in place."""

SUPPORTED_DTYPES = {
    types_pb2.DT_FLOAT: "float32",
    types_pb2.DT_HALF: "float16",
    types_pb2.DT_BFLOAT16: "bfloat16",
    types_pb2.DT_DOUBLE: "float64",
}
"""The dtypes of stages, by TensorFlow's number."""

TRIVIAL_OPS = frozenset(
    {"Identity", "Snapshot", "StopGradient", "PreventGradient", "Reshape", "Squeeze", "ExpandDims"}
)
"""Ops that only pass their input on: a unit of nothing else would save nothing."""

_UNARY = (
    # Activations.
    "Relu Relu6 LeakyRelu Elu Selu Softplus Softsign Sigmoid Tanh _MklSwish _MklFusedMish "
    # Arithmetic.
    "Abs Neg Sign Square Sqrt Rsqrt Reciprocal Inv Exp Expm1 Log Log1p Erf Erfc Sin Cos Floor Ceil "
    "Rint Round _UnaryOpsComposition Cast OnesLike ZerosLike LogicalNot "
    # Quantization-aware training.
    "FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars"
)
UNARY_OPS = frozenset(_UNARY.split())
"""Steps that compute each value of their result from the same value of their first input, and
perhaps from scalars."""

_BROADCASTING = (
    "Add AddV2 AddN Sub Mul MulNoNan RealDiv Div DivNoNan Xdivy Maximum Minimum Pow "
    "SquaredDifference ClipByValue SelectV2 Greater GreaterEqual Less LessEqual Equal NotEqual "
    "LogicalAnd LogicalOr"
)
BROADCASTING_OPS = frozenset(_BROADCASTING.split())
"""Steps that compute each value of their result from the same values of their inputs, of which
smaller ones may be repeated."""

_LISTED = (
    # Pooling.
    "MaxPool MaxPoolV2 MaxPoolGrad MaxPoolGradV2 MaxPoolGradGrad MaxPoolGradGradV2 "
    "AvgPool AvgPoolGrad MaxPool3D MaxPool3DGrad MaxPool3DGradGrad AvgPool3D AvgPool3DGrad "
    # Normalization.
    "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 _FusedBatchNormEx "
    "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3 LRN LRNGrad L2Loss _MklLayerNorm "
    # Elementwise, and their gradients.
    "ReluGrad Relu6Grad LeakyReluGrad EluGrad SeluGrad SoftplusGrad SoftsignGrad SigmoidGrad "
    "TanhGrad SqrtGrad RsqrtGrad InvGrad ReciprocalGrad BiasAdd BiasAddGrad Select "
    "Softmax LogSoftmax SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits "
    # Quantization-aware training.
    "FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVarsGradient "
    "FakeQuantWithMinMaxVarsPerChannel FakeQuantWithMinMaxVarsPerChannelGradient "
    # Shaping.
    "Pad PadV2 MirrorPad MirrorPadGrad ConcatV2 Split SplitV Slice StridedSlice StridedSliceGrad "
    "Transpose Tile BroadcastTo Pack Unpack SpaceToDepth DepthToSpace SpaceToBatchND "
    "BatchToSpaceND ReverseV2 Roll GatherV2 "
    # Reductions and products.
    "Mean Sum Max Min Prod ArgMax ArgMin TopKV2 Cumsum Cumprod "
    "MatMul _FusedMatMul BatchMatMul BatchMatMulV2 Einsum "
    # Resizing.
    "ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor ResizeNearestNeighborGrad "
    "ResizeBicubic ResizeBicubicGrad "
)
STEP_OPS = (
    TRIVIAL_OPS
    | CONVOLUTION_KINDS.keys()
    | {"_FusedDepthwiseConv2dNative"}
    | UNARY_OPS
    | BROADCASTING_OPS
    | frozenset(_LISTED.split())
)
"""The possible steps of a unit."""

COMPANION_OPS = frozenset({"Shape", "StridedSlice", "Pack", "ConcatV2", "Const"})
"""Ops that may be steps with any dtype of a unit whose batch may be divided: constants, and those
that make sizes from a shape, because each part of the batch has its own sizes."""

GRADIENT_OF = {"MaxPool": "MaxPoolGrad", "MaxPool3D": "MaxPool3DGrad"}
"""Ops that TensorFlow's oneDNN pass joins with their gradient: the first tells the second where the
maximum was. Neither op of a pair is a step; otherwise the other op would search again and break
ties differently."""

UNIT_FILTER_POSITIONS = FILTER_POSITIONS | dict.fromkeys(
    ("_FusedDepthwiseConv2dNative", "MatMul", "_FusedMatMul"), 1
)
"""The input of a step that is its filter or weights, which oneDNN keeps reordered if constant."""

_BATCH_POSITIONS = {
    "Conv2DBackpropInput": 2,
    "DepthwiseConv2dNativeBackpropInput": 2,
    "Conv3DBackpropInputV2": 2,
    "AvgPoolGrad": 1,
    "AvgPool3DGrad": 1,
    "Split": 1,
    "StridedSliceGrad": 4,
}

_VALUE_TYPES: dict[str, tuple[str, ...]] = {"Cast": ("SrcT", "DstT"), "GatherV2": ("Tparams",)}
_EMPTY = attr_value_pb2.AttrValue()
_CASTABLE = SUPPORTED_DTYPES.keys() | {types_pb2.DT_UINT8, types_pb2.DT_BOOL}


def why_no_step_node(node: node_def_pb2.NodeDef) -> RefusalReason | None:
    """Why the attributes of a node of `STEP_OPS` keep it from being a step; None if they do not."""
    if attribute_of(node, "_kernel").s:
        return RefusalReason.KERNEL
    types = ((name, attribute_of(node, name).type) for name in _type_attributes(node.op))
    return _why_no_kernel(node.op, tuple(types))


def batch_position(op: str) -> int:
    """The input of an op whose first dimension is the batch."""
    return _BATCH_POSITIONS.get(op, 0)


def input_dtypes(node: node_def_pb2.NodeDef) -> tuple[int, ...]:
    """TensorFlow's numbers of the dtypes that a node of a registered op reads."""
    return tuple(_dtypes(node, tensorflow_internals.op_def(node.op).input_arg))


def output_dtypes(node: node_def_pb2.NodeDef) -> tuple[int, ...]:
    """TensorFlow's numbers of the dtypes of the outputs of a node of a registered op."""
    return tuple(_dtypes(node, tensorflow_internals.op_def(node.op).output_arg))


def has_reference_outputs(op: str) -> bool:
    """Whether an op returns references to memory that changes, like TensorFlow 1's Variable."""
    op_def = tensorflow_internals.op_def(op)
    return op_def is not None and any(arg.is_ref for arg in op_def.output_arg)


def _dtypes(node: node_def_pb2.NodeDef, arguments: Any) -> Iterator[int]:
    for argument in arguments:
        if argument.type_list_attr:
            yield from attribute_of(node, argument.type_list_attr).list.type
            continue
        count = attribute_of(node, argument.number_attr).i if argument.number_attr else 1
        dtype = argument.type or attribute_of(node, argument.type_attr).type
        for _ in range(count):
            yield dtype


def attribute_of(node: node_def_pb2.NodeDef, name: str) -> attr_value_pb2.AttrValue:
    """An attribute of a node, else its op's default, else an empty one."""
    attributes = node.attr
    # Indexing a protobuf map would add a missing key.
    if name in attributes:
        return attributes[name]
    return _defaults(node.op).get(name, _EMPTY)


def make_node(
    op: str, name: str, inputs: Iterable[str], device: str = "", **attributes: Any
) -> node_def_pb2.NodeDef:
    """Makes a node with attributes as for `set_attributes`."""
    node = node_def_pb2.NodeDef(name=name, op=op, input=inputs, device=device)
    set_attributes(node, **attributes)
    return node


def set_attributes(node: node_def_pb2.NodeDef, **values: Any) -> None:
    """Sets attributes of a node of a registered op.

    Values are strings, numbers, dtypes, shapes, protobufs, or lists of numbers, bytes or protobufs.
    An AttrValue is copied, also for an op that is not registered.
    """
    for name, value in values.items():
        attribute = node.attr[name]
        if isinstance(value, attr_value_pb2.AttrValue):
            attribute.CopyFrom(value)
            continue
        attribute.Clear()
        is_list, field = _attribute_kinds(node.op)[name]
        if isinstance(value, str):
            value = value.encode()
        elif isinstance(value, tf.DType):
            value = value.as_datatype_enum
        elif isinstance(value, tf.TensorShape):
            value = value.as_proto()
        if is_list:
            attribute.list.SetInParent()  # an empty list is written, too
            getattr(attribute.list, field).extend(value)
        elif field in ("shape", "tensor"):
            getattr(attribute, field).CopyFrom(value)
        else:
            setattr(attribute, field, value)


_FIELDS = {"string": "s", "int": "i", "float": "f", "bool": "b"}


@functools.lru_cache(maxsize=1024)
def _attribute_kinds(op: str) -> dict[str, tuple[bool, str]]:
    """For each attribute whether it is a list, and the field of its values."""
    kinds = {}
    for each in tensorflow_internals.op_def(op).attr:
        kind = each.type.removeprefix("list(").removesuffix(")")
        kinds[each.name] = each.type != kind, _FIELDS.get(kind, kind)
    return kinds


@functools.lru_cache(maxsize=1024)
def _defaults(op: str) -> dict[str, attr_value_pb2.AttrValue]:
    op_def = tensorflow_internals.op_def(op)
    return {each.name: each.default_value for each in op_def.attr} if op_def else {}


@functools.lru_cache(maxsize=1024)
def _type_attributes(op: str) -> tuple[str, ...]:
    op_def = tensorflow_internals.op_def(op)
    return tuple(attribute.name for attribute in op_def.attr if attribute.type == "type")


@functools.lru_cache(maxsize=4096)
def _why_no_kernel(op: str, types: tuple[tuple[str, int], ...]) -> RefusalReason | None:
    """Why a listed op with a node's types has no CPU kernel that may run; None if it has one."""
    values = dict(types)
    # An op without types, such as LogicalNot, has one kernel.
    of_values = _VALUE_TYPES.get(op, ("T",)) if types else ()
    allowed = _CASTABLE if op == "Cast" else SUPPORTED_DTYPES
    if any(values.get(name) not in allowed for name in of_values):
        return RefusalReason.DTYPE
    for allowed_types in tensorflow_internals.cpu_kernel_types(op):
        if all(
            name not in values or values[name] in allowed_values
            for name, allowed_values in allowed_types.items()
        ):
            return None
    return RefusalReason.KERNEL
