"""The ops that may be steps of a unit, and why a node that is none of them may not.

A step's kernel is run by ours, not by TensorFlow's executor. So an op is on the list only if its
kernel on a CPU computes its results from its inputs alone, before it returns: no state, no
resources, no strings, no random numbers, no call of a function, nothing that waits. And its kernel
may ask the device for nothing but memory and threads.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterator
from typing import Any

from tensorflow.core.framework import node_def_pb2, types_pb2

from tf_interop import tensorflow_internals
from tf_interop.graph.convolution_ops import (
    CONVOLUTION_KINDS,
    FILTER_POSITIONS,
    SUPPORTED_DTYPES,
)

TRIVIAL_OPS = frozenset(
    {"Identity", "Snapshot", "StopGradient", "PreventGradient", "Reshape", "Squeeze", "ExpandDims"}
)
"""Ops that hand their input on: a unit of these alone would save nothing."""

_POOLING = (
    "MaxPool MaxPoolV2 MaxPoolGrad MaxPoolGradV2 MaxPoolGradGrad MaxPoolGradGradV2 "
    "AvgPool AvgPoolGrad MaxPool3D MaxPool3DGrad MaxPool3DGradGrad AvgPool3D AvgPool3DGrad"
)
_NORMALIZATION = (
    "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 _FusedBatchNormEx "
    "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3 LRN LRNGrad L2Loss _MklLayerNorm"
)
_ACTIVATIONS = (
    "Relu ReluGrad Relu6 Relu6Grad LeakyRelu LeakyReluGrad Elu EluGrad Selu SeluGrad "
    "Softplus SoftplusGrad Softsign SoftsignGrad Sigmoid SigmoidGrad Tanh TanhGrad "
    "_MklSwish _MklFusedMish "
    "Softmax LogSoftmax SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits"
)
_ELEMENTWISE = (
    "Add AddV2 AddN Sub Mul MulNoNan RealDiv Div DivNoNan Xdivy Maximum Minimum Pow "
    "SquaredDifference BiasAdd BiasAddGrad Abs Neg Sign Square Sqrt SqrtGrad Rsqrt RsqrtGrad "
    "Reciprocal Inv InvGrad ReciprocalGrad Exp Expm1 Log Log1p Erf Erfc Sin Cos Floor Ceil Rint "
    "Round ClipByValue Cast Select SelectV2 OnesLike ZerosLike "
    "Greater GreaterEqual Less LessEqual Equal NotEqual"
)
_SHAPING = (
    "Pad PadV2 MirrorPad MirrorPadGrad ConcatV2 Split SplitV Slice StridedSlice StridedSliceGrad "
    "Transpose Tile BroadcastTo Pack Unpack SpaceToDepth DepthToSpace SpaceToBatchND "
    "BatchToSpaceND ReverseV2"
)
_REDUCTIONS_AND_PRODUCTS = (
    "Mean Sum Max Min Prod MatMul _FusedMatMul BatchMatMul BatchMatMulV2 BatchMatMulV3"
)
_RESIZING = (
    "ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor ResizeNearestNeighborGrad "
    "ResizeBicubic ResizeBicubicGrad"
)

STEP_OPS = (
    TRIVIAL_OPS
    | CONVOLUTION_KINDS.keys()
    | {"_FusedDepthwiseConv2dNative"}
    | frozenset(
        " ".join(
            (
                _POOLING,
                _NORMALIZATION,
                _ACTIVATIONS,
                _ELEMENTWISE,
                _SHAPING,
                _REDUCTIONS_AND_PRODUCTS,
                _RESIZING,
            )
        ).split()
    )
)
"""The op types that may be steps."""

COMPANION_OPS = frozenset({"Shape", "StridedSlice", "Pack", "ConcatV2", "Const"})
"""Ops that may be steps of a unit that is split whatever their dtype is: those by which sizes come
from a shape, because each part of the batch has sizes of its own, and constants."""

GRADIENT_OF = {"MaxPool": "MaxPoolGrad", "MaxPool3D": "MaxPool3DGrad"}
"""Ops that TensorFlow's oneDNN pass joins with their gradient: the first tells the second where the
maximum was. Neither of a pair is a step, or the other would find it anew, with ties broken
otherwise."""

UNIT_FILTER_POSITIONS = FILTER_POSITIONS | dict.fromkeys(
    ("_FusedDepthwiseConv2dNative", "MatMul", "_FusedMatMul"), 1
)
"""Where among the inputs of a step its filter is, or the matrix of weights: what oneDNN keeps in a
form of its own where it is constant."""

_BATCH_POSITIONS = {
    "Conv2DBackpropInput": 2,
    "DepthwiseConv2dNativeBackpropInput": 2,
    "Conv3DBackpropInputV2": 2,
    "AvgPoolGrad": 1,
    "AvgPool3DGrad": 1,
    "Split": 1,
    "StridedSliceGrad": 4,
}

_VALUE_TYPES = {"Cast": ("SrcT", "DstT")}
_DEFAULT_VALUE_TYPES = ("T",)
_CASTABLE = SUPPORTED_DTYPES.keys() | {types_pb2.DT_UINT8, types_pb2.DT_BOOL}

_FOREIGN_DTYPES = frozenset({types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT, types_pb2.DT_STRING})
_FIRST_REFERENCE_DTYPE = 100

_CONTROL_FLOW_OPS = re.compile(
    r"(Ref)?(Switch|Merge|Enter|Exit|NextIteration)|_SwitchN|LoopCond|ControlTrigger"
)
_FUNCTION_CALLS = re.compile(
    r"(Stateful|Remote|TPU)?PartitionedCall|(Stateless)?(If|While|Case)|SymbolicGradient|MapDefun"
    r"|BatchFunction|XlaLaunch.*"
)
_RANDOM_OPS = re.compile(r".*(Random|Multinomial|TruncatedNormal|NonDeterministic|Rng).*")


class UnitRefusalReason(enum.Enum):
    """Why a node is no step of a unit."""

    CONTROL_FLOW = "control flow"
    FUNCTION_CALL = "function call"
    RANDOM = "random"
    RESOURCE = "resource"
    STATEFUL = "stateful"
    UNKNOWN_OP = "unknown op"
    NOT_LISTED = "not listed"
    DTYPE = "dtype"
    KERNEL = "kernel"
    INPUTS = "number of inputs"
    PAIRED = "joined with its gradient"
    DEVICE = "device"
    PRESERVED = "preserved"
    XLA = "compiled by XLA"
    NOT_RUN = "not run"


def why_no_step_op(op: str) -> UnitRefusalReason | None:
    """Why no node of this op type is a step; None where a node of it may be."""
    if op in STEP_OPS:
        return None
    return _why_not_listed(op)


def why_no_step_node(node: node_def_pb2.NodeDef, input_count: int) -> UnitRefusalReason | None:
    """Why a node of one of `STEP_OPS` is no step for what it says of itself; None where it is."""
    op = node.op
    attributes = node.attr
    op_def = tensorflow_internals.op_def(op)
    if op_def is None:
        return UnitRefusalReason.UNKNOWN_OP
    # To read an attribute that is not there would add it to the graph.
    if "_kernel" in attributes and attributes["_kernel"].s:
        return UnitRefusalReason.KERNEL
    types = tuple(
        (name, attributes[name].type) for name in _type_attributes(op) if name in attributes
    )
    why = _why_no_kernel(op, types)
    if why is None and input_count != _input_count(node):
        return UnitRefusalReason.INPUTS
    return why


def batch_position(op: str) -> int:
    """Where among the inputs of an op is the tensor whose first dimension is the batch."""
    return _BATCH_POSITIONS.get(op, 0)


def input_dtypes(node: node_def_pb2.NodeDef) -> tuple[int, ...]:
    """TensorFlow's numbers of the dtypes that a node reads, of a registered op."""
    return tuple(_dtypes(node, tensorflow_internals.op_def(node.op).input_arg))


