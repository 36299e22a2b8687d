// The CPU as a device of the runner: each stream group is a queue on a thread of its own, and
// convolutions are computed by their definition (reference_convolution.h), each on one thread.
//
// There are two algorithms, so that there is something to choose: BUFFERED adds up in its
// workspace, and DIRECT has none. Half and bfloat16 filters are transformed to double by both.
#ifndef TF_INTEROP_CORE_HOST_BACKEND_H_
#define TF_INTEROP_CORE_HOST_BACKEND_H_

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/host/stream.h"

namespace tf_interop {

// Called on the lane's thread before each convolution that runs there. Tests inject delays and
// failures through it.
using HostLaunchHook = std::function<Status(const Convolution&)>;

// Thread-safe. An error of work on a stream is handed on by the events recorded behind it, so that
// the caller's stream has it after the join.
//
// The pool has a limit, so that many calls at once do not start threads without end. Beyond it, and
// where the system gives no further thread, streams have no thread: what is enqueued there runs on
// the thread that enqueues it.
//
// A stream's priority is a hint, and there is nothing here to heed it. SMs of its own would be a
// promise: such a group is refused with kUnsupported.
//
// TF_INTEROP_HOST_REFUSES in the environment holds names of algorithms that are refused for now, as
// cuDNN refuses some while memory is short. Tests of the op set it.
//
// After fork() the child finds an empty pool: the threads of the parent's streams are not there.
class HostBackend : public Backend {
 public:
  explicit HostBackend(HostLaunchHook hook = nullptr);

  Status Prepare(const Convolution& convolution, const std::string& algorithm,
                 const PrepareOptions& options,
                 std::shared_ptr<const PreparedConvolution>* prepared) override;
  // Both, in every scope.
  Status ListAlgorithms(const Convolution& convolution, AlgorithmScope scope, bool allow_tf32,
                        std::vector<std::string>* algorithms) override;

  using Backend::Acquire;
  Status Acquire(const StreamGroupOptions& options, std::unique_ptr<StreamGroup>* group) override;
  void Release(std::unique_ptr<StreamGroup> group) override;
  Status Mark(Stream stream, const std::shared_ptr<const TimeMark>& since,
              std::shared_ptr<const TimeMark>* mark) override;
  Status Record(Event* event, Stream stream) override;
  Status Wait(Stream stream, Event* event) override;
  Status Synchronize(Stream stream) override;
  Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                void* workspace, Stream stream) override;
  Status TransformFilter(const PreparedConvolution& prepared, const void* filter, void* transformed,
                         Stream stream) override;
  Status FillZero(void* data, size_t bytes, Stream stream) override;
  Status CopyRows(const void* source, size_t source_pitch, void* destination,
                  size_t destination_pitch, size_t row_bytes, size_t rows, Stream stream) override;

 private:
  // Forgets the streams of another process. Requires mutex_.
  void DropStreamsOfParent();

  const HostLaunchHook hook_;
  std::mutex mutex_;
  pid_t owner_;                                     // guarded by mutex_
  int thread_count_ = 0;                            // guarded by mutex_
  std::vector<std::unique_ptr<StreamGroup>> idle_;  // guarded by mutex_
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_HOST_BACKEND_H_
