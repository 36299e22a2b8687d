// Operation graphs in the stand-in for libcudnn: what descriptors of the real library were told,
// and computing what a graph says.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDNN_GRAPH_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDNN_GRAPH_H_

#include <cudnn.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

namespace tf_interop {

struct Recorded;
using RecordedPtr = std::shared_ptr<Recorded>;

// What a descriptor was told. Descriptors that it was given are shared, so that destroying them
// later changes nothing.
struct Recorded {
  cudnnBackendDescriptorType_t type;
  std::map<int, std::vector<char>> values;        // by attribute, but for descriptors
  std::map<int, std::vector<RecordedPtr>> parts;  // descriptors by attribute
  RecordedPtr graph;  // the operation graph that an engine, configuration or plan is for
  std::atomic<bool> in_use{false};

  explicit Recorded(cudnnBackendDescriptorType_t type) : type(type) {}

  template <typename T>
  std::vector<T> All(int name) const {
    const auto found = values.find(name);
    if (found == values.end()) return {};
    std::vector<T> all(found->second.size() / sizeof(T));
    std::memcpy(static_cast<void*>(all.data()), found->second.data(), all.size() * sizeof(T));
    return all;
  }

  template <typename T>
  T One(int name, T otherwise = T()) const {
    const std::vector<T> all = All<T>(name);
    return all.empty() ? otherwise : all[0];
  }

  const Recorded* Part(int name) const {
    const auto found = parts.find(name);
    return found == parts.end() ? nullptr : found->second[0].get();
  }
};

// Computes what an operation graph says, on the memory bound to its tensors by their ids.
void RunGraph(const Recorded& graph, const std::map<int64_t, void*>& bound);

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_GRAPH_H_
