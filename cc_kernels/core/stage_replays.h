// CUDA graphs of a prepared stage. The work of one call is captured, and later calls on the same
// memory enqueue all of it with one launch, without fork and join.
//
// On, because the launches of a stage cost the host more than it saves the GPU at small batches
// (docs/results.md). If the environment variable TF_INTEROP_CUDA_GRAPHS is 0 when a stage is
// prepared, it runs plainly.
//
// *The capture* contains all work of RunStage, but begins on a private stream of the backend
// instead of the caller's. The first successful call runs plainly: during it, libraries create
// handles, load kernels and allocate, which a capture forbids. Some calls always run plainly: those
// of stages whose lanes have SMs of their own, those that a timeline records, and those on backends
// that cannot capture, such as `host`.
//
// *The key* is all pointers of a call: inputs, results, transformed and joined filters, workspaces.
// Everything else belongs to the prepared stage, which never changes. As for plain launches, the
// memory must be valid when a replay runs; between replays it may belong to others.
//
// *Limits.* A call with new pointers is a miss and captures again. A stage keeps kMostKept graphs
// and drops the least recently used. After kFirstCaptures captures only one of kCallsForACapture
// calls may capture, and other misses run plainly: in a trial of the ways of other stages, say, the
// memory of each call may be new. After a failed capture, instantiation or launch the stage has no
// graphs and runs plainly, including the call that failed: nothing of that call has run, or all of
// it is ordered before the plain run. Giving up is counted once (counters.h); so is each capture
// and each replay.
//
// Graphs are destroyed with the stage, before its prepared convolutions. CUDA keeps a running one
// until it ends. A stage belongs to one backend, and so to one CUDA context.
//
// Thread-safe: one thread at a time captures or launches a graph of the stage, as CUDA requires. A
// capture stays on its thread and lets other threads allocate meanwhile
// (CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).
#ifndef TF_INTEROP_CORE_STAGE_REPLAYS_H_
#define TF_INTEROP_CORE_STAGE_REPLAYS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/lru_cache.h"
#include "cc_kernels/core/stage_runner.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// A kind of fallback (counters.h).
inline constexpr char kNoGraph[] = "a stage runs without CUDA graphs from now on";

class StageReplays {
 public:
  static constexpr size_t kMostKept = 4;
  static constexpr int64_t kFirstCaptures = 8;
  static constexpr int64_t kCallsForACapture = 64;

  using Capture = std::function<Status(CapturedWork* captured)>;

  // False if the environment turns graphs off.
  static bool AreOn();

  // Replays the stage on `caller`, after `capture` if these buffers are new. If it returns false,
  // nothing was enqueued, and the stage must run plainly.
  bool Run(Backend* backend, const StageBuffers& buffers, Stream caller, const Capture& capture);

  // The stage has run plainly, so later calls may capture.
  void NotePlainRun();

 private:
  enum class State { kNotRun, kReady, kGivenUp };

  // Both require mutex_. The work is null if these buffers are new and may not be captured.
  Status FindOrCapture(const StageBuffers& buffers, const Capture& capture, CapturedWork* work);
  void GiveUp(const std::string& reason);

  std::atomic<State> state_{State::kNotRun};
  std::mutex mutex_;  // guards the rest
  LruCache<StageBuffers, CapturedWork> graphs_{kMostKept};
  int64_t captures_ = 0, calls_ = 0;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_STAGE_REPLAYS_H_
