// Descriptors of the stand-in for libcudnn's graph API, and the operation graphs made of them.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDNN_GRAPH_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDNN_GRAPH_H_

#include <cudnn.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/cc/fake_cudnn_compute.h"

namespace tf_interop::fake_cudnn {

struct Node;
using NodePtr = std::shared_ptr<Node>;

struct Attribute {
  cudnnBackendAttributeType_t type = CUDNN_TYPE_INT64;
  std::vector<char> bytes;
  std::vector<NodePtr> nodes;
};

// What a descriptor holds. Setting a descriptor as an attribute shares what it held when it was
// finalized, so that destroying it later changes nothing.
struct Node {
  cudnnBackendDescriptorType_t type;
  bool is_final = false;
  std::map<int, Attribute> attributes;
  mutable std::atomic<bool> in_use{false};

  explicit Node(cudnnBackendDescriptorType_t type) : type(type) {}

  bool Has(int name) const { return attributes.count(name) != 0; }

  template <typename T>
  std::vector<T> All(int name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<T> values(found->second.bytes.size() / sizeof(T));
    std::memcpy(static_cast<void*>(values.data()), found->second.bytes.data(),
                found->second.bytes.size());
    return values;
  }

  template <typename T>
  T One(int name, T otherwise = T()) const {
    const auto found = attributes.find(name);
    if (found == attributes.end() || found->second.bytes.size() < sizeof(T)) return otherwise;
    T value;
    std::memcpy(static_cast<void*>(&value), found->second.bytes.data(), sizeof(T));
    return value;
  }

  NodePtr Sub(int name) const {
    const auto found = attributes.find(name);
    return found == attributes.end() || found->second.nodes.empty() ? nullptr
                                                                    : found->second.nodes[0];
  }

  template <typename T>
  void Put(int name, cudnnBackendAttributeType_t type, const T& value) {
    Attribute attribute;
    attribute.type = type;
    attribute.bytes.resize(sizeof(T));
    std::memcpy(attribute.bytes.data(), &value, sizeof(T));
    attributes[name] = std::move(attribute);
  }

  void PutNodes(int name, std::vector<NodePtr> nodes) {
    Attribute attribute;
    attribute.type = CUDNN_TYPE_BACKEND_DESCRIPTOR;
    attribute.nodes = std::move(nodes);
    attributes[name] = std::move(attribute);
  }
};

struct Descriptor {
  NodePtr node;
};

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

// The attributes of a convolution operation, and which of its tensors it computes.
struct ConvolutionNames {
  cudnnBackendDescriptorType_t type;
  int applied, image, filter, output, alpha, beta;
  Computed computed;
};

// Null where the type is not that of a convolution.
const ConvolutionNames* NamesOf(cudnnBackendDescriptorType_t type);

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

// Computes what an operation graph says.
void RunGraph(const Node& graph, Memory* memory);

// Of every graph; fake_cudnn.h says which there are.
constexpr int64_t kEngineCount = 6;

// What cuDNN checks of what concerns engines when it is finalized.
cudnnStatus_t FinalizeEngine(Node* node);
cudnnStatus_t FinalizeHeuristic(Node* node);
cudnnStatus_t FinalizeConfig(const Node& node);
cudnnStatus_t FinalizePlan(Node* node);

}  // namespace tf_interop::fake_cudnn

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_GRAPH_H_
