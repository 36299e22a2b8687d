"""The convolution ops: what each computes, and where among its inputs is what."""

from __future__ import annotations

from tensorflow.core.framework import types_pb2

from tf_interop.convolution import ConvolutionKind

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
"""The convolution ops, with what each of them computes."""

FUSED_CONVOLUTIONS = frozenset(op for op in CONVOLUTION_KINDS if op.startswith("_Fused"))
"""The convolutions that apply a bias, and maybe an activation, to their result."""

VOLUME_OPS = frozenset(op for op in CONVOLUTION_KINDS if "Conv3D" in op)
"""The convolutions with a depth beside height and width."""

SIZES_POSITIONS = {
    op: 0 if kind is ConvolutionKind.BACKWARD_INPUT else 1
    for op, kind in CONVOLUTION_KINDS.items()
    if kind is not ConvolutionKind.FORWARD
}
"""Where among the inputs of a gradient its `input_sizes` or `filter_sizes` are."""

FILTER_POSITIONS = {
    op: 1 for op, kind in CONVOLUTION_KINDS.items() if kind is not ConvolutionKind.BACKWARD_FILTER
}
"""Where among the inputs of a convolution its filter is; not of those that compute a filter's
gradient."""

SUPPORTED_DTYPES = {
    types_pb2.DT_FLOAT: "float32",
    types_pb2.DT_HALF: "float16",
    types_pb2.DT_BFLOAT16: "bfloat16",
    types_pb2.DT_DOUBLE: "float64",
}
"""The dtypes that a stage computes in, by TensorFlow's number."""

SUPPORTED_FUSED_OPS = frozenset(
    {("BiasAdd",), *(("BiasAdd", each) for each in ("Relu", "Relu6", "LeakyRelu", "Elu"))}
)
"""What a fused convolution may apply to its result."""
