#define EIGEN_USE_THREADS

#include "cc_kernels/tf/core_lease.h"

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/platform/threadpool_interface.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace tf_interop {
namespace {

using tensorflow::thread::ThreadPool;

// Runs what it is given inside Schedule. A pool with one thread of its own would not do for one
// core: all callers would wait for that thread, because TensorFlow and oneDNN hand even work that
// is not divided to the pool.
class InlinePool : public tensorflow::thread::ThreadPoolInterface {
 public:
  void Schedule(std::function<void()> work) override { work(); }
  int NumThreads() const override { return 1; }
  int CurrentThreadId() const override { return 0; }
};

}  // namespace

struct CoreLease::Workers {
  Workers(ThreadPool* pool, int cores)
      : eigen_device(pool->AsEigenThreadPool(), cores), threads{cores, pool} {}

  Eigen::ThreadPoolDevice eigen_device;
  tensorflow::DeviceBase::CpuWorkerThreads threads;
};

// Thread-safe. Never freed, as TensorFlow's own pools are not.
class CoreLease::Groups {
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
    leased_ -= cores;  // last, so that who may lease so many finds the group
  }

 private:
  // As many threads as cores: oneDNN's work is handed to the pool, and the caller waits.
  static Workers* MakeGroup(int cores) {
    return new Workers(
        new ThreadPool(tensorflow::Env::Default(), tensorflow::ThreadOptions(), "interop", cores,
                       /*low_latency_hint=*/true),
        cores);
  }

  InlinePool inline_pool_;
  ThreadPool calling_thread_pool_{&inline_pool_};
  Workers calling_thread_{&calling_thread_pool_, /*cores=*/1};
  std::atomic<int> leased_ = 0;  // a unit on one core, the most frequent case, takes no lock
  std::mutex mutex_;             // guards the rest
  std::map<int, std::vector<Workers*>> free_;  // groups by their cores
};

CoreLease::CoreLease(int cores, int all_cores) : workers_(Groups::Get()->Lease(cores, all_cores)) {}

CoreLease::~CoreLease() { Groups::Get()->Return(workers_); }

int CoreLease::cores() const { return workers_->threads.num_threads; }

tensorflow::DeviceBase::CpuWorkerThreads* CoreLease::threads() const { return &workers_->threads; }

Eigen::ThreadPoolDevice* CoreLease::eigen_device() const { return &workers_->eigen_device; }

}  // namespace tf_interop
