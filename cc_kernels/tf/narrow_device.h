// A CPU device on which a kernel computes on the cores of a lease: all of the device that it stands
// for but its threads.
#ifndef TF_INTEROP_TF_NARROW_DEVICE_H_
#define TF_INTEROP_TF_NARROW_DEVICE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cc_kernels/tf/core_lease.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

// Thread-safe.
class NarrowDevice : public tensorflow::DeviceBase {
 public:
  // `device` and `cores` have to outlive this.
  NarrowDevice(tensorflow::DeviceBase* device, const CoreLease& cores);

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
