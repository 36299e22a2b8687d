#include "tests/cc/fake_cudnn_graph.h"

#include <algorithm>

#include "tests/cc/fake_cudnn.h"
#include "tests/cc/fake_cudnn_engine.h"

namespace tf_interop::fake_cudnn {
namespace {

// Sums of double are double, all others float; scaling factors have the type of the sums.
cudnnStatus_t CheckTypes(const Node& operation, const ConvolutionNames& names,
                         cudnnDataType_t image, cudnnDataType_t filter) {
  const Node& convolution = *operation.Sub(names.applied);
  const cudnnDataType_t type = ComputeTypeOf(image);
  if (convolution.One<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) != type ||
      ComputeTypeOf(filter) != type) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "types of operands and sums");
  }
  const auto scaling = type == CUDNN_DATA_DOUBLE ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
  for (const auto& [name, attribute] : operation.attributes) {
    const bool is_number =
        attribute.type == CUDNN_TYPE_FLOAT || attribute.type == CUDNN_TYPE_DOUBLE;
    if (is_number && attribute.type != scaling) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "type of a scaling factor");
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

bool NamesOf(cudnnBackendDescriptorType_t type, ConvolutionNames* names) {
  switch (type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      *names = {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
      return true;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      *names = {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
      return true;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      *names = {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
      return true;
    default:
      return false;
  }
}

std::map<int64_t, Tensor> TensorsOf(const Node& graph) {
  std::map<int64_t, Tensor> tensors;
  for (const NodePtr& operation : graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes) {
    for (const auto& [name, attribute] : operation->attributes) {
      for (const NodePtr& node : attribute.nodes) {
        if (node->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
          const Tensor tensor(*node);
          tensors.emplace(tensor.id, tensor);
        }
      }
    }
  }
  return tensors;
}

cudnnStatus_t FinalizeTensor(const Node& node) {
  const auto extents = node.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto strides = node.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  if ((extents.size() != 4 && extents.size() != 5) || strides.size() != extents.size()) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "tensor without four or five dimensions");
  }
  for (size_t i = 0; i < extents.size(); ++i) {
    if (extents[i] <= 0 || strides[i] <= 0) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "extent or stride that is not positive");
    }
  }
  const auto type = node.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  if (node.One<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) % SizeOfType(type) != 0) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "alignment that the type does not divide");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeConvolution(const Node& node) {
  const Spatial spatial(node);
  const auto dims = static_cast<size_t>(node.One<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS));
  if ((dims != 2 && dims != 3) || spatial.strides.size() != dims ||
      spatial.dilations.size() != dims || spatial.before.size() != dims ||
      spatial.after.size() != dims) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "counts differ from the spatial dimensions");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeConvolutionOperation(const Node& node, const ConvolutionNames& names) {
  const Tensor image(*node.Sub(names.image));
  const Tensor filter(*node.Sub(names.filter));
  const Tensor output(*node.Sub(names.output));
  const Spatial spatial(*node.Sub(names.applied));
  for (const Tensor* tensor : {&image, &filter, &output}) {
    if (tensor->rank != spatial.strides.size() + 2) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "rank differs from the spatial dimensions");
    }
  }
  const cudnnStatus_t scaled = CheckTypes(node, names, image.type, filter.type);
  if (scaled != CUDNN_STATUS_SUCCESS) return scaled;
  const bool channels_fit = image.extents[1] % filter.extents[1] == 0 &&
                            filter.extents[0] % (image.extents[1] / filter.extents[1]) == 0 &&
                            output.extents[1] == filter.extents[0] &&
                            output.extents[0] == image.extents[0];
  if (!channels_fit)
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "channels do not fit");
  const Spacing spacing = spatial.ToSpacing();
  const auto pads_after = WithSpatialDepth(spatial.after, 0);
  for (int i = 0; i < 3; ++i) {
    const int64_t reach = (filter.extents[2 + i] - 1) * spacing.dilations[i] + 1;
    const int64_t padded = image.extents[2 + i] + spacing.pads_before[i] + pads_after[i];
    const int64_t fitting = (padded - reach) / spacing.strides[i] + 1;
    if (output.extents[2 + i] != fitting) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "output size does not follow");
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizePointwiseOperation(const Node& node) {
  const auto mode = node.Sub(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
                        ->One<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
  const bool wants_second = mode == CUDNN_POINTWISE_ADD;
  if (wants_second != (node.Sub(CUDNN_ATTR_OPERATION_POINTWISE_BDESC) != nullptr)) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "wrong number of operands");
  }
  const Tensor from(*node.Sub(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
  const Tensor to(*node.Sub(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
  if (from.extents != to.extents || from.rank != to.rank) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "operands differ in shape");
  }
  const auto precision = node.Sub(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
                             ->One<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC);
  if (precision != ComputeTypeOf(to.type)) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
                         "precision of a pointwise operation");
  }
  return CUDNN_STATUS_SUCCESS;
}

const NodePtr* ConvolutionOf(const Node& graph) {
  for (const NodePtr& operation : graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes) {
    ConvolutionNames names = {};
    if (NamesOf(operation->type, &names)) return &operation;
  }
  return nullptr;
}

cudnnStatus_t FinalizeGraph(Node* graph) {
  const Node& node = *graph;
  const auto& operations = node.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes;
  const bool convolves = ConvolutionOf(node) != nullptr;
  if (FakeCudnn().no_fused_convolution && convolves && operations.size() > 1) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no fused convolutions");
  }
  if (FakeCudnn().no_pointwise_graph && !convolves) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no pointwise graphs");
  }
  const std::map<int64_t, Tensor> tensors = TensorsOf(node);
  const bool is_double = std::any_of(tensors.begin(), tensors.end(), [](const auto& entry) {
    return entry.second.type == CUDNN_DATA_DOUBLE;
  });
  for (const auto& [id, tensor] : tensors) {
    const auto inside = is_double ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    if (tensor.is_virtual && tensor.type != inside) {
      return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "rounding inside the graph");
    }
  }
  for (size_t i = 0; i + 1 < operations.size(); ++i) {
    bool hands_on = false;
    for (const auto& [name, attribute] : operations[i]->attributes) {
      for (const NodePtr& part : attribute.nodes) {
        hands_on |= part->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && Tensor(*part).is_virtual;
      }
    }
    if (!hands_on)
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "operations that are not connected");
  }
  graph->Put(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, CUDNN_TYPE_INT64, kEngineCount);
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace tf_interop::fake_cudnn
