// What the parts of the stand-in for libcudnn share: the real library, failing as it does, what
// descriptors were told, and convolutions on strided tensors.
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
#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn.h"

struct cudnnContext {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  std::atomic<bool> in_use{false};
};

namespace tf_interop {

// The function of this name in the real library.
void* FindReal(const char* name);

// Calls the real function.
#define TF_INTEROP_REAL(name, ...)                                                 \
  [&] {                                                                            \
    static const auto real = reinterpret_cast<decltype(&::name)>(FindReal(#name)); \
    return real(__VA_ARGS__);                                                      \
  }()

// An entry point that is the real one.
#define TF_INTEROP_FORWARD(name, parameters, ...) \
  cudnnStatus_t CUDNNWINAPI name parameters { return TF_INTEROP_REAL(name, __VA_ARGS__); }

// Sets this thread's last error text.
cudnnStatus_t FakeCudnnFail(cudnnStatus_t status, const std::string& why);

// BAD_PARAM where the handle's context is not current.
cudnnStatus_t FakeCudnnCheckHandle(const cudnnContext& handle);

// Notices a second thread inside the same object.
class UseGuard {
 public:
  explicit UseGuard(std::atomic<bool>* in_use) : in_use_(in_use) {
    if (in_use_->exchange(true)) ++FakeCudnnCounts().races;
  }
  ~UseGuard() { in_use_->store(false); }

 private:
  std::atomic<bool>* in_use_;
};

// Of batch, channels, depth, height and width (K, C, depth, R, S for a filter).
using Five = std::array<int64_t, 5>;

// From batch, channels and one to three spatial values, the last ones.
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
  // From the first element to the last.
  int64_t Span() const;
};

DataType DataTypeOf(cudnnDataType_t type);

TensorForm ReadForm(cudnnTensorDescriptor_t descriptor, int* rank);

// Whether the factors beside tensors of this type, double beside double and float beside all
// others, are one and zero.
bool IsUnscaled(DataType dtype, const void* alpha, const void* beta);

// A tensor's elements as doubles, in the order of memory.
struct TensorValues {
  TensorForm form;
  void* data;  // null for a tensor in between, which has no memory
  std::vector<double> values;

  double& operator[](const Five& place) { return values[form.At(place)]; }
};

TensorValues ReadTensor(const TensorForm& form, const void* data);
// Rounds the values, in the tensor's memory if it has any.
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

// Of depth, height and width.
struct Spacing {
  std::array<int64_t, 3> strides = {1, 1, 1}, dilations = {1, 1, 1}, pads_before = {0, 0, 0};
};

// From two values, which lack the depth, or three.
template <typename Values>
std::array<int64_t, 3> WithDepth(const Values& values, int64_t depth) {
  const auto begin = std::begin(values), end = std::end(values);
  return {end - begin == 3 ? begin[0] : depth, *std::prev(end, 2), *std::prev(end)};
}

// Computes the tensor that `kind` says from the other two, by the definition, and writes it.
void ComputeConvolution(TensorValues* image, TensorValues* filter, TensorValues* output,
                        const Spacing& spacing, ConvolutionKind kind);

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

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_COMPUTE_H_
