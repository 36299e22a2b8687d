#include "cc_kernels/tf/matrix_product.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tf_interop {

std::unique_ptr<MatrixProduct> MatrixProduct::Make(OneDnnPtr<dnnl_memory_desc> left,
                                                   OneDnnPtr<dnnl_memory_desc> right,
                                                   OneDnnPtr<dnnl_memory_desc> result, int cores,
                                                   bool adds) {
  const OneDnn& onednn = *FindOneDnn();
  const OneDnnPtr<dnnl_primitive_attr> attributes = MakeAttributes();
  if (adds) {
    dnnl_post_ops_t made_ops = nullptr;
    onednn.post_ops_create(&made_ops);
    const OneDnnPtr<dnnl_post_ops> ops(made_ops);
    onednn.post_ops_append_sum(made_ops, /*scale=*/1, /*zero_point=*/0, dnnl_data_type_undef);
    onednn.primitive_attr_set_post_ops(attributes.get(), made_ops);
  }
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
  const auto bytes =
      static_cast<int64_t>(onednn.memory_desc_get_size_v2(made->scratchpad_, /*index=*/0));
  made->scratchpad_floats_ = (bytes + 63) / 64 * 16;
  return made;
}

absl::Status MatrixProduct::Run(dnnl_stream_t stream, const float* left, dnnl_memory_t right,
                                float* result, float* scratchpad) const {
  const auto left_memory = MakeMemory(left_.get(), const_cast<float*>(left));
  const auto result_memory = MakeMemory(result_.get(), result);
  const auto scratchpad_memory = MakeMemory(scratchpad_, scratchpad);
  const std::array<dnnl_exec_arg_t, 4> arguments = {
      {{DNNL_ARG_SRC, left_memory.get()},
       {DNNL_ARG_WEIGHTS, right},
       {DNNL_ARG_DST, result_memory.get()},
       {DNNL_ARG_SCRATCHPAD, scratchpad_memory.get()}}};
  const dnnl_status_t status = FindOneDnn()->primitive_execute(
      primitive_.get(), stream, static_cast<int>(arguments.size()), arguments.data());
  if (status == dnnl_success) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("oneDNN's matrix product failed with status ", status));
}

absl::Status MatrixProduct::Run(dnnl_stream_t stream, const float* left, const float* right,
                                float* result, float* scratchpad) const {
  const auto memory = MakeMemory(right_, const_cast<float*>(right));
  return Run(stream, left, memory.get(), result, scratchpad);
}

}  // namespace tf_interop
