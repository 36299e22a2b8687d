"""TensorFlow's convolution ops: what each computes, and where among its inputs is what."""

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

SIZES_POSITIONS = {
    "Conv2DBackpropInput": 0,
    "Conv2DBackpropFilter": 1,
    "DepthwiseConv2dNativeBackpropInput": 0,
    "DepthwiseConv2dNativeBackpropFilter": 1,
    "Conv3DBackpropInputV2": 0,
    "Conv3DBackpropFilterV2": 1,
}
"""Where among the inputs of a gradient its `input_sizes` or `filter_sizes` are."""

SUPPORTED_DTYPES = {
    types_pb2.DT_FLOAT: "float32",
    types_pb2.DT_HALF: "float16",
    types_pb2.DT_BFLOAT16: "bfloat16",
    types_pb2.DT_DOUBLE: "float64",
}
"""The dtypes that a stage computes in, by TensorFlow's number."""

FILTER_POSITIONS = {
    "Conv2D": 1,
    "_FusedConv2D": 1,
    "Conv2DBackpropInput": 1,
    "DepthwiseConv2dNative": 1,
    "DepthwiseConv2dNativeBackpropInput": 1,
    "Conv3D": 1,
    "_FusedConv3D": 1,
    "Conv3DBackpropInputV2": 1,
}
"""Where among the inputs of a convolution its filter is; not of those that compute a filter's
gradient."""

FUSED_CONVOLUTIONS = frozenset({"_FusedConv2D", "_FusedConv3D"})
"""The convolutions that apply a bias, and maybe an activation, to their result."""

SUPPORTED_FUSED_OPS = frozenset(
    {
        ("BiasAdd",),
        ("BiasAdd", "Relu"),
        ("BiasAdd", "Relu6"),
        ("BiasAdd", "LeakyRelu"),
        ("BiasAdd", "Elu"),
    }
)
"""What a fused convolution may apply to its result."""

VOLUME_OPS = frozenset(
    {"Conv3D", "_FusedConv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"}
)
"""The convolutions with a depth beside height and width."""
