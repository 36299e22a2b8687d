// The CPU's counterparts of CUDA streams and events: a queue of work with a thread of its own, and
// a point in it that other queues can wait for.
#ifndef TF_INTEROP_CORE_HOST_STREAM_H_
#define TF_INTEROP_CORE_HOST_STREAM_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Runs its work in order on its own thread. Thread-safe. The destructor runs the rest of the queue
// and joins the thread.
class HostStream {
 public:
  HostStream() : thread_([this] { Run(); }) {}
  ~HostStream();
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // `work` returns nothing or a Status, and may throw. The first error is kept until TakeError, and
  // later work still runs.
  template <typename Work>
  void Enqueue(Work work) {
    EnqueueWork([work = std::move(work)]() mutable -> Status {
      if constexpr (std::is_void_v<decltype(work())>) {
        work();
        return Status::Ok();
      } else {
        return work();
      }
    });
  }

  // Waits for the work that is enqueued now.
  void Synchronize();

  // Returns and forgets the first error of the work that has run. Called on the stream itself, it
  // covers everything before the call.
  Status TakeError();

 private:
  void EnqueueWork(std::function<Status()> work);
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<Status()>> queue_;
  bool closing_ = false;
  Status error_;
  std::thread thread_;  // last, because it uses the other members
};

// Enqueues `work` on a HostStream.
template <typename Work>
Status EnqueueOn(Stream stream, Work work) {
  static_cast<HostStream*>(stream)->Enqueue(std::move(work));
  return Status::Ok();
}

// Wait refers to the last Record before it.
struct HostEvent {
  std::shared_future<Status> reached;  // the outcome of the work before it
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_HOST_STREAM_H_
