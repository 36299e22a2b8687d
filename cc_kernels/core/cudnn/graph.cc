#include "cc_kernels/core/cudnn/graph.h"

#include <utility>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/tensor.h"

namespace tf_interop {
namespace {

// The attributes of the three kinds of convolution operations, which differ in name only.
struct ConvolutionAttributes {
  cudnnBackendDescriptorType_t descriptor;
  const char* name;
  cudnnBackendAttributeName_t convolution, alpha, beta, image, filter, output;
};

// OPERATION and PREFIX are parts of cuDNN's names for a kind; X, W and Y are those for its tensors.
#define TF_INTEROP_ATTRIBUTES(name, OPERATION, PREFIX, X, W, Y)  \
  {CUDNN_BACKEND_OPERATION_CONVOLUTION_##OPERATION##_DESCRIPTOR, \
   name,                                                         \
   CUDNN_ATTR_OPERATION_CONVOLUTION_##PREFIX##_CONV_DESC,        \
   CUDNN_ATTR_OPERATION_CONVOLUTION_##PREFIX##_ALPHA,            \
   CUDNN_ATTR_OPERATION_CONVOLUTION_##PREFIX##_BETA,             \
   CUDNN_ATTR_OPERATION_CONVOLUTION_##PREFIX##_##X,              \
   CUDNN_ATTR_OPERATION_CONVOLUTION_##PREFIX##_##W,              \
   CUDNN_ATTR_OPERATION_CONVOLUTION_##PREFIX##_##Y}

// In the order of ConvolutionKind.
constexpr ConvolutionAttributes kAttributes[] = {
    TF_INTEROP_ATTRIBUTES("forward convolution", FORWARD, FORWARD, X, W, Y),
    TF_INTEROP_ATTRIBUTES("backward-data convolution", BACKWARD_DATA, BWD_DATA, DX, W, DY),
    TF_INTEROP_ATTRIBUTES("backward-filter convolution", BACKWARD_FILTER, BWD_FILTER, X, DW, DY)};
#undef TF_INTEROP_ATTRIBUTES

BackendDescriptor MakeConvolution(const CudnnLibrary& library, const Convolution& c) {
  BackendDescriptor convolution(library, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "convolution");
  convolution.Set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CudnnComputeType(c.dtype));
  convolution.Set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION);
  convolution.Set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t{c.spatial_rank});
  convolution.Set(CUDNN_ATTR_CONVOLUTION_DILATIONS,
                  SpatialOf(c, c.dilation_depth, c.dilation_height, c.dilation_width));
  convolution.Set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES,
                  SpatialOf(c, c.stride_depth, c.stride_height, c.stride_width));
  convolution.Set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS,
                  SpatialOf(c, c.pad_front, c.pad_top, c.pad_left));
  convolution.Set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
                  SpatialOf(c, c.pad_back, c.pad_bottom, c.pad_right));
  convolution.Finalize();
  return convolution;
}

BackendDescriptor MakeActivation(const CudnnLibrary& library, const Convolution& c) {
  BackendDescriptor pointwise(library, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "activation");
  pointwise.Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CudnnComputeType(c.dtype));
  const auto set_relu = [&] {
    pointwise.Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_RELU_FWD);
    // A NaN passes through TensorFlow's activations.
    pointwise.Set(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_PROPAGATE_NAN);
  };
  switch (c.activation) {
    case Activation::kNone:  // has no such node
      break;
    case Activation::kRelu:
      set_relu();
      break;
    case Activation::kRelu6:
      set_relu();
      pointwise.Set(CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, 6.0);
      break;
    case Activation::kElu:
      pointwise.Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ELU_FWD);
      pointwise.Set(CUDNN_ATTR_POINTWISE_ELU_ALPHA, 1.0);
      break;
    case Activation::kLeakyRelu:
      set_relu();
      pointwise.Set(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, double{c.leaky_relu_alpha});
      break;
  }
  pointwise.Finalize();
  return pointwise;
}

// Collects the parts of one graph.
class GraphBuilder {
 public:
  // `output` is the geometry of the output and of its forms before bias and activation.
  GraphBuilder(const CudnnLibrary& library, cudnnHandle_t handle, const Convolution& convolution,
               TensorGeometry output, TensorGeometry bias)
      : library_(library),
        c_(convolution),
        output_(std::move(output)),
        bias_(std::move(bias)),
        type_(CudnnType(c_.dtype)) {
    graph_.library = &library;
    graph_.handle = handle;
  }

