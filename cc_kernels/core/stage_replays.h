// CUDA graphs of a prepared stage: what a call enqueues is captured once, and later calls on the
// same memory enqueue all of it by one launch, without fork and join.
//
// Off, unless the environment variable TF_INTEROP_CUDA_GRAPHS is 1 when the stage is prepared.
//
// What is captured. The launches, copies and fills of all lanes, as RunStage forks and joins them,
// but with a private stream of the backend in the place of the caller's. The first call that
// succeeds runs plainly: by then libraries have made handles, loaded kernels and allocated, which
// nothing may do during a capture. Kernels keep the priorities of their lanes' streams. Always
// plain are stages whose lanes have SMs of their own, calls whose merged lanes read different
// images or that a timeline records (timeline.h), and backends that cannot capture, such as `host`.
//
// The key is all pointers of a call: inputs, results, transformed and joined filters, workspaces.
// Everything else that launches depend on belongs to the prepared stage, which never changes. The
// memory has to be valid when a replay runs, as it has to be for plain launches; in between it may
// belong to others.
//
// A call with new pointers is a miss and captures again. A stage keeps kMostKept graphs; the one
// that was used longest ago goes. More than kFirstCaptures misses, and one more for each
// kReplaysForACapture replays, are too many: the stage runs plainly from then on. So it does after
// a capture, an instantiation or a launch of a graph has failed. Such a call runs plainly too,
// which is right because nothing of it has run, or all is ordered after it. All graphs of the stage
// go then. Each of these ends is counted once (counters.h), and so are captures and replays.
//
// Graphs go with the stage, before what was prepared for it. CUDA frees one that is running when it
// has run. A stage belongs to one backend, and so to one CUDA context.
//
// Thread-safe: one thread at a time captures or launches a graph of the stage, others wait; CUDA
// itself wants this, and that a capture stays on its thread (CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
// which lets other threads allocate meanwhile).
#ifndef TF_INTEROP_CORE_STAGE_REPLAYS_H_
#define TF_INTEROP_CORE_STAGE_REPLAYS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/stage_runner.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// A kind of fallbacks, see counters.h.
inline constexpr char kNoGraph[] = "a stage runs without CUDA graphs from now on";

class StageReplays {
 public:
  static constexpr size_t kMostKept = 4;
  static constexpr int64_t kFirstCaptures = 8;
  static constexpr int64_t kReplaysForACapture = 64;

  using Capture = std::function<Status(std::unique_ptr<CapturedWork>* captured)>;

  // Whether the environment asks for graphs.
  static bool AreOn();

  // Enqueues the stage on `caller` as it was captured on `buffers`, by `capture` where it has not
  // been. False, with nothing enqueued that has to be joined, where the stage has to run plainly.
  bool Run(Backend* backend, const StageBuffers& buffers, Stream caller, const Capture& capture);

  // Says that the stage has run plainly, so that later calls may capture.
  void NotePlainRun();

 private:
  enum class State { kNotRun, kReady, kGivenUp };
  using Graph = std::pair<StageBuffers, std::unique_ptr<CapturedWork>>;

  // Both require mutex_.
  Status FindOrCapture(const StageBuffers& buffers, const Capture& capture, CapturedWork** work);
  void GiveUp(const std::string& reason);

  std::atomic<State> state_{State::kNotRun};
  std::mutex mutex_;
  std::vector<Graph> graphs_;  // the last used first; guarded by mutex_, like what follows
  int64_t captures_ = 0, replays_ = 0;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_STAGE_REPLAYS_H_
