#define EIGEN_USE_THREADS

#include "cc_kernels/tf/onednn_calls.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/threadpool.h"

namespace tf_interop {

DeviceThreads::DeviceThreads(const tensorflow::DeviceBase::CpuWorkerThreads& threads)
    : count_(threads.num_threads), pool_(threads.workers->AsEigenThreadPool()) {}

bool DeviceThreads::IsOf(const tensorflow::DeviceBase::CpuWorkerThreads& threads) const {
  return pool_ == threads.workers->AsEigenThreadPool() && count_ == threads.num_threads;
}

void DeviceThreads::parallel_for(int count, const std::function<void(int, int)>& work) {
  const int parts = std::min(count, count_);
  const auto run_part = [count, parts, work](int part) {
    for (int i = part * count / parts; i < (part + 1) * count / parts; ++i) work(i, count);
  };
  pool_->Schedule([this, parts, run_part] {
    for (int part = parts - 1; part > 0; --part) {
      pool_->Schedule([run_part, part] { run_part(part); });
    }
    run_part(0);
  });
}

void CallingThread::parallel_for(int count, const std::function<void(int, int)>& work) {
  for (int i = 0; i < count; ++i) work(i, count);
}

OneDnnPtr<dnnl_stream> MakeStream(dnnl::threadpool_interop::threadpool_iface* threads) {
  dnnl_stream_t made = nullptr;
  const OneDnn& onednn = *FindOneDnn();
  onednn.threadpool_interop_stream_create(&made, onednn.engine, threads);
  return OneDnnPtr<dnnl_stream>(made);
}

OneDnnPtr<dnnl_memory_desc> Describe(const dnnl_dims_t& sizes, int count, dnnl_format_tag_t tag) {
  dnnl_memory_desc_t made = nullptr;
  FindOneDnn()->memory_desc_create_with_tag(&made, count, sizes, dnnl_f32, tag);
  return OneDnnPtr<dnnl_memory_desc>(made);
}

OneDnnPtr<dnnl_memory_desc> DescribeMatrices(int64_t count, int64_t distance, int64_t rows,
                                             int64_t columns, bool are_transposed) {
  const dnnl_dims_t sizes = {count, rows, columns};
  const dnnl_dims_t strides = {distance, are_transposed ? 1 : columns, are_transposed ? rows : 1};
  dnnl_memory_desc_t made = nullptr;
  FindOneDnn()->memory_desc_create_with_strides(&made, 3, sizes, dnnl_f32, strides);
  return OneDnnPtr<dnnl_memory_desc>(made);
}

OneDnnPtr<dnnl_memory> MakeMemory(const_dnnl_memory_desc_t desc, void* data) {
  dnnl_memory_t made = nullptr;
  const OneDnn& onednn = *FindOneDnn();
  onednn.memory_create_v2(&made, desc, onednn.engine, /*nhandles=*/1, &data);
  return OneDnnPtr<dnnl_memory>(made);
}

OneDnnPtr<dnnl_primitive> MakePrimitive(const_dnnl_primitive_desc_t desc) {
  dnnl_primitive_t made = nullptr;
  if (desc != nullptr) FindOneDnn()->primitive_create(&made, desc);
  return OneDnnPtr<dnnl_primitive>(made);
}

OneDnnPtr<dnnl_post_ops> MakePostOps(bool adds) {
  dnnl_post_ops_t made = nullptr;
  FindOneDnn()->post_ops_create(&made);
  if (adds) {
    FindOneDnn()->post_ops_append_sum(made, /*scale=*/1, /*zero_point=*/0, dnnl_data_type_undef);
  }
  return OneDnnPtr<dnnl_post_ops>(made);
}

OneDnnPtr<dnnl_primitive_attr> MakeAttributes(const dnnl_post_ops* post_ops) {
  dnnl_primitive_attr_t made = nullptr;
  FindOneDnn()->primitive_attr_create(&made);
  FindOneDnn()->primitive_attr_set_scratchpad_mode(made, dnnl_scratchpad_mode_user);
  FindOneDnn()->primitive_attr_set_post_ops(made, post_ops);
  return OneDnnPtr<dnnl_primitive_attr>(made);
}

int64_t BytesOf(const_dnnl_memory_desc_t desc) {
  return static_cast<int64_t>(FindOneDnn()->memory_desc_get_size_v2(desc, /*index=*/0));
}

absl::Status Execute(const OneDnnPtr<dnnl_primitive>& primitive, dnnl_stream_t stream,
                     absl::Span<const dnnl_exec_arg_t> arguments) {
  const dnnl_status_t status = FindOneDnn()->primitive_execute(
      primitive.get(), stream, static_cast<int>(arguments.size()), arguments.data());
  if (status == dnnl_success) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("oneDNN failed with status ", status));
}

}  // namespace tf_interop
