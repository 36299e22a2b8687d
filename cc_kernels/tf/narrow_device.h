// A CPU device on which a kernel computes on the calling thread alone: all of the device that it
// stands for but its threads.
#ifndef TF_INTEROP_TF_NARROW_DEVICE_H_
#define TF_INTEROP_TF_NARROW_DEVICE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

// Thread-safe. Its pool runs what it is given inside Schedule. A pool with one thread of its own
// would not do: all callers would wait for that thread, because TensorFlow and oneDNN hand even
// work that is not divided to the pool.
class NarrowDevice : public tensorflow::DeviceBase {
 public:
  // `device` has to outlive this.
  explicit NarrowDevice(tensorflow::DeviceBase* device);

  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override;
  tensorflow::Allocator* GetScopedAllocator(tensorflow::AllocatorAttributes attributes,
                                            int64_t step_id) override;
  tensorflow::ScopedAllocatorMgr* GetScopedAllocatorMgr() const override;
  tensorflow::DeviceBase* UnderlyingDevice() override;
  const tensorflow::DeviceBase* UnderlyingDevice() const override;
  const tensorflow::DeviceAttributes& attributes() const override;
  int NumaNode() const override;
  const std::string& name() const override;
  const tensorflow::DeviceNameUtils::ParsedName& parsed_name() const override;
  const std::string& device_type() const override;
  absl::Status MakeTensorFromProto(const tensorflow::TensorProto& proto,
                                   tensorflow::AllocatorAttributes attributes,
                                   tensorflow::Tensor* tensor) override;
  void CopyTensorInSameDevice(const tensorflow::Tensor* input, tensorflow::Tensor* output,
                              const tensorflow::DeviceContext* context,
                              tensorflow::StatusCallback done) override;

 private:
  tensorflow::DeviceBase* const device_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_NARROW_DEVICE_H_
