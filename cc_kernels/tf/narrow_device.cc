#define EIGEN_USE_THREADS

#include "cc_kernels/tf/narrow_device.h"

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/platform/threadpool_interface.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace tf_interop {
namespace {

using tensorflow::thread::ThreadPool;

// Runs work inside Schedule. A pool with one thread would not do: TensorFlow and oneDNN give even
// undivided work to the pool, so all callers would wait for that thread.
class InlinePool : public tensorflow::thread::ThreadPoolInterface {
 public:
  void Schedule(std::function<void()> work) override { work(); }
  int NumThreads() const override { return 1; }
  int CurrentThreadId() const override { return 0; }
};

// A group of threads that are awake. oneDNN and Eigen divide large work inside Schedule. Eigen's
// small work, of at most one part for each thread, runs on the caller.
class AwakePool : public tensorflow::thread::ThreadPoolInterface {
 public:
  explicit AwakePool(int cores) : group(cores) {}

  void Schedule(std::function<void()> work) override { group.Schedule(std::move(work)); }
  int NumThreads() const override { return group.cores(); }
  // -1 on the caller, as in TensorFlow's pools: otherwise oneDNN does not divide its work.
  int CurrentThreadId() const override { return group.CurrentHelper(); }

  AwakeGroup group;
};

}  // namespace

struct NarrowDevice::Workers {
  Workers(ThreadPool* pool, int cores)
      : eigen_device(pool->AsEigenThreadPool(), cores), threads{cores, pool} {}

  AwakeGroup* group = nullptr;  // of several cores
  Eigen::ThreadPoolDevice eigen_device;
  CpuWorkerThreads threads;
};

// Thread-safe. Never freed, like TensorFlow's own pools.
class NarrowDevice::Groups {
 public:
  static Groups* Get() {
    static auto* const groups = new Groups();
    return groups;
  }

  Workers* Lease(int cores, int all_cores) {
    if (cores > 1) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (leased_ + cores <= all_cores) {
        leased_ += cores;
        std::vector<Workers*>& free = free_[cores];
        if (free.empty()) return MakeGroup(cores);
        Workers* const group = free.back();
        free.pop_back();
        return group;
      }
    }
    ++leased_;
    return &calling_thread_;
  }

  void Return(Workers* workers) {
    const int cores = workers->threads.num_threads;
    if (workers != &calling_thread_) {
      const std::lock_guard<std::mutex> lock(mutex_);
      free_[cores].push_back(workers);
    }
    leased_ -= cores;  // last, so that the next lease of this many cores finds the group
  }

 private:
  static Workers* MakeGroup(int cores) {
    auto* const pool = new AwakePool(cores);
    auto* const workers = new Workers(new ThreadPool(pool), cores);
    workers->group = &pool->group;
    return workers;
  }

  InlinePool inline_pool_;
  ThreadPool calling_thread_pool_{&inline_pool_};
  Workers calling_thread_{&calling_thread_pool_, /*cores=*/1};
  std::atomic<int> leased_ = 0;                // one core, the most frequent lease, takes no lock
  std::mutex mutex_;                           // guards the rest
  std::map<int, std::vector<Workers*>> free_;  // groups by number of cores
};

NarrowDevice::NarrowDevice(DeviceBase* device, int cores)
    : DeviceBase(device->env()),
      device_(device),
      workers_(Groups::Get()->Lease(cores, device->tensorflow_cpu_worker_threads()->num_threads)) {
  set_tensorflow_cpu_worker_threads(&workers_->threads);
  set_eigen_cpu_device(&workers_->eigen_device);
  if (workers_->group != nullptr) {
    workers_->group->Begin([pool = device->tensorflow_cpu_worker_threads()->workers](auto helper) {
      pool->Schedule(std::move(helper));
    });
  }
}

AwakeGroup* NarrowDevice::group() const { return workers_->group; }

NarrowDevice::~NarrowDevice() {
  if (workers_->group != nullptr) workers_->group->End();
  Groups::Get()->Return(workers_);
}

}  // namespace tf_interop
