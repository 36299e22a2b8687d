// What the runner needs of a device: in-order streams, events, and convolutions on them.
//
// Two backends implement it: `host` (the CPU; streams are queues with a thread of their own) and
// `cudnn` (CUDA streams through libcuda, convolutions through libcudnn, both opened at run time).
#ifndef TF_INTEROP_CORE_BACKEND_H_
#define TF_INTEROP_CORE_BACKEND_H_

#include <cstddef>
#include <memory>
#include <string>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// An in-order queue of work: a HostStream* or a CUstream.
using Stream = void*;

// A point in a stream that other streams can wait for. As in CUDA, Wait refers to the Record that
// came last before the call, and an event may be recorded again while older waits are pending.
class Event {
 public:
  virtual ~Event() = default;
};

// What one lane of a stage owns while the stage is launched: a stream, whatever the backend needs
// to launch on it (a cuDNN handle), and the two events of the stream contract. Not thread-safe;
// leased by one call at a time.
class StreamGroup {
 public:
  virtual ~StreamGroup() = default;
  virtual Stream stream() const = 0;
  virtual Event* fork_event() = 0;
  virtual Event* join_event() = 0;
};

// A convolution made ready for one device: immutable, shared between threads, launched many times.
class PreparedConvolution {
 public:
  virtual ~PreparedConvolution() = default;
  virtual size_t workspace_bytes() const = 0;
  // The algorithm that will run, in the form that Prepare accepts.
  virtual const std::string& algorithm() const = 0;
};

// Thread-safe. One per device; lives until the process ends.
class Backend {
 public:
  virtual ~Backend() = default;

  // Makes `convolution` ready. An empty `algorithm` means the backend's own (heuristic) choice
  // among those that need at most `workspace_limit_bytes`; with a limit of 0 it takes what needs
  // least, even if that is not nothing. Returns kUnsupported where a pinned algorithm cannot run
  // this convolution or needs more workspace, kInvalidArgument where there is no algorithm of that
  // name.
  virtual Status Prepare(const Convolution& convolution, const std::string& algorithm,
                         size_t workspace_limit_bytes,
                         std::shared_ptr<const PreparedConvolution>* prepared) = 0;

  // Takes a stream group out of the pool, or makes one. It goes back with Release, which may be
  // called as soon as everything has been enqueued: streams keep the order.
  virtual Status Acquire(std::unique_ptr<StreamGroup>* group) = 0;
  virtual void Release(std::unique_ptr<StreamGroup> group) = 0;

  virtual Status Record(Event* event, Stream stream) = 0;
  virtual Status Wait(Stream stream, Event* event) = 0;

  // Enqueues `prepared` on `stream` and returns without waiting for it. `stream` is the group's
  // own or, for a stage of one lane, the caller's. `workspace` holds prepared.workspace_bytes().
  virtual Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                        void* workspace, StreamGroup* group, Stream stream) = 0;

  // Enqueues the filling of `bytes` bytes with zeros.
  virtual Status FillZero(void* data, size_t bytes, Stream stream) = 0;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_BACKEND_H_
