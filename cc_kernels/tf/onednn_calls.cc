#define EIGEN_USE_THREADS

#include "cc_kernels/tf/onednn_calls.h"

#include <algorithm>

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

OneDnnPtr<dnnl_primitive_attr> MakeAttributes() {
  dnnl_primitive_attr_t made = nullptr;
  FindOneDnn()->primitive_attr_create(&made);
  FindOneDnn()->primitive_attr_set_scratchpad_mode(made, dnnl_scratchpad_mode_user);
  return OneDnnPtr<dnnl_primitive_attr>(made);
}

}  // namespace tf_interop
