// The CPU's counterpart of CUDA streams and events: a queue of work with a thread of its own, and a
// point in it that other queues can wait for.
#ifndef TF_INTEROP_CORE_HOST_STREAM_H_
#define TF_INTEROP_CORE_HOST_STREAM_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Opens once, with the outcome of what came before it; whoever waits before that sleeps.
class Latch {
 public:
  void Open(Status outcome);
  Status Wait();

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
  Status outcome_;
};

// Runs what is enqueued, in order, on its own thread, if it has one. Thread-safe. The destructor
// runs what is still queued and joins the thread.
class HostStream {
 public:
  // Returns kResourceExhausted where the system gives no further thread.
  static Status Create(std::unique_ptr<HostStream>* stream);
  // A stream without a thread: Enqueue runs the work before it returns. Work that waits for another
  // stream must find there all that it waits for.
  static std::unique_ptr<HostStream> CreateWithoutThread();
  ~HostStream();
  bool has_thread() const { return thread_.joinable(); }
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // `work` may fail or throw; the first error is kept until TakeError. As with CUDA's sticky
  // errors, later work still runs. Where a profiler records what enqueues it, the work is traced
  // under the same label (trace.h).
  void Enqueue(std::function<Status()> work);

  // Waits until everything that was enqueued before the call has run.
  void Synchronize();

  // The first error of the work that has run so far, which is then forgotten. Called from work on
  // the stream itself, it covers everything before that work.
  Status TakeError();

 private:
  HostStream() = default;
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<Status()>> queue_;
  bool closing_ = false;
  Status error_;
  std::thread thread_;
};

// Record replaces the latch, so that a Wait refers to the Record before it.
class HostEvent : public Event {
 public:
  // Makes a new latch for the stream to open.
  std::shared_ptr<Latch> Record();
  // The latch of the last Record; null before the first.
  std::shared_ptr<Latch> latch() const { return latch_; }

 private:
  std::shared_ptr<Latch> latch_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_HOST_STREAM_H_