def output_dtypes(node: node_def_pb2.NodeDef) -> tuple[int, ...]:
    """TensorFlow's numbers of the dtypes of a node's outputs, of a registered op."""
    return tuple(_dtypes(node, tensorflow_internals.op_def(node.op).output_arg))


def has_reference_outputs(op: str) -> bool:
    """Whether an op hands out references to memory that changes, as TensorFlow 1's Variable."""
    op_def = tensorflow_internals.op_def(op)
    return op_def is not None and any(arg.is_ref for arg in op_def.output_arg)


def _dtypes(node: node_def_pb2.NodeDef, arguments: Any) -> Iterator[int]:
    for argument in arguments:
        if argument.type_list_attr:
            yield from _attribute(node, argument.type_list_attr).list.type
            continue
        count = _attribute(node, argument.number_attr).i if argument.number_attr else 1
        dtype = argument.type or _attribute(node, argument.type_attr).type
        for _ in range(count):
            yield dtype


def _input_count(node: node_def_pb2.NodeDef) -> int:
    count: int
    count, by_number, by_list = _input_arguments(node.op)
    count += sum(_attribute(node, name).i for name in by_number)
    count += sum(len(_attribute(node, name).list.type) for name in by_list)
    return count


@functools.lru_cache(maxsize=1024)
def _input_arguments(op: str) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """How many inputs an op always has, and the attributes that say how many more there are."""
    arguments = tensorflow_internals.op_def(op).input_arg
    by_number = tuple(each.number_attr for each in arguments if each.number_attr)
    by_list = tuple(each.type_list_attr for each in arguments if each.type_list_attr)
    return len(arguments) - len(by_number) - len(by_list), by_number, by_list


