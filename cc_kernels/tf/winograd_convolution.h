// A convolution by Winograd's way, whose matrix products are oneDNN's.
#ifndef TF_INTEROP_TF_WINOGRAD_CONVOLUTION_H_
#define TF_INTEROP_TF_WINOGRAD_CONVOLUTION_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "cc_kernels/tf/fused_ops.h"
#include "cc_kernels/tf/onednn.h"
#include "cc_kernels/tf/winograd.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

// Its name in profiles, in place of an op's.
inline constexpr char kWinogradConvolution[] = "TfInterop>WinogradConvolution";

// For one shape, filter and number of cores. Thread-safe.
class WinogradConvolution {
 public:
  // A transformed filter in the form that a primitive needs.
  struct Filter {
    std::shared_ptr<const void> owner;
    dnnl_memory_t memory = nullptr;
  };
  // Brings the planes of the filter from the first form into the second.
  using FindFilter =
      std::function<Filter(const_dnnl_memory_desc_t given, const_dnnl_memory_desc_t needed)>;

  // Null if oneDNN has no such product.
  static std::unique_ptr<WinogradConvolution> Make(const WinogradShape& shape, int cores,
                                                   const FindFilter& find_filter);

  // Adds what is in `output` if a summand is fused. The device has the cores for which this is.
  absl::Status Run(tensorflow::OpKernelContext* context, const FusedOps& fused, const float* image,
                   const float* bias, float* output) const;

 private:
  explicit WinogradConvolution(const WinogradShape& shape) : shape_(shape) {}
  bool MakeProduct(int cores, const FindFilter& find_filter);
  int64_t image_floats() const { return kWinogradPlanes * image_plane_; }
  int64_t product_floats() const { return kWinogradPlanes * product_plane_; }
  int64_t part_floats() const { return image_floats() + product_floats() + scratchpad_floats_; }

  const WinogradShape shape_;
  int parts_ = 1;              // of the tiles, one for each core; or one, for all cores
  int64_t product_tiles_ = 0;  // of one product
  int64_t image_plane_ = 0;    // sizes of planes
  int64_t product_plane_ = 0;
  int64_t scratchpad_floats_ = 0;
  OneDnnPtr<dnnl_memory_desc> image_, product_;
  OneDnnPtr<dnnl_primitive_desc> desc_;
  OneDnnPtr<dnnl_primitive> primitive_;
  const_dnnl_memory_desc_t scratchpad_ = nullptr;  // of `desc_`
  Filter filter_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_WINOGRAD_CONVOLUTION_H_
