// The cuDNN handles of one CUDA context.
//
// A handle takes memory of the device that TensorFlow's allocator may hold, so there are few. All
// lanes share them: a handle is set to the stream of each launch, as TensorFlow and PyTorch do.
// cuDNN asks that no handle is used by two threads at once, so each is leased for one launch or
// one preparation. While a stream is captured none is made, because that allocates: a launch on
// such a stream waits for one that another thread gives back.
#ifndef TF_INTEROP_CORE_CUDNN_HANDLE_POOL_H_
#define TF_INTEROP_CORE_CUDNN_HANDLE_POOL_H_

#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <vector>

#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Thread-safe. Handles live until the process ends.
class HandlePool {
 public:
  // The most handles there are, and the most that preparing holds at once: to compile a plan may
  // take seconds, for which no launch should have to wait.
  static constexpr int kMostHandles = 8;
  static constexpr int kMostPreparing = 4;

  HandlePool(const CudaDriver& driver, const CudnnLibrary& library)
      : driver_(driver), library_(library) {}

 private:
  struct Handle {
    cudnnHandle_t handle = nullptr;
    CUstream stream = nullptr;
    bool is_directed = false;  // whether it is set to `stream`
  };

 public:
  // Gives the handle back to the pool.
  class Lease {
   public:
    Lease() = default;
    ~Lease() {
      if (handle_ != nullptr) pool_->Give(prepares_, handle_);
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    cudnnHandle_t get() const { return handle_->handle; }

   private:
    friend class HandlePool;
    HandlePool* pool_ = nullptr;
    Handle* handle_ = nullptr;
    bool prepares_ = false;
  };

  // Leases a handle to prepare with; waits for one if there are as many as can be had. Returns
  // the last refusal if there is none at all. The pool's context must be current, here and
  // below.
  Status Take(Lease* lease) { return Take(/*prepares=*/true, /*stream=*/nullptr, lease); }

  // Likewise to launch with, on `stream`.
  Status TakeFor(CUstream stream, Lease* lease);

 private:
  using Clock = std::chrono::steady_clock;

  Status Take(bool prepares, CUstream stream, Lease* lease);
  void Give(bool prepares, Handle* handle);
  Status Make(Handle** handle);
  Handle* TakeFree(CUstream stream);
  bool MayMake(CUstream stream) const;

  const CudaDriver& driver_;
  const CudnnLibrary& library_;
  std::mutex mutex_;
  std::condition_variable given_;
  std::list<Handle> handles_;  // all of them; guarded by mutex_, like what follows
  // The one that was used longest ago first. A vector, so that a launch allocates no memory.
  std::vector<Handle*> free_;
  int preparing_ = 0;
  Status refusal_;
  Clock::duration wait_ = {};
  Clock::time_point try_again_at_ = {};
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_HANDLE_POOL_H_
