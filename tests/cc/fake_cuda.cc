// Entry points of both stand-ins are to be found by name, whatever the build's default is.
#pragma GCC visibility push(default)

#include "tests/cc/fake_cuda.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

struct CUctx_st {};

struct CUstream_st {
  CUstream_st(CUcontext owner, bool is_lane)
      : context(owner), is_lane(is_lane), worker([this] { Work(); }) {}
  ~CUstream_st() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    worker.join();
  }

  void Enqueue(std::function<void()> work) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      queue.push_back(std::move(work));
    }
    changed.notify_all();
  }

  void Synchronize() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return queue.empty() && !busy; });
  }

  void Work() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stopping || !queue.empty(); });
      if (queue.empty()) return;
      const std::function<void()> work = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      const int delay_us = is_lane ? tf_interop::FakeCuda().lane_delay_us : 0;
      if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
      work();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }

  const CUcontext context;
  const bool is_lane;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool busy = false;
  bool stopping = false;
  std::thread worker;
};

// One recording of an event.
struct Recording {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
};

struct CUevent_st {
  std::mutex mutex;
  std::shared_ptr<Recording> last;
};

namespace tf_interop {
namespace {

thread_local std::vector<CUcontext> current_contexts;

}  // namespace

CUcontext FakeCudaMakeContext() { return new CUctx_st(); }

CUstream FakeCudaMakeStream(CUcontext context) { return new CUstream_st(context, false); }

void FakeCudaEnqueue(CUstream stream, std::function<void()> work) {
  stream->Enqueue(std::move(work));
}

void FakeCudaSynchronize(CUstream stream) { stream->Synchronize(); }

CUcontext FakeCudaCurrentContext() {
  return current_contexts.empty() ? nullptr : current_contexts.back();
}

FakeCudaSwitches& FakeCuda() {
  static FakeCudaSwitches switches;
  return switches;
}

}  // namespace tf_interop

using tf_interop::current_contexts;
using tf_interop::FakeCuda;
using tf_interop::FakeCudaCurrentContext;

extern "C" {

CUresult CUDAAPI cuInit(unsigned int) { return CUDA_SUCCESS; }

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
                                              : "CUDA_ERROR_LAUNCH_FAILED";
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult, const char** text) {
  *text = "made by the test";
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  current_contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext* context) {
  if (current_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = current_contexts.back();
  current_contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int) {
  if (FakeCudaCurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *stream = new CUstream_st(FakeCudaCurrentContext(), true);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamDestroy(CUstream stream) {
  delete stream;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCtx(CUstream stream, CUcontext* context) {
  *context = stream->context;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventCreate(CUevent* event, unsigned int flags) {
  if (FakeCudaCurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags != CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_VALUE;
  *event = new CUevent_st();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy(CUevent event) {
  delete event;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
  if (FakeCudaCurrentContext() != stream->context) return CUDA_ERROR_INVALID_CONTEXT;
  auto recording = std::make_shared<Recording>();
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    event->last = recording;
  }
  stream->Enqueue([recording] {
    std::lock_guard<std::mutex> lock(recording->mutex);
    recording->reached = true;
    recording->changed.notify_all();
  });
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int) {
  std::shared_ptr<Recording> recording;
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    recording = event->last;
  }
  if (!recording) return CUDA_SUCCESS;
  stream->Enqueue([recording] {
    std::unique_lock<std::mutex> lock(recording->mutex);
    recording->changed.wait(lock, [&recording] { return recording->reached; });
  });
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes,
                                 CUstream stream) {
  if (FakeCudaCurrentContext() != stream->context) return CUDA_ERROR_INVALID_CONTEXT;
  if (FakeCuda().fail_memset) return CUDA_ERROR_LAUNCH_FAILED;
  stream->Enqueue(
      [address, value, bytes] { std::memset(reinterpret_cast<void*>(address), value, bytes); });
  return CUDA_SUCCESS;
}

}  // extern "C"

#pragma GCC visibility pop
