// The host part of the stand-in for libcudnn: computes convolutions on strided tensors, and the
// operation graphs that cuDNN has accepted.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDNN_COMPUTE_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDNN_COMPUTE_H_

#include <cudnn.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/convolution.h"

namespace tf_interop {

// The order is batch, channels, depth, height, width (K, C, depth, R, S for a filter).
using Five = std::array<int64_t, 5>;

// Fills in missing spatial values; those that are there are the last.
template <typename Values>
Five ToFive(const Values& values, int64_t missing) {
  Five five = {values[0], values[1], missing, missing, missing};
  for (size_t i = 2; i < values.size(); ++i) five[5 - values.size() + i] = values[i];
  return five;
}

struct TensorForm {
  DataType dtype = DataType::kFloat;
  Five extents = {}, strides = {};

  int64_t At(const Five& place) const;
  // The distance from the first element to the last, counting both.
  int64_t Span() const;
};

DataType DataTypeOf(cudnnDataType_t type);

// A tensor's elements as doubles, in the order of memory.
struct TensorValues {
  TensorForm form;
  void* data;  // null for a virtual tensor, which has no memory
  std::vector<double> values;

  double& operator[](const Five& place) { return values[form.At(place)]; }
};

TensorValues ReadTensor(const TensorForm& form, const void* data);
// Rounds the values, and writes them to the tensor's memory if it has any.
void WriteTensor(TensorValues* tensor);

// Calls visit(place) for every element of a tensor, in order.
template <typename Visit>
void ForEachPlace(const Five& extents, const Visit& visit) {
  int64_t count = 1;
  for (const int64_t extent : extents) count *= extent;
  for (int64_t index = 0; index < count; ++index) {
    Five place = {};
    int64_t rest = index;
    for (size_t i = place.size(); i-- > 0;) {
      place[i] = rest % extents[i];
      rest /= extents[i];
    }
    visit(place);
  }
}

// The order is depth, height, width.
struct Spacing {
  std::array<int64_t, 3> strides = {1, 1, 1}, dilations = {1, 1, 1}, pads_before = {0, 0, 0};
};

// Adds the depth if there are only two values.
template <typename Values>
std::array<int64_t, 3> WithDepth(const Values& values, int64_t depth) {
  const auto begin = std::begin(values), end = std::end(values);
  return {end - begin == 3 ? begin[0] : depth, *std::prev(end, 2), *std::prev(end)};
}

// Computes the result of this kind from the other two tensors, by the definition, and writes it.
void ComputeConvolution(TensorValues* image, TensorValues* filter, TensorValues* output,
                        const Spacing& spacing, ConvolutionKind kind);

struct Recorded;
using RecordedPtr = std::shared_ptr<Recorded>;

// A descriptor's attributes. Descriptors among them are shared, so destroying one later changes
// nothing.
struct Recorded {
  cudnnBackendDescriptorType_t type;
  std::map<int, std::vector<char>> values;        // by attribute, without descriptors
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

// Computes an operation graph on the memory that is bound to its tensors by their ids.
void RunGraph(const Recorded& graph, const std::map<int64_t, void*>& bound);

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_COMPUTE_H_
