#include "cc_kernels/core/cudnn/graph.h"

#include <utility>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/tensor.h"

namespace tf_interop {
namespace {

// Between the operations of a graph; no memory is bound to it.
constexpr int64_t kBiasedTensor = 6;

// The attributes of the three kinds of convolution operations, which differ in name only.
struct ConvolutionAttributes {
  cudnnBackendDescriptorType_t descriptor;
  const char* name;
  cudnnBackendAttributeName_t convolution, alpha, beta, image, filter, output;
};

ConvolutionAttributes AttributesOf(ConvolutionKind kind) {
  switch (kind) {
    case ConvolutionKind::kForward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              "forward convolution",
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
    case ConvolutionKind::kBackwardInput:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              "backward-data convolution",
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
    case ConvolutionKind::kBackwardFilter:
      break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          "backward-filter convolution",
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
}

Status MakeTensor(const CudnnLibrary& library, int64_t id, cudnnDataType_t type,
                  const TensorGeometry& geometry, bool is_virtual, BackendDescriptor* tensor) {
  *tensor = BackendDescriptor(library, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
  tensor->Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  tensor->Set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  tensor->SetArray(CUDNN_ATTR_TENSOR_DIMENSIONS, geometry.extents);
  tensor->SetArray(CUDNN_ATTR_TENSOR_STRIDES, geometry.strides);
  tensor->Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kTensorAlignment);
  tensor->Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, is_virtual);
  return tensor->Finalize();
}

Status MakeConvolution(const CudnnLibrary& library, const Convolution& c,
                       BackendDescriptor* convolution) {
  *convolution = BackendDescriptor(library, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "convolution");
  convolution->Set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CudnnComputeType(c.dtype));
  convolution->Set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION);
  convolution->Set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t{c.spatial_rank});
  convolution->SetArray(CUDNN_ATTR_CONVOLUTION_DILATIONS,
                        SpatialOf(c, c.dilation_depth, c.dilation_height, c.dilation_width));
  convolution->SetArray(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES,
                        SpatialOf(c, c.stride_depth, c.stride_height, c.stride_width));
  convolution->SetArray(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS,
                        SpatialOf(c, c.pad_front, c.pad_top, c.pad_left));
  convolution->SetArray(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
                        SpatialOf(c, c.pad_back, c.pad_bottom, c.pad_right));
  return convolution->Finalize();
}

Status MakeActivation(const CudnnLibrary& library, const Convolution& c,
                      BackendDescriptor* pointwise) {
  *pointwise = BackendDescriptor(library, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "activation");
  pointwise->Set(CUDNN_ATTR_POINTWISE_MODE, c.activation == Activation::kElu
                                                ? CUDNN_POINTWISE_ELU_FWD
                                                : CUDNN_POINTWISE_RELU_FWD);
  pointwise->Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CudnnComputeType(c.dtype));
  if (c.activation == Activation::kElu) {
    pointwise->Set(CUDNN_ATTR_POINTWISE_ELU_ALPHA, 1.0);
    return pointwise->Finalize();
  }
  // TensorFlow's activations hand a NaN on.
  pointwise->Set(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_PROPAGATE_NAN);
  if (c.activation == Activation::kRelu6) {
    pointwise->Set(CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, 6.0);
  }
  if (c.activation == Activation::kLeakyRelu) {
    pointwise->Set(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE,
                   static_cast<double>(c.leaky_relu_alpha));
  }
  return pointwise->Finalize();
}

Status MakeAddition(const CudnnLibrary& library, const Convolution& c,
                    BackendDescriptor* pointwise) {
  *pointwise = BackendDescriptor(library, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "addition");
  pointwise->Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD);
  pointwise->Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CudnnComputeType(c.dtype));
  return pointwise->Finalize();
}

// The output, and the bias that is broadcast over it.
struct OutputTensors {
  TensorGeometry output, bias;
};

// Those of an epilogue by itself. With three dimensions, in the order of memory: in four or more
// cuDNN 9.28 has no engine for graphs without a convolution in NCHW.
OutputTensors TensorsOfEpilogue(const Convolution& c) {
  const int64_t k = c.output_channels, pixels = c.output_pixels();
  if (c.layout == Layout::kNHWC) {
    const int64_t rows = c.batch * pixels;
    return {{{1, rows, k}, {rows * k, k, 1}}, {{1, 1, k}, {k, k, 1}}};
  }
  return {{{c.batch, k, pixels}, {k * pixels, pixels, 1}}, {{1, k, 1}, {k, 1, 1}}};
}

// Collects the parts of one graph.
class GraphBuilder {
 public:
  GraphBuilder(const CudnnLibrary& library, const Convolution& convolution, OutputTensors tensors,
               OperationGraph* graph)
      : library_(library), convolution_(convolution), tensors_(std::move(tensors)), graph_(graph) {
    *graph_ = OperationGraph();
  }

  // The convolution, whose output tensor has the id `output`.
  Status AddConvolution(int64_t output_id, bool output_is_virtual) {
    const cudnnDataType_t type = CudnnType(convolution_.dtype);
    BackendDescriptor convolution;
    const BackendDescriptor *image, *filter, *output;
    TF_INTEROP_RETURN_IF_ERROR(MakeConvolution(library_, convolution_, &convolution));
    TF_INTEROP_RETURN_IF_ERROR(
        AddTensor(kImageTensor, type, ImageGeometry(convolution_), false, &image));
    TF_INTEROP_RETURN_IF_ERROR(
        AddTensor(kFilterTensor, type, FilterGeometry(convolution_), false, &filter));
    TF_INTEROP_RETURN_IF_ERROR(AddOutput(output_id, output_is_virtual, &output));

    const ConvolutionAttributes attributes = AttributesOf(convolution_.kind);
    BackendDescriptor operation(library_, attributes.descriptor, attributes.name);
    operation.SetDescriptor(attributes.convolution, convolution);
    operation.SetDescriptor(attributes.image, *image);
    operation.SetDescriptor(attributes.filter, *filter);
    operation.SetDescriptor(attributes.output, *output);
    SetScaling(attributes.alpha, 1, &operation);
    SetScaling(attributes.beta, 0, &operation);
    return AddOperation(std::move(convolution), std::move(operation));
  }

