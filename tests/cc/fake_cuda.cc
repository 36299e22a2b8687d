// The entry points must be visible, whatever the build's default.
#pragma GCC visibility push(default)

#include "tests/cc/fake_cuda.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

// All drivers have this name (libraries.h).
#undef cuEventElapsedTime

struct CUctx_st {
  CUdevice device = 0;
};

// Runs after the nodes in `after`.
struct GraphNode {
  std::function<void()> work;
  std::set<size_t> after;
};

struct CUgraph_st {
  std::vector<GraphNode> nodes;
};

// Launches of a graph share it and keep it until they have run.
struct RunningGraph {
  // Runs one node at a time, in the order that differs most from the capture's.
  void Run() {
    std::lock_guard<std::mutex> lock(mutex);
    std::vector<bool> is_done(nodes.size());
    for (size_t count = 0; count < nodes.size(); ++count) {
      size_t next = nodes.size();
      const auto is_ready = [&](const GraphNode& node) {
        return std::all_of(node.after.begin(), node.after.end(),
                           [&](size_t each) { return is_done[each]; });
      };
      do --next;
      while (is_done[next] || !is_ready(nodes[next]));
      nodes[next].work();
      is_done[next] = true;
    }
  }

  const std::vector<GraphNode> nodes;
  std::mutex mutex;  // held by a launch
};

struct CUgraphExec_st {
  std::shared_ptr<RunningGraph> graph;
  std::atomic<bool> in_use{false};
};

// Events refer to it even after its end.
struct Capture {
  std::vector<GraphNode> nodes;
  std::set<CUstream> streams;
  bool is_spoilt = false;
};
thread_local std::shared_ptr<Capture> capture_of_thread;
thread_local CUstreamCaptureMode capture_mode_of_thread = CU_STREAM_CAPTURE_MODE_GLOBAL;

// A place in a capture, after these nodes.
struct CapturePlace {
  std::shared_ptr<Capture> capture;  // null if nothing is captured
  std::set<size_t> nodes;
};

struct CUstream_st {
  CUstream_st(CUcontext owner, bool is_lane, int priority)
      : context(owner), is_lane(is_lane), priority(priority) {
    if (is_lane) ++tf_interop::FakeCudaCounts().live_streams;
  }
  ~CUstream_st() {
    if (is_lane) --tf_interop::FakeCudaCounts().live_streams;
  }

  void Enqueue(std::function<void()> work) {
    if (place.capture != nullptr) {
      std::vector<GraphNode>& nodes = place.capture->nodes;
      nodes.push_back({std::move(work), std::exchange(place.nodes, {nodes.size()})});
      return;
    }
    queue->Enqueue([is_lane = is_lane, work = std::move(work)] {
      const int delay_us = is_lane ? tf_interop::FakeCuda().lane_delay_us : 0;
      if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
      work();
    });
  }

  const CUcontext context;
  const bool is_lane;
  const int priority;
  const std::unique_ptr<tf_interop::HostStream> queue = std::make_unique<tf_interop::HostStream>();
  std::atomic<int> row_copies{0};
  CapturePlace place;  // used by the thread that captures
};

// The time when the stream reaches a recording of an event.
using Recording = std::shared_future<std::chrono::steady_clock::time_point>;

