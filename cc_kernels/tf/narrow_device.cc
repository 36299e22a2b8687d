#define EIGEN_USE_THREADS

#include "cc_kernels/tf/narrow_device.h"

#include <functional>
#include <utility>

#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/platform/threadpool_interface.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace tf_interop {
namespace {

class InlinePool : public tensorflow::thread::ThreadPoolInterface {
 public:
  void Schedule(std::function<void()> work) override { work(); }
  int NumThreads() const override { return 1; }
  int CurrentThreadId() const override { return 0; }
};

// The same for all devices, and never freed, since it holds nothing.
struct Workers {
  InlinePool inline_pool;
  tensorflow::thread::ThreadPool pool{&inline_pool};
  Eigen::ThreadPoolDevice eigen_device{&inline_pool, /*num_cores=*/1};
  tensorflow::DeviceBase::CpuWorkerThreads threads{/*num_threads=*/1, &pool};
};

Workers* GlobalWorkers() {
  static auto* const workers = new Workers();
  return workers;
}

}  // namespace

NarrowDevice::NarrowDevice(tensorflow::DeviceBase* device)
    : DeviceBase(device->env()), device_(device) {
  set_tensorflow_cpu_worker_threads(&GlobalWorkers()->threads);
  set_eigen_cpu_device(&GlobalWorkers()->eigen_device);
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
