// Operation graphs of the stand-in for libcudnn, and the descriptors that they are made of.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDNN_GRAPH_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDNN_GRAPH_H_

#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <vector>

#include "tests/cc/fake_cudnn_compute.h"
#include "tests/cc/fake_cudnn_descriptor.h"

namespace tf_interop::fake_cudnn {

struct Tensor {
  int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  size_t rank = 0;
  Five extents = {}, strides = {};
  bool is_virtual = false;
  int64_t alignment = 1;

  explicit Tensor(const Node& node)
      : id(node.One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
        type(node.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
        is_virtual(node.One<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL)),
        alignment(node.One<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)) {
    const auto dimensions = node.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    const auto steps = node.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    rank = dimensions.size();
    extents = WithDepth(dimensions, 1);
    strides = WithDepth(steps, 1);
  }

  int64_t Elements() const {
    return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
  }
};

struct ConvolutionNames {
  int applied, image, filter, output;
};

// False where the type is not that of a convolution.
bool NamesOf(cudnnBackendDescriptorType_t type, ConvolutionNames* names);

struct Spatial {
  std::vector<int64_t> strides, dilations, before, after;

  explicit Spatial(const Node& convolution)
      : strides(convolution.All<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES)),
        dilations(convolution.All<int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS)),
        before(convolution.All<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS)),
        after(convolution.All<int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS)) {}

  Spacing ToSpacing() const {
    return {WithSpatialDepth(strides, 1), WithSpatialDepth(dilations, 1),
            WithSpatialDepth(before, 0)};
  }
};

// The tensors of a graph, by id.
std::map<int64_t, Tensor> TensorsOf(const Node& graph);

// Null where it has none.
const NodePtr* ConvolutionOf(const Node& graph);

// What cuDNN checks of each kind of descriptor when it is finalized.
cudnnStatus_t FinalizeTensor(const Node& node);
cudnnStatus_t FinalizeConvolution(const Node& node);
cudnnStatus_t FinalizeConvolutionOperation(const Node& node, const ConvolutionNames& names);
cudnnStatus_t FinalizePointwiseOperation(const Node& node);
cudnnStatus_t FinalizeGraph(Node* graph);

}  // namespace tf_interop::fake_cudnn

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_GRAPH_H_
