// Convolutions of NHWC tensors with HWIO filters (NDHWC and DHWIO for volumes) in float or double:
// what the host algorithms work on.
#ifndef TF_INTEROP_CORE_HOST_NHWC_CONVOLUTION_H_
#define TF_INTEROP_CORE_HOST_NHWC_CONVOLUTION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/host/parallel_for.h"

namespace tf_interop {

// All three tensors of a convolution; the one that its kind computes is written, the others are
// read. `bias` is null where there is none. T is float or double, here and below.
template <typename T>
struct NhwcTensors {
  T* image = nullptr;
  T* filter = nullptr;
  T* output = nullptr;
  const T* bias = nullptr;
};

// IM2COL_GEMM. `scratch` holds Im2colGemmScratchElements(c) elements.
size_t Im2colGemmScratchElements(const Convolution& c);
template <typename T>
void RunIm2colGemm(const Convolution& c, const NhwcTensors<T>& tensors, T* scratch,
                   const ParallelFor& parallel_for);

// DIRECT.
template <typename T>
void RunDirect(const Convolution& c, const NhwcTensors<T>& tensors,
               const ParallelFor& parallel_for);

// EIGEN_SPATIAL, for forward convolutions of flat images without groups.
bool CanRunEigenSpatial(const Convolution& c);
template <typename T>
void RunEigenSpatial(const Convolution& c, const NhwcTensors<T>& tensors,
                     const ParallelFor& parallel_for);

// A tap of the filter, by its place in each spatial dimension.
struct Tap {
  int64_t depth, row, column;
};

inline Tap TapAt(const Convolution& c, int64_t index) {
  return {index / (c.filter_height * c.filter_width), index / c.filter_width % c.filter_height,
          index % c.filter_width};
}

// Calls visit(tap, index) for every tap, in order.
template <typename Visit>
void ForEachTap(const Convolution& c, const Visit& visit) {
  int64_t index = 0;
  for (int64_t depth = 0; depth < c.filter_depth; ++depth) {
    for (int64_t row = 0; row < c.filter_height; ++row) {
      for (int64_t column = 0; column < c.filter_width; ++column) {
        visit(Tap{depth, row, column}, index++);
      }
    }
  }
}

// The image position that tap `tap` of a filter reads for output position `output`; may lie in
// the padding, outside [0, image size).
inline int64_t ImagePosition(int64_t output, int64_t tap, int64_t stride, int64_t dilation,
                             int64_t pad_before) {
  return output * stride + tap * dilation - pad_before;
}

// Spreads `items` over at most kWorkers workers, each of which has a number of its own (for
// scratch memory). Which worker takes which item does not depend on the number of threads.
constexpr int kWorkers = 8;

template <typename Work>  // void(int worker, int64_t item)
void ForEachItem(int64_t items, const ParallelFor& parallel_for, const Work& work) {
  const int workers = static_cast<int>(std::min<int64_t>(items, kWorkers));
  parallel_for(workers, [&](int worker) {
    for (int64_t item = worker; item < items; item += workers) work(worker, item);
  });
}

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_HOST_NHWC_CONVOLUTION_H_
