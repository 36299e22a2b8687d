#define EIGEN_USE_THREADS

#include "cc_kernels/xla/devices.h"

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/platform/threadpool_interface.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace tf_interop {
namespace {

// Gives Eigen's pool to kernels as TensorFlow's; without one, runs work inside Schedule.
class BorrowedPool : public tensorflow::thread::ThreadPoolInterface {
 public:
  explicit BorrowedPool(Eigen::ThreadPoolInterface* pool) : pool_(pool) {}

  void Schedule(std::function<void()> work) override {
    if (pool_ == nullptr) return work();
    pool_->Schedule(std::move(work));
  }
  int NumThreads() const override { return pool_ == nullptr ? 1 : pool_->NumThreads(); }
  int CurrentThreadId() const override { return pool_ == nullptr ? 0 : pool_->CurrentThreadId(); }

 private:
  Eigen::ThreadPoolInterface* const pool_;
};

struct Workers {
  explicit Workers(Eigen::ThreadPoolInterface* threads)
      : borrowed(threads),
        pool(&borrowed),
        eigen_device(pool.AsEigenThreadPool(), borrowed.NumThreads()),
        cpu_threads{borrowed.NumThreads(), &pool} {}

  BorrowedPool borrowed;
  tensorflow::thread::ThreadPool pool;
  Eigen::ThreadPoolDevice eigen_device;
  tensorflow::DeviceBase::CpuWorkerThreads cpu_threads;
};

// The device of a key, made on first use.
template <typename Key, typename Make>
KernelDevice* FindOrMake(Key key, const Make& make) {
  static auto* const mutex = new std::mutex();
  static auto* const devices = new std::map<Key, KernelDevice*>();
  const std::lock_guard<std::mutex> lock(*mutex);
  KernelDevice*& device = (*devices)[key];
  if (device == nullptr) device = make();
  return device;
}

}  // namespace

KernelDevice::KernelDevice(const std::string& name, const char* type)
    : DeviceBase(tensorflow::Env::Default()),
      attributes_(tensorflow::Device::BuildDeviceAttributes(name, type, tensorflow::Bytes(0),
                                                            tensorflow::DeviceLocality())) {}

KernelDevice* KernelDevice::OverThreads(const Eigen::ThreadPoolDevice* threads) {
  Eigen::ThreadPoolInterface* const pool = threads == nullptr ? nullptr : threads->getPool();
  return FindOrMake(pool, [pool] {
    auto* const workers = new Workers(pool);
    auto* const device = new KernelDevice("/device:CPU:0", tensorflow::DEVICE_CPU);
    device->set_tensorflow_cpu_worker_threads(&workers->cpu_threads);
    device->set_eigen_cpu_device(&workers->eigen_device);
    return device;
  });
}

KernelDevice* KernelDevice::OfGpu(int number) {
  return FindOrMake(number, [number] {
    return new KernelDevice(absl::StrCat("/device:GPU:", number), tensorflow::DEVICE_GPU);
  });
}

tensorflow::Allocator* KernelDevice::GetAllocator(tensorflow::AllocatorAttributes) {
  return tensorflow::cpu_allocator();
}

}  // namespace tf_interop
