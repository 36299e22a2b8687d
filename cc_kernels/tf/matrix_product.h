// A product of matrices by oneDNN, or of several pairs of them at once.
#ifndef TF_INTEROP_TF_MATRIX_PRODUCT_H_
#define TF_INTEROP_TF_MATRIX_PRODUCT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "cc_kernels/tf/onednn.h"
#include "cc_kernels/tf/onednn_calls.h"

namespace tf_interop {

// For one shape and number of cores. Immutable.
class MatrixProduct {
 public:
  // oneDNN chooses the form of a right matrix that says dnnl_format_tag_any. With `adds`, the
  // product is added to what is in the result. Null if oneDNN has no such product.
  static std::unique_ptr<MatrixProduct> Make(OneDnnPtr<dnnl_memory_desc> left,
                                             OneDnnPtr<dnnl_memory_desc> right,
                                             OneDnnPtr<dnnl_memory_desc> result, int cores,
                                             bool adds = false);

  // The form of the right matrix.
  const_dnnl_memory_desc_t right() const { return right_; }
  // What `scratchpad` must have, a multiple of 16.
  int64_t scratchpad_floats() const { return scratchpad_floats_; }

  // The threads of the stream must be as many as the cores.
  absl::Status Run(dnnl_stream_t stream, const float* left, dnnl_memory_t right, float* result,
                   float* scratchpad) const;
  absl::Status Run(dnnl_stream_t stream, const float* left, const float* right, float* result,
                   float* scratchpad) const;

 private:
  OneDnnPtr<dnnl_memory_desc> left_, result_;
  OneDnnPtr<dnnl_primitive_desc> desc_;
  OneDnnPtr<dnnl_primitive> primitive_;
  const_dnnl_memory_desc_t right_ = nullptr, scratchpad_ = nullptr;  // of `desc_`
  int64_t scratchpad_floats_ = 0;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_MATRIX_PRODUCT_H_
