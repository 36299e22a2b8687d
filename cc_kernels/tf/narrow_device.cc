#include "cc_kernels/tf/narrow_device.h"

#include <utility>

namespace tf_interop {

NarrowDevice::NarrowDevice(tensorflow::DeviceBase* device, const CoreLease& cores)
    : DeviceBase(device->env()), device_(device) {
  set_tensorflow_cpu_worker_threads(cores.threads());
  set_eigen_cpu_device(cores.eigen_device());
}

tensorflow::Allocator* NarrowDevice::GetAllocator(tensorflow::AllocatorAttributes attributes) {
  return device_->GetAllocator(attributes);
}

tensorflow::Allocator* NarrowDevice::GetScopedAllocator(tensorflow::AllocatorAttributes attributes,
                                                        int64_t step_id) {
  return device_->GetScopedAllocator(attributes, step_id);
}

tensorflow::ScopedAllocatorMgr* NarrowDevice::GetScopedAllocatorMgr() const {
  return device_->GetScopedAllocatorMgr();
}

tensorflow::DeviceBase* NarrowDevice::UnderlyingDevice() { return device_->UnderlyingDevice(); }

const tensorflow::DeviceBase* NarrowDevice::UnderlyingDevice() const {
  return device_->UnderlyingDevice();
}

const tensorflow::DeviceAttributes& NarrowDevice::attributes() const {
  return device_->attributes();
}

int NarrowDevice::NumaNode() const { return device_->NumaNode(); }

const std::string& NarrowDevice::name() const { return device_->name(); }

const tensorflow::DeviceNameUtils::ParsedName& NarrowDevice::parsed_name() const {
  return device_->parsed_name();
}

const std::string& NarrowDevice::device_type() const { return device_->device_type(); }

absl::Status NarrowDevice::MakeTensorFromProto(const tensorflow::TensorProto& proto,
                                               tensorflow::AllocatorAttributes attributes,
                                               tensorflow::Tensor* tensor) {
  return device_->MakeTensorFromProto(proto, attributes, tensor);
}

void NarrowDevice::CopyTensorInSameDevice(const tensorflow::Tensor* input,
                                          tensorflow::Tensor* output,
                                          const tensorflow::DeviceContext* context,
                                          tensorflow::StatusCallback done) {
  device_->CopyTensorInSameDevice(input, output, context, std::move(done));
}

}  // namespace tf_interop
