// What calls of oneDNN's need: threads, descriptors and objects that destroy themselves.
#ifndef TF_INTEROP_TF_ONEDNN_CALLS_H_
#define TF_INTEROP_TF_ONEDNN_CALLS_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc_kernels/tf/onednn.h"
#include "oneapi/dnnl/dnnl_threadpool_iface.hpp"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/platform/threadpool_interface.h"

namespace tf_interop {

// The threads of a device, as oneDNN wants them.
class DeviceThreads : public dnnl::threadpool_interop::threadpool_iface {
 public:
  explicit DeviceThreads(const tensorflow::DeviceBase::CpuWorkerThreads& threads);

  bool IsOf(const tensorflow::DeviceBase::CpuWorkerThreads& threads) const;
  int get_num_threads() const override { return count_; }
  bool get_in_parallel() const override { return pool_->CurrentThreadId() != -1; }
  uint64_t get_flags() const override { return ASYNCHRONOUS; }
  // As TensorFlow does it: the caller computes nothing, unless the pool runs work inside Schedule.
  void parallel_for(int count, const std::function<void(int, int)>& work) override;

 private:
  const int count_;
  Eigen::ThreadPoolInterface* const pool_;
};

// Only the calling thread.
class CallingThread : public dnnl::threadpool_interop::threadpool_iface {
 public:
  int get_num_threads() const override { return 1; }
  bool get_in_parallel() const override { return false; }
  uint64_t get_flags() const override { return 0; }
  void parallel_for(int count, const std::function<void(int, int)>& work) override;
};

// `threads` must outlive the stream.
OneDnnPtr<dnnl_stream> MakeStream(dnnl::threadpool_interop::threadpool_iface* threads);
// Of float32.
OneDnnPtr<dnnl_memory_desc> Describe(const dnnl_dims_t& sizes, int count, dnnl_format_tag_t tag);
// Of matrices that begin `distance` values after each other.
OneDnnPtr<dnnl_memory_desc> DescribeMatrices(int64_t count, int64_t distance, int64_t rows,
                                             int64_t columns, bool are_transposed = false);
OneDnnPtr<dnnl_memory> MakeMemory(const_dnnl_memory_desc_t desc, void* data = nullptr);
// Null for null.
OneDnnPtr<dnnl_primitive> MakePrimitive(const_dnnl_primitive_desc_t desc);
// With `adds`, a result is added to what is in its memory.
OneDnnPtr<dnnl_post_ops> MakePostOps(bool adds);
// With scratchpads that the caller gives.
OneDnnPtr<dnnl_primitive_attr> MakeAttributes(const dnnl_post_ops* post_ops);
int64_t BytesOf(const_dnnl_memory_desc_t desc);

absl::Status Execute(const OneDnnPtr<dnnl_primitive>& primitive, dnnl_stream_t stream,
                     absl::Span<const dnnl_exec_arg_t> arguments);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_ONEDNN_CALLS_H_
