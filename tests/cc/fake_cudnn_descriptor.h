// What descriptors of the stand-in for libcudnn hold.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDNN_DESCRIPTOR_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDNN_DESCRIPTOR_H_

#include <cudnn.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

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

}  // namespace tf_interop::fake_cudnn

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_DESCRIPTOR_H_