bool IsReached(const Recording& recording) {
  return recording.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

struct CUevent_st {
  CUevent_st(CUcontext owner, bool is_timed) : context(owner), is_timed(is_timed) {}
  const CUcontext context;
  const bool is_timed;
  std::mutex mutex;
  Recording last;
  CapturePlace place;  // of the last recording, if it was captured
};

Recording LastRecording(CUevent event) {
  std::lock_guard<std::mutex> lock(event->mutex);
  return event->last;
}

namespace tf_interop {
namespace {

thread_local std::vector<CUcontext> current_contexts;

// The primary contexts and the callers' streams are never destroyed.
struct Devices {
  std::mutex mutex;
  std::vector<CUcontext> primary_contexts;
  std::deque<CUstream_st> callers;
};

Devices& AllDevices() {
  static Devices* const devices = new Devices();
  return *devices;
}

// Creates the context if `device` is the next new one.
CUcontext PrimaryContext(size_t device) {
  std::vector<CUcontext>& contexts = AllDevices().primary_contexts;
  if (device > contexts.size()) return nullptr;
  if (device == contexts.size()) {
    auto* made = new CUctx_st();
    made->device = static_cast<CUdevice>(device);
    contexts.push_back(made);
  }
  return contexts[device];
}

}  // namespace

CUcontext FakeCudaMakeContext() {
  std::lock_guard<std::mutex> lock(AllDevices().mutex);
  (void)PrimaryContext(0);  // the device that cuDeviceGet finds
  return PrimaryContext(AllDevices().primary_contexts.size());
}

CUstream FakeCudaMakeStream(CUcontext context) {
  std::lock_guard<std::mutex> lock(AllDevices().mutex);
  return &AllDevices().callers.emplace_back(context, false, 0);
}

void FakeCudaEnqueue(CUstream stream, std::function<void()> work) {
  stream->Enqueue(std::move(work));
}

void FakeCudaSynchronize(CUstream stream) { stream->queue->Synchronize(); }

CUcontext FakeCudaCurrentContext() {
  return current_contexts.empty() ? nullptr : current_contexts.back();
}

HostStream* FakeCudaQueueOf(CUstream stream) { return stream->queue.get(); }

int FakeCudaPriorityOf(CUstream stream) { return stream->priority; }

int FakeCudaRowCopiesOn(CUstream stream) { return stream->row_copies; }

FakeCudaSwitches& FakeCuda() {
  static FakeCudaSwitches switches;
  return switches;
}

bool FakeCudaComputesNothing() {
  static const bool computes_nothing = std::getenv("TF_INTEROP_FAKE_CUDNN_NO_WORK") != nullptr;
  return computes_nothing;
}

bool FakeCudaSpoilsCapture() {
  if (capture_of_thread == nullptr || capture_mode_of_thread == CU_STREAM_CAPTURE_MODE_RELAXED) {
    return false;
  }
  capture_of_thread->is_spoilt = true;
  return true;
}

// fake_cuda_modules.cc calls this.
bool FakeCudaFailsToLoad() { return FakeCuda().fail_module_loading || FakeCudaSpoilsCapture(); }

FakeCudaObjects& FakeCudaCounts() {
  static FakeCudaObjects objects;
  return objects;
}

}  // namespace tf_interop

using namespace tf_interop;  // NOLINT: the C interface of the functions above

constexpr int kHighestPriority = -5, kLowestPriority = 0;

CUresult MakeLaneStream(CUcontext context, unsigned int flags, int priority, CUstream* stream) {
  if (FakeCudaSpoilsCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  if (FakeCudaCounts().streams_left-- <= 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *stream = new CUstream_st(context, true, priority);
  return CUDA_SUCCESS;
}

extern "C" {

CUresult CUDAAPI cuInit(unsigned int) { return CUDA_SUCCESS; }

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_OTHER";
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

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
  if (FakeCudaCurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = FakeCudaCurrentContext()->device;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (FakeCudaCurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *least = kLowestPriority;
  *greatest = kHighestPriority;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  if (FakeCudaCurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return MakeLaneStream(FakeCudaCurrentContext(), flags, priority, stream);
}

CUresult CUDAAPI cuStreamDestroy(CUstream stream) {
  if (FakeCudaCurrentContext() != stream->context) return CUDA_ERROR_INVALID_CONTEXT;
  delete stream;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCtx(CUstream stream, CUcontext* context) {
  *context = stream->context;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventCreate(CUevent* event, unsigned int flags) {
  if (FakeCudaCurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (FakeCudaSpoilsCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (flags != CU_EVENT_DISABLE_TIMING && flags != CU_EVENT_DEFAULT) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *event = new CUevent_st(FakeCudaCurrentContext(), flags == CU_EVENT_DEFAULT);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy(CUevent event) {
  if (FakeCudaCurrentContext() != event->context) return CUDA_ERROR_INVALID_CONTEXT;
  delete event;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
  if (FakeCudaCurrentContext() != stream->context) return CUDA_ERROR_INVALID_CONTEXT;
  if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  ++FakeCudaCounts().records;
  if (FakeCudaComputesNothing()) return CUDA_SUCCESS;
  event->place = stream->place;
  if (stream->place.capture != nullptr) {
    return stream->place.capture->is_spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  }
  const auto reached = std::make_shared<std::promise<std::chrono::steady_clock::time_point>>();
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    event->last = reached->get_future();
  }
  stream->Enqueue([reached] { reached->set_value(std::chrono::steady_clock::now()); });
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int) {
  if (FakeCudaCurrentContext() != stream->context) return CUDA_ERROR_INVALID_CONTEXT;
  // Stricter than CUDA: an event that streams wait for costs less without timing.
  if (event->is_timed) return CUDA_ERROR_INVALID_VALUE;
  ++FakeCudaCounts().waits;
  if (FakeCudaComputesNothing()) return CUDA_SUCCESS;
  const std::shared_ptr<Capture>& capture = event->place.capture;
  if (capture != nullptr || stream->place.capture != nullptr) {
    if (capture == nullptr || capture != capture_of_thread ||
        (stream->place.capture != nullptr && stream->place.capture != capture)) {
      FakeCudaSpoilsCapture();
      return capture == nullptr ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : CUDA_ERROR_CAPTURED_EVENT;
    }
    capture->streams.insert(stream);
    stream->place.capture = capture;
    stream->place.nodes.insert(event->place.nodes.begin(), event->place.nodes.end());
    return CUDA_SUCCESS;
  }
  const Recording recording = LastRecording(event);
  if (recording.valid()) stream->Enqueue([recording] { recording.wait(); });
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventQuery(CUevent event) {
  if (event->place.capture != nullptr) {
    event->place.capture->is_spoilt = true;
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  const Recording recording = LastRecording(event);
  return !recording.valid() || IsReached(recording) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuEventElapsedTime(float* elapsed_ms, CUevent start, CUevent stop) {
  const Recording from = LastRecording(start), to = LastRecording(stop);
  if (!start->is_timed || !stop->is_timed || !from.valid() || !to.valid()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!IsReached(from) || !IsReached(to)) return CUDA_ERROR_NOT_READY;
  *elapsed_ms = std::chrono::duration<float, std::milli>(to.get() - from.get()).count();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal != 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

// An invented device, whose values differ from each other.

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  *version = 12080;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char* name, int size, CUdevice) {
  std::snprintf(name, static_cast<size_t>(size), "Invented GPU");
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceTotalMem(size_t* bytes, CUdevice) {
  *bytes = size_t{80} << 30;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  static const auto* values = new std::map<CUdevice_attribute, int>{
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 1},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
      {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024}};
  const auto found = values->find(attribute);
  if (found == values->end()) return CUDA_ERROR_INVALID_VALUE;
  *value = found->second;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  std::lock_guard<std::mutex> lock(AllDevices().mutex);
  *context = PrimaryContext(static_cast<size_t>(device));
  return *context == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream stream) {
  if (FakeCudaCurrentContext() != stream->context) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream->place.capture != nullptr) {
    stream->place.capture->is_spoilt = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  stream->queue->Synchronize();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  if (FakeCudaCurrentContext() != stream->context) return CUDA_ERROR_INVALID_CONTEXT;
  if (mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) return CUDA_ERROR_INVALID_VALUE;
  if (!stream->is_lane) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (capture_of_thread != nullptr || stream->place.capture != nullptr) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  capture_of_thread = std::make_shared<Capture>();
  capture_of_thread->streams.insert(stream);
  stream->place = {capture_of_thread, {}};
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  *status = stream->place.capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
                                             : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, capture_mode_of_thread);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  if (FakeCudaCurrentContext() != stream->context) return CUDA_ERROR_INVALID_CONTEXT;
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = std::move(capture_of_thread);
  capture_of_thread = nullptr;
  if (capture == nullptr || stream->place.capture != capture) {
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  const std::vector<GraphNode>& nodes = capture->nodes;
  std::set<size_t> joined = stream->place.nodes;
  for (size_t node = nodes.size(); node-- > 0;) {
    if (joined.count(node) != 0) joined.insert(nodes[node].after.begin(), nodes[node].after.end());
  }
  for (CUstream each : capture->streams) each->place = CapturePlace();
  if (capture->is_spoilt) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (joined.size() != nodes.size()) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  *graph = new CUgraph_st{nodes};
  ++FakeCudaCounts().live_graphs;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph,
                                             unsigned long long flags) {
  if (FakeCudaCurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags != CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY) return CUDA_ERROR_INVALID_VALUE;
  if (FakeCuda().fail_instantiation) return CUDA_ERROR_OUT_OF_MEMORY;
  *exec = new CUgraphExec_st{std::shared_ptr<RunningGraph>(new RunningGraph{graph->nodes, {}})};
  ++FakeCudaCounts().live_graphs;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  if (FakeCudaCurrentContext() != stream->context) return CUDA_ERROR_INVALID_CONTEXT;
  if (FakeCuda().fail_graph_launch) return CUDA_ERROR_LAUNCH_FAILED;
  if (exec->in_use.exchange(true)) ++FakeCudaCounts().graph_races;
  ++FakeCudaCounts().graph_launches;
  if (!FakeCudaComputesNothing()) stream->Enqueue([graph = exec->graph] { graph->Run(); });
  exec->in_use = false;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec) {
  if (FakeCudaCurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  delete exec;
  --FakeCudaCounts().live_graphs;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph) {
  delete graph;
  --FakeCudaCounts().live_graphs;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  if (FakeCudaCurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (FakeCudaSpoilsCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  void* data = nullptr;
  if (FakeCuda().fail_allocation || bytes == 0 || posix_memalign(&data, 256, bytes) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ++FakeCudaCounts().live_allocations;
  *address = reinterpret_cast<CUdeviceptr>(data);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr address) {
  if (FakeCudaCurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (FakeCudaSpoilsCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  --FakeCudaCounts().live_allocations;
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

CUresult CUDAAPI cuMemcpy2DAsync(const CUDA_MEMCPY2D* copy, CUstream stream) {
  if (FakeCudaCurrentContext() != stream->context) return CUDA_ERROR_INVALID_CONTEXT;
  const CUDA_MEMCPY2D c = *copy;
  const bool is_on_device =
      c.srcMemoryType == CU_MEMORYTYPE_DEVICE && c.dstMemoryType == CU_MEMORYTYPE_DEVICE;
  const size_t most_pitch = 0x7fffffff;
  const bool has_pitches = c.srcPitch >= c.WidthInBytes && c.dstPitch >= c.WidthInBytes &&
                           c.srcPitch <= most_pitch && c.dstPitch <= most_pitch;
  if (!is_on_device || !has_pitches || c.WidthInBytes == 0 || c.Height == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (FakeCuda().fail_copy) return CUDA_ERROR_LAUNCH_FAILED;
  ++stream->row_copies;
  stream->Enqueue([c] {
    const auto* from = reinterpret_cast<const char*>(c.srcDevice);
    auto* to = reinterpret_cast<char*>(c.dstDevice);
    for (size_t row = 0; row < c.Height; ++row) {
      std::memcpy(to + row * c.dstPitch, from + row * c.srcPitch, c.WidthInBytes);
    }
  });
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes,
                                 CUstream stream) {
  if (FakeCudaCurrentContext() != stream->context) return CUDA_ERROR_INVALID_CONTEXT;
  stream->Enqueue(
      [address, value, bytes] { std::memset(reinterpret_cast<void*>(address), value, bytes); });
  return CUDA_SUCCESS;
}

}  // extern "C"

#pragma GCC visibility pop