def _attribute(node: node_def_pb2.NodeDef, name: str) -> Any:
    """An attribute of a node, or the default of its op, where it was stripped."""
    if name in node.attr:
        return node.attr[name]
    return _defaults(node.op)[name]


@functools.lru_cache(maxsize=1024)
def _defaults(op: str) -> dict[str, Any]:
    op_def = tensorflow_internals.op_def(op)
    return {attribute.name: attribute.default_value for attribute in op_def.attr}


@functools.lru_cache(maxsize=1024)
def _type_attributes(op: str) -> tuple[str, ...]:
    op_def = tensorflow_internals.op_def(op)
    return tuple(attribute.name for attribute in op_def.attr if attribute.type == "type")


@functools.lru_cache(maxsize=4096)
def _why_not_listed(op: str) -> UnitRefusalReason:
    if _CONTROL_FLOW_OPS.fullmatch(op):
        return UnitRefusalReason.CONTROL_FLOW
    if _FUNCTION_CALLS.fullmatch(op):
        return UnitRefusalReason.FUNCTION_CALL
    op_def = tensorflow_internals.op_def(op)
    if op_def is None:
        return UnitRefusalReason.UNKNOWN_OP
    if _RANDOM_OPS.fullmatch(op):
        return UnitRefusalReason.RANDOM
    if any(arg.type == types_pb2.DT_RESOURCE for arg in (*op_def.input_arg, *op_def.output_arg)):
        return UnitRefusalReason.RESOURCE
    return UnitRefusalReason.STATEFUL if op_def.is_stateful else UnitRefusalReason.NOT_LISTED


@functools.lru_cache(maxsize=4096)
def _why_no_kernel(op: str, types: tuple[tuple[str, int], ...]) -> UnitRefusalReason | None:
    """Holds a listed op, with the types that a node states, against what TensorFlow says of it."""
    op_def = tensorflow_internals.op_def(op)
    if op_def.is_stateful:
        return UnitRefusalReason.STATEFUL
    values = {name: default.type for name, default in _defaults(op).items()} | dict(types)
    of_values = _VALUE_TYPES.get(op, _DEFAULT_VALUE_TYPES)
    allowed = _CASTABLE if op == "Cast" else SUPPORTED_DTYPES
    if any(values.get(name) not in allowed for name in of_values):
        return UnitRefusalReason.DTYPE
    for argument in (*op_def.input_arg, *op_def.output_arg):
        if argument.is_ref or argument.type in _FOREIGN_DTYPES:
            return UnitRefusalReason.DTYPE
    if any(value in _FOREIGN_DTYPES or value > _FIRST_REFERENCE_DTYPE for _, value in types):
        return UnitRefusalReason.DTYPE
    for allowed_types in tensorflow_internals.cpu_kernel_types(op):
        if all(
            name not in values or values[name] in allowed_values
            for name, allowed_values in allowed_types.items()
        ):
            return None
    return UnitRefusalReason.KERNEL
