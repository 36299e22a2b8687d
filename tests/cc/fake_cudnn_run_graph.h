// Computes what operation graphs of the stand-in for libcudnn say.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDNN_RUN_GRAPH_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDNN_RUN_GRAPH_H_

#include <cudnn.h>

#include <cstdint>
#include <map>
#include <vector>

#include "tests/cc/fake_cudnn_graph.h"

namespace tf_interop::fake_cudnn {

// The memory of a graph's tensors while it is computed.
class Memory {
 public:
  void Bind(int64_t id, void* data) { data_[id] = data; }

  void* Of(const Tensor& tensor) {
    if (!tensor.is_virtual) return data_.at(tensor.id);
    // All bits set: a NaN in every type.
    std::vector<unsigned char>& bytes = virtual_[tensor.id];
    bytes.resize(tensor.Elements() * SizeOfType(tensor.type), 0xFF);
    return bytes.data();
  }

 private:
  std::map<int64_t, void*> data_;
  std::map<int64_t, std::vector<unsigned char>> virtual_;
};

void RunGraph(const Node& graph, Memory* memory);

}  // namespace tf_interop::fake_cudnn

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_RUN_GRAPH_H_
