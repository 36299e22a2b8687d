// Entry points of both stand-ins are to be found by name, whatever the build's default is.
#pragma GCC visibility push(default)

#include "tests/cc/fake_cuda.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
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
  std::chrono::steady_clock::time_point time;  // when it was reached
};

struct CUevent_st {
  explicit CUevent_st(bool is_timed) : is_timed(is_timed) {}
  const bool is_timed;
  std::mutex mutex;
  std::shared_ptr<Recording> last;
};

std::shared_ptr<Recording> LastRecording(CUevent event) {
  std::lock_guard<std::mutex> lock(event->mutex);
  return event->last;
}

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

std::atomic<int>& FakeCudaLiveAllocations() {
  static std::atomic<int> live{0};
  return live;
}

}  // namespace tf_interop

using tf_interop::current_contexts;
using tf_interop::FakeCuda;
using tf_interop::FakeCudaCurrentContext;
using tf_interop::FakeCudaLiveAllocations;

extern "C" {

CUresult CUDAAPI cuInit(unsigned int) { return CUDA_SUCCESS; }

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
          : error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
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
  if (flags != CU_EVENT_DISABLE_TIMING && flags != CU_EVENT_DEFAULT) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *event = new CUevent_st(flags == CU_EVENT_DEFAULT);
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
    recording->time = std::chrono::steady_clock::now();
    recording->changed.notify_all();
  });
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int) {
  // Stricter than CUDA: an event that streams wait for costs less without timing.
  if (event->is_timed) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Recording> recording = LastRecording(event);
  if (!recording) return CUDA_SUCCESS;
  stream->Enqueue([recording] {
    std::unique_lock<std::mutex> lock(recording->mutex);
    recording->changed.wait(lock, [&recording] { return recording->reached; });
  });
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventElapsedTime(float* elapsed_ms, CUevent start, CUevent stop) {
  const std::shared_ptr<Recording> from = LastRecording(start), to = LastRecording(stop);
  if (!start->is_timed || !stop->is_timed || !from || !to) return CUDA_ERROR_INVALID_HANDLE;
  std::scoped_lock lock(from->mutex, to->mutex);
  if (!from->reached || !to->reached) return CUDA_ERROR_NOT_READY;
  *elapsed_ms = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal != 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  static const CUcontext primary = new CUctx_st();
  *context = primary;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream stream) {
  if (FakeCudaCurrentContext() != stream->context) return CUDA_ERROR_INVALID_CONTEXT;
  stream->Synchronize();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  if (FakeCudaCurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  void* data = nullptr;
  if (FakeCuda().fail_allocation || bytes == 0 || posix_memalign(&data, 256, bytes) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ++FakeCudaLiveAllocations();
  *address = reinterpret_cast<CUdeviceptr>(data);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr address) {
  if (FakeCudaCurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  --FakeCudaLiveAllocations();
  std::free(reinterpret_cast<void*>(address));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes,
                                   CUstream stream) {
  if (FakeCudaCurrentContext() != stream->context) return CUDA_ERROR_INVALID_CONTEXT;
  stream->Enqueue([=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  if (FakeCudaCurrentContext() != stream->context) return CUDA_ERROR_INVALID_CONTEXT;
  stream->Enqueue([=] { std::memcpy(to, reinterpret_cast<void*>(from), bytes); });
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
