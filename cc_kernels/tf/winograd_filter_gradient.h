// The gradient of a convolution's filter by Winograd's way, whose matrix products are oneDNN's.
//
// The gradients of the results are transformed as the results of a convolution are, but the other
// way round, and the products are summed over the tiles. So in each plane a matrix of all pixels is
// multiplied with one of all gradients.
#ifndef TF_INTEROP_TF_WINOGRAD_FILTER_GRADIENT_H_
#define TF_INTEROP_TF_WINOGRAD_FILTER_GRADIENT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "cc_kernels/tf/matrix_product.h"
#include "cc_kernels/tf/winograd.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

// For one shape of the convolution and number of cores. Thread-safe.
class WinogradFilterGradient {
 public:
  // Null if oneDNN has no such product.
  static std::unique_ptr<WinogradFilterGradient> Make(const WinogradShape& shape, int cores);

  // `gradient` is that of the convolution's results. The device has the cores for which this is.
  absl::Status Run(tensorflow::OpKernelContext* context, const float* image, const float* gradient,
                   float* filter) const;

 private:
  WinogradFilterGradient(const WinogradShape& shape, int cores);
  std::unique_ptr<MatrixProduct> MakeProduct(int cores, bool adds) const;

  const WinogradShape shape_;
  int64_t product_tiles_ = 0;  // of one product
  int64_t image_plane_ = 0;    // sizes of planes
  int64_t gradient_plane_ = 0;
  int64_t sum_plane_ = 0;
  // The first product is written over the sums, and the others are added to them.
  std::unique_ptr<MatrixProduct> first_;
  std::unique_ptr<MatrixProduct> next_;  // null if there is one product
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_WINOGRAD_FILTER_GRADIENT_H_
