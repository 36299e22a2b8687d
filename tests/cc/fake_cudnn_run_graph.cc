#include "tests/cc/fake_cudnn_run_graph.h"

#include <cmath>
#include <limits>

#include "tests/cc/fake_cudnn_compute.h"

namespace tf_interop::fake_cudnn {
namespace {

Computed ComputedBy(cudnnBackendDescriptorType_t operation) {
  switch (operation) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      return Computed::kOutput;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      return Computed::kImage;
    default:
      return Computed::kFilter;
  }
}

void RunConvolution(const Node& operation, Memory* memory) {
  ConvolutionNames names = {};
  NamesOf(operation.type, &names);
  const auto strided = [&](int name) {
    const Tensor tensor(*operation.Sub(name));
    return StridedTensor{tensor.type, tensor.extents, tensor.strides, memory->Of(tensor)};
  };
  const Spatial spatial(*operation.Sub(names.applied));
  ComputeConvolution(strided(names.image), strided(names.filter), strided(names.output),
                     spatial.ToSpacing(), ComputedBy(operation.type));
}

double Scalar(const Node& node, int name, double otherwise) {
  const auto found = node.attributes.find(name);
  if (found == node.attributes.end()) return otherwise;
  return found->second.type == CUDNN_TYPE_FLOAT ? node.One<float>(name) : node.One<double>(name);
}

double Activate(const Node& pointwise, double x) {
  if (pointwise.One<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE) == CUDNN_POINTWISE_ELU_FWD) {
    return x < 0 ? Scalar(pointwise, CUDNN_ATTR_POINTWISE_ELU_ALPHA, 1.0) * std::expm1(x) : x;
  }
  const double lower = Scalar(pointwise, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, 0.0);
  const double upper =
      Scalar(pointwise, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, std::numeric_limits<double>::max());
  const double slope = Scalar(pointwise, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, 0.0);
  if (x > upper) return upper;
  return x < lower ? lower + slope * (x - lower) : x;
}

void RunPointwise(const Node& operation, Memory* memory) {
  const Node& pointwise = *operation.Sub(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  const Tensor from(*operation.Sub(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
  const Tensor to(*operation.Sub(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
  const NodePtr second_node = operation.Sub(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
  void* const x = memory->Of(from);
  void* const y = memory->Of(to);
  ForEachPlace(to.extents, [&](const Five& place) {
    double value = Load(from.type, x, At(from.strides, place));
    if (second_node) {
      const Tensor second(*second_node);
      Five broadcast = place;
      for (size_t i = 0; i < place.size(); ++i) {
        if (second.extents[i] == 1) broadcast[i] = 0;
      }
      value += Load(second.type, memory->Of(second), At(second.strides, broadcast));
    } else {
      value = Activate(pointwise, value);
    }
    Store(to.type, y, At(to.strides, place), value);
  });
}

}  // namespace

void RunGraph(const Node& graph, Memory* memory) {
  for (const NodePtr& operation : graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes) {
    if (operation->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
      RunPointwise(*operation, memory);
    } else {
      RunConvolution(*operation, memory);
    }
  }
}

}  // namespace tf_interop::fake_cudnn
