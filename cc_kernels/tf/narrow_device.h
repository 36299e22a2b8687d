// A CPU device whose kernels compute on a few of the machine's cores.
#ifndef TF_INTEROP_TF_NARROW_DEVICE_H_
#define TF_INTEROP_TF_NARROW_DEVICE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "cc_kernels/core/awake_group.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device_base.h"

namespace tf_interop {

// Leases cores for as long as it lives. In everything else it acts as the original device.
//
// One core is the calling thread; several are a group of it and threads of the device's pool, which
// stay awake meanwhile (core/awake_group.h). All leases of a process together never exceed the
// device's own number of threads, except for calling threads, which exist anyway. Thread-safe.
class NarrowDevice : public tensorflow::DeviceBase {
 public:
  // Leases `cores` cores, or only the calling thread if too few are left. Never waits. `device`
  // must outlive this.
  NarrowDevice(tensorflow::DeviceBase* device, int cores);
  ~NarrowDevice() override;
  NarrowDevice(const NarrowDevice&) = delete;
  NarrowDevice& operator=(const NarrowDevice&) = delete;

  // The number of leased cores.
  int cores() const { return tensorflow_cpu_worker_threads()->num_threads; }
  // The group of several cores; null for one.
  AwakeGroup* group() const;

  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override {
    return device_->GetAllocator(attributes);
  }
  tensorflow::Allocator* GetScopedAllocator(tensorflow::AllocatorAttributes attributes,
                                            int64_t step_id) override {
    return device_->GetScopedAllocator(attributes, step_id);
  }
  tensorflow::ScopedAllocatorMgr* GetScopedAllocatorMgr() const override {
    return device_->GetScopedAllocatorMgr();
  }
  tensorflow::DeviceBase* UnderlyingDevice() override { return device_->UnderlyingDevice(); }
  const tensorflow::DeviceBase* UnderlyingDevice() const override {
    return device_->UnderlyingDevice();
  }
  const tensorflow::DeviceAttributes& attributes() const override { return device_->attributes(); }
  const std::string& name() const override { return device_->name(); }
  const tensorflow::DeviceNameUtils::ParsedName& parsed_name() const override {
    return device_->parsed_name();
  }
  const std::string& device_type() const override { return device_->device_type(); }

 private:
  struct Workers;
  class Groups;

  tensorflow::DeviceBase* const device_;
  Workers* const workers_;
};

// Calls `work` for ranges that together are those from 0 to `count`, on the cores of a device: a
// NarrowDevice, or TensorFlow's own. Each of `count` takes about `cycles`.
void DivideWork(const tensorflow::DeviceBase& device, int64_t count, int64_t cycles,
                const std::function<void(int64_t first, int64_t last)>& work);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_NARROW_DEVICE_H_
