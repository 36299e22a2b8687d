#define EIGEN_USE_THREADS

#include "cc_kernels/tf/narrow_device.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/platform/threadpool_interface.h"
#include "tensorflow/core/util/work_sharder.h"
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

void DivideWork(const tensorflow::DeviceBase& device, int64_t count, int64_t cycles,
                const std::function<void(int64_t first, int64_t last)>& work) {
  const auto& threads = *device.tensorflow_cpu_worker_threads();
  const auto* const narrow = dynamic_cast<const NarrowDevice*>(&device);
  AwakeGroup* const group = narrow == nullptr ? nullptr : narrow->group();
  if (group == nullptr) {
    tensorflow::Shard(threads.num_threads, threads.workers, count, cycles, work);
    return;
  }
  // Eigen leaves work of one part for each core on the calling thread.
  constexpr int64_t kLeastCycles = 10'000;  // of a part, as in TensorFlow's Shard
  const int64_t most = std::max<int64_t>(1, count * cycles / kLeastCycles);
  const int64_t parts = std::min({most, count, static_cast<int64_t>(narrow->cores())});
  if (parts == 1) {
    work(0, count);
    return;
  }
  group->Schedule([&] {
    for (int64_t i = parts - 1; i > 0; --i) {
      group->Schedule([&, i] { work(i * count / parts, (i + 1) * count / parts); });
    }
    work(0, count / parts);
  });
}

}  // namespace tf_interop
