// Operation graphs of cuDNN's backend API for convolutions.
#ifndef TF_INTEROP_CORE_CUDNN_CUDNN_GRAPH_H_
#define TF_INTEROP_CORE_CUDNN_CUDNN_GRAPH_H_

#include <cstdint>
#include <map>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/backend_descriptor.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// The tensors of a graph that have memory; the ids under which a variant pack binds them.
enum TensorId : int64_t {
  kImageTensor = 1,
  kFilterTensor = 2,
  kOutputTensor = 3,
  kBiasTensor = 4,
  kConvolvedTensor = 5,  // the convolution's result before bias and activation
};

// Every pointer bound to a tensor is a multiple of this. TensorFlow's allocator gives 64 or more.
constexpr int64_t kTensorAlignment = 16;

// A finalized operation graph, with the descriptors it was made of. Immutable.
struct OperationGraph {
  std::map<int64_t, BackendDescriptor> tensors;  // by id
  std::vector<BackendDescriptor> operators;      // what the operations apply
  std::vector<BackendDescriptor> operations;     // in order of execution
  BackendDescriptor graph;
};

// The convolution, with bias and activation fused where it has them. Reads and writes the tensors
// image, filter and output, which of them is the result being the convolution's kind, and bias.
// The layout of the filter is that of FilterGeometry. Sums and activations are computed in float,
// as what stays inside the graph is, or all in double where the tensors are double.
Status BuildConvolutionGraph(const CudnnLibrary& library, cudnnHandle_t handle,
                             const Convolution& convolution, OperationGraph* graph);

// Bias and activation of a forward convolution alone: output = activation(convolved + bias).
Status BuildEpilogueGraph(const CudnnLibrary& library, cudnnHandle_t handle,
                          const Convolution& convolution, OperationGraph* graph);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_CUDNN_GRAPH_H_
