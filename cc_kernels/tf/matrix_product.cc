#include "cc_kernels/tf/matrix_product.h"

#include <utility>

namespace tf_interop {

std::unique_ptr<MatrixProduct> MatrixProduct::Make(OneDnnPtr<dnnl_memory_desc> left,
                                                   OneDnnPtr<dnnl_memory_desc> right,
                                                   OneDnnPtr<dnnl_memory_desc> result, int cores,
                                                   bool adds) {
  const OneDnn& onednn = *FindOneDnn();
  const OneDnnPtr<dnnl_primitive_attr> attributes = MakeAttributes(MakePostOps(adds).get());
  onednn.threadpool_interop_set_max_concurrency(cores);
  dnnl_primitive_desc_t desc = nullptr;
  onednn.matmul_primitive_desc_create(&desc, onednn.engine, left.get(), right.get(),
                                      /*bias_desc=*/nullptr, result.get(), attributes.get());
  auto made = std::make_unique<MatrixProduct>();
  made->desc_.reset(desc);
  made->primitive_ = MakePrimitive(desc);
  if (made->primitive_ == nullptr) return nullptr;
  made->left_ = std::move(left);
  made->result_ = std::move(result);
  made->right_ = onednn.primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
  made->scratchpad_ = onednn.primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
  made->scratchpad_floats_ = (BytesOf(made->scratchpad_) + 63) / 64 * 16;
  return made;
}

absl::Status MatrixProduct::Run(dnnl_stream_t stream, const float* left, dnnl_memory_t right,
                                float* result, float* scratchpad) const {
  const auto left_memory = MakeMemory(left_.get(), const_cast<float*>(left));
  const auto result_memory = MakeMemory(result_.get(), result);
  const auto scratchpad_memory = MakeMemory(scratchpad_, scratchpad);
  return Execute(primitive_, stream,
                 {{DNNL_ARG_SRC, left_memory.get()},
                  {DNNL_ARG_WEIGHTS, right},
                  {DNNL_ARG_DST, result_memory.get()},
                  {DNNL_ARG_SCRATCHPAD, scratchpad_memory.get()}});
}

absl::Status MatrixProduct::Run(dnnl_stream_t stream, const float* left, const float* right,
                                float* result, float* scratchpad) const {
  const auto memory = MakeMemory(right_, const_cast<float*>(right));
  return Run(stream, left, memory.get(), result, scratchpad);
}

}  // namespace tf_interop
