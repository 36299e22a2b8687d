// What the runner needs of a device: in-order streams, events, and convolutions on them.
//
// Two backends implement it: `host` (the CPU; streams are queues with a thread of their own) and
// `cudnn` (CUDA streams through libcuda, convolutions through libcudnn, both opened at run time).
#ifndef TF_INTEROP_CORE_BACKEND_H_
#define TF_INTEROP_CORE_BACKEND_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/status.h"
#include "cc_kernels/core/timeline.h"

namespace tf_interop {

// An in-order queue of work: a HostStream* or a CUstream.
using Stream = void*;

// A point in a stream that other streams can wait for. As in CUDA, Wait refers to the Record that
// came last before the call, and an event may be recorded again while older waits are pending.
class Event {
 public:
  virtual ~Event() = default;
};

// What a lane asks of its stream group beyond a stream. The same options may be asked for again at
// any time; a backend keeps groups by them.
struct StreamGroupOptions {
  // As CUDA counts: lower goes first, 0 is the usual one. Clamped to what the device has.
  int priority = 0;
  // How the lanes of a stage share the SMs of the device: how many each of them is to have, in the
  // order of the lanes; 0 for a lane that takes what the others leave. Empty if lanes share all.
  std::vector<int> partition;
  // The own lane's place in `partition`.
  int partition_index = 0;
};

// What one lane of a stage owns while the stage is launched: a stream, and the two events of the
// stream contract. Not thread-safe; leased by one call at a time.
class StreamGroup {
 public:
  virtual ~StreamGroup() = default;
  virtual Stream stream() const = 0;
  virtual Event* fork_event() = 0;
  virtual Event* join_event() = 0;
  // How many SMs work on the stream may use: those of its partition, as far as the device's
  // granularity allows; 0 if the stream has no partition of its own.
  virtual int sm_count() const { return 0; }
};

// Work that was captured, to be enqueued again as a whole. For one thread at a time; may go while
// the device runs it.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
};

// A convolution made ready for one device: immutable, shared between threads, launched many times.
class PreparedConvolution {
 public:
  virtual ~PreparedConvolution() = default;
  virtual size_t workspace_bytes() const = 0;
  // The algorithm that will run, in the form that Prepare accepts.
  virtual const std::string& algorithm() const = 0;
  // Whether float operands may be rounded to TF32 or less on the way.
  virtual bool reduces_precision() const { return false; }
  // Bytes of the filter in the form that TransformFilter gives it; 0 if the filter is read as
  // the caller has it, or is the result.
  virtual size_t transformed_filter_bytes() const { return 0; }
};

// What Prepare may choose from.
struct PrepareOptions {
  // Bytes of workspace that one convolution may ask for.
  size_t workspace_limit_bytes = 0;
  // Whether float convolutions may be computed in TF32 where the device has it.
  bool allow_tf32 = true;
  // Whether only algorithms that give the same bits every time are taken, as cuDNN's are anyway
  // where TF_CUDNN_DETERMINISTIC is 1 or true. A backend whose algorithms all do need not look.
  bool deterministic = false;

  bool operator==(const PrepareOptions& other) const {
    return workspace_limit_bytes == other.workspace_limit_bytes && allow_tf32 == other.allow_tf32 &&
           deterministic == other.deterministic;
  }
};

// Which algorithms to list for a convolution.
enum class AlgorithmScope {
  kHeuristic,  // what the backend itself would consider, best first
  kAll,        // these, and every other one in its default setting
  kKnobs,      // these, and every other setting with one knob moved off its default
};

// Thread-safe. One per device; lives until the process ends.
class Backend {
 public:
  virtual ~Backend() = default;

  // Makes `convolution` ready. An empty `algorithm` means the backend's own (heuristic) choice
  // among those that need at most the limit of workspace; with a limit of 0 it takes what needs
  // least, even if that is not nothing. Returns kUnsupported where a pinned algorithm cannot run
  // this convolution, needs more workspace or is not one that `options` allow, kInvalidArgument
  // if there is no algorithm of that name.
  virtual Status Prepare(const Convolution& convolution, const std::string& algorithm,
                         const PrepareOptions& options,
                         std::shared_ptr<const PreparedConvolution>* prepared) = 0;

