// What the parts of the stand-in for libcudnn share: convolutions on strided tensors in host
// memory, and failing as cuDNN does.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDNN_COMPUTE_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDNN_COMPUTE_H_

#include <cudnn.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "tests/cc/bfloat16_bits.h"
#include "tests/cc/fake_cuda.h"
#include "tests/cc/half_bits.h"

struct cudnnContext {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  std::atomic<bool> in_use{false};
};

struct cudnnTensorStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::array<int, 4> extents = {0, 0, 0, 0};
  std::array<int, 4> strides = {0, 0, 0, 0};
};

namespace tf_interop {

// Sets this thread's last error text.
cudnnStatus_t FakeCudnnFail(cudnnStatus_t status, const std::string& why);

// BAD_PARAM where the handle's context is not current.
cudnnStatus_t FakeCudnnCheckHandle(const cudnnContext& handle);

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

using Four = std::array<int64_t, 4>;

inline int64_t At(const Four& strides, int64_t a, int64_t b, int64_t c, int64_t d) {
  return a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3];
}

inline double Load(cudnnDataType_t type, const void* data, int64_t i) {
  if (type == CUDNN_DATA_FLOAT) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return type == CUDNN_DATA_HALF ? HalfBitsToDouble(bits) : BFloat16BitsToDouble(bits);
}

inline void Store(cudnnDataType_t type, void* data, int64_t i, double value) {
  if (type == CUDNN_DATA_FLOAT) {
    static_cast<float*>(data)[i] = static_cast<float>(value);
  } else {
    static_cast<uint16_t*>(data)[i] =
        type == CUDNN_DATA_HALF ? DoubleToHalfBits(value) : DoubleToBFloat16Bits(value);
  }
}

// Extents in the order N, C, H, W (K, C, R, S for a filter).
struct StridedTensor {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  Four extents = {}, strides = {};
  void* data = nullptr;
};

struct Spacing {
  int64_t strides[2], dilations[2], pads_before[2];
};

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
  std::map<int64_t, double> sums;
  for (int64_t n = 0; n < output.extents[0]; ++n) {
    for (int64_t k = 0; k < output.extents[1]; ++k) {
      for (int64_t p = 0; p < output.extents[2]; ++p) {
        for (int64_t q = 0; q < output.extents[3]; ++q) {
          const int64_t y = At(output.strides, n, k, p, q);
          for (int64_t c = 0; c < group_channels; ++c) {
            for (int64_t r = 0; r < filter.extents[2]; ++r) {
              for (int64_t s = 0; s < filter.extents[3]; ++s) {
                const int64_t h =
                    p * spacing.strides[0] + r * spacing.dilations[0] - spacing.pads_before[0];
                const int64_t v =
                    q * spacing.strides[1] + s * spacing.dilations[1] - spacing.pads_before[1];
                if (h < 0 || h >= image.extents[2] || v < 0 || v >= image.extents[3]) continue;
                const int64_t x =
                    At(image.strides, n, k / group_filters * group_channels + c, h, v);
                const int64_t w = At(filter.strides, k, c, r, s);
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
              }
            }
          }
        }
      }
    }
  }
  const StridedTensor& result = computed == Computed::kOutput  ? output
                                : computed == Computed::kImage ? image
                                                               : filter;
  for (int64_t a = 0; a < result.extents[0]; ++a) {
    for (int64_t b = 0; b < result.extents[1]; ++b) {
      for (int64_t c = 0; c < result.extents[2]; ++c) {
        for (int64_t d = 0; d < result.extents[3]; ++d) {
          const int64_t at = At(result.strides, a, b, c, d);
          Store(result.type, result.data, at, sums[at]);
        }
      }
    }
  }
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_COMPUTE_H_
