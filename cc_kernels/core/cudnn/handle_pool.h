// The cuDNN handles of one CUDA context.
//
// A handle takes device memory that TensorFlow's allocator may hold, so there are few. All lanes
// share them: a handle is set to the stream of each launch, as in TensorFlow and PyTorch. cuDNN
// forbids two threads from using a handle at once, so each is leased for one launch or one
// preparation. Creating a handle allocates, so a launch on a stream that is being captured creates
// none, but waits until another thread returns one.
#ifndef TF_INTEROP_CORE_CUDNN_HANDLE_POOL_H_
#define TF_INTEROP_CORE_CUDNN_HANDLE_POOL_H_

#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Tells when to retry after a refusal: after a wait that doubles each time.
class RetryTimer {
 public:
  bool IsOver() const { return Clock::now() >= try_again_at_; }
  void Refuse();

 private:
  using Clock = std::chrono::steady_clock;
  Clock::duration wait_ = {};
  Clock::time_point try_again_at_ = {};
};

// Thread-safe. Handles live until the process ends.
class HandlePool {
 public:
  // The limits on all handles, and on those that prepare at once: compiling a plan may take
  // seconds, and no launch should have to wait for that.
  static constexpr int kMostHandles = 8;
  static constexpr int kMostPreparing = 4;

  HandlePool(const CudaDriver& driver, const CudnnLibrary& library)
      : driver_(driver), library_(library) {}

  struct Handle {
    cudnnHandle_t handle = nullptr;
    std::optional<CUstream> stream;  // the one that it is set to
    bool prepares = false;           // leased for preparing
  };
  struct Giver {
    HandlePool* pool = nullptr;
    void operator()(Handle* handle) const { pool->Give(handle); }
  };
  // Returns the handle to the pool when destroyed.
  using Lease = std::unique_ptr<Handle, Giver>;

  // Leases a handle for a launch on `stream`, or for preparing if that is empty. Waits for one if
  // no more can be created. Returns the last refusal if there are none at all. The pool's context
  // must be current.
  Status Take(std::optional<CUstream> stream, Lease* lease);

 private:
  void Give(Handle* handle);
  Status Make(Handle** handle);
  Handle* TakeFree(std::optional<CUstream> stream);
  bool MayMake(std::optional<CUstream> stream) const;

  const CudaDriver& driver_;
  const CudnnLibrary& library_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable given_;
  std::list<Handle> handles_;
  // Least recently used first. A vector, so that a launch allocates no memory.
  std::vector<Handle*> free_;
  int preparing_ = 0;
  Status refusal_;
  RetryTimer retry_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_HANDLE_POOL_H_
