// A convolution by Winograd's way, whose matrix products are oneDNN's.
#ifndef TF_INTEROP_TF_WINOGRAD_CONVOLUTION_H_
#define TF_INTEROP_TF_WINOGRAD_CONVOLUTION_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "cc_kernels/tf/fused_ops.h"
#include "cc_kernels/tf/matrix_product.h"
#include "cc_kernels/tf/winograd.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

// Its name in profiles, in place of an op's.
inline constexpr char kWinogradConvolution[] = "TfInterop>WinogradConvolution";

// Whether Winograd's way may be faster.
bool MayGain(const WinogradShape& shape);
// Winograd's way must take less than this part of the other's time. What is left makes up for the
// filter's memory, and for times that another program disturbs.
inline constexpr double kMostWinogradTime = 0.9;

// Whether a result by Winograd's way is nearly oneDNN's, and finite.
bool AreNear(const tensorflow::Tensor& result, const tensorflow::Tensor& expected);

// For one shape and number of cores. Thread-safe.
class WinogradConvolution {
 public:
  // A transformed filter in the form that a primitive needs.
  struct Filter {
    std::shared_ptr<const void> owner;
    dnnl_memory_t memory = nullptr;
  };
  // Brings the planes of a filter from the first form into the second.
  using FindFilter =
      std::function<Filter(const_dnnl_memory_desc_t given, const_dnnl_memory_desc_t needed)>;

  // For one filter. Null if oneDNN has no such product.
  static std::unique_ptr<WinogradConvolution> Make(const WinogradShape& shape, int cores,
                                                   const FindFilter& find_filter);
  // For a filter that is transformed in each call; with `is_gradient` for that of a convolution,
  // whose gradient of the input this is.
  static std::unique_ptr<WinogradConvolution> MakeForAnyFilter(const WinogradShape& shape,
                                                               int cores, bool is_gradient);

  // Adds what is in `output` if a summand is fused. The device has the cores for which this is.
  // `filter` is read if it is not always the same.
  absl::Status Run(tensorflow::OpKernelContext* context, const FusedOps& fused, const float* image,
                   const float* filter, const float* bias, float* output) const;

 private:
  WinogradConvolution(const WinogradShape& shape, int cores);
  void MakeProduct(OneDnnPtr<dnnl_memory_desc> filter);
  // Allocates and writes the planes of a filter.
  absl::Status Transform(tensorflow::OpKernelContext* context, const float* filter,
                         tensorflow::Tensor* planes) const;
  int64_t image_floats() const { return kWinogradPlanes * image_plane_; }
  int64_t product_floats() const { return kWinogradPlanes * product_plane_; }
  int64_t part_floats() const {
    return image_floats() + product_floats() + product_->scratchpad_floats();
  }

  const WinogradShape shape_;
  const int cores_;
  bool is_gradient_ = false;
  int parts_ = 1;              // of the tiles, one for each core; or one, for all cores
  int64_t product_tiles_ = 0;  // of one product
  int64_t image_plane_ = 0;    // sizes of planes
  int64_t product_plane_ = 0;
  std::unique_ptr<MatrixProduct> product_;
  Filter filter_;  // if it is always the same
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_WINOGRAD_CONVOLUTION_H_
