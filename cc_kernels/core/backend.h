// The runner's interface to a device: in-order streams, events, and convolutions on them.
//
// The backend `host` is the CPU; its streams are queues with a thread each. The backend `cudnn`
// uses libcuda for streams and libcudnn for convolutions, and opens both at run time.
#ifndef TF_INTEROP_CORE_BACKEND_H_
#define TF_INTEROP_CORE_BACKEND_H_

#include <strings.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/status.h"
#include "cc_kernels/core/timeline.h"

namespace tf_interop {

// An in-order queue of work: a HostStream* or a CUstream.
using Stream = void*;

// A point in a stream that other streams can wait for: a HostEvent* or a CUevent. As in CUDA, Wait
// refers to the last Record before it, and an event may be recorded again while older waits are
// pending.
using Event = void*;

// A lane's stream and the two events of the stream contract. Not thread-safe; one call at a time
// leases it.
struct StreamGroup {
  virtual ~StreamGroup() = default;

  Stream stream = nullptr;
  Event fork_event = nullptr, join_event = nullptr;
};

// Captured work, to be enqueued again as a whole. For one thread at a time; may be destroyed while
// the device runs it.
using CapturedWork = std::shared_ptr<void>;

// A convolution ready to launch on one device, any number of times. Immutable.
class PreparedConvolution {
 public:
  virtual ~PreparedConvolution() = default;
  virtual size_t workspace_bytes() const = 0;
  // The name, in the form that Prepare accepts.
  virtual const std::string& algorithm() const = 0;
  // Whether float operands may be rounded to TF32 or less.
  virtual bool reduces_precision() const { return false; }
  // Bytes of TransformFilter's result; 0 if the filter is read as it is, or is the result.
  virtual size_t transformed_filter_bytes() const { return 0; }
};

struct PrepareOptions {
  size_t workspace_limit_bytes = 0;  // for one convolution
  bool allow_tf32 = true;            // for float convolutions
  // Whether an algorithm must produce the same bits every time.
  bool deterministic = false;

  bool operator==(const PrepareOptions& other) const {
    return workspace_limit_bytes == other.workspace_limit_bytes && allow_tf32 == other.allow_tf32 &&
           deterministic == other.deterministic;
  }
};

// The variable that TensorFlow's own convolutions honor, besides enable_op_determinism.
inline bool IsCudnnToBeDeterministic() {
  const char* const value = std::getenv("TF_CUDNN_DETERMINISTIC");
  return value != nullptr && (strcasecmp(value, "1") == 0 || strcasecmp(value, "true") == 0);
}

enum class AlgorithmScope {
  kHeuristic,  // the backend's own candidates, best first
  kAll,        // and all others with their default settings
  kKnobs,      // and each setting that moves one knob off its default
};

// Thread-safe. One per device; lives until the process ends.
class Backend {
 public:
  virtual ~Backend() = default;

  // Makes `convolution` ready. An empty `algorithm` means the backend's own (heuristic) choice
  // within the workspace limit; with a limit of 0, it is the algorithm that needs least, even if
  // that is not 0. Returns kUnsupported if a pinned algorithm cannot run this convolution, needs
  // more workspace or is excluded by `options`, and kInvalidArgument if its name is unknown.
  virtual Status Prepare(const Convolution& convolution, const std::string& algorithm,
                         const PrepareOptions& options,
                         std::shared_ptr<const PreparedConvolution>* prepared) = 0;

  // Forgets prepared convolutions that have no other owner. None of them may be running.
  virtual void ForgetPrepared() {}

  // Lists algorithms that may be able to compute `convolution`, each once, in the form that Prepare
  // accepts. Only Prepare tells whether one really can. Without `allow_tf32`, omits those that use
  // TF32.
  virtual Status ListAlgorithms(const Convolution& convolution, AlgorithmScope scope,
                                bool allow_tf32, std::vector<std::string>* algorithms) = 0;

  // Takes a stream group out of the pool, or creates one. Release may put it back as soon as
  // everything is enqueued: streams keep the order. As in CUDA, a lower `priority` goes first and 0
  // is the default. Backends clamp it to the device's range, and pool groups by it.
  virtual Status Acquire(int priority, std::unique_ptr<StreamGroup>* group) = 0;
  virtual void Release(std::unique_ptr<StreamGroup> group) = 0;

  // Between Enter and Leave, the calls below need not each make a CUDA context current. They nest;
  // pass `outer` from Enter to its Leave. See BackendScope.
  virtual Status Enter(void** outer) {
    *outer = nullptr;
    return Status::Ok();
  }
  virtual void Leave(void* outer) { (void)outer; }

  // Enqueues a mark. Its time is exact relative to `since`, an earlier mark or null.
  virtual Status Mark(Stream stream, const std::shared_ptr<const TimeMark>& since,
                      std::shared_ptr<const TimeMark>* mark) = 0;

  virtual Status Record(Event event, Stream stream) = 0;
  virtual Status Wait(Stream stream, Event event) = 0;

  // Waits for the work that is on `stream` now, and returns its first error. A stage calls it after
  // failures only (stage_runner.h).
  virtual Status Synchronize(Stream stream) = 0;

  // Enqueues `prepared` on `stream`, a group's or the caller's. `workspace` has
  // prepared.workspace_bytes().
  virtual Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                        void* workspace, Stream stream) = 0;

  // Transforms a filter for many launches. `transformed` has prepared.transformed_filter_bytes(),
  // which is not 0.
  virtual Status TransformFilter(const PreparedConvolution& prepared, const void* filter,
                                 void* transformed, Stream stream) = 0;

  virtual Status FillZero(void* data, size_t bytes, Stream stream) = 0;

  // Copies `rows` rows of `row_bytes` bytes. A pitch is the distance between the beginnings of two
  // rows in bytes; it is at least `row_bytes` and fits into an int. Source and destination do not
  // overlap.
  virtual Status CopyRows(const void* source, size_t source_pitch, void* destination,
                          size_t destination_pitch, size_t row_bytes, size_t rows,
                          Stream stream) = 0;

  // Whether somebody else captures what this thread enqueues, as XLA does. Then nothing may be
  // waited for or timed.
  virtual bool IsCaptured() const { return false; }

  // Whether the three functions that follow may be called.
  virtual bool CanCapture() const { return false; }
  // Until EndCapture on the same thread, work on `stream`, a group's, and on streams that wait for
  // it is captured and does not run. Meanwhile the thread may neither wait for the device nor
  // create anything.
  virtual Status BeginCapture(Stream) { return CannotCapture(); }
  // Ends the capture, even one that failed, which is an error. `stream` must wait for all captured
  // work.
  virtual Status EndCapture(Stream, CapturedWork*) { return CannotCapture(); }
  // Enqueues all of `work`, on the memory of its capture.
  virtual Status Replay(const CapturedWork&, Stream) { return CannotCapture(); }

 private:
  static Status CannotCapture() { return Unsupported("This backend cannot capture work."); }
};

// Enters the backend, and leaves it at the end of the scope.
class BackendScope {
 public:
  explicit BackendScope(Backend* backend) : backend_(backend), status_(backend->Enter(&outer_)) {}
  ~BackendScope() {
    if (status_.ok()) backend_->Leave(outer_);
  }
  BackendScope(const BackendScope&) = delete;
  BackendScope& operator=(const BackendScope&) = delete;

  const Status& status() const { return status_; }

 private:
  Backend* const backend_;
  void* outer_ = nullptr;
  const Status status_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_BACKEND_H_