  // output = activation(convolved + bias), with what the convolution has of the two.
  Status AddEpilogue(bool convolved_is_virtual) {
    const bool has_activation = convolution_.activation != Activation::kNone;
    const BackendDescriptor *convolved, *biased, *output;
    TF_INTEROP_RETURN_IF_ERROR(AddOutput(kConvolvedTensor, convolved_is_virtual, &convolved));
    TF_INTEROP_RETURN_IF_ERROR(AddOutput(kOutputTensor, false, &output));
    if (!convolution_.has_bias) {
      biased = convolved;
    } else if (has_activation) {
      TF_INTEROP_RETURN_IF_ERROR(AddOutput(kBiasedTensor, true, &biased));
      TF_INTEROP_RETURN_IF_ERROR(AddBias(*convolved, *biased));
    } else {
      return AddBias(*convolved, *output);
    }
    BackendDescriptor activation;
    TF_INTEROP_RETURN_IF_ERROR(MakeActivation(library_, convolution_, &activation));
    return AddPointwise(std::move(activation), *biased, nullptr, *output);
  }

  Status Finish(cudnnHandle_t handle) {
    graph_->graph =
        BackendDescriptor(library_, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "operation graph");
    graph_->graph.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle);
    graph_->graph.SetDescriptors(CUDNN_ATTR_OPERATIONGRAPH_OPS, graph_->operations);
    return graph_->graph.Finalize();
  }

 private:
  // The tensor with this id, made by the first call.
  Status AddTensor(int64_t id, cudnnDataType_t type, const TensorGeometry& geometry,
                   bool is_virtual, const BackendDescriptor** tensor) {
    const auto [entry, is_new] = graph_->tensors.try_emplace(id);
    *tensor = &entry->second;
    if (!is_new) return Status::Ok();
    return MakeTensor(library_, id, type, geometry, is_virtual, &entry->second);
  }

  // Of the type that sums are computed in.
  void SetScaling(cudnnBackendAttributeName_t name, double value,
                  BackendDescriptor* operation) const {
    if (convolution_.dtype == DataType::kDouble) {
      operation->Set(name, value);
    } else {
      operation->Set(name, static_cast<float>(value));
    }
  }

  // A tensor of the output's shape: inside the graph of the type that sums are computed in, else of
  // the convolution's.
  Status AddOutput(int64_t id, bool is_virtual, const BackendDescriptor** tensor) {
    const DataType dtype = convolution_.dtype;
    const cudnnDataType_t type = is_virtual ? CudnnComputeType(dtype) : CudnnType(dtype);
    return AddTensor(id, type, tensors_.output, is_virtual, tensor);
  }

  Status AddBias(const BackendDescriptor& from, const BackendDescriptor& to) {
    BackendDescriptor addition;
    const BackendDescriptor* bias;
    TF_INTEROP_RETURN_IF_ERROR(MakeAddition(library_, convolution_, &addition));
    TF_INTEROP_RETURN_IF_ERROR(
        AddTensor(kBiasTensor, CudnnType(convolution_.dtype), tensors_.bias, false, &bias));
    return AddPointwise(std::move(addition), from, bias, to);
  }

  Status AddPointwise(BackendDescriptor pointwise, const BackendDescriptor& from,
                      const BackendDescriptor* second, const BackendDescriptor& to) {
    BackendDescriptor operation(library_, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                                "pointwise operation");
    operation.SetDescriptor(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise);
    operation.SetDescriptor(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, from);
    if (second != nullptr) {
      operation.SetDescriptor(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *second);
    }
    operation.SetDescriptor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to);
    return AddOperation(std::move(pointwise), std::move(operation));
  }

  Status AddOperation(BackendDescriptor applied, BackendDescriptor operation) {
    TF_INTEROP_RETURN_IF_ERROR(operation.Finalize());
    graph_->operators.push_back(std::move(applied));
    graph_->operations.push_back(std::move(operation));
    return Status::Ok();
  }

  const CudnnLibrary& library_;
  const Convolution& convolution_;
  const OutputTensors tensors_;
  OperationGraph* graph_;
};

}  // namespace

Status BuildConvolutionGraph(const CudnnLibrary& library, cudnnHandle_t handle,
                             const Convolution& convolution, OperationGraph* graph) {
  GraphBuilder builder(library, convolution,
                       {OutputGeometry(convolution), BiasGeometry(convolution)}, graph);
  const bool fused = HasEpilogue(convolution);
  TF_INTEROP_RETURN_IF_ERROR(
      builder.AddConvolution(fused ? kConvolvedTensor : kOutputTensor, fused));
  if (fused) TF_INTEROP_RETURN_IF_ERROR(builder.AddEpilogue(true));
  return builder.Finish(handle);
}

Status BuildEpilogueGraph(const CudnnLibrary& library, cudnnHandle_t handle,
                          const Convolution& convolution, OperationGraph* graph) {
  GraphBuilder builder(library, convolution, TensorsOfEpilogue(convolution), graph);
  TF_INTEROP_RETURN_IF_ERROR(builder.AddEpilogue(false));
  return builder.Finish(handle);
}

}  // namespace tf_interop
