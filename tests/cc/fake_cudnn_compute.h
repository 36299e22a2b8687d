// What the parts of the stand-in for libcudnn share: convolutions on strided tensors in host
// memory, and failing as cuDNN does.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDNN_COMPUTE_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDNN_COMPUTE_H_

#include <cudnn.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>
#include <vector>

#include "Eigen/Core"
#include "tests/cc/fake_cuda.h"

struct cudnnContext {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  std::atomic<bool> in_use{false};
};

namespace tf_interop {

// Of batch, channels, depth, height and width (K, C, depth, R, S for a filter).
using Five = std::array<int64_t, 5>;

// From four values, which lack the depth, or five.
template <typename Values>
Five WithDepth(const Values& values, int64_t depth) {
  const auto begin = std::begin(values), end = std::end(values);
  Five five = {begin[0], begin[1], depth, *std::prev(end, 2), *std::prev(end)};
  if (end - begin == 5) five[2] = begin[2];
  return five;
}

}  // namespace tf_interop

struct cudnnTensorStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int rank = 0;
  tf_interop::Five extents = {};
  tf_interop::Five strides = {};
};

namespace tf_interop {

// Sets this thread's last error text.
cudnnStatus_t FakeCudnnFail(cudnnStatus_t status, const std::string& why);

// BAD_PARAM where the handle's context is not current.
cudnnStatus_t FakeCudnnCheckHandle(const cudnnContext& handle);

// Counts a descriptor that is destroyed.
void FakeCudnnCountDestroyed();

// Whether nothing is enqueued, so that a benchmark times its caller's part.
bool FakeCudnnComputesNothing();

// Notices a second thread inside the same object.
class UseGuard {
 public:
  UseGuard(std::atomic<bool>* in_use, std::atomic<int>* races) : in_use_(in_use) {
    if (in_use_->exchange(true)) ++*races;
  }
  ~UseGuard() { in_use_->store(false); }

 private:
  std::atomic<bool>* in_use_;
};

inline int64_t At(const Five& strides, const Five& place) {
  int64_t at = 0;
  for (size_t i = 0; i < place.size(); ++i) at += place[i] * strides[i];
  return at;
}

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

inline size_t SizeOfType(cudnnDataType_t type) {
  return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2;
}

// What sums, and scaling factors, of tensors of this type are.
inline cudnnDataType_t ComputeTypeOf(cudnnDataType_t type) {
  return type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
}

// A scaling factor that a call was given beside tensors of this type.
inline double ReadScaling(cudnnDataType_t type, const void* factor) {
  if (type == CUDNN_DATA_DOUBLE) return *static_cast<const double*>(factor);
  return static_cast<double>(*static_cast<const float*>(factor));
}

// Calls visit(T*) with `data` as elements of a tensor of this type.
template <typename Visit>
auto WithElements(cudnnDataType_t type, void* data, const Visit& visit) {
  switch (type) {
    case CUDNN_DATA_FLOAT:
      return visit(static_cast<float*>(data));
    case CUDNN_DATA_HALF:
      return visit(static_cast<Eigen::half*>(data));
    case CUDNN_DATA_BFLOAT16:
      return visit(static_cast<Eigen::bfloat16*>(data));
    default:
      return visit(static_cast<double*>(data));
  }
}

inline double Load(cudnnDataType_t type, void* data, int64_t i) {
  return WithElements(type, data, [i](auto* all) { return static_cast<double>(all[i]); });
}

inline void Store(cudnnDataType_t type, void* data, int64_t i, double value) {
  WithElements(type, data, [=](auto* all) {
    all[i] = static_cast<std::remove_pointer_t<decltype(all)>>(value);
  });
}

struct StridedTensor {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  Five extents = {}, strides = {};
  void* data = nullptr;
};

// Of depth, height and width.
struct Spacing {
  std::array<int64_t, 3> strides = {1, 1, 1}, dilations = {1, 1, 1}, pads_before = {0, 0, 0};
};

// From two values, which lack the depth, or three.
template <typename Values>
std::array<int64_t, 3> WithSpatialDepth(const Values& values, int64_t depth) {
  const auto begin = std::begin(values), end = std::end(values);
  return {end - begin == 3 ? begin[0] : depth, *std::prev(end, 2), *std::prev(end)};
}

enum class Computed { kOutput, kImage, kFilter };

// Computes one of the three tensors from the other two, by the definition.
inline void ComputeConvolution(const StridedTensor& image, const StridedTensor& filter,
                               const StridedTensor& output, const Spacing& spacing,
                               Computed computed) {
  const int64_t group_channels = filter.extents[1];
  const int64_t group_filters = filter.extents[0] / (image.extents[1] / group_channels);
  const auto load = [](const StridedTensor& tensor, int64_t at) {
    return Load(tensor.type, tensor.data, at);
  };
  const StridedTensor& result = computed == Computed::kOutput  ? output
                                : computed == Computed::kImage ? image
                                                               : filter;
  Five last = result.extents;
  for (int64_t& place : last) --place;
  std::vector<double> sums(At(result.strides, last) + 1);
  const auto add = [&](int64_t x, int64_t w, int64_t y) {
    switch (computed) {
      case Computed::kOutput:
        sums[y] += load(image, x) * load(filter, w);
        break;
      case Computed::kImage:
        sums[x] += load(output, y) * load(filter, w);
        break;
      case Computed::kFilter:
        sums[w] += load(image, x) * load(output, y);
        break;
    }
  };
  // Of one filter: [1, channels, depth, R, S].
  Five taps = filter.extents;
  taps[0] = 1;
  ForEachPlace(output.extents, [&](const Five& y) {
    ForEachPlace(taps, [&](const Five& tap) {
      Five x = {y[0], y[1] / group_filters * group_channels + tap[1]};
      for (int i = 0; i < 3; ++i) {
        x[2 + i] = y[2 + i] * spacing.strides[i] + tap[2 + i] * spacing.dilations[i] -
                   spacing.pads_before[i];
        if (x[2 + i] < 0 || x[2 + i] >= image.extents[2 + i]) return;
      }
      Five w = tap;
      w[0] = y[1];
      add(At(image.strides, x), At(filter.strides, w), At(output.strides, y));
    });
  });
  ForEachPlace(result.extents, [&](const Five& place) {
    const int64_t at = At(result.strides, place);
    Store(result.type, result.data, at, sums[at]);
  });
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_COMPUTE_H_