  void AddConvolution(int64_t output_id, bool output_is_virtual) {
    const ConvolutionAttributes& attributes = kAttributes[static_cast<int>(c_.kind)];
    BackendDescriptor convolution = MakeConvolution(library_, c_);
    BackendDescriptor operation(library_, attributes.descriptor, attributes.name);
    operation.Set(attributes.convolution, convolution);
    operation.Set(attributes.image, Tensor(kImageTensor, type_, ImageGeometry(c_), false));
    operation.Set(attributes.filter, Tensor(kFilterTensor, type_, FilterGeometry(c_), false));
    operation.Set(attributes.output, Output(output_id, output_is_virtual));
    // Both have the type in which sums are computed.
    if (c_.dtype == DataType::kDouble) {
      operation.Set(attributes.alpha, 1.0);
      operation.Set(attributes.beta, 0.0);
    } else {
      operation.Set(attributes.alpha, 1.0f);
      operation.Set(attributes.beta, 0.0f);
    }
    AddOperation(std::move(convolution), std::move(operation));
  }

  // output = activation(convolved + bias), without any part that the convolution lacks.
  void AddEpilogue(bool convolved_is_virtual) {
    const bool has_activation = c_.activation != Activation::kNone;
    const BackendDescriptor* from = &Output(kConvolvedTensor, convolved_is_virtual);
    if (c_.has_bias) {
      BackendDescriptor addition(library_, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "addition");
      addition.Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD);
      addition.Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CudnnComputeType(c_.dtype));
      addition.Finalize();
      const BackendDescriptor& bias = Tensor(kBiasTensor, type_, bias_, false);
      const BackendDescriptor& biased =
          Output(has_activation ? kBiasedTensor : kOutputTensor, has_activation);
      AddPointwise(std::move(addition), *from, &bias, biased);
      from = &biased;
    }
    if (has_activation) {
      AddPointwise(MakeActivation(library_, c_), *from, nullptr, Output(kOutputTensor, false));
    }
  }

  OperationGraph Finish() {
    graph_.graph =
        BackendDescriptor(library_, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "operation graph");
    graph_.graph.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, graph_.handle);
    graph_.graph.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, graph_.operations);
    graph_.graph.Finalize();
    return std::move(graph_);
  }

 private:
  // The tensor with this id, made by the first call.
  const BackendDescriptor& Tensor(int64_t id, cudnnDataType_t type, const TensorGeometry& geometry,
                                  bool is_virtual) {
    const auto [entry, is_new] = graph_.tensors.try_emplace(id);
    BackendDescriptor& tensor = entry->second;
    if (!is_new) return tensor;
    tensor = BackendDescriptor(library_, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
    tensor.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
    tensor.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    tensor.Set(CUDNN_ATTR_TENSOR_DIMENSIONS, geometry.extents);
    tensor.Set(CUDNN_ATTR_TENSOR_STRIDES, geometry.strides);
    tensor.Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kTensorAlignment);
    tensor.Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, is_virtual);
    tensor.Finalize();
    return tensor;
  }

  // A tensor of the output's shape. A virtual one, inside the graph, has the type in which sums are
  // computed.
  const BackendDescriptor& Output(int64_t id, bool is_virtual) {
    return Tensor(id, is_virtual ? CudnnComputeType(c_.dtype) : type_, output_, is_virtual);
  }

  void AddPointwise(BackendDescriptor pointwise, const BackendDescriptor& from,
                    const BackendDescriptor* second, const BackendDescriptor& to) {
    BackendDescriptor operation(library_, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                                "pointwise operation");
    operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise);
    operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, from);
    if (second != nullptr) operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *second);
    operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to);
    AddOperation(std::move(pointwise), std::move(operation));
  }

  void AddOperation(BackendDescriptor applied, BackendDescriptor operation) {
    operation.Finalize();
    graph_.operators.push_back(std::move(applied));
    graph_.operations.push_back(std::move(operation));
  }

  const CudnnLibrary& library_;
  const Convolution& c_;
  const TensorGeometry output_, bias_;
  const cudnnDataType_t type_;
  OperationGraph graph_;
};

}  // namespace

OperationGraph BuildConvolutionGraph(const CudnnLibrary& library, cudnnHandle_t handle,
                                     const Convolution& c) {
  GraphBuilder builder(library, handle, c, OutputGeometry(c), BiasGeometry(c));
  const bool fused = HasEpilogue(c);
  builder.AddConvolution(fused ? kConvolvedTensor : kOutputTensor, fused);
  if (fused) builder.AddEpilogue(true);
  return builder.Finish();
}

OperationGraph BuildEpilogueGraph(const CudnnLibrary& library, cudnnHandle_t handle,
                                  const Convolution& c) {
  const int64_t k = c.output_channels, pixels = c.output_pixels(), rows = c.batch * pixels;
  // Tensors have three dimensions, in the order of memory: with four or more, cuDNN 9.28 has no
  // engine for NCHW graphs without a convolution.
  TensorGeometry output = {{c.batch, k, pixels}, {k * pixels, pixels, 1}};
  TensorGeometry bias = {{1, k, 1}, {k, 1, 1}};
  if (c.layout == Layout::kNHWC) {
    output = {{1, rows, k}, {rows * k, k, 1}};
    bias = {{1, 1, k}, {k, k, 1}};
  }
  GraphBuilder builder(library, handle, c, std::move(output), std::move(bias));
  builder.AddEpilogue(false);
  return builder.Finish();
}

}  // namespace tf_interop
