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

tensorflow::DeviceAttributes AttributesOf(const std::string& name, const char* type) {
  return tensorflow::Device::BuildDeviceAttributes(name, type, tensorflow::Bytes(0),
                                                   tensorflow::DeviceLocality());
}

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

}  // namespace

struct HostDevice::Workers {
  explicit Workers(Eigen::ThreadPoolInterface* threads)
      : borrowed(threads),
        pool(&borrowed),
        eigen_device(pool.AsEigenThreadPool(), borrowed.NumThreads()),
        cpu_threads{borrowed.NumThreads(), &pool} {}

  BorrowedPool borrowed;
  tensorflow::thread::ThreadPool pool;
  Eigen::ThreadPoolDevice eigen_device;
  CpuWorkerThreads cpu_threads;
};

HostDevice::HostDevice(Workers* workers)
    : DeviceBase(tensorflow::Env::Default()),
      attributes_(AttributesOf("/device:CPU:0", tensorflow::DEVICE_CPU)) {
  set_tensorflow_cpu_worker_threads(&workers->cpu_threads);
  set_eigen_cpu_device(&workers->eigen_device);
}

HostDevice* HostDevice::Over(const Eigen::ThreadPoolDevice* threads) {
  static auto* const mutex = new std::mutex();
  static auto* const devices = new std::map<Eigen::ThreadPoolInterface*, HostDevice*>();
  Eigen::ThreadPoolInterface* const pool = threads == nullptr ? nullptr : threads->getPool();
  const std::lock_guard<std::mutex> lock(*mutex);
  HostDevice*& device = (*devices)[pool];
  if (device == nullptr) device = new HostDevice(new Workers(pool));
  return device;
}

tensorflow::Allocator* HostDevice::GetAllocator(tensorflow::AllocatorAttributes) {
  return tensorflow::cpu_allocator();
}

GpuDevice::GpuDevice(int number)
    : DeviceBase(tensorflow::Env::Default()),
      attributes_(AttributesOf(absl::StrCat("/device:GPU:", number), tensorflow::DEVICE_GPU)) {}

GpuDevice* GpuDevice::Number(int number) {
  static auto* const mutex = new std::mutex();
  static auto* const devices = new std::map<int, GpuDevice*>();
  const std::lock_guard<std::mutex> lock(*mutex);
  GpuDevice*& device = (*devices)[number];
  if (device == nullptr) device = new GpuDevice(number);
  return device;
}

// Kernels allocate nothing on a GPU while they are made.
tensorflow::Allocator* GpuDevice::GetAllocator(tensorflow::AllocatorAttributes) {
  return tensorflow::cpu_allocator();
}

}  // namespace tf_interop