  // Forgets what was prepared and nobody holds. None of it may be running.
  virtual void ForgetPrepared() {}

  // The algorithms that may be able to compute `convolution`, each once, in the form that Prepare
  // accepts; without `allow_tf32` those that use it are left out. Whether one really can is for
  // Prepare to say.
  virtual Status ListAlgorithms(const Convolution& convolution, AlgorithmScope scope,
                                bool allow_tf32, std::vector<std::string>* algorithms) = 0;

  // Takes a stream group out of the pool, or makes one. It goes back with Release, which may be
  // called as soon as everything has been enqueued: streams keep the order. kUnsupported where the
  // device cannot be partitioned as asked.
  virtual Status Acquire(const StreamGroupOptions& options,
                         std::unique_ptr<StreamGroup>* group) = 0;
  Status Acquire(std::unique_ptr<StreamGroup>* group) {
    return Acquire(StreamGroupOptions(), group);
  }
  virtual void Release(std::unique_ptr<StreamGroup> group) = 0;

  // Between Enter and Leave a thread makes several of the calls below, which then need not make a
  // CUDA context current each. They nest; Leave takes what Enter gave. See BackendScope.
  virtual Status Enter(void** outer) {
    *outer = nullptr;
    return Status::Ok();
  }
  virtual void Leave(void* outer) { (void)outer; }

  // Enqueues a mark, for timelines. Its time is exact beside that of `since`, which was enqueued
  // shortly before; null if there is no such mark.
  virtual Status Mark(Stream stream, const std::shared_ptr<const TimeMark>& since,
                      std::shared_ptr<const TimeMark>* mark) {
    (void)stream, (void)since, (void)mark;
    return Unsupported("Expected a backend that marks times, got one that does not.");
  }

  virtual Status Record(Event* event, Stream stream) = 0;
  virtual Status Wait(Stream stream, Event* event) = 0;

  // Returns when everything that is on `stream` now has run. For failures only: see the stream
  // contract (stage_runner.h).
  virtual Status Synchronize(Stream stream) = 0;

  // Enqueues `prepared` on `stream`, a group's or the caller's, and returns without waiting for it.
  // `workspace` holds prepared.workspace_bytes().
  virtual Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                        void* workspace, Stream stream) = 0;

  // Enqueues the transformation of a filter that many launches will read; `transformed` holds
  // prepared.transformed_filter_bytes(), which is not 0.
  virtual Status TransformFilter(const PreparedConvolution& prepared, const void* filter,
                                 void* transformed, Stream stream) {
    (void)filter, (void)transformed, (void)stream;
    return Unsupported("Expected an algorithm that transforms its filter, got '" +
                       prepared.algorithm() + "'.");
  }

  // Enqueues the filling of `bytes` bytes with zeros.
  virtual Status FillZero(void* data, size_t bytes, Stream stream) = 0;

  // Enqueues the copying of `rows` rows of `row_bytes` bytes, which begin `source_pitch` bytes
  // apart here and `destination_pitch` bytes there. A pitch is at least `row_bytes` and fits in an
  // int. Source and destination do not overlap.
  virtual Status CopyRows(const void* source, size_t source_pitch, void* destination,
                          size_t destination_pitch, size_t row_bytes, size_t rows,
                          Stream stream) = 0;

  // From here to EndCapture on the same thread, what is enqueued on `stream`, a group's, and on
  // streams that wait for it, is captured and does not run. The thread may neither wait for the
  // device nor make anything in between. kUnsupported where the backend cannot capture.
  virtual Status BeginCapture(Stream stream) {
    (void)stream;
    return Unsupported("Expected a backend that captures work, got one that cannot.");
  }
  // Ends the capture, also one that has failed, which is an error. `stream` has to wait for all
  // that is captured.
  virtual Status EndCapture(Stream stream, std::unique_ptr<CapturedWork>* captured) {
    (void)captured;
    return BeginCapture(stream);
  }
  // Enqueues all of `work`, on the memory that it was captured on.
  virtual Status Replay(CapturedWork* work, Stream stream) {
    (void)work;
    return BeginCapture(stream);
  }
};

// The thread is between Enter and Leave of a backend while this lives.
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
